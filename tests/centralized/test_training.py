"""Training as a run: killed and resumed, under both protocols, and the files in its folder."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.centralized import evaluate_model, load, make, train
from fedgrec.data import Dataset, Split
from fedgrec.errors import DataError, RunError
from fedgrec.models.metrics import NAMES
from fedgrec.models.ranking import Judging
from tests.centralized.worlds import SMALL, board

BOARD = board()
PLAN: dict[str, Any] = {"epochs": 6, "evaluate_every": 2, "checkpoint_every": 2, "topk": (2,)}


class Observer:
    """Stops or dies after some epochs."""

    def __init__(self, stop_at: int = 99, die_at: int = 99) -> None:
        self.stop_at, self.die_at, self.done, self.lines = stop_at, die_at, 0, []  # type: ignore[var-annotated]

    def started(self, done: int, rounds: int) -> None:
        self.done = done

    def round_done(self, done: int) -> None:
        self.done = done
        if done == self.die_at:
            raise KeyboardInterrupt

    def evaluated(self, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def stop_wanted(self) -> bool:
        return self.done >= self.stop_at


def new(name: str = "lightgcn", **changes: Any) -> Any:
    return make(name, BOARD.split.train, **{**SMALL[name], "rate": 0.002, **changes})


def without_seconds(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.mark.parametrize(
    ("protocol", "how"), [("paper", {"stop_at": 3}), ("paper", {"die_at": 5}), ("honest", {"die_at": 3})]
)
def test_killed_and_resumed_ends_the_same(protocol: str, how: dict[str, int], tmp_path: Path) -> None:
    plan = {**PLAN, "protocol": protocol}
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    train(new(), BOARD, straight, **plan)
    try:
        train(new(), BOARD, broken, observer=Observer(**how), **plan)
    except KeyboardInterrupt:
        assert "die_at" in how
    assert not (broken / "result.json").exists()
    train(new(), BOARD, broken, resume=True, **plan)
    assert without_seconds(broken) == without_seconds(straight)
    assert (broken / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()


def test_the_lines_have_the_keys_of_federated_runs(tmp_path: Path) -> None:
    train(new(), BOARD, tmp_path, **PLAN)
    lines = without_seconds(tmp_path)
    assert [line["round"] for line in lines] == [2, 4, 6]
    measured = {f"{name}@2" for name in NAMES if name != "recall_middle"}  # a board of equals has no middle
    assert set(lines[0]) == {"round", "split", "protocol", *measured, "users", "loss"}


def test_the_model_is_left_at_its_best_epoch(tmp_path: Path) -> None:
    """Recall rises to the last evaluation but one, then a huge rate ruins it."""
    model = new(rate=0.05)
    epoch = model.epoch

    def ruined_at_the_end() -> float:
        loss = epoch()
        if model.epochs_done == 6:
            model.learner.E[: BOARD.split.train.n_users] *= -1  # the last items first
        return loss  # type: ignore[no-any-return]

    model.epoch = ruined_at_the_end
    line = train(model, BOARD, tmp_path, **PLAN)
    assert line["round"] == model.epochs_done < 6
    assert BOARD.split.test is not None
    seen = BOARD.split.before_test
    again = evaluate_model(load(tmp_path), seen, BOARD.split.test, Judging((2,))).metrics
    assert again["recall@2"] == line["recall@2"]


def test_honest_looks_at_test_once(tmp_path: Path) -> None:
    line = train(new(), BOARD, tmp_path, protocol="honest", **PLAN)
    lines = without_seconds(tmp_path)
    assert [each["split"] for each in lines] == ["validation"] * 3 + ["test"]
    best = max(lines[:3], key=lambda each: (each["recall@2"], each["ndcg@2"], each["round"]))
    assert lines[-1]["round"] == line["round"] == best["round"]


def test_honest_needs_a_validation_split() -> None:
    with pytest.raises(DataError, match="validation"):
        train(new(), Dataset("board", Split(BOARD.split.train, BOARD.split.test)), protocol="honest")


def test_at_test_time_validation_items_are_seen() -> None:
    seen, validation = BOARD.split.before_test, BOARD.split.validation
    assert validation is not None
    both = np.concatenate([BOARD.split.train.keys(), validation.keys()])
    np.testing.assert_array_equal(seen.keys(), np.sort(both))


def test_patience() -> None:
    watch = Observer()
    train(new(rate=0.0), BOARD, observer=watch, **{**PLAN, "epochs": 50, "patience": 2})
    assert [line["round"] for line in watch.lines] == [2, 4, 6]


def test_models_without_training_are_judged_once(tmp_path: Path) -> None:
    model = make("popularity", BOARD.split.train)
    assert train(model, BOARD, tmp_path, epochs=7)["round"] == 0
    assert len(without_seconds(tmp_path)) == 1


def test_another_run_is_not_overwritten_or_mixed(tmp_path: Path) -> None:
    train(new(), BOARD, tmp_path, **PLAN)
    with pytest.raises(RunError, match="holds a run already"):
        train(new(), BOARD, tmp_path, **PLAN)
    with pytest.raises(RunError, match="another model"):
        train(new(layers=1), BOARD, tmp_path, resume=True, **PLAN)
    with pytest.raises(RunError, match="nothing to resume"):
        train(new(), BOARD, resume=True)
    longer = train(new(), BOARD, tmp_path, resume=True, **{**PLAN, "epochs": 8})  # more of the same is fine
    assert longer["round"] <= 8
    assert without_seconds(tmp_path)[-1]["round"] == 8


NO_TORCH = """
import sys
sys.modules["torch"] = None
import fedgrec, fedgrec.centralized
from fedgrec.centralized import *
from fedgrec.errors import FedgrecError
from tests.centralized.worlds import SMALL, board
data = board()
for name in ("popularity", "turbocf", "mf-bpr", "lightgcn"):
    model = make(name, data.split.train, **SMALL[name])
    train(model, data, epochs=1)
for name, device in (("ngcf", "cpu"), ("multvae", "cpu"), ("lightgcn", "cuda")):
    try:
        make(name, data.split.train, device=device)
    except FedgrecError as error:
        assert "pip install -c constraints.txt '.[torch]'" in str(error), error
    else:
        raise AssertionError(name)
"""


def test_without_torch_all_is_named_and_most_works() -> None:
    run = subprocess.run([sys.executable, "-c", NO_TORCH], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, fedgrec.centralized; sys.exit(bool({'torch', 'numba', 'scipy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
