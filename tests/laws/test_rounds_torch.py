"""Law 4 for the rounds of the compared methods on a GPU: they are those of the verbs. Without a GPU PyTorch's CPU."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.config.configuration import Config
from fedgrec.errors import ConfigError, FedgrecError
from fedgrec.kernels.devices import gpu_is_there
from fedgrec.methods import fcf
from fedgrec.runs import engine_rounds, machine, simulation
from tests.methods.laws import World
from tests.methods.test_ordered import run_on, table, walks

torch = pytest.importorskip("torch")
from fedgrec.kernels import fcf_torch, ordered_torch, spectral_torch  # noqa: E402

DEVICE = "cuda" if gpu_is_there() else "cpu"
TURNS = [[0, 1, 2, 3, 4, 5], [5, 7, 1], [], [8, 0], [2, 3, 5, 6, 7, 8], [0]]  # some come again; 0 has no items
How = dict[str, Any]
HOWS: list[How] = [{}, {"memory": 1}]  # everybody at once; every user in a batch of its own


def cpu_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a simulation whose device is "cuda" run without one; its engine the test makes itself."""
    judged = simulation.judged
    monkeypatch.setattr(machine, "place", torch.device)
    monkeypatch.setattr(simulation, "judged", lambda *given: judged(*given[:6], "cpu"))


def by_verbs(world: World, turns: list[list[int]]) -> int:
    """Rounds of the verbs, in place; how many words the clips cut."""
    cut = 0
    for users in map(np.array, turns):
        if not len(users):
            world.server.round += 1
            continue
        total, pending = world.upload(users)
        world.server = world.method.apply(world.server, world.stage, total)
        world.method.commit(world.users, users, pending)
        cut += pending.clipped
    return cut


def by_engine(world: World, turns: list[list[int]], engines: Any, how: How = HOWS[0]) -> int:
    engine = engines.Engine(world.method, world.server, world.users, DEVICE, **how)
    engine.run([np.array(users, int) for users in turns])
    return int(engine.give_back(world.server, world.users.state))


def apart(one: World, other: World) -> float:
    """The largest difference of the two worlds, relative to the larger of a number and a thousandth."""
    pairs = [(getattr(one.server, name), getattr(other.server, name)) for name in ("items", "moment1", "moment2")]
    pairs += [(one.server.more[name], other.server.more[name]) for name in one.server.more]
    pairs += [(value, getattr(other.users.state, name)) for name, value in vars(one.users.state).items()]
    return max(float((np.abs(a - b) / (np.abs(b) + 1e-3)).max(initial=0)) for a, b in pairs)


def law_4_holds(name: str, engines: Any, how: How = HOWS[0], **options: Any) -> None:
    options = {"precision": "float64", "users_per_round": 6, "dim": 5} | options
    slow, fast = (World.of(name, size=(9, 14), seed=3, **options) for _ in range(2))
    assert by_verbs(slow, TURNS) == by_engine(fast, TURNS, engines, how)
    assert slow.server.round == fast.server.round == len(TURNS)
    assert apart(slow, fast) < 1e-6


FCF: list[dict[str, Any]] = [
    {},
    {"server_optimizer": "sgd", "server_rate": 1e-4},
    {"alpha": 1.0, "l2": 1e-3},
    {"item_clip": 1e-3, "gram_clip": 1e-3},  # most words are cut
]


@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize("options", FCF, ids=str)
def test_fcf(options: dict[str, Any], how: How) -> None:
    law_4_holds("fcf", fcf_torch, how, **options)


def test_fcf_with_ratings() -> None:
    slow, fast = (World.of("fcf", precision="float64", dim=5) for _ in range(2))
    ratings = np.random.default_rng(1).random(len(slow.users.items))
    for world in (slow, fast):
        world.users = replace(world.users, targets=ratings)
    by_verbs(slow, TURNS)
    by_engine(fast, TURNS, fcf_torch)
    assert apart(slow, fast) < 1e-6


def test_a_round_that_differs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law can fail: here the server forgets the penalty."""
    real = fcf_torch.Engine.apply

    def forgetful(self: Any, *sums: Any) -> None:
        self.options = replace(self.options, l2=0.0)
        real(self, *sums)

    monkeypatch.setattr(fcf_torch.Engine, "apply", forgetful)
    with pytest.raises(AssertionError):
        law_4_holds("fcf", fcf_torch)


def test_an_update_that_is_not_finite_is_said() -> None:
    world = World.of("fcf")
    world.server.items[:] = np.nan
    with pytest.raises(FedgrecError, match="not finite"):
        by_engine(world, TURNS, fcf_torch)


@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize("levels", [0, 7])
def test_spectral(how: How, levels: int) -> None:
    options = {"precision": "float64", "dim": 3, "spare": 2, "item_levels": levels}
    slow, fast = (World.of("spectral", size=(9, 14), seed=3, **options) for _ in range(2))
    for world in (slow, fast):
        world.server.degrees[:] = np.bincount(world.users.items, minlength=14)
    assert by_verbs(slow, TURNS[:2]) == by_engine(fast, TURNS[:2], spectral_torch, how)
    np.testing.assert_allclose(scores(fast), scores(slow), atol=1e-6)


def test_mutation_of_spectral_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here all items are equally popular."""
    real = spectral_torch.Engine.apply

    def levelled(self: Any, *sums: Any) -> None:
        self.popularity = torch.ones_like(self.popularity)
        real(self, *sums)

    monkeypatch.setattr(spectral_torch.Engine, "apply", levelled)
    with pytest.raises(AssertionError):
        test_spectral(HOWS[0], 0)


