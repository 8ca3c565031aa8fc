"""On a GPU the same draws train the same models, up to the last bits."""

from typing import Any

import numpy as np
import pytest

from fedgrec.centralized import evaluate_model, make, train
from fedgrec.models.ranking import Judging
from tests.centralized.worlds import SMALL, TRAINED, board

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
BOARD = board()


def new(name: str, device: str, **changes: Any) -> Any:
    return make(name, BOARD.split.train, device=device, **{**SMALL[name], **changes})


@pytest.mark.parametrize("name", TRAINED)
def test_the_board_is_solved(name: str) -> None:
    assert train(new(name, "cuda"), BOARD, topk=(2,))["recall@2"] == 1.0


@pytest.mark.parametrize("name", ["mf-bpr", "lightgcn", "ngcf"])
def test_an_epoch_equals_the_cpus(name: str) -> None:
    """Without dropout, whose draws are the device's own."""
    changes = {"dropout": 0.0} if name == "ngcf" else {}
    here, there = new(name, "cpu", rate=1e-3, **changes), new(name, "cuda", rate=1e-3, **changes)
    assert here.epoch() == pytest.approx(there.epoch(), rel=1e-4)
    for key, value in here.tensors().items():
        np.testing.assert_allclose(there.tensors()[key], value, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("name", TRAINED)
def test_it_ranks_as_the_cpu_does(name: str) -> None:
    there, here = new(name, "cuda"), new(name, "cpu")
    there.epoch()
    here.load_state(there.state())
    assert BOARD.split.test is not None
    results = [
        evaluate_model(model, BOARD.split.train, BOARD.split.test, Judging((5,))).metrics for model in (here, there)
    ]
    assert results[0]["recall@5"] == pytest.approx(results[1]["recall@5"], abs=0.05)


@pytest.mark.parametrize("name", TRAINED)
def test_resumed_equals_uninterrupted(name: str) -> None:
    straight, stopped, resumed = new(name, "cuda"), new(name, "cuda"), new(name, "cuda")
    straight.epoch(), straight.epoch()
    stopped.epoch()
    resumed.load_state(stopped.state())
    resumed.epoch()
    for key, value in straight.state().items():
        np.testing.assert_allclose(resumed.state()[key], value, rtol=1e-3, atol=1e-5)


def test_recorded_steps_of_ngcf_train_as_launched_ones_do() -> None:
    launched, recorded = new("ngcf", "cuda"), new("ngcf", "cuda")
    launched.learner.records = False
    for _ in range(3):
        assert launched.epoch() == pytest.approx(recorded.epoch(), rel=1e-5)
    assert recorded.learner._replay is not None
    assert launched.learner._replay is None
    for key, value in launched.state().items():
        np.testing.assert_allclose(recorded.state()[key], value, rtol=1e-3, atol=1e-5)


def test_a_recording_of_ngcf_survives_what_is_loaded() -> None:
    """To the bit, in a model without a recording and in one with a recording that has trained differently since."""
    straight, stopped, fresh, used = (new("ngcf", "cuda") for _ in range(4))
    straight.epoch(), straight.epoch()
    stopped.epoch()
    used.epoch(), used.epoch(), used.epoch()
    for resumed in (fresh, used):
        resumed.load_state(stopped.state())
        resumed.epoch()
        for key, value in straight.state().items():
            np.testing.assert_array_equal(resumed.state()[key], value)
