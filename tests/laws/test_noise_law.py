"""Noise that nodes add in shares is what was agreed upon, and no more of a person is told than was stated."""

import math

import numpy as np
import pytest

from fedgrec import noise
from fedgrec.federation.common import evaluation
from fedgrec.federation.common.options import Agreement


@pytest.mark.parametrize("variance", [0.5, 40.0, 1e6, 1e11])
def test_it_has_the_variance_that_was_asked_for(variance: float) -> None:
    """Its mean is 0; shares of several add up to a whole of theirs together."""
    one, shares = noise.skellam(variance, 40_000), sum(noise.skellam(variance / 5, 40_000) for _ in range(5))
    for drawn in (one, shares):
        assert abs(drawn.mean()) < 5 * math.sqrt(variance / 40_000)
        assert drawn.var() == pytest.approx(variance, rel=0.06)


def test_whole_numbers_of_every_residue() -> None:
    """Noise that is always even would leave the last bit of a sum bare."""
    assert 0.48 < (noise.skellam(1e9, 20_000) % 2).mean() < 0.52


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("times", [1, 20])
def test_no_more_is_spent_than_stated_and_little_is_given_away(epsilon: float, times: int) -> None:
    whole, euclidean = 3 * 2.0**14, math.sqrt(3) * 2.0**14
    variance = noise.variance_for(epsilon, whole, euclidean, times)
    assert (
        noise.spent(variance, whole, euclidean, times)
        <= epsilon
        < noise.spent(variance * 0.99, whole, euclidean, times)
    )
    gaussian = euclidean * math.sqrt(times * 2 * math.log(1.25 / noise.DELTA)) / epsilon  # of the textbook, ε ≤ 1
    assert variance < gaussian**2 or epsilon > 1


def test_metrics_under_noise_are_near_what_they_are() -> None:
    """Ten nodes, a thousand users: the mean is off by what the line says."""
    agreed = Agreement()
    spec = evaluation.spec(agreed.topk, 1000, agreed.deviation)
    step, off = spec.leaves[0].step, []
    for _ in range(200):
        sums = np.rint(np.array([100.0, 50.0, 900.0]) / step)
        sums = sums + sum(noise.skellam(agreed.deviation**2 / 10 / step**2, 3) for _ in range(10))
        off.append((sums * step - [100.0, 50.0, 900.0])[0])
    assert np.std(off) == pytest.approx(agreed.deviation, rel=0.2)
