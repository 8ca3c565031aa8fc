"""No item's vector is longer than is usual for items with about as many people."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgrec.methods.lengths import NEAR, no_longer_than_usual

RNG = np.random.default_rng(0)
DEGREES = np.sort(RNG.integers(1, 60, 500))
VECTORS = RNG.normal(size=(500, 8)) * np.sqrt(DEGREES)[:, None]


def lengths(vectors: np.ndarray) -> np.ndarray:
    return np.linalg.norm(vectors, axis=1)


@pytest.mark.parametrize("place", [0, 7, 250, 498, 499])  # also the first and the last, who have neighbours on one side
@pytest.mark.parametrize("times", [1.5, 100, 1e9])
def test_however_long_a_liar_makes_a_vector_it_ends_as_long_as_its_neighbours(place: int, times: float) -> None:
    lied = VECTORS.copy()
    lied[place] *= times * 30 / lengths(lied)[place]
    found = no_longer_than_usual(lied, DEGREES, 0.9)
    near = np.abs(np.arange(500) - place) <= NEAR // 2
    assert lengths(found)[place] <= np.quantile(lengths(VECTORS)[near & (np.arange(500) != place)], 0.93)
    np.testing.assert_allclose(found[place] / lengths(found)[place], lied[place] / lengths(lied)[place])  # points there


def test_the_bound_by_hand() -> None:
    """Of 101 items the 11 longest are as long as the eleventh."""
    vectors = np.arange(1.0, 102)[:, None]
    found = no_longer_than_usual(vectors, np.ones(101), 0.9)[50]
    assert found == 51
    vectors[50] = 1000
    assert no_longer_than_usual(vectors, np.ones(101), 0.9)[50] == 92  # without 51, the eleventh from above is 92


@given(n=st.integers(0, 300), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_nothing_grows_or_turns_and_all_may_be_left_as_it_is(n: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, degrees = rng.normal(size=(n, 3)).astype("f4"), rng.integers(0, 9, n)
    found = no_longer_than_usual(vectors, degrees, share)
    assert (np.abs(found) <= np.abs(vectors)).all()
    assert (np.sign(found) == np.sign(vectors)).all()
    assert found.dtype == vectors.dtype
    assert no_longer_than_usual(vectors, degrees, 1) is vectors


def test_the_order_of_items_does_not_matter_where_degrees_differ() -> None:
    degrees, other = RNG.permutation(500), RNG.permutation(500)
    found = no_longer_than_usual(VECTORS, degrees, 0.9)
    np.testing.assert_array_equal(no_longer_than_usual(VECTORS[other], degrees[other], 0.9), found[other])
