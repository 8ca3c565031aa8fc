"""Options: where they come from, which of them wins, and the error for a wrong one."""

from pathlib import Path
from typing import Any

import pytest

from fedgrec import cli
from fedgrec.cli.configured import configuration
from fedgrec.config.configuration import Config, preset, read_toml
from tests.cli.small import clicks, lines, timeless, train, train_words


def resolve(*words: str) -> Config:
    return configuration(cli.parser().parse_args(["train", *words]))


def refused(capsys: Any, *words: str) -> str:
    """The one sentence of a command that ends with code 2."""
    assert cli.main([*words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("fedgrec: ")
    assert said.err.count("\n") == 1
    return str(said.err)


def test_flags_win_over_set_over_file_over_preset(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("[model]\nlayers = 4\ndim = 16\nnegatives = 7\n")
    words = [
        "--preset",
        "paper",
        "--config",
        str(mine),
        "--set",
        "dim=32",
        "--set",
        "negatives=8",
        "--negatives",
        "9",
    ]
    assert preset("paper").model.layers == 2
    model = resolve(*words).model
    assert (model.local_steps, model.layers, model.dim, model.negatives) == (10, 4, 32, 9)


def test_without_a_word_the_defaults_hold() -> None:
    assert resolve() == Config() == preset("best")


def test_every_type_can_be_set_in_every_way(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("live = false\ntopk = [5, 10]\nmin_rating = 4\nl2 = 1e-3\n")
    by_file = resolve("--config", str(mine))
    by_set = resolve("--set", "live=false", "--set", "topk=5,10", "--set", "min_rating=4", "--set", "l2=1e-3")
    by_flag = resolve("--no-live", "--topk", "5,10", "--min-rating", "4", "--l2", "1e-3")
    assert by_file == by_set == by_flag
    assert (by_file.run.topk, by_file.data.min_rating) == ((5, 10), 4.0)


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("layer=2", "there is no option 'layer'. Did you mean 'layers'?"),
        ("layers=two", "layers cannot be 'two': it is a whole number"),
        ("layers=2.5", "layers cannot be 2.5: it is a whole number"),
        ("layers=true", "layers cannot be True: it is a whole number"),
        ("layers=-1", "layers cannot be -1: it is at least 0 and at most 16"),
        ("l2=much", "l2 cannot be 'much': it is a number"),
        ("l2=nan", "l2 cannot be nan: it is at least 0"),
        ("dropout=1.5", "dropout cannot be 1.5: it is at least 0 and at most 1"),
        ("live=maybe", "live cannot be 'maybe': it is true or false"),
        ("loss=hinge", "loss cannot be 'hinge': choose one of softmax, bpr, mse"),
        ("topk=[]", "topk needs at least one list length"),
        ("topk=ten", "topk cannot be 'ten': it is a list of numbers"),
        ("alphas=[1, 2]", "alphas has 2 weights, but layers = 2 needs 3"),
        ("combine=concat", "live = true is not defined for combine = 'concat'"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_nothing_is_written(
    capsys: Any, data: Path, tmp_path: Path, assignment: str, sentence: str
) -> None:
    out = tmp_path / "run"
    assert sentence in refused(capsys, "train", "--data", str(data), "--out", str(out), "--set", assignment)
    key, _, value = assignment.partition("=")
    mine = tmp_path / "mine.toml"
    bare = value[:1] in "[-" or value in {"true", "nan"} or value.replace(".", "").isdigit()
    mine.write_text(f"{key} = {value if bare else repr(value)}\n")
    said = refused(capsys, "train", "--data", str(data), "--out", str(out), "--config", str(mine))
    assert sentence in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("layers = ", "not a TOML file"),
        ("[modle]\nlayers = 2", "there is no section [modle]. Did you mean 'model'?"),
        ("[model]\nnegative = 2", "there is no option 'negative'. Did you mean 'negatives'?"),
        ("[wire]\nlayers = 2", "layers is not in the group 'wire' but in 'model': write model.layers, or [model]"),
        ("[optimizer]\nepsilon = 1e-8", "there is no option 'epsilon'. Its name is now adam_epsilon"),
    ],
)
def test_a_wrong_file_of_options_is_named(capsys: Any, tmp_path: Path, content: str, sentence: str) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(content)
    said = refused(capsys, "train", "--config", str(mine), "--out", str(tmp_path / "run"))
    assert str(mine) in said
    assert sentence in said
    assert not (tmp_path / "run").exists()


def test_a_group_may_stand_before_a_name_and_above_it_in_a_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("[wire]\nitem_levels = 7\n[optimizer]\nuser_rate = 0.5\n[ranking]\ntopk = [5]\n")
    words = ("wire.item_levels=7", "optimizer.user-rate=0.5", "ranking.topk=5")
    assert resolve("--config", str(mine)) == resolve(*(part for word in words for part in ("--set", word)))
    assert Config().changed({"wire.item_levels": 7}) == Config().changed({"item_levels": 7})


def test_a_record_of_release_0_2_has_other_sections(tmp_path: Path) -> None:
    """Its [model] has all options of the method, and its [run] all options of the run."""
    mine = tmp_path / "mine.toml"
    mine.write_text("[model]\nitem_levels = 7\nuser_rate = 0.5\n[run]\ntopk = [5]\n")
    assert resolve("--config", str(mine)) == Config().changed({"item_levels": 7, "user_rate": 0.5, "topk": [5]})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "privacy.layers=2"], "layers is not in the group 'privacy' but in 'model': write model.layers"),
        (["--set", "model.item_levels=2"], "item_levels is not in the group 'model' but in 'wire'"),
        (["--set", "wires.item_levels=2"], "there is no group 'wires' of options. Did you mean 'wire'?"),
        (["--set", "wire.item_level=2"], "there is no option 'item_level'. Did you mean 'item_levels'?"),
        (["--set", "epsilon=1e-8"], "there is no option 'epsilon'. Its name is now adam_epsilon"),
        (["--epsilon", "1e-8"], "there is no option 'epsilon'. Its name is now adam_epsilon"),
        (["--set", "decoys_epsilon=8"], "Its name is now dp_epsilon, with dp_unit = interaction"),
        (["--set", "dp_sums=8"], "Its name is now dp_rounds"),
        (["--layrs", "2"], "there is no option 'layrs'. Did you mean 'layers'?"),
        (["--method", "fcf", "--layers", "2"], "there is no option 'layers' of method fcf"),
        (["--final", "runs/mine"], "--final is a command of its own now: fedgrec finish RUN"),
        (["--resume", "--grown"], "--grown is a command of its own now: fedgrec grow RUN"),
        (["--method", "fcff"], "there is no method 'fcff'. Did you mean 'fcf'?"),
        (["runs/mine"], "runs/mine: `fedgrec train` takes flags and their values alone"),
    ],
)
def test_a_wrong_or_an_old_name_gets_a_sentence(capsys: Any, tmp_path: Path, words: list[str], sentence: str) -> None:
    assert sentence in refused(capsys, "train", "--out", str(tmp_path / "run"), *words)
    assert not (tmp_path / "run").exists()


