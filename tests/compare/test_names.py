"""Which methods were meant, with which options."""

import re
from pathlib import Path
from typing import Any

import pytest

from fedgrec import centralized, cli
from fedgrec.centralized.options import LightGCNOptions, MFOptions, TurboCFOptions
from fedgrec.cli.compare import seeds
from fedgrec.config.options import METHODS, FedGRecOptions
from fedgrec.data import registry
from fedgrec.errors import ConfigError
from fedgrec.studies.compare.names import CENTRALIZED, File, entries, known, read_file
from fedgrec.studies.compare.plan import Settings, pick_device
from fedgrec.studies.compare.rows import DATA, figure, public_name, published_lines
from tests.compare.small import words


def test_every_name_is_a_method_or_a_model() -> None:
    assert set(known()) == {"fedgrec", "two-parts", "spectral", "ordered", "ordered-parts", "fcf", "fedmf", "federank",
                            "fedncf", "pfedrec", "fedrap", "fedgnn", "fedgnn-bpr", "lightgcn", "ngcf", "multvae",
                            "mf-bpr", "popularity", "turbocf", "ease", "itemknn"}  # fmt: skip
    assert set(CENTRALIZED) == set(centralized.MODELS)
    assert not set(CENTRALIZED) & set(METHODS)


def test_options_follow_a_colon_until_the_next_name() -> None:
    found = entries("fedgrec:layers=1,rounds=4000,lightgcn,turbocf:coefficients=[2,-1],power=1,popularity", File())
    assert [(e.label, e.method, e.inline) for e in found] == [
        ("fedgrec:layers=1,rounds=4000", "fedgrec", {"layers": 1, "rounds": 4000}),
        ("lightgcn", "lightgcn", {}),
        ("turbocf:coefficients=[2,-1],power=1", "turbocf", {"coefficients": [2, -1], "power": 1}),
        ("popularity", "popularity", {}),
    ]
    assert [e.folder for e in found] == [
        "fedgrec-layers-1-rounds-4000", "lightgcn", "turbocf-coefficients-2--1-power-1", "popularity",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fedgrek", "Did you mean 'fedgrec'?"),
        ("lightgnc", "Did you mean 'lightgcn'?"),
        ("turbo-cf", "Did you mean 'turbocf'?"),
        ("fedgrec,fedgrec", "'fedgrec' is named twice"),
        ("fedgrec:layers", "write options as NAME:key=value"),
        ("layers=2,fedgrec", "write options as NAME:key=value"),
        (":layers=2", "write options as NAME:key=value"),
        ("fedgrec:=1", "write options as NAME:key=value"),
        (None, "name methods to compare"),
    ],
)
def test_what_is_not_understood_is_said(text: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        entries(text, File())


def test_a_file_holds_options_of_all_and_of_each(tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    path.write_text('[run]\nvalidation = 0.2\n[compare.one]\nmethod = "fedgrec"\nlayers = 1\n[compare.popularity]\n')
    file = read_file(path)
    assert file.shared == {"validation": 0.2}
    assert [(e.label, e.method, e.section) for e in entries(None, file)] == [
        ("one", "fedgrec", {"layers": 1}), ("popularity", "popularity", {}),
    ]  # fmt: skip
    assert [e.label for e in entries("one:dim=8,popularity", file)] == ["one:dim=8", "popularity"]
    with pytest.raises(ConfigError, match="Did you mean 'one'"):
        entries("ones", file)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[compare.mine]\nlayers = 1\n", "there is no method 'mine'"),
        ("[model]\nlayers = 1\n", "'model' has no place here"),
        ("layers = 1\n", "'layers' has no place here"),
        ("[compare]\nlayers = 1\n", "write [compare.NAME]"),
        ("[compare.popularity]\nlayers = 1\n", "there is no option 'layers' of popularity"),
        ("[compare.fedgrec]\nprotocol = 'paper'\n", "protocol is the same for all methods"),
        ("[run]\nlayerz = 1\n[compare.popularity]\n", "there is no option 'layerz' of the data or the run"),
        ("[compare.fedgrec]\nlayers = -1\n", "layers cannot be -1"),
        ("[compare.mf-bpr]\ndim = 'wide'\n", "dim cannot be 'wide'"),
        ("nonsense", "not a TOML file"),
    ],
)
def test_a_file_that_makes_no_sense_is_one_sentence(
    capsys: Any, data: Path, tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "tuned.toml"
    path.write_text(content)
    given = ["compare", "--data", str(data), "--out", str(tmp_path / "out"), "--config", str(path)]
    assert cli.main(given) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ("mf-bpr:lyers=2", "there is no option 'lyers' of mf-bpr. Did you mean 'layers'?"),
        ("fedgrec:seed=2", "seed is the same for all methods"),
        ("fedgrec:layrs=2", "Did you mean 'layers'?"),
        ("fedgrec:preset=papper", "Did you mean 'paper'?"),
        ("fedgrek", "Did you mean 'fedgrec'?"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(
    capsys: Any, data: Path, tmp_path: Path, methods: str, said: str
) -> None:
    assert cli.main(words(data, tmp_path / "out", f"popularity,{methods}")) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_method_that_is_not_here_is_said(capsys: Any, data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(METHODS, "fcf", "fedgrec.methods.nowhere")
    assert cli.main(words(data, tmp_path / "out", "fcf")) == 2
    assert "fcf is not part of this version" in capsys.readouterr().err


def test_flags_win_over_sections_and_inline_options_over_flags(data: Path, tmp_path: Path) -> None:
    file = File("f", {"evaluate_every": 7}, {"fedgrec": {"rounds": 5, "layers": 1}, "mf-bpr": {"epochs": 5, "dim": 4}})
    found = entries("fedgrec,fedgrec:rounds=9,mf-bpr,mf-bpr:epochs=9,fedgrec:preset=paper", file)
    settings = Settings(found, (0,), file, {}, {"data": str(data), "rounds": 6}, {"epochs": 3}, "cpu")
    runs = settings.runs(tmp_path, settings.load(0))
    assert [run.length for run in runs] == [6, 9, 3, 9, 6]
    assert [run.settings()["evaluate_every"] for run in runs] == [7, 7, 1, 1, 7]
    assert runs[0].config.model.layers == runs[4].config.model.layers == 1  # the section wins over the preset
    assert (runs[0].config.model.local_steps, runs[4].config.model.local_steps) == (1, 10)
    assert runs[2].config.model.dim == 4
    assert {run.settings()["protocol"] for run in runs} == {"honest"}  # a preset does not change the protocol


def test_every_run_has_twenty_evaluations_unless_it_is_told_otherwise(data: Path, tmp_path: Path) -> None:
    settings = Settings(
        entries("fedgrec:rounds=400,mf-bpr:epochs=60", File()), (0,), flags={"data": str(data)}, device="cpu"
    )
    assert [r.settings()["evaluate_every"] for r in settings.runs(tmp_path, settings.load(0))] == [20, 3]


def test_seeds_are_a_number_or_a_list() -> None:
    assert (seeds("3"), seeds("0,3,7"), seeds("7,")) == ((0, 1, 2), (0, 3, 7), (7,))
    for wrong in ("0", "two", "1,1", "-1", "", "1,-2"):
        with pytest.raises(ConfigError, match="--seeds"):
            seeds(wrong)


def test_a_model_without_a_gpu_version_stays_on_the_cpu() -> None:
    assert pick_device("cuda", ("cpu",)) == "cpu"
    assert pick_device("cuda", ("cpu", "cuda")) == "cuda"
    assert pick_device("cpu", ("cpu", "cuda")) == "cpu"
    assert pick_device("auto", ("cpu",)) == "cpu"


# ---------------------------------------------------------------------------------------- published figures


def test_published_figures_are_found_by_method_layers_and_combination() -> None:
    options = LightGCNOptions
    found = figure("gowalla", "lightgcn", options(layers=2))
    assert found
    assert (found.recall, found.ndcg, found.source) == (0.1777, 0.1524, "Li and Huang 2022, Table 2")
    assert figure("gowalla", "lightgcn", options(layers=4)) is None
    assert figure("demo", "lightgcn", options()) is None
    last = FedGRecOptions(layers=2, combine="last")
    assert (figure("gowalla", "fedgrec", last).recall, figure("yelp2018", "fedgrec", last)) == (0.1605, None)
    assert figure("amazon-book", "federank", FedGRecOptions(layers=0)).ndcg == 0.0220
    assert figure("yelp2018", "mf-bpr", MFOptions()).recall == 0.0576
    turbo = figure("gowalla", "turbocf", TurboCFOptions())
    assert (turbo.recall, turbo.ndcg) == (0.1835, None)


def test_the_table_of_published_figures_is_whole() -> None:
    head, *lines = published_lines()
    assert tuple(head[3:6]) == DATA
    assert {len(line) for line in lines} == {10}
    not_in_those_papers = {"popularity", "ease", "itemknn", "spectral", "two-parts", "pfedrec", "fedrap"}
    not_in_those_papers |= {"ordered", "ordered-parts"}
    assert {line[0] for line in lines} == set(known()) - not_in_those_papers
    assert all(0 < float(word) < 0.2 for line in lines for word in line[3:9] if word != "-")
    assert all(float(line[at]) > float(line[at + 1]) for line in lines for at in (3, 5, 7) if line[at + 1] != "-")


def test_public_data_is_known_by_its_sizes_and_split(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    settings = Settings(entries("popularity", File()), flags={"data": str(data)})
    dataset = settings.load(0)
    parts = dataset.split
    pairs = parts.train.n_pairs + parts.validation.n_pairs
    toy = registry.Source("", {}, parts.train.n_users, parts.train.n_items, pairs, parts.test.n_pairs)
    monkeypatch.setitem(registry.SOURCES, "toy", toy)
    assert public_name(replace(dataset, split_kind="given")) == "toy"
    assert public_name(dataset) is None  # the same pairs in another split
    monkeypatch.setitem(registry.SOURCES, "toy", replace(toy, test_pairs=1))
    assert public_name(replace(dataset, split_kind="given")) is None
