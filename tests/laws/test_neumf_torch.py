"""Law 4 for FedNCF on a GPU: its rounds are those of the verbs, its scores theirs. Without a GPU PyTorch's CPU."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedgrec.kernels.devices import gpu_is_there
from fedgrec.methods.fedncf import FedNCF
from fedgrec.models.ranking import Judging, Result
from fedgrec.runs.engine_rounds import make_engine
from fedgrec.runs.machine import judged, why_no_gpu
from tests.interrupted import bits
from tests.methods import laws
from tests.methods.laws import World

torch = pytest.importorskip("torch")
from fedgrec.kernels import neumf_torch  # noqa: E402
from tests.laws.test_rounds_torch import DEVICE, HOWS, TURNS, How, apart, by_engine, by_verbs, law_4_holds  # noqa: E402

SMALL: dict[str, Any] = {"hidden": (6, 4), "negatives": 6, "l2": 0.01}
CHOICES: list[dict[str, Any]] = [
    {"hidden": (32, 16, 8), "negatives": 256, "l2": 3e-4},  # as by default: more negatives than there are items
    {"hidden": (4,)},
    {"hidden": (6, 4, 3)},
    {"local_steps": 3, "item_optimizer": "adam", "item_rate": 0.01},
    {"local_steps": 1, "item_optimizer": "adam", "item_rate": 0.01},
    {"local_steps": 3, "item_rate": 0.1},
    {"server_optimizer": "sum", "server_rate": 0.5, "network_rate": 0.25},
    {"server_optimizer": "sum", "network_reduction": "sum"},
    {"reduction": "sum"},
    {"network_reduction": "sum"},
    {"user_optimizer": "sgd", "local_steps": 2},
    {"item_clip": 1e-3, "network_clip": 1e-3},  # most words are cut
    {"negatives": 1},
]


@pytest.mark.keep(13)
@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_rounds_are_those_of_the_verbs(options: dict[str, Any], how: How) -> None:
    law_4_holds("fedncf", neumf_torch, how, **(SMALL | options))


def test_the_clips_do_cut() -> None:
    """Otherwise the case above would not test cut words."""
    world = World.of("fedncf", **SMALL, item_clip=1e-3, network_clip=1e-3)
    assert by_engine(world, TURNS, neumf_torch) > 1000


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_somebody_who_likes_everything_draws_nothing(how: How) -> None:
    slow, fast = (World.of("fedncf", **SMALL, size=(4, 7), precision="float64") for _ in range(2))
    for world in (slow, fast):
        items = np.concatenate([np.arange(7), [1, 5], np.arange(7)]).astype(np.int32)
        world.users = replace(world.users, indptr=np.array([0, 0, 7, 9, 16]), items=items)
    turns = [[1, 2, 3], [3, 1], [0, 2]]
    assert by_verbs(slow, turns) == by_engine(fast, turns, neumf_torch, how)
    assert apart(slow, fast) < 1e-6


def test_single_precision_is_close() -> None:
    slow, fast = (World.of("fedncf", **SMALL, local_steps=2, precision="float32") for _ in range(2))
    by_verbs(slow, TURNS)
    by_engine(fast, TURNS, neumf_torch)
    assert fast.server.items.dtype == fast.users.state.embeddings.dtype == np.float32
    assert apart(slow, fast) < 1e-2


# --------------------------------------------------------------------------------------- the law can fail


def test_padding_that_trains_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = neumf_torch.Engine.problems

    def careless(self: Any, *users: Any) -> Any:
        problems = real(self, *users)
        return problems._replace(real=torch.ones_like(problems.real))

    monkeypatch.setattr(neumf_torch.Engine, "problems", careless)
    with pytest.raises(AssertionError):
        law_4_holds("fedncf", neumf_torch, **SMALL)


@pytest.mark.parametrize("forgotten", ["steps", "moment1"])
def test_what_is_forgotten_at_home_is_noticed(monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
    """Users who come again take Adam's next step, not its first; the items tell."""
    real = neumf_torch.local_steps

    def forgetful(start: Any, home: Any, *rest: Any) -> Any:
        home[forgotten].zero_()
        return real(start, home, *rest)

    slow, fast, wrong = (World.of("fedncf", **SMALL, precision="float64") for _ in range(3))
    turns = [[1, 2, 3]] * 3  # what is forgotten in the second round shows in the third
    by_verbs(slow, turns)
    by_engine(fast, turns, neumf_torch)
    monkeypatch.setattr(neumf_torch, "local_steps", forgetful)
    by_engine(wrong, turns, neumf_torch)
    np.testing.assert_allclose(fast.server.items, slow.server.items, atol=1e-9)
    assert np.abs(wrong.server.items - slow.server.items).max() > 1e-5


# ------------------------------------------------------------------------------------------------ ranking


