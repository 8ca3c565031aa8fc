"""A GPU that is full or fails gives one sentence and keeps the last checkpoint. PyTorch's CPU plays the GPU here."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.config.configuration import Config
from fedgrec.errors import FedgrecError
from fedgrec.kernels.devices import within_memory
from fedgrec.models.ranking import Judging
from fedgrec.runs import engine_rounds, machine
from fedgrec.runs.simulation import Simulation
from tests.laws.test_rounds_torch import cpu_for_a_gpu
from tests.methods.test_fedgnn_runs import clicks

torch = pytest.importorskip("torch")
from fedgrec.kernels import fcf_torch  # noqa: E402

OPTIONS = {"method": "fcf", "dim": 4, "users_per_round": 8, "rounds": 12, "evaluate_every": 4, "checkpoint_every": 4}


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU with 1 of 4 GB free; from round 8 on, its work raises the error that the test chooses."""
    raised = [torch.OutOfMemoryError("CUDA out of memory")]

    class Engine(fcf_torch.Engine):
        def apply(self, *sums: Any) -> None:
            if self.round >= 8:
                raise raised[0]
            super().apply(*sums)

    monkeypatch.setattr(engine_rounds, "make_engine", lambda _, *given: Engine(*given, "cpu"))
    cpu_for_a_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 4 * 2**30))
    return raised


def new(out: Path | None, **changes: Any) -> Simulation:
    return Simulation(Config().changed(OPTIONS | {"device": "cuda"} | changes, "test"), clicks(), out)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            r"training needs more memory than the GPU has left \(1.0 of 4.0",
        ),
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), "the GPU failed while training: CUDA error"),
    ],
    ids=["full", "fails"],
)
def test_a_run_that_a_gpu_ends_goes_on_from_its_checkpoint(full: Any, error: Any, said: str, tmp_path: Path) -> None:
    full[0] = error
    with pytest.raises(FedgrecError, match=said) as told:
        new(tmp_path / "run").run()
    assert "checkpoints written before are intact" in str(told.value)
    resumed = new(tmp_path / "run", device="cpu", kernel="reference")
    resumed.resume()
    assert resumed.server.round == 8
    resumed.run()
    whole = new(tmp_path / "whole", device="cpu", kernel="reference")
    whole.run()
    np.testing.assert_allclose(resumed.server.items, whole.server.items, rtol=1e-3, atol=1e-5)


def test_elsewhere_errors_pass(full: Any) -> None:
    with pytest.raises(torch.OutOfMemoryError), within_memory("training", "dim", "cpu"):
        raise torch.OutOfMemoryError


def test_ranking_says_so_too(full: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods that are not trained in rounds are evaluated on the GPU too."""

    def no_room(*_: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(machine, "products_on_gpu", no_room)
    run = new(None, device="cpu")
    test = run.dataset.split.test
    assert test is not None
    with pytest.raises(FedgrecError, match=r"ranking needs more memory .*: lower dim or layers, or use --device cpu"):
        machine.judged(run.method, run.server, run.users, run.dataset.split.train, test, Judging((5,)), "cuda")