@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize(("levels", "known"), [(0, True), (7, True), (7, False)])
def test_ordered(how: How, levels: int, known: bool) -> None:
    """From either side."""
    options = {"precision": "float64", "dim": 3, "spare": 2, "item_levels": levels}
    slow, fast = (World.of("ordered", size=(9, 14), seed=3, **options) for _ in range(2))
    for world in (slow, fast):
        world.server.degrees[:] = np.bincount(world.users.items, minlength=14)
        if known:
            world.users = world.users.ordered_by(np.random.default_rng(1).random(len(world.users.items)))
    assert by_verbs(slow, TURNS[:2]) == by_engine(fast, TURNS[:2], ordered_torch, how)
    np.testing.assert_allclose(scores(fast), scores(slow), atol=1e-6)


def test_mutation_of_ordered_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the server does not turn the other side's columns."""
    monkeypatch.setattr(ordered_torch.Engine, "learn", lambda self, Z, shares, before: None)
    with pytest.raises(AssertionError):
        test_ordered(HOWS[0], 0, True)


@pytest.mark.parametrize("name", ["ordered", "ordered-parts"])
def test_whole_runs_of_ordered(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sums of `ordered-parts` are Spectral's and for the verbs, so its engine begins later."""
    path, exact = table(tmp_path, walks()), {"item_levels": 0, "download": "float32", "precision": "float64"}
    here = run_on(path, method=name, device="cpu", **exact)
    cpu_for_a_gpu(monkeypatch)
    begun = []

    def engine(_: Any, *given: Any) -> Any:
        begun.append(given[1].round)
        return ordered_torch.Engine(*given, DEVICE)

    monkeypatch.setattr(engine_rounds, "make_engine", engine)
    there = run_on(path, method=name, device="cuda", **exact)
    assert begun == [there.config.run.rounds - 4]
    np.testing.assert_allclose(*(run.method.scores(run.server, run.users) for run in (here, there)), atol=1e-4)


def scores(world: World) -> Any:
    return world.method.represent_users(world.server, world.users) @ world.method.represent_items(world.server).T


ON_A_GPU = [
    ("fedgrec", {}),
    ("ordered", {}),
    ("ordered-parts", {}),
    ("fcf", {}),
    ("fedncf", {}),
    ("fedgnn", {}),
    ("fedgnn-bpr", {}),
]
NOT: list[tuple[str, dict[str, Any], str]] = [
    ("fcf", {"kernel": "reference"}, "kernel = reference does not train on a GPU"),
    ("fedgrec", {"secure": "protocol"}, "secure = protocol does not train on a GPU"),
    ("fedgrec", {"dp_epsilon": 8.0}, "a GPU adds no noise, which dp_epsilon asks for"),
]


@pytest.mark.parametrize(("method", "options"), ON_A_GPU)
def test_auto_means_a_gpu_where_there_is_one(
    method: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config().of(method).layered((options, "here"))
    for there, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(machine, "gpu_is_there", lambda there=there: there)
        assert machine.device_of(config) == device
    assert machine.device_of(config.changed({"device": "cuda"})) == "cuda"


@pytest.mark.parametrize(("method", "options", "reason"), NOT)
def test_what_no_engine_trains_stays_on_the_cpu(
    method: str, options: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config().of(method).layered((options, "here"))
    monkeypatch.setattr(machine, "gpu_is_there", lambda: True)
    assert machine.device_of(config) == "cpu"
    with pytest.raises(ConfigError, match=f"^{re.escape(reason)}: leave out device, or set it to cpu$"):
        machine.device_of(config.changed({"device": "cuda"}))


HERE = [("fedncf", {}, True), ("fedgnn", {}, True), ("fcf", {}, True), ("fedgrec", {}, False)]
HERE += [("fedncf", options, False) for options in ({"kernel": "reference"}, {"secure": "protocol"})]


@pytest.mark.parametrize(("method", "options", "here"), HERE)
def test_an_engine_runs_on_a_cpu_what_it_can_and_no_fused_loops_do(
    method: str, options: dict[str, Any], here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config().of(method).layered((options | {"device": "cpu"}, "here"))
    assert machine.by_engine(config) == here
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda _: None)  # as without PyTorch
    assert not machine.by_engine(config)


def test_what_an_engine_runs_on_a_cpu_has_no_other_fast_kernel() -> None:
    with pytest.raises(ConfigError, match="fedncf has no kernel 'cpu': choose one of auto, reference"):
        machine.make_method(Config().of("fedncf").changed({"kernel": "cpu"}), 9, 9)


def test_a_method_that_has_no_engine_trains_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_is_there", lambda: True)
    monkeypatch.setattr(fcf.FCF, "engine", "")
    assert machine.device_of(Config().of("fcf")) == "cpu"
    monkeypatch.setattr(fcf.FCF, "engine", "fedgrec.kernels.fcf_torch")
    monkeypatch.setattr(fcf.FCF, "fits_engine", False)
    with pytest.raises(ConfigError, match="fcf does not train on a GPU with these options"):
        machine.device_of(Config().of("fcf").changed({"device": "cuda"}))
    monkeypatch.setattr(fcf.FCF, "fits_engine", True)
    monkeypatch.setattr(fcf.FCF, "engine_needs", "there_is_no_such_package")
    with pytest.raises(ConfigError, match="fcf does not train on a GPU without the package there_is_no_such_package"):
        machine.device_of(Config().of("fcf").changed({"device": "cuda"}))
