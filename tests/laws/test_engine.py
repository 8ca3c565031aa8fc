"""Law 4 for the GPU: its rounds are those of the verbs, for every option, users who drop out included.

Without a GPU the loops run in Triton's interpreter: slow, but the same program.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from fedgrec.config.configuration import FedGRecOptions
from fedgrec.kernels.devices import gpu_is_there
from tests.laws.worlds import Run, World, worlds

pytest.importorskip("triton", reason="Triton is not installed: no loops for a GPU")
from fedgrec.kernels import cuda

DEVICE = "cuda" if gpu_is_there() else "cpu"
SMALL = cuda.Launch(rows=8, positives=8, split=8, drawn=8, items=8, registers=None)


def differences(world: World, rounds: list[np.ndarray], options: FedGRecOptions | None = None) -> dict[str, float]:
    """How far the engine (with other options, if given) is from the verbs after these rounds, in relative terms."""
    run = Run.warmed_up(world)
    if world.options.loss == "softmax":  # runs with weights are refused on a GPU
        run.users = replace(run.users, targets=None)
    method = replace(run.method, options=options or world.options)
    engine = cuda.Engine(method, run.server, run.users, DEVICE, SMALL)
    engine.run(rounds)
    server, state = method.init(0), run.users.state.copy()
    cut = engine.give_back(server, state)
    for users in rounds:
        if len(users):
            run.exchange(run.method.training(run.server.round), users, np.ones(len(users), bool))
        else:
            run.server.round += 1
    found = {name: distance(value, getattr(run.users.state, name)) for name, value in vars(state).items()}
    found |= {name: distance(getattr(server, name), getattr(run.server, name)) for name in ("items", "moment1")}
    assert server.round == run.server.round == len(rounds)
    return found | {"cut": float(min(cut, 0))}


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float((np.abs(a - b) / (np.abs(b) + 1e-3)).max(initial=0))


@settings(max_examples=2 if DEVICE == "cpu" else 60, deadline=None)
@given(worlds(precision="float64"))
def test_a_round_is_that_of_the_verbs(world: World) -> None:
    n = min(world.options.users_per_round, world.n_users)
    rounds = 1 if world.method().training(1).everyone else 2  # in the second, rows have steps of their own
    assert max(differences(world, [np.arange(n)] * rounds).values()) < 1e-6


@pytest.mark.keep(1)
@pytest.mark.parametrize("steps", [3, 1])
def test_rounds_follow_one_another_as_the_verbs_do(steps: int) -> None:
    """Rates that fall, users who come again or drop out, a round in which nobody arrives, steps at their bound."""
    options = FedGRecOptions(
        dim=4, negatives=6, users_per_round=3, half_life=2, local_steps=steps, precision="float64", latent_rate=0.5,
        latents_every=steps, fine_rounds=2, item_clip=30.0 if steps == 1 else 0.05,
    )  # fmt: skip
    world = World(np.random.default_rng(3).random((4, 12)) < 0.3, options, seed=2)
    rounds = [np.array(users, int) for users in ([0, 1, 2], [3, 1], [], [0])]
    assert max(differences(world, rounds).values()) < 1e-6


def results_of_two(world: World, rounds: list[np.ndarray], launch: cuda.Launch) -> list[tuple[np.ndarray, ...]]:
    """What two engines make of the same federation."""
    run, results = Run.warmed_up(world), []
    for _ in range(2):
        engine = cuda.Engine(run.method, run.server, run.users, DEVICE, launch)
        engine.run(rounds)
        server, state = run.method.init(0), run.users.state.copy()
        engine.give_back(server, state)
        results.append((server.items, state.embeddings, state.moment2))
    return results


def test_the_same_bits_every_time() -> None:
    options = FedGRecOptions(dim=4, layers=1, negatives=8, users_per_round=2, local_steps=2, item_optimizer="adam")
    world = World(np.random.default_rng(4).random((2, 12)) < 0.5, options, seed=1)
    results = results_of_two(world, [np.arange(2)] * 2, SMALL)
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


MUTANTS = {
    "nothing": {},
    "no penalty": {"l2": 0.0},
    "frozen latents": {"live": False},
    "another rate": {"item_rate": 0.049},
    "positives among the negatives": {"exclude_positives": False},
    "fresh moments": {"user_moments": "fresh"},
    "rates that fall": {"half_life": 1},
    "latents that stay at home": {"latents_every": 3},
    "other words": {"item_levels": 5},
    "fine words": {"item_levels": 0},
}


@pytest.mark.keep(4)
@pytest.mark.parametrize("change", MUTANTS.values(), ids=MUTANTS)
def test_mutants_break_the_law(change: dict[str, object]) -> None:
    options = FedGRecOptions(
        dim=4, layers=1, negatives=8, users_per_round=2, l2=0.1, item_rate=0.05, latents_every=1, fine_rounds=1,
        precision="float64",
    )  # fmt: skip
    world = World(np.random.default_rng(4).random((2, 12)) < 0.5, options, seed=1)
    rounds = 4 if "latents_every" in change else 2  # in the first turns latents are always due
    far = max(differences(world, [np.arange(2)] * rounds, replace(options, **change)).values())
    assert far > 1e-5 if change else far < 1e-6


@pytest.mark.keep(2)
@pytest.mark.parametrize("download", ["float32", "bfloat16", "int8"])
def test_tables_arrive_as_they_travel(download: str) -> None:
    options = FedGRecOptions(dim=4, layers=1, negatives=4, users_per_round=2, latents_every=2, precision="float64")
    world = World(np.random.default_rng(4).random((2, 12)) < 0.5, replace(options, download="bfloat16"), seed=1)
    far = max(differences(world, [np.arange(2)] * 3, replace(options, download=download)).values())
    assert far < 1e-6 if download == "bfloat16" else far > 1e-5
