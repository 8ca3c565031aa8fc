"""Noise that several parties add in shares, and how much of it a stated ε takes.

Skellam noise is the difference of two Poisson numbers (Agarwal, Kairouz, Liu 2021). It is whole, so it is exact in a
ring. The sum of independent Skellam numbers is Skellam again, so no party has to be trusted with all of the noise.
Where one person changes whole numbers by Δ₁ in all and by Δ₂ in Euclidean norm, noise of variance μ in each gives

    ε(α) = αΔ₂²/2μ + min(((2α − 1)Δ₂² + 6Δ₁)/4μ², 3Δ₁/2μ)

in Rényi's sense. It adds up over sums, and turns into (ε, δ) by ε = ε(α) + ln((α − 1)/α) − (ln δ + ln α)/(α − 1).
"""

import hmac
import math
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ORDERS = np.array([1 + x / 16 for x in range(1, 160)] + list(range(11, 512)) + [2.0**x for x in range(9, 18)])
DELTA = 1e-6  # the chance that ε does not hold


class Release(NamedTuple):
    """Numbers that are published with noise of this variance in each, and how much one person changes them."""

    variance: float
    whole: float  # Δ₁
    euclidean: float  # Δ₂
    times: int = 1


class Multipliers(NamedTuple):
    """Standard deviations of a sum's noise, in units of the norm of what one user adds to it; 0: no noise."""

    counts: float = 0.0  # in the counts of items' users
    rest: float = 0.0  # in everything else


NO_NOISE = Multipliers()


def skellam(variance: float, count: int) -> NDArray[np.int64]:
    """So many whole numbers of this variance, drawn afresh from the operating system's randomness."""
    return drawn(_stream(secrets.randbits(128)), variance, count)


def skellam_for(words: NDArray[Any], secret: bytes) -> Callable[[float, int], NDArray[np.int64]]:
    """Noise that follows from a secret and from the numbers that it hides.

    Numbers that are sent again have the same noise, so that two sums tell no more than one; any other numbers have
    noise that is independent of it, so that the difference of two sums is hidden as well.
    """
    key = hmac.digest(secret, words.dtype.str.encode() + words.tobytes(), "sha256")[:16]
    return partial(drawn, _stream(int.from_bytes(key, "big")))


def _stream(key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key))


def drawn(draw: np.random.Generator, variance: float, count: int) -> NDArray[np.int64]:
    """So many whole numbers of this variance."""
    return draw.poisson(variance / 2, count) - draw.poisson(variance / 2, count)


def spent(releases: Sequence[Release], delta: float = DELTA) -> float:
    """The ε of all these releases together."""
    renyi = np.zeros_like(ORDERS)
    for variance, whole, euclidean, times in releases:
        little = ((2 * ORDERS - 1) * euclidean**2 + 6 * whole) / (4 * variance**2)
        more = np.minimum(little, 3 * whole / (2 * variance))
        renyi += times * (ORDERS * euclidean**2 / (2 * variance) + more)
    found = renyi + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(float(found.min()), 0.0)


def factor_for(epsilon: float, releases: Sequence[Release], delta: float = DELTA) -> float:
    """The least factor for all variances, to a thousandth, with which these releases spend no more than ε."""

    def fits(factor: float) -> bool:
        return spent([release._replace(variance=factor * release.variance) for release in releases], delta) <= epsilon

    low = high = 1e-3
    while not fits(high):
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
