"""`fedgrec tune`: what it proposes, which data it never uses, how it resumes."""

import csv
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec import cli
from fedgrec.cli.progress import Lines
from fedgrec.config.configuration import Config, read_toml
from fedgrec.data import Dataset, Interactions
from fedgrec.errors import ConfigError, FedgrecError
from fedgrec.runs import simulation
from fedgrec.runs.record import read_metrics
from fedgrec.runs.simulation import Simulation
from fedgrec.studies.tune import files, search, study
from fedgrec.studies.tune.search import parse
from fedgrec.studies.tune.study import Found, Request, Tried
from tests.cli.small import clicks
from tests.pages import checked

pytest.importorskip("optuna")

FIXED = ["dim=8", "users_per_round=6", "negatives=6", "kernel=reference", "evaluate_every=2"]
SEARCH = ["--search", "server_rate=0.01..0.5:log", "--search", "layers=0..2", "--search", "user_optimizer=sgd,adam"]
TRIALS = 5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clicks(tmp_path_factory.mktemp("data") / "clicks.csv")


def words(data: Path, out: Path, *more: str, trials: int = TRIALS) -> list[str]:
    fixed = [word for text in FIXED for word in ("--set", text)]
    start = ["tune", "--data", str(data), "--out", str(out), "--trials", str(trials), "--rounds", "8"]
    return [*start, *fixed, *(more or SEARCH)]


def tuned(data: Path, out: Path, *more: str, trials: int = TRIALS, code: int = 0) -> list[dict[str, str]]:
    """trials.csv, without what differs between equal searches."""
    assert cli.main(words(data, out, *more, trials=trials)) == code
    with (out / "trials.csv").open() as lines:
        return [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(lines)]


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tune") / "finished"
    tuned(data, out)
    return out


def listed(folder: Path) -> list[dict[str, str]]:
    with (folder / "trials.csv").open() as lines:
        return [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(lines)]


# ------------------------------------------------------------------------------------- what it looks at


def replaced(dataset: Dataset, change: Callable[[Interactions], Interactions]) -> Dataset:
    assert dataset.split.test is not None
    return replace(dataset, split=replace(dataset.split, test=change(dataset.split.test)))


def garbage(test: Interactions) -> Interactions:
    """Everybody gets other test items, and another number of them."""
    rng = np.random.default_rng(3)
    pairs = [(u, i) for u in range(test.n_users) for i in rng.choice(test.n_items, 7, replace=False)]
    return Interactions.from_indices(*np.array(pairs).T, user_ids=test.user_ids, item_ids=test.item_ids)


