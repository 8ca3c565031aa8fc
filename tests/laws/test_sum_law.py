"""Law 1: the sum over users of local_update({u}) is local_update(all), to the bit, for any split and order."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.cable.core import Rows, quantize
from fedgrec.config.options import FedGRecOptions
from fedgrec.kernels import cpu, reference
from fedgrec.methods.fedgrec import DEGREES, PROPAGATE, TRAIN, FedGRecMethod
from tests.laws.worlds import Run, World, same, worlds


def sum_law_holds(world: World, method: FedGRecMethod, order: np.ndarray, cuts: list[int]) -> bool:
    run = Run.warmed_up(world, method).train(1)
    everyone = np.arange(world.n_users)
    stages = [(DEGREES, 0), (TRAIN, 0)] + [(PROPAGATE, k) for k in range(1, world.options.layers + 1)]
    for stage, level in stages:
        broadcast = method.broadcast(run.server, stage, level=level)
        users = everyone[: min(method.spec(stage).users, world.n_users)]
        order_here = order[order < len(users)]
        whole, _ = method.local_update(run.users.take(users), stage, broadcast)
        parts = [part for part in np.split(order_here, [c for c in sorted(cuts) if c < len(order_here)]) if len(part)]
        sums = [method.local_update(run.users.take(part), stage, broadcast)[0] for part in parts]
        if not same(functools.reduce(lambda a, b: a + b, sums), whole, method, stage):
            return False
    return True


@pytest.mark.parametrize("kernel", [reference, cpu])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_split_and_order_gives_the_same_integers(kernel, data) -> None:
    precision = "float32" if kernel is cpu else data.draw(st.sampled_from(["float32", "float64"]))
    world = data.draw(worlds(precision=precision))
    order = np.asarray(data.draw(st.permutations(range(world.n_users))))
    cuts = data.draw(st.lists(st.integers(1, max(1, world.n_users - 1)), unique=True))
    assert sum_law_holds(world, world.method(kernel), order, cuts)


def test_any_number_of_threads_gives_the_same_integers() -> None:
    import numba

    rng = np.random.default_rng(0)
    world = World(rng.random((60, 80)) < 0.2, adam_options(), seed=1)
    method = world.method(cpu)
    run = Run.warmed_up(world, method)
    broadcast = method.broadcast(run.server, TRAIN)
    results = []
    before = numba.get_num_threads()
    try:
        for threads in {1, before}:
            numba.set_num_threads(threads)
            results.append(method.local_update(run.users, TRAIN, broadcast)[0])
    finally:
        numba.set_num_threads(before)
    assert all(same(results[0], other, method, TRAIN) for other in results[1:])


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_batches_of_a_real_size_give_the_same_integers(layers: int) -> None:
    """A matrix product's rounding depends on a row's place among the others; only many users show that."""
    for seed in range(4):
        liked = np.random.default_rng(seed).random((60, 80)) < 0.2
        options = FedGRecOptions(dim=8, layers=layers, negatives=20, users_per_round=60)
        world = World(liked, options, seed)
        method = world.method(cpu)
        assert sum_law_holds(world, method, np.arange(60), [7, 20, 41])
        run = Run.warmed_up(world, method)
        parts = [run.users.take(part) for part in np.split(np.arange(60), [7, 20, 41])]
        alone = np.concatenate([method.represent_users(run.server, part) for part in parts])
        assert np.array_equal(alone, method.represent_users(run.server, run.users))


def adam_options() -> FedGRecOptions:
    return FedGRecOptions(dim=8, negatives=20, users_per_round=60, local_steps=3, item_optimizer="adam", item_rate=0.01)


def test_rounding_after_the_sum_breaks_the_law() -> None:
    """Mutation: add the users' floats first and round once. The natural shortcut, and wrong."""

    def train(cohort, weights, broadcast, latents, o, leaf, dtype):
        state, dense = cohort.state.copy(), np.zeros((broadcast.n_items, leaf.width))
        for u in range(len(cohort)):
            problem = reference.local_problem(cohort, u, weights, broadcast, latents, o)
            np.add.at(dense, problem.items, reference.local_steps(problem, state, u, o))
        values, cut = quantize(dense, leaf, dtype)
        return Rows(np.arange(broadcast.n_items), values), state, cut

    rng = np.random.default_rng(0)
    world = World(rng.random((8, 10)) < 0.5, adam_options(), seed=3)
    late = SimpleNamespace(**{**vars(reference), "train": train})
    assert sum_law_holds(world, world.method(), np.arange(8), [3])
    assert not sum_law_holds(world, world.method(late), np.arange(8), [3])
