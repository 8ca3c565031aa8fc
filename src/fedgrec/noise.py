"""Noise that several parties add in shares, and how much of it a stated ε takes.

Skellam noise is the difference of two Poisson numbers: whole numbers, so that it is exact in a ring, and the sum of
independent ones is one again, so that nobody has to be trusted with all of it (Agarwal, Kairouz, Liu 2021). For whole
numbers that one person changes by Δ₁ in all and by Δ₂ in the Euclidean sense, noise of variance μ in each gives

    ε(α) = αΔ₂²/2μ + min(((2α − 1)Δ₂² + 6Δ₁)/4μ², 3Δ₁/2μ)

in Rényi's sense. It adds up over sums, and turns into (ε, δ) by ε = ε(α) + ln((α − 1)/α) − (ln δ + ln α)/(α − 1).
"""

import math
import secrets

import numpy as np
from numpy.typing import NDArray

ORDERS = [1 + x / 16 for x in range(1, 160)] + [float(a) for a in range(11, 512)]
DELTA = 1e-6  # the chance that ε does not hold


def skellam(variance: float, count: int) -> NDArray[np.int64]:
    """So many whole numbers of this variance, drawn afresh from the operating system's randomness."""
    draw = np.random.Generator(np.random.Philox(key=secrets.randbits(128)))
    return draw.poisson(variance / 2, count) - draw.poisson(variance / 2, count)


def spent(variance: float, whole: float, euclidean: float, times: int, delta: float = DELTA) -> float:
    """The ε of so many sums, each with noise of this variance; `whole` and `euclidean` are Δ₁ and Δ₂."""

    def at(order: float) -> float:
        more = min(((2 * order - 1) * euclidean**2 + 6 * whole) / (4 * variance**2), 3 * whole / (2 * variance))
        renyi = times * (order * euclidean**2 / (2 * variance) + more)
        return renyi + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)

    return max(min(map(at, ORDERS)), 0.0)


def variance_for(epsilon: float, whole: float, euclidean: float, times: int, delta: float = DELTA) -> float:
    """The least variance, to a thousandth, with which so many sums spend no more than ε."""
    low, high = 1e-3 * euclidean**2, 1e-3 * euclidean**2
    while spent(high, whole, euclidean, times, delta) > epsilon:
        high *= 2
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if spent(middle, whole, euclidean, times, delta) <= epsilon else (middle, high)
    return high
