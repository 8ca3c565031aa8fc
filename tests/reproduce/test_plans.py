"""The plans are the paper's: its methods, its values, its rounds, its numbers."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgrec.config.checking import OLD_NAMES
from fedgrec.config.configuration import preset
from fedgrec.data import load
from fedgrec.studies.compare.rows import figure, published_lines
from fedgrec.studies.compare.runs import FederatedRun
from fedgrec.studies.reproduce import NAMES
from fedgrec.studies.reproduce.plan import PAPER_ROUNDS, Scope, groups, readings, run_count
from fedgrec.studies.reproduce.targets import AGGREGATIONS, TARGETS, TUNED

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def demo() -> Any:
    return load("demo", seed=0)


def runs(target: str, demo: Any, **scope: Any) -> dict[str, Any]:
    """The runs of seed 0 by their labels, as they would be on the demo."""
    group = groups(TARGETS[target], Scope(data=("demo",), protocols=("paper",), seeds=(0,), **scope))[0]
    return {run.entry.label: run for run in group.settings.runs(Path("nowhere"), demo)}


def test_the_names_that_help_shows_are_the_targets() -> None:
    assert tuple(TARGETS) == NAMES


def test_table2_has_every_line_of_the_paper(demo: Any) -> None:
    wanted = [words for words in published_lines() if words[-1] == "T2"]
    have = [(run.entry.method, str(getattr(run.config.model, "layers", "-"))) for run in runs("table2", demo).values()]
    for method, layers, *_ in wanted:
        assert any(m == method and layers in (k, "-") for m, k in have), (method, layers)
    assert len(wanted) == 16


def test_tables_3_and_4_have_every_number_of_the_paper(demo: Any) -> None:
    """0.1376 0.1412 0.1362 / 0.1376 0.1332 0.1246 / 0.1266 0.1267 0.1254, read off Table 3."""
    ndcg = {
        "FedGRec": [0.1376, 0.1412, 0.1362],
        "FedGRec-last": [0.1376, 0.1332, 0.1246],
        "FedGRec-concat": [0.1266, 0.1267, 0.1254],
    }
    found = runs("table3", demo)
    assert found.keys() == runs("table4", demo).keys() == {label for row in AGGREGATIONS.values() for label in row}
    for name, labels in AGGREGATIONS.items():
        published = [figure("gowalla", "fedgrec", found[label].config.model) for label in labels]
        assert [each.ndcg for each in published if each] == ndcg[name]
    assert {found[f"FedGRec-concat-{k}"].config.model.local_steps for k in (1, 2, 3)} == {1}
    assert {found[f"FedGRec-last-{k}"].config.model.local_steps for k in (2, 3)} == {10}


def test_fedgrec_is_the_preset_paper_with_k_latents(demo: Any) -> None:
    start = preset("paper")
    for k in (1, 2, 3):
        config = runs("table2", demo)[f"FedGRec-{k}"].config
        assert config.model == replace(start.model, layers=k)
        assert (config.run.rounds, config.run.evaluate_every) == (PAPER_ROUNDS, 1_000)
        assert (config.run.protocol, config.data.data) == ("paper", "demo")


def test_what_the_paper_states_runs_as_long_as_the_paper_and_what_is_tuned_does_not(demo: Any) -> None:
    whole = runs("table2", demo)
    found = {label: run for label, run in whole.items() if run.entry.federated}
    stated = {"FCF", "FedMF", "FedNCF"}
    assert {label for label, run in found.items() if run.length == PAPER_ROUNDS} == stated | {
        "FedGRec-1", "FedGRec-2", "FedGRec-3"
    }  # fmt: skip
    assert {label for label, run in found.items() if run.config.run.patience} == stated
    impatient = {label for label, run in whole.items() if not run.entry.federated and run.training["patience"]}
    assert impatient == {"Mult-VAE", "NGCF-1", "NGCF-2", "NGCF-3"}


def test_what_is_tuned_is_what_the_recorded_comparison_ran() -> None:
    recorded = tomllib.loads((ROOT / "docs/results/compare-gowalla/tuned.toml").read_text())["compare"]
    for section in recorded.values():
        del section["evaluate_every"]
    assert recorded == TUNED


@pytest.mark.parametrize(
    ("target", "option", "values"),
    [("figure-s", "users_per_round", [100, 200, 400, 800]), ("figure-tau", "local_steps", [1, 2, 10, 20])],
)
def test_a_figure_varies_one_option_of_fedgrec_2(demo: Any, target: str, option: str, values: list[int]) -> None:
    found = runs(target, demo)
    usual = runs("table2", demo)["FedGRec-2"].config.model
    assert [getattr(run.config.model, option) for run in found.values()] == values
    for run in found.values():
        assert replace(run.config.model, **{option: getattr(usual, option)}) == usual
    symbol = TARGETS[target].names
    assert [symbol[label].split(" = ")[1] for label in found] == list(map(str, values))


@pytest.mark.parametrize("quick", [False, True])
def test_runs_of_one_label_and_folder_are_the_same_run(demo: Any, quick: bool) -> None:
    """Otherwise a target would refuse the runs of another one."""
    seen: dict[tuple[str, str], Any] = {}
    for target in NAMES:
        scope = Scope(data=("demo",), protocols=("paper",), seeds=(0,), quick=quick)
        folder = groups(TARGETS[target], scope)[0].folder
        for label, run in runs(target, demo, quick=quick).items():
            assert seen.setdefault((folder, label), run.settings()) == run.settings(), (target, label)
    assert len({folder for folder, _ in seen}) == (1 if quick else 2)  # `communication` is short


def test_rounds_shorten_every_federated_run_in_a_folder_of_their_own(demo: Any) -> None:
    found = runs("table2", demo, rounds=4_000)
    assert {run.length for run in found.values() if run.entry.federated} == {4_000}
    assert {run.config.run.evaluate_every for run in found.values() if isinstance(run, FederatedRun)} == {200}
    assert found["LightGCN-3"].length == 1_000
    assert runs("table2", demo, epochs=7)["LightGCN-3"].length == 7
    folders = [groups(TARGETS["table2"], Scope(**scope))[0].folder for scope in ({}, {"rounds": 9}, {"epochs": 7})]
    assert folders == ["gowalla-paper", "gowalla-paper-9-rounds", "gowalla-paper-7-epochs"]


def test_quick_keeps_what_a_target_varies(demo: Any) -> None:
    assert [r.config.model.users_per_round for r in runs("figure-s", demo, quick=True).values()] == [10, 20, 40, 80]
    assert [r.config.model.local_steps for r in runs("figure-tau", demo, quick=True).values()] == [1, 2, 10, 20]


def test_the_device_is_that_of_every_run(demo: Any) -> None:
    found = runs("table2", demo, device="cpu").values()
    assert {run.config.run.device for run in found} == {"cpu"}


@pytest.mark.keep(6)
@pytest.mark.parametrize("name", readings())
def test_a_reading_changes_its_options_in_fedgrec_as_in_the_paper_and_nothing_else(demo: Any, name: str) -> None:
    for target in ("table2", "table4", "figure-tau"):
        usual = runs(target, demo)
        read = runs(target, demo, reading=name)
        assert set(read) == {label for label, run in usual.items() if run.entry.section.get("preset") == "paper"}
        for label, run in read.items():
            assert run.config == replace(
                usual[label].config, model=replace(usual[label].config.model, **readings()[name].options)
            )
            assert run.config != usual[label].config


def test_readings_have_folders_of_their_own() -> None:
    scope = [{"reading": name} for name in ("", *readings())] + [{"reading": "sum", "rounds": 9}]
    folders = [groups(TARGETS["table4"], Scope(protocols=("paper",), **each))[0].folder for each in scope]  # type: ignore[arg-type]
    assert len(set(folders)) == len(folders)
    assert {"gowalla-paper", "gowalla-paper-sum", "gowalla-paper-sum-9-rounds"} < set(folders)


def test_the_readings_that_were_recorded_can_be_run_again_by_name() -> None:
    lines = (ROOT / "docs/results/readings/10000-rounds.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        now = {OLD_NAMES.get(key, key): value for key, value in line["options"].items()}
        changed = {key: value for key, value in now.items() if key not in ("data", "layers")}
        assert not changed or changed in [each.options for each in readings().values()], line["label"]


def test_run_counts() -> None:
    assert run_count(TARGETS["table1"], Scope()) == 0
    assert run_count(TARGETS["table2"], Scope()) == 20 * 2 * 2 * 3
    assert run_count(TARGETS["table3"], Scope(protocols=("honest",), seeds=(5,))) == 8
    assert run_count(TARGETS["communication"], Scope(protocols=("honest",))) == 9  # bytes do not depend on the protocol
    assert run_count(TARGETS["table2"], Scope(only=("FedGRec-1", "FCF"), data=("demo",))) == 2 * 2 * 3