def test_flags_of_another_method_are_its_options() -> None:
    words = ["train", "--method", "fcf", "--alpha", "2", "--gram-clip", "3"]
    model = configuration(cli.parser(words).parse_args(words)).model
    assert (model.alpha, model.gram_clip) == (2.0, 3.0)


def test_a_missing_file_a_missing_preset_and_half_an_assignment(capsys: Any, tmp_path: Path) -> None:
    assert "there is no such configuration file" in refused(capsys, "train", "--config", str(tmp_path / "no.toml"))
    assert "Did you mean 'best'?" in refused(capsys, "train", "--preset", "bets")
    assert "write it as key=value" in refused(capsys, "train", "--set", "layers")


def test_the_configuration_of_a_run_gives_the_same_run(tmp_path: Path) -> None:
    data = clicks(tmp_path / "few.csv", users=5)
    first = train(data, tmp_path / "first", preset="paper", set="topk=[7, 3]", rounds=0, users_per_round=500,
                  evaluate_every=0, local_steps=2, min_rating="none")  # fmt: skip
    resolved = Config().changed(read_toml(first / "config.toml"), "test").run
    assert (resolved.rounds, resolved.evaluate_every, resolved.topk) == (53, 3, (7, 3))  # nothing is left open
    assert cli.main(["train", "--config", str(first / "config.toml"), "--out", str(tmp_path / "again"), "--quiet"]) == 0
    for name in (
        "config.toml",
        "server.safetensors",
        "users.safetensors",
        "users.json",
        "items.json",
        "data.json",
    ):
        assert (tmp_path / "again" / name).read_bytes() == (first / name).read_bytes(), name
    again = [timeless(line) for line in lines(tmp_path / "again" / "metrics.jsonl")]
    assert again == [timeless(line) for line in lines(first / "metrics.jsonl")]


def test_another_seed_is_another_run(data: Path, finished: Path, tmp_path: Path) -> None:
    other = train(data, tmp_path / "other", seed=1)
    assert (other / "server.safetensors").read_bytes() != (finished / "server.safetensors").read_bytes()


def test_an_out_folder_that_cannot_be_made_is_one_sentence(capsys: Any, data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert cli.main([*train_words(data, tmp_path / "file" / "run"), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "file") in said
    assert said.count("\n") == 1
