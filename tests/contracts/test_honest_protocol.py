"""Under `honest` the test split chooses nothing; under `paper` nothing is held out for validation."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, Interactions
from fedgrec.data.datasets import load_for
from fedgrec.runs.resolve import resolved
from fedgrec.runs.simulation import Simulation
from tests.cli.small import QUICK, clicks, lines, timeless

OPTIONS = QUICK | {"rounds": 12, "evaluate_every": 1, "patience": 5, "user_rate": 0.2, "server_rate": 0.1}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clicks(tmp_path_factory.mktemp("data") / "clicks.csv")


def run(data: Path, out: Path, change: Callable[[Dataset], Dataset] = lambda d: d, **options: Any) -> Simulation:
    config = Config().changed(OPTIONS | options | {"data": str(data)}, "test")
    dataset = change(load_for(config))
    simulation = Simulation(resolved(config, dataset), dataset, out)
    simulation.run()
    return simulation


def with_test(dataset: Dataset, test: Interactions | None) -> Dataset:
    return replace(dataset, split=replace(dataset.split, test=test))


def other_people(dataset: Dataset) -> Dataset:
    """Everybody gets the test items of another person."""
    test = dataset.split.test
    users = np.random.default_rng(1).permutation(test.n_users)[test.users()]
    swapped = Interactions.from_indices(users, test.items, user_ids=test.user_ids, item_ids=test.item_ids)
    return with_test(dataset, swapped)


def best_found(dataset: Dataset) -> Dataset:
    """Another set altogether: everybody's test items are three that they do not have."""
    train, rng = dataset.split.train, np.random.default_rng(2)
    strange = [np.setdiff1d(np.arange(train.n_items), train.of(u)) for u in range(train.n_users)]
    pairs = [(u, i) for u, items in enumerate(strange) for i in rng.choice(items, 3, replace=False)]
    replaced = Interactions.from_indices(*np.array(pairs).T, user_ids=train.user_ids, item_ids=train.item_ids)
    return with_test(dataset, replaced)


CHANGES: dict[str, Callable[[Dataset], Dataset]] = {
    "permuted": other_people,
    "replaced": best_found,
    "taken away": lambda dataset: with_test(dataset, None),
}


def chosen(simulation: Simulation) -> dict[str, Any]:
    """Everything that must not depend on the test split: all but the items that people are known to have."""
    assert simulation.record
    folder = simulation.record.folder
    users = load_file(folder / "users.safetensors")
    return {
        "round": simulation.progress.best_round,
        "rounds run": simulation.server.round,
        "server": (folder / "server.safetensors").read_bytes(),
        "users": {name: array.tobytes() for name, array in users.items() if not name.startswith("seen_")},
        "validation": [timeless(x) for x in lines(folder / "metrics.jsonl") if x["split"] == "validation"],
    }


def test_the_test_split_is_looked_at_once_for_the_round_that_validation_chose(data: Path, tmp_path: Path) -> None:
    simulation = run(data, tmp_path / "run")
    found = lines(tmp_path / "run" / "metrics.jsonl")
    validation = [line for line in found if line["split"] == "validation"]
    assert [line["split"] for line in found] == ["validation"] * len(validation) + ["test"]
    best = max(validation, key=lambda line: (line["recall@20"], line["ndcg@20"], line["round"]))
    assert len({(line["recall@20"], line["ndcg@20"]) for line in validation}) > 1
    assert found[-1]["round"] == best["round"] == simulation.progress.best_round


@pytest.mark.parametrize("how", CHANGES)
def test_test_data_chooses_nothing(data: Path, tmp_path: Path, how: str) -> None:
    untouched, changed = run(data, tmp_path / "a"), run(data, tmp_path / "b", CHANGES[how])
    assert chosen(changed) == chosen(untouched)
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in "ab"]
    assert timeless(results[0]) != timeless(results[1])  # it does change what is reported


def test_under_paper_test_data_does_choose(data: Path, tmp_path: Path) -> None:
    """The mutation: the same change has an effect under the other protocol, so the law above can fail."""
    untouched = run(data, tmp_path / "a", protocol="paper")
    changed = [run(data, tmp_path / how, CHANGES[how], protocol="paper") for how in ("permuted", "replaced")]
    assert len({simulation.progress.best_round for simulation in (untouched, *changed)}) > 1


def test_under_paper_no_validation_is_held_out(data: Path, tmp_path: Path) -> None:
    paper, honest = (load_for(Config().changed({"data": str(data), "protocol": p}, "test")).split
                     for p in ("paper", "honest"))  # fmt: skip
    assert paper.validation is None
    assert honest.validation is not None
    np.testing.assert_array_equal(paper.test.keys(), honest.test.keys())
    both = np.sort(np.concatenate([honest.train.keys(), honest.validation.keys()]))
    np.testing.assert_array_equal(both, paper.train.keys())
    simulation = run(data, tmp_path / "run", protocol="paper")
    found = lines(tmp_path / "run" / "metrics.jsonl")
    assert {line["split"] for line in found} == {"test"}
    best = max(found, key=lambda line: (line["recall@20"], line["ndcg@20"]))
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == best
    assert best["round"] == simulation.progress.best_round
