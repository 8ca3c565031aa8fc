"""Negatives by degree: distinct, none of the user's own, as often as they should be, and the same in every kernel."""

import numpy as np
import pytest

from fedgrec.cable import draws
from fedgrec.cable.core import Cohort
from fedgrec.config.options import FedGRecOptions
from fedgrec.kernels import _draws_numba
from fedgrec.methods.fedgrec import FedGRecMethod
from tests.laws.worlds import for_python

N, COUNT = 2000, 300
DEGREES = np.sort((1000 / np.arange(1, N + 1)).astype(np.int64))[np.random.default_rng(0).permutation(N)]
KEYS = np.random.default_rng(1).integers(0, 2**64, 40, dtype=np.uint64)


def users() -> list[np.ndarray]:
    """Nothing, a few, the most popular ones, a whole shelf, nearly everything."""
    rng, shelves = np.random.default_rng(2), draws.shelves(DEGREES, COUNT, 0.5)
    shelf = shelves.order[shelves.first[3] : shelves.first[4]]
    most = np.argsort(-DEGREES)[:50]
    some = [rng.choice(N, count, replace=False) for count in (0, 5, 200, N - 10)]
    return [np.sort(items) for items in (*some, most, shelf)]


@pytest.mark.parametrize("popular", [0.0, 0.3, 1.0])
def test_they_are_distinct_and_nobodys_own(popular: float) -> None:
    shelves = draws.shelves(DEGREES, COUNT, popular)
    assert shelves.quotas.sum() == COUNT
    assert sorted(shelves.order) == list(range(N))
    for key, mine in zip(KEYS, users(), strict=False):
        found = draws.negatives_from(int(key), 7, shelves, mine)
        assert len(set(found)) == len(found)
        assert not set(found) & set(mine)
        taken = np.bincount(
            np.searchsorted(shelves.first, shelves.place[mine], "right") - 1, minlength=len(shelves.quotas)
        )
        assert len(found) == np.minimum(shelves.quotas, np.diff(shelves.first) - taken).sum()


def test_on_one_shelf_they_are_the_uniform_ones() -> None:
    for key, mine in zip(KEYS, users(), strict=False):
        one = draws.negatives_from(int(key), 7, draws.shelves(DEGREES, COUNT, 0.0), mine)
        assert one.tolist() == draws.negatives(int(key), 7, COUNT, mine, N).tolist()


@pytest.mark.parametrize("popular", [0.5, 1.0])
def test_items_are_drawn_as_often_as_their_degrees_say(popular: float) -> None:
    """Up to the √2 between items of one shelf, the rounding of quotas, and chance."""
    shelves, rounds = draws.shelves(DEGREES, COUNT, popular), 200
    nobody = np.zeros(0, np.int64)
    found = np.bincount(
        np.concatenate([draws.negatives_from(int(KEYS[0]), r, shelves, nobody) for r in range(rounds)]), minlength=N
    )
    degrees = np.maximum(DEGREES, 1)  # what nobody has may be a negative too
    expected = rounds * COUNT * ((1 - popular) / N + popular * degrees / degrees.sum())
    by_shelf = [slice(*shelves.first[b : b + 2]) for b in range(len(shelves.quotas))]
    for items in (shelves.order[shelf] for shelf in by_shelf):
        if expected[items].max() < rounds and expected[items].sum() > rounds:  # one that is not exhausted
            assert abs(found[items].sum() / expected[items].sum() - 1) < rounds / expected[items].sum() + 0.01
            assert found[items].max() < 2.2 * found[items].min() + 30


def test_compiled_loops_draw_the_same() -> None:
    shelves = draws.shelves(DEGREES, COUNT, 0.5)
    for key, mine in zip(KEYS, users(), strict=False):
        found = np.empty(shelves.quotas.sum(), np.int64)
        found = found[: for_python(_draws_numba.draw_from_shelves)(found, key, np.uint64(7), shelves, mine)]
        assert found.tolist() == draws.negatives_from(int(key), 7, shelves, mine).tolist()


def test_ranking_by_cosine_is_one_representation() -> None:
    """Every ranking takes inner products of representations: with this option these have length 1."""
    rng = np.random.default_rng(0)
    options = FedGRecOptions(dim=8, layers=2, ranking="cosine")
    method = FedGRecMethod(options, 30, 5)
    server = method.init(0)
    server.items[1:] = rng.normal(size=server.items[1:].shape)
    server.degrees[:] = 1
    items = np.sort(rng.choice(30, (5, 4)), axis=1).ravel()
    cohort: Cohort = method.init_users(KEYS[:5], np.arange(0, 21, 4), items)
    plain = FedGRecMethod(FedGRecOptions(dim=8, layers=2), 30, 5)
    for mine, other in (
        (method.represent_items(server), plain.represent_items(server)),
        (method.represent_users(server, cohort), plain.represent_users(server, cohort)),
    ):
        np.testing.assert_allclose(mine, other / np.linalg.norm(other, axis=1, keepdims=True), rtol=1e-6)
