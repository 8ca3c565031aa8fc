"""Noise that nodes add in shares is what was agreed upon, and sums tell no more of a person than was stated."""

import math

import numpy as np
import pytest
from scipy import stats

from fedgrec.cable import noise
from fedgrec.cable.noise import Release
from fedgrec.federation.common import evaluation
from fedgrec.federation.common.options import Agreement


@pytest.mark.parametrize("variance", [0.5, 40.0, 1e6, 1e11])
def test_it_has_the_variance_that_was_asked_for(variance: float) -> None:
    """Its mean is 0; shares of several parties add up to the whole noise."""
    one, shares = noise.skellam(variance, 40_000), sum(noise.skellam(variance / 5, 40_000) for _ in range(5))
    for drawn in (one, shares):
        assert abs(drawn.mean()) < 5 * math.sqrt(variance / 40_000)
        assert drawn.var() == pytest.approx(variance, rel=0.06)


def fit(drawn: np.ndarray, variance: float) -> float:
    """How likely numbers so far from Skellam's distribution are: the p-value of a χ² test over its values."""
    exact = stats.skellam(variance / 2, variance / 2)
    reach = int(exact.ppf(1 - 20 / len(drawn)))  # beyond it all are one cell, in which about twenty are expected
    cells = np.clip(drawn, -reach, reach) + reach
    chances = exact.pmf(np.arange(-reach, reach + 1))
    chances[0], chances[-1] = exact.cdf(-reach), exact.sf(reach - 1)
    return float(stats.chisquare(np.bincount(cells, minlength=2 * reach + 1), len(drawn) * chances).pvalue)


@pytest.mark.parametrize("variance", [0.3, 2.0, 50.0])
@pytest.mark.parametrize(("users", "least"), [(1, 1), (6, 6), (9, 6)])
def test_shares_add_up_to_the_stated_distribution(variance: float, users: int, least: int) -> None:
    """Shares are sized for the fewest users that may be left; if more are left, the noise is larger in proportion."""
    draw = np.random.Generator(np.random.Philox(key=[users, least]))
    total = sum(noise.drawn(draw, variance / least, 20_000) for _ in range(users))
    assert fit(total, variance * users / least) > 1e-4
    assert fit(noise.skellam(variance, 20_000), variance) > 1e-6  # not from a seed, so it fails once in a million
    assert fit(total, 1.1 * variance * users / least) < 1e-4  # the test would notice a tenth


def test_whole_numbers_of_every_residue() -> None:
    """Noise that is always even would not hide the last bit of a sum."""
    assert 0.48 < (noise.skellam(1e9, 20_000) % 2).mean() < 0.52


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("times", [1, 20])
def test_no_more_is_spent_than_stated_and_little_is_given_away(epsilon: float, times: int) -> None:
    whole, euclidean = 3 * 2.0**14, math.sqrt(3) * 2.0**14
    square = euclidean**2
    variance = square * noise.factor_for(epsilon, [Release(square, whole, euclidean, times)])
    right, less = (Release(part * variance, whole, euclidean, times) for part in (1, 0.99))
    assert noise.spent([right]) <= epsilon < noise.spent([less])
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