@pytest.mark.parametrize("memory", [2**28, 4 * 8 * 9 * 5, 4 * 8 * 4, 1])  # all; some users; some items; pair by pair
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("hidden", [(8, 3), (4,), (3, 8, 5)])
def test_scores_are_those_of_the_readable_twin(
    hidden: tuple[int, ...], precision: str, tolerance: float, memory: int
) -> None:
    world = World.of("fedncf", hidden=hidden, precision=precision, init_std=1.0, size=(7, 9)).train(2)
    tables = world.users.state.embeddings, world.server.items, world.server.more["network"]
    score = neumf_torch.scorer(*tables, world.method.options, DEVICE, memory)
    users = np.array([5, 0, 1, 6, 3, 3])
    found, expected = score(users).cpu().numpy(), world.method.scores(world.server, world.users.take(users))
    assert found.dtype == expected.dtype == np.dtype(precision)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_no_layer_takes_more_memory_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    world, largest, real = World.of("fedncf", hidden=(3, 8), size=(9, 14)), [], torch.Tensor.relu_

    def watched(f: Any) -> Any:
        largest.append(f.numel() * f.element_size())
        return real(f)

    monkeypatch.setattr(torch.Tensor, "relu_", watched)
    tables = world.users.state.embeddings, world.server.items, world.server.more["network"]
    neumf_torch.scorer(*tables, world.method.options, DEVICE, memory=1000)(np.arange(9))
    assert 500 < max(largest) <= 1000


class Here(FedNCF):
    """Whatever device is asked for, scores on the one that is there."""

    def scorer(self, server: Any, users: Any, device: str) -> Any:
        assert device == "cuda"
        return super().scorer(server, users, DEVICE)

    def scores(self, *asked: Any) -> Any:
        raise AssertionError("ranking on a device needs no scores from here")


def test_ranking_on_a_device_is_ranking_here() -> None:
    run = laws.after(laws.simulation("fedncf", hidden=(6, 3), negatives=5))
    method, liked = run.method, run.dataset.split.train
    there = Here(method.options, method.n_items, method.n_users)
    is_seen, owner = np.arange(len(liked.items)) % 2 == 0, np.repeat(np.arange(18), np.diff(liked.indptr))

    def only(some: np.ndarray) -> Any:
        counts = np.bincount(owner[some], minlength=18)
        return SimpleNamespace(indptr=np.concatenate([[0], np.cumsum(counts)]), items=liked.items[some])

    def result(method: Any, device: str) -> Result:
        sides = only(is_seen), only(~is_seen)
        return judged(method, run.server, run.users, *sides, Judging((3, 20)), device)

    here, other = result(method, "cpu"), result(there, "cuda")
    assert here.metrics == other.metrics
    assert 0 < here.metrics["recall@3"] < 1 == here.metrics["recall@20"]
    np.testing.assert_array_equal(here.per_user["ndcg@20"], other.per_user["ndcg@20"])


# --------------------------------------------------------------------------------------------- whole runs


def test_an_engine_trains_what_a_run_trains() -> None:
    """The machine finds the engine by the method's name; rounds with dropout, as the run draws them."""
    values = {"hidden": (6, 3), "negatives": 5, "precision": "float64"}
    run = laws.after(laws.simulation("fedncf", **values))
    other = laws.simulation("fedncf", kernel="auto", device=DEVICE, **values)
    assert not why_no_gpu(other.config)
    engine = make_engine(other.config, other.method, other.server, other.users)
    assert isinstance(engine, neumf_torch.Engine)
    for other.server.round in range(3):
        users, arrives = other._sample(other.server.round)
        engine.run([users[arrives]])
    engine.give_back(other.server, other.users.state)
    assert other.server.round == run.server.round == 3
    one, two = (World(a.method, a.server, a.users) for a in (run, other))
    assert apart(one, two) < 1e-6


def test_a_run_on_a_cpu_is_that_of_the_readable_twin() -> None:
    values, threads = (
        {"hidden": (6, 3), "negatives": 5, "precision": "float64", "device": "cpu"},
        torch.get_num_threads(),
    )
    readable, fast, again = (
        laws.after(laws.simulation("fedncf", **values, **how))
        for how in ({"kernel": "reference"}, {"kernel": "auto"}, {"kernel": "auto", "threads": 2})
    )
    assert (readable.engine, bool(fast.engine)) == (None, True)
    assert apart(*(World(run.method, run.server, run.users) for run in (readable, fast))) < 1e-6
    assert readable.result() == pytest.approx(fast.result(), abs=1e-9)
    assert bits(fast) == bits(again) != bits(readable)
    assert torch.get_num_threads() == threads


@pytest.mark.skipif(not gpu_is_there(), reason="needs a GPU")
def test_a_run_on_a_gpu_is_a_run_here() -> None:
    values = {"hidden": (6, 3), "negatives": 5, "precision": "float64", "kernel": "auto"}
    here, there = (laws.after(laws.simulation("fedncf", device=device, **values)) for device in ("cpu", "cuda"))
    assert apart(*(World(run.method, run.server, run.users) for run in (here, there))) < 1e-6
    assert here.result() == pytest.approx(there.result())
