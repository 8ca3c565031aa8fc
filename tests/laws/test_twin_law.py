"""Law 4: the fused kernel is its readable twin, for every configuration, on random ragged cohorts."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings

from fedgrec.cable import draws
from fedgrec.config.configuration import FedGRecOptions
from fedgrec.kernels import _draws_numba, cpu
from tests.laws.worlds import Run, World, for_python, with_options, worlds


def compare(world: World, twin=cpu):
    """One training round from the same warmed-up state: differing words in integer steps, and both new states."""
    run, method = Run.warmed_up(world).train(1), world.method()
    n = min(world.options.users_per_round, world.n_users)
    stage = method.training(run.server.round)
    cohort, broadcast = run.users.take(np.arange(n)), method.broadcast(run.server, stage)
    slow, slow_pending = method.local_update(cohort, stage, broadcast)
    fast, fast_pending = world.method(twin).local_update(cohort, stage, broadcast)
    spec = method.spec(stage)
    words = [upload.to_ring(spec).astype(np.int64) for upload in (slow, fast)]
    return words, (slow_pending, fast_pending), n


def at_full_scale(world: World) -> World:
    """The fixed-point steps of a round of 400 users: a few users alone would count finer than float32 can tell."""
    more = 400 / min(world.options.users_per_round, world.n_users)
    return with_options(world, item_clip=0.3 * more, latent_clip=2.5 * more)


def state_error(a, b) -> float:
    return max(
        float((np.abs(x - y) / (np.abs(x) + 1e-3)).max(initial=0))
        for x, y in zip(vars(a.state).values(), vars(b.state).values(), strict=True)
    )


@settings(max_examples=40, deadline=None)
@given(worlds(precision="float64"))
def test_in_float64_the_twins_agree_to_the_ninth_digit(world) -> None:
    (slow, fast), (slow_pending, fast_pending), n = compare(world)
    assert np.abs(slow - fast).max(initial=0) <= n  # 1e-9 of a number may still cross a rounding border,
    assert (slow != fast).sum() <= 2 + 0.01 * len(slow)  # but rarely
    assert state_error(slow_pending, fast_pending) < 1e-9
    assert slow_pending.clipped == fast_pending.clipped


@pytest.mark.parametrize("rule", ["symmetric", "mean"])
def test_in_float32_one_step_differs_by_one_integer_a_user(rule) -> None:
    @settings(max_examples=25, deadline=None)
    @given(worlds(precision="float32", local_steps=1, layers=3, message_passing=rule, item_optimizer="sgd"))
    def law(world: World) -> None:
        (slow, fast), pending, n = compare(at_full_scale(world))
        assert np.abs(slow - fast).max(initial=0) <= n
        assert state_error(*pending) < 1e-3

    law()


@settings(max_examples=20, deadline=None)
@given(worlds(precision="float32", local_steps=4, item_optimizer="adam", user_optimizer="adam", exclude_positives=True))
def test_in_float32_many_steps_agree_to_the_fourth_digit(world) -> None:
    """An item that is a positive and its negative has a gradient of rounding errors, which Adam makes large."""
    (slow, fast), _, n = compare(world)
    assert np.abs(slow - fast).max(initial=0) <= 1e-4 * np.abs(slow).max(initial=0) + n


@pytest.mark.parametrize("optimizer", ["sum", "adam"])
def test_the_server_halves_agree(optimizer) -> None:
    rng = np.random.default_rng(0)
    options = FedGRecOptions(
        dim=8, negatives=20, users_per_round=30, server_optimizer=optimizer, item_levels=0, precision="float64"
    )
    world = World(rng.random((30, 40)) < 0.2, options, seed=1)
    slow, fast = Run.warmed_up(world).train(3), Run.warmed_up(world, world.method(cpu)).train(3)
    np.testing.assert_allclose(slow.server.items, fast.server.items, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(slow.server.moment2, fast.server.moment2, rtol=1e-9, atol=1e-30)


MUTANTS = {
    "hardly any penalty": {"l2": 1e-9},
    "frozen latents": {"live": False},
    "another rate": {"item_rate": 0.049},
    "positives among the negatives": {"exclude_positives": False},
    "fresh moments": {"user_moments": "fresh"},
}


@pytest.mark.parametrize("change", MUTANTS.values(), ids=MUTANTS)
def test_mutants_break_the_law(change) -> None:
    def train(cohort, weights, broadcast, latents, o, leaf, dtype):
        return cpu.train(cohort, weights, broadcast, latents, replace(o, **change), leaf, dtype)

    options = FedGRecOptions(
        latents_every=1, dim=8, negatives=12, users_per_round=9, l2=0.1, item_rate=0.05, precision="float64"
    )
    world = World(np.random.default_rng(4).random((9, 16)) < 0.5, options, seed=1)
    honest, mutant = compare(world), compare(world, SimpleNamespace(**{**vars(cpu), "train": train}))
    assert state_error(*honest[1]) < 1e-9
    assert max(state_error(*mutant[1]), np.abs(mutant[0][0] - mutant[0][1]).max() / 1e3) > 1e-3


def test_few_words_are_the_first_of_many() -> None:
    """Python draws few of them, NumPy many."""
    key, many = 2**64 - 3, 4 * draws.FEW + 1
    stream = draws.words(key, many, 2, 2**32 - 1, draws.Purpose.PAIRS).tolist()
    assert all(draws.words(key, n, 2, 2**32 - 1, draws.Purpose.PAIRS).tolist() == stream[:n] for n in range(many))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 40_981])
def test_draws_are_the_same_words(size) -> None:
    key = np.uint64(0x0123456789ABCDEF)
    count = min(size, 300)
    out = np.empty(count, np.int64)
    seventh, first = np.uint64(7), np.uint64(0)
    for_python(_draws_numba.permuted)(out, size, key, seventh, np.uint64(draws.Purpose.NEGATIVES), first)
    assert out.tolist() == draws.permuted(count, size, int(key), 7, draws.Purpose.NEGATIVES).tolist()
    positives = np.arange(0, size, 3)[:50]
    out = np.empty(min(count, size - len(positives)), np.int64)
    for_python(_draws_numba.draw_negatives)(out, key, seventh, positives, size, first)
    assert out.tolist() == draws.negatives(int(key), 7, len(out), positives, size).tolist()