def test_no_test_item_is_ever_looked_at(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other test items give the same trials, to the last digit, and the same best options."""
    load = search.load_for
    monkeypatch.setattr(search, "load_for", lambda config: replaced(load(config), garbage))
    assert tuned(data, tmp_path / "out") == listed(finished)
    assert (tmp_path / "out" / "best.toml").read_bytes() == (finished / "best.toml").read_bytes()


def test_validation_items_are_what_is_looked_at(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation: the same garbage as validation items changes the result, so the law above can fail."""
    load = search.load_for

    def swapped(config: Config) -> Dataset:
        dataset = load(config)
        held_out = dataset.split.validation
        assert held_out is not None
        return replace(dataset, split=replace(dataset.split, validation=garbage(held_out)))

    monkeypatch.setattr(search, "load_for", swapped)
    assert tuned(data, tmp_path / "out") != listed(finished)


@pytest.mark.parametrize("method", [["fedgrec"], ["mf-bpr", "--search", "rate=0.01,0.1"]], ids=lambda m: m[0])
def test_a_trial_has_no_test_items_and_evaluates_none(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: list[str]
) -> None:
    from fedgrec.centralized import training

    seen: list[str] = []
    for home, kind in ((simulation, Simulation), (training, training.Training)):
        measure = kind.measure

        def watched(self: Any, name: str, *rest: Any, measure: Any = measure, **more: Any) -> Any:
            seen.append(name)
            assert self.dataset.split.test is None
            return measure(self, name, *rest, **more)

        monkeypatch.setattr(getattr(home, kind.__name__), "measure", watched)
    name, *search = method
    start = ["tune", "--data", str(data), "--out", str(tmp_path / "out"), "--trials", "2", "--rounds", "4"]
    fixed = [word for text in FIXED[:4] for word in ("--set", text)] if name == "fedgrec" else ["--set", "dim=8"]
    assert cli.main([*start, *fixed, "--method", name, *(search or SEARCH[:2])]) == 0
    assert set(seen) == {"validation"}
    assert len(seen) == 2 * 4


def test_the_protocol_is_honest_whatever_is_asked_for(data: Path, tmp_path: Path, capsys: Any) -> None:
    tuned(data, tmp_path / "a", "--preset", "paper", "--search", "layers=0..1", "--set", "local_steps=1", trials=1)
    assert read_toml(tmp_path / "a" / "best.toml")["protocol"] == "honest"
    assert cli.main([*words(data, tmp_path / "b"), "--set", "protocol=paper"]) == 2
    assert "the protocol is honest" in capsys.readouterr().err


# -------------------------------------------------------------------------------------- what it leaves


def test_the_best_trial_is_the_best_and_train_gives_it_again(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedgrec.cli.training._report", lambda *_: None)
    done = [row for row in listed(finished) if row["state"] == "complete"]
    most = max(float(row["recall@20"]) for row in done)
    assert cli.main(["train", "--config", str(finished / "best.toml"), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    options = read_toml(finished / "best.toml")
    keys = ("server_rate", "layers", "user_optimizer")
    [best] = [row for row in done if all(row[key] == str(options[key]) for key in keys)]
    assert float(best["recall@20"]) == most
    lines = [line for line in read_metrics(tmp_path / "run") if line["split"] == "validation"]
    assert max(line["recall@20"] for line in lines) == float(best["recall@20"])
    assert next(line["round"] for line in lines if line["recall@20"] == float(best["recall@20"])) == int(best["round"])


def test_hopeless_trials_are_given_up_below_the_median(data: Path, tmp_path: Path) -> None:
    """The first five trials always finish; of many later ones, some are pruned early."""
    rows = tuned(data, tmp_path / "out", *SEARCH, trials=12)
    assert [row["state"] for row in rows[:5]] == ["complete"] * 5
    given_up = [row for row in rows if row["state"] == "pruned"]
    assert given_up
    assert all(int(row["round"]) < 8 for row in given_up)
    done = [float(row["recall@20"]) for row in rows if row["state"] == "complete"]
    assert max(done) >= max(float(row["recall@20"]) for row in given_up)


def test_another_metric_is_reported_and_selects_by_its_list_length(data: Path, tmp_path: Path) -> None:
    rows = tuned(data, tmp_path / "out", "--search", "layers=0..2", "--metric", "ndcg@5", trials=2)
    assert all(0 <= float(row["ndcg@5"]) <= 1 for row in rows)
    assert read_toml(tmp_path / "out" / "best.toml")["topk"] == [5, 20]


def test_a_centralized_method_leaves_a_file_for_compare(data: Path, tmp_path: Path, capsys: Any) -> None:
    start = ["tune", "--data", str(data), "--method", "mf-bpr", "--rounds", "3", "--trials", "2", "--seed", "4"]
    more = ["--search", "rate=0.01..0.1:log", "--set", "dim=8", "--set", "validation=0.2", "--out", str(tmp_path / "t")]
    assert cli.main([*start, *more]) == 0
    assert "fedgrec compare --config" in capsys.readouterr().out
    done = cli.main(["compare", "--config", str(tmp_path / "t" / "best.toml"), "--seeds", "4,", "--quiet",
                     "--out", str(tmp_path / "c")])  # fmt: skip
    assert done == 0
    best = max(float(row["recall@20"]) for row in listed(tmp_path / "t"))
    lines = read_metrics(tmp_path / "c" / "runs" / "mf-bpr-seed4")
    assert max(line["recall@20"] for line in lines if line["split"] == "validation") == best


def test_the_table_fits_80_columns(data: Path, finished: Path, tmp_path: Path, capsys: Any) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "out"))
    tuned(data, out)
    said = capsys.readouterr().out
    table = said[said.index("fedgrec on clicks") :].splitlines()
    assert max(len(line) for line in table if str(out) not in line) <= 80
    assert "test items were taken away" in said
    assert "server_rate" in said


def test_the_page_shows_every_trial(finished: Path) -> None:
    page, rows = checked((finished / "trials.html").read_text()), listed(finished)
    panels = re.findall(r'<text class="title"[^>]*>([^<]+)<', page)
    assert panels == ["recall@20", "server_rate", "layers", "user_optimizer"]
    for row in rows:
        if row["recall@20"]:
            assert f"trial {row['trial']}\n" in page
            assert f"{float(row['recall@20']):.4f}" in page


# ------------------------------------------------------------------------------------- going on, and trouble


def test_equal_searches_are_equal_and_another_seed_is_not(data: Path, finished: Path, tmp_path: Path) -> None:
    assert tuned(data, tmp_path / "a") == listed(finished)
    other = tuned(data, tmp_path / "b", *SEARCH, "--seed", "1")
    assert [row["server_rate"] for row in other] != [row["server_rate"] for row in listed(finished)]


def test_more_trials_go_on_where_the_search_ended(data: Path, finished: Path, tmp_path: Path) -> None:
    assert tuned(data, tmp_path / "out", trials=4) == listed(finished)[:4]
    assert tuned(data, tmp_path / "out") == listed(finished)
    assert tuned(data, tmp_path / "out", trials=2) == listed(finished)  # nothing is taken back


def test_a_stopped_search_does_the_trial_again_and_ends_the_same(
    data: Path, finished: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for patience in (13, 24):
        count = iter(range(10**6))
        with monkeypatch.context() as patch:
            patch.setattr(Lines, "stop_wanted", lambda _, count=count, patience=patience: next(count) > patience)
            tuned(data, tmp_path / "out", code=130)
        assert "Go on with:\n  fedgrec tune --data" in capsys.readouterr().err
        assert len(listed(tmp_path / "out")) < TRIALS
    assert tuned(data, tmp_path / "out") == listed(finished)


def test_a_killed_search_does_the_trial_again_and_ends_the_same(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill runs no handler, so the trial stays marked as running."""
    run, count = Simulation._round, iter(range(10**6))

    def killed(self: Simulation) -> None:
        if next(count) == 29:
            raise SystemExit(9)
        run(self)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "_round", killed)
        with pytest.raises(SystemExit):
            cli.main(words(data, tmp_path / "out"))
    assert tuned(data, tmp_path / "out") == listed(finished)


def test_another_search_in_the_same_folder_is_refused(data: Path, finished: Path, tmp_path: Path, capsys: Any) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "out"))
    assert cli.main([*words(data, out), "--set", "dim=9"]) == 2
    assert "dim was 8 and is now 9" in capsys.readouterr().err
    assert cli.main([*words(data, out), "--set", "threads=1"]) == 0


def test_a_damaged_file_is_named(data: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "study.db").write_bytes(b"no data base" * 100)
    assert cli.main(words(data, tmp_path)) == 2
    assert "study.db cannot be opened as a search" in capsys.readouterr().err


def test_a_trial_that_fails_does_not_end_the_search(data: Path, tmp_path: Path, capsys: Any) -> None:
    """`live` is not defined for concat: those trials fail, and the others decide."""
    rows = tuned(data, tmp_path / "out", "--search", "combine=mean,concat", "--search", "l2=0..0.1", trials=6)
    failed = {row["combine"] for row in rows if row["state"] == "failed"}
    assert failed == {"concat"}
    assert all("live = true is not defined" in row["failure"] for row in rows if row["state"] == "failed")
    assert read_toml(tmp_path / "out" / "best.toml")["combine"] == "mean"
    assert "failed: live = true is not defined" in " ".join(capsys.readouterr().out.split())


def test_a_search_in_which_everything_fails_says_so(data: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    def broken(*_: Any) -> None:
        raise FedgrecError("training diverged")

    monkeypatch.setattr(Simulation, "_round", broken)
    rows = tuned(data, tmp_path / "out", trials=2, code=1)
    assert [row["failure"] for row in rows] == ["training diverged"] * 2
    assert "no trial finished" in capsys.readouterr().err
    assert not (tmp_path / "out" / "best.toml").exists()


def test_data_without_validation_items_cannot_be_searched(data: Path, tmp_path: Path, capsys: Any) -> None:
    assert cli.main([*words(data, tmp_path / "out"), "--set", "validation=0"]) == 2
    assert "raise `validation`" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_without_optuna_one_line_says_what_to_install(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    assert cli.main(words(data, tmp_path / "out")) == 2
    assert "pip install -c constraints.txt '.[tune]'" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------- words


def test_a_range_and_a_list_are_read_in_the_options_own_type() -> None:
    whole, share, word = (parse(t, "fedgrec") for t in ("layers=1..3", "l2=1e-5..1e-2:log", "live=true,false"))
    assert (whole.low, whole.high, whole.log) == (1, 3, False)
    assert isinstance(whole.low, int)
    assert (share.low, share.high, share.log) == (1e-5, 1e-2, True)
    assert word.choices == (("true", True), ("false", False))
    assert parse("alphas=[1,0],[0.5,0.5]", "fedgrec").choices == (("[1,0]", (1.0, 0.0)), ("[0.5,0.5]", (0.5, 0.5)))
    assert parse("users-per-round=10..20", "fcf").key == "users_per_round"
    assert str(share) == "l2=1e-05..0.01:log"


@pytest.mark.parametrize(
    ("text", "method", "sentence"),
    [
        ("layers", "fedgrec", "write KEY=LOW..HIGH"),
        ("layer=1..2", "fedgrec", "Did you mean 'layers'?"),
        ("layers=1..99", "fedgrec", "it is at least 0 and at most 16"),
        ("layers=3..1", "fedgrec", "3 is not less than 1"),
        ("layers=a..b", "fedgrec", "it is a whole number"),
        ("l2=0..1:log", "fedgrec", "begins above 0"),
        ("combine=mean..last", "fedgrec", "name its values"),
        ("combine=mean,lust", "fedgrec", "choose one of mean, last, concat"),
        ("combine=mean", "fedgrec", "--set combine=mean"),
        ("combine=mean,mean", "fedgrec", "each once"),
        ("seed=1..5", "fedgrec", "the same in all trials"),
        ("protocol=honest,paper", "fedgrec", "the same in all trials"),
        ("validation=0.1..0.2", "lightgcn", "the same in all trials"),
        ("alpha=1..5", "lightgcn", "there is no option 'alpha' of lightgcn"),
        ("layers=1..3", "fcf", "there is no option 'layers' of method fcf"),
    ],
)
def test_mistakes_in_a_search_are_one_sentence(text: str, method: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, method)
    assert sentence in str(error.value)
    assert str(error.value).startswith(f"--search {text}: ")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "name what to search"),
        (["--search", "layers=1..2", "--search", "layers=1,2"], "twice"),
        (["--search", "layers=1..2", "--set", "layers=1"], "it is searched"),
        (["--search", "layers=1..2", "--metric", "accuracy"], "one of recall, ndcg, hitrate, mrr, map"),
        (["--search", "layers=1..2", "--trials", "0"], "--trials cannot be '0'"),
        (["--search", "layers=1..2", "--method", "lightgnc"], "Did you mean 'lightgcn'?"),
        (["--search", "layers=1..2", "--method", "lightgcn", "--set", "negatives=3"], "of lightgcn"),
        (["--search", "layers=1..2", "--method", "lightgcn", "--preset", "paper"], "of federated methods"),
        (["--search", "alpha=1..2", "--method", "fcf", "--preset", "paper"], "presets are of fedgrec"),
    ],
)
def test_mistakes_on_the_command_line_are_one_sentence(
    given: list[str], sentence: str, data: Path, tmp_path: Path, capsys: Any
) -> None:
    assert cli.main(["tune", "--data", str(data), "--out", str(tmp_path / "out"), *given]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert os.listdir(tmp_path) == []


# ----------------------------------------------------------------------- trials that cannot be told apart


class Judged:
    """Stands for the tuned method; only its names are used."""

    config = Config()
    dataset = Dataset("clicks", None)  # type: ignore[arg-type]


def found(*trials: tuple[float, float | None, int], users: int | None = 100, metric: str = "recall@20") -> Found:
    """A search whose trials have these values, values of the other metric, and best rounds."""
    tried = [
        Tried(n, "complete", value, round_, 1.0, {"layers": n}, second=second, users=users)
        for n, (value, second, round_) in enumerate(trials)
    ]
    return Found(Request(Judged(), [parse("layers=0..9", "fedgrec")], metric, len(tried)), tried, False)


@pytest.mark.parametrize(
    ("trials", "best"),
    [
        ([(0.5, 0.1, 2), (0.6, 0.1, 2)], 1),
        ([(0.6, 0.1, 2), (0.6, 0.2, 8)], 1),  # equal: by ndcg
        ([(0.6, 0.2, 8), (0.6, 0.2, 4)], 1),  # equal again: by the fewer rounds
        ([(0.6, 0.2, 4), (0.6, 0.2, 4)], 0),  # and again: the earlier
        ([(0.6, None, 4), (0.6, None, 2)], 1),  # of a search of an older version
        ([(0.0, 0.0, 4), (0.0, 0.0, 2)], 1),
    ],
)
def test_equal_trials_are_ranked_by_the_next_metric_then_by_rounds(trials: list[Any], best: int) -> None:
    some = found(*trials)
    assert some.best is some.trials[best]
    assert files.grid(some).rows[0][0] == str(best)


@pytest.mark.parametrize(
    ("some", "sentence"),
    [
        (
            found((1.0, 0.4, 2), (1.0, 0.6, 2), (1.0, 0.6, 4)),
            "All 3 trials have recall@20 1.0000, the most there is: it chooses nothing here. They are ranked by "
            "ndcg@20, then by the earlier round.",
        ),
        (
            found((0.2, 0.4, 2), (0.2, 0.6, 2)),
            "All 2 trials have recall@20 0.2000: it chooses nothing here. They are ranked by ndcg@20, then by the "
            "earlier round.",
        ),
        (
            found((0.2, 0.4, 2), (0.2, 0.6, 2), (0.1, 0.6, 2), users=10_000),
            "2 trials share the best recall@20, 0.2000. They are ranked by ndcg@20, then by the earlier round.",
        ),
        (
            # √(0.5·0.5/100) = 0.05
            found((0.5, 0.4, 2), (0.46, 0.6, 2), (0.44, 0.1, 2)),
            "2 trials are within one standard error of the best (at most 0.0500 for the mean over 100 users): these "
            "validation items do not tell them apart.",
        ),
        (found((0.5, 0.4, 2), (0.44, 0.6, 2)), None),
        (found((0.5, 0.4, 2), (0.46, 0.6, 2), users=1_000_000), None),
        (found((0.5, None, 2), (0.46, None, 2), users=None), None),
        (found((0.5, 0.4, 2)), None),
    ],
)
def test_trials_that_cannot_be_told_apart_are_said_in_a_sentence(some: Found, sentence: str | None) -> None:
    said = files.told_apart(some)
    assert said == (sentence or "")
    assert (said in files.grid(some).notes) == bool(said)


def test_what_a_trial_leaves_is_enough_to_rank_and_to_doubt_it(finished: Path) -> None:
    rows = listed(finished)
    done = [row for row in rows if row["state"] == "complete"]
    assert all(0 <= float(row["ndcg@20"]) <= 1 and 0 < int(row["users"]) <= 16 for row in done)


def test_a_gpu_that_is_not_there_is_said_before_the_search(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    torch = pytest.importorskip("torch")

    def no_driver() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.")

    monkeypatch.setattr(torch.cuda, "init", no_driver)
    for method, searched in (("fedgrec", "layers=1..2"), ("mf-bpr", "rate=0.1,0.2")):
        given = ["tune", "--data", str(data), "--out", str(tmp_path / "out"), "--device", "cuda", "--method", method]
        assert cli.main([*given, "--search", searched]) == 2
        assert "there is no GPU for device 'cuda'" in capsys.readouterr().err
        assert os.listdir(tmp_path) == []


def test_a_database_that_cannot_be_written_is_one_sentence(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from sqlalchemy.exc import OperationalError

    def full(*_: Any) -> None:
        raise OperationalError("INSERT INTO trials", {}, Exception("database or disk is full"))

    monkeypatch.setattr(study._Study, "ask", full)
    assert cli.main([*words(data, tmp_path / "out"), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "study.db could not be written (database or disk is full)" in said
    assert said.count("\n") == 1
