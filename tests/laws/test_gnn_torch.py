"""Law 4 for FedGNN's rounds on a GPU: they are those of the verbs. Without a GPU PyTorch's CPU."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedgrec.config.configuration import Config
from fedgrec.config.options import method_module
from fedgrec.errors import FedgrecError
from fedgrec.runs import engine_rounds, simulation
from tests.laws.test_rounds_torch import (
    DEVICE,
    HOWS,
    TURNS,
    How,
    apart,
    by_engine,
    by_verbs,
    cpu_for_a_gpu,
)
from tests.methods.gnn_worlds import warmed_up
from tests.methods.laws import World
from tests.methods.test_fedgnn_runs import clicks

torch = pytest.importorskip("torch")
from fedgrec.kernels import gnn_torch  # noqa: E402

METHODS = ["fedgnn", "fedgnn-bpr"]


def world(name: str, rated: bool = False, **options: Any) -> World:
    """Nine users before the first round who have heard of each other; 0 has no items and 1 has them all."""
    base = {"precision": "float64", "users_per_round": 6, "dim": 5, "negatives": 4, "init_std": 0.5, "others": 0.3}
    Y = np.random.default_rng(3).random((9, 14)) < 0.4
    Y[0], Y[1] = False, True
    method = method_module(name).make(method_module(name).Options(**base | options), 14, 9)
    return World(method, *warmed_up(method, Y, rated=rated))


def law_4_holds(name: str, how: How = HOWS[0], most: float = 1e-6, **options: Any) -> int:
    """How many words the clips cut."""
    slow, fast = (world(name, **options) for _ in range(2))
    cut = by_verbs(slow, TURNS)
    assert by_engine(fast, TURNS, gnn_torch, how) == cut
    assert slow.server.round == fast.server.round == len(TURNS)
    assert apart(slow, fast) < most
    return cut


OPTIONS: list[dict[str, Any]] = [
    {},
    {"others": 0.0},
    {"own": 0.5, "others": 1.0},
    {"message_passing": "root"},
    {"message_passing": "symmetric", "neighbours": 1},
    {"max_positives": 2},
    {"max_positives": 0, "l2": 0.5},
    {"server_optimizer": "sum", "server_rate": 0.7},
    {"half_life": 2},
    {"negatives": 50},  # more than there are
    {"clip": 10.0, "init_std": 2.0},
]


CASES = list(itertools.product(METHODS, OPTIONS, HOWS))


@pytest.mark.keep(18)
@pytest.mark.parametrize(("name", "options", "how"), CASES, ids=str)
def test_rounds_are_those_of_the_verbs(name: str, options: dict[str, Any], how: How) -> None:
    law_4_holds(name, how, **options)


@pytest.mark.keep(4)
@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_what_a_clip_cuts_is_cut_and_counted(name: str, how: How) -> None:
    assert law_4_holds(name, how, clip=0.002, max_positives=3) > 100


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_ratings_are_targets(how: How) -> None:
    law_4_holds("fedgnn", how, rated=True)
    law_4_holds("fedgnn", how, rated=True, max_positives=2)


@pytest.mark.parametrize("name", METHODS)
def test_in_float32_they_are_almost_those_of_the_verbs(name: str) -> None:
    law_4_holds(name, precision="float32", most=1e-3)


@pytest.mark.parametrize("name", METHODS)
def test_the_same_rounds_again_have_the_same_bits(name: str) -> None:
    """Nothing is added up in an order that may vary."""
    again = [world(name, precision="float32", negatives=50) for _ in range(2)]
    for one in again:
        by_engine(one, TURNS, gnn_torch)
    assert apart(*again) == 0


def forget_what_was_told(engine: Any) -> None:
    engine.from_neighbours.zero_()


def forget_the_items(engine: Any) -> None:
    engine.v.zero_()


def forget_how_rates_fall(engine: Any) -> None:
    engine.options = replace(engine.options, half_life=0)


@pytest.mark.parametrize("forget", [forget_what_was_told, forget_the_items, forget_how_rates_fall])
def test_a_round_that_differs_is_noticed(forget: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law can fail."""
    real = gnn_torch.Engine.__init__

    def forgetful(self: Any, *given: Any) -> None:
        real(self, *given)
        forget(self)

    monkeypatch.setattr(gnn_torch.Engine, "__init__", forgetful)
    with pytest.raises(AssertionError):
        law_4_holds("fedgnn", half_life=2)


@pytest.mark.parametrize("name", METHODS)
def test_an_update_that_is_not_finite_is_said(name: str) -> None:
    diverged = world(name)
    diverged.server.items[:] = np.nan
    with pytest.raises(FedgrecError, match="not finite"):
        by_engine(diverged, TURNS, gnn_torch)


# ---------------------------------------------------------------------------------------------- whole runs


def run_on(device: str, name: str, **values: Any) -> simulation.Simulation:
    chosen = {"rounds": 12, "expand_every": 5, "evaluate_every": 4, "dim": 8, "users_per_round": 12, "negatives": 16}
    chosen |= {"others": 0.5, "dropout": 0.2, "topk": (5,), "protocol": "paper", "precision": "float64"}
    chosen |= {"method": name, "kernel": "auto" if device == "cuda" else "reference", "device": device}
    run = simulation.Simulation(Config().changed(chosen | values, "test"), clicks())
    run.run()
    return run


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds before which an engine is made; where there is no GPU, PyTorch's CPU passes for one."""
    made: list[int] = []

    def make_engine(config: Config, method: Any, server: Any, users: Any) -> Any:
        made.append(server.round)
        return gnn_torch.Engine(method, server, users, DEVICE)

    monkeypatch.setattr(engine_rounds, "make_engine", make_engine)
    if DEVICE == "cpu":
        cpu_for_a_gpu(monkeypatch)
    return made


def differ(one: simulation.Simulation, other: simulation.Simulation) -> float:
    """The two runs' largest difference, on both sides and in what users were told."""
    worlds = [World(run.method, run.server, run.users) for run in (one, other)]
    assert one.users.around is not None
    assert other.users.around is not None
    return max(apart(*worlds), float(np.abs(one.users.around - other.users.around).max()))


@pytest.mark.parametrize("name", METHODS)
def test_users_hear_of_others_on_time(name: str, engines: list[int]) -> None:
    plain, fast = run_on("cpu", name), run_on("cuda", name)
    assert engines == [0, 5, 10]
    assert differ(plain, fast) < 1e-6
    assert plain.progress.traffic == fast.progress.traffic
    assert plain.progress.clipped == fast.progress.clipped
    lines = [[{**line, "seconds": 0} for line in run.progress.metrics] for run in (plain, fast)]
    assert [line["round"] for line in lines[0]] == [4, 8, 12]
    assert lines[0] == lines[1]


def test_users_who_hear_of_others_late_are_noticed(engines: list[int]) -> None:
    """The comparison can fail."""
    assert differ(run_on("cpu", "fedgnn"), run_on("cuda", "fedgnn", expand_every=6)) > 1e-3
    assert engines == [0, 6]
