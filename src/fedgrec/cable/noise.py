"""Noise that several parties add in shares, and how much of it a stated ε takes.

Skellam noise is the difference of two Poisson numbers (Agarwal, Kairouz, Liu 2021). It is whole, so it is exact in a
ring. The sum of independent Skellam numbers is Skellam again, so no party has to be trusted with all of the noise.
Where one person changes whole numbers by Δ₁ in all and by Δ₂ in Euclidean norm, noise of variance μ in each gives

    ε(α) = αΔ₂²/2μ + min(((2α − 1)Δ₂² + 6Δ₁)/4μ², 3Δ₁/2μ)

in Rényi's sense, for whole α: the theorem is stated for no others. It adds up over sums, and turns into (ε, δ) by
ε = ε(α) + ln((α − 1)/α) − (ln δ + ln α)/(α − 1).

What hides people's data is drawn from a cipher's key stream. A simulation draws from its seed instead.
"""

import hmac
import math
import secrets
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

ORDERS = np.array([*range(2, 512), *(2.0**x for x in range(9, 18))])
DELTA = 1e-6  # the chance that ε does not hold
FAR = 9.0  # deviations


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
    return drawn(KeyStream(secrets.token_bytes(16)), variance, count)


def skellam_for(words: NDArray[Any], secret: bytes) -> Callable[[float, int], NDArray[np.int64]]:
    """Noise that follows from a secret and from the numbers that it hides.

    Numbers that are sent again have the same noise, so that two sums tell no more than one; any other numbers have
    noise that is independent of it, so that the difference of two sums is hidden as well.
    """
    key = hmac.digest(secret, words.dtype.str.encode() + words.tobytes(), "sha256")[:16]
    return partial(drawn, KeyStream(key))


class Draw(Protocol):
    """Where Poisson numbers come from, such as `numpy.random.Generator`."""

    def poisson(self, lam: float, size: int) -> NDArray[np.int64]: ...


class KeyStream:
    """Poisson numbers from AES in counter mode, by a table of the distribution."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # a simulation does without

        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def poisson(self, lam: float, size: int) -> NDArray[np.int64]:
        first, below = _distribution(lam)
        whole = np.frombuffer(self._stream.update(bytes(8 * size)), np.uint64) >> np.uint64(11)
        return first + np.searchsorted(below, whole * 2.0**-53, side="right")


@lru_cache(4)
def _distribution(mean: float) -> tuple[int, NDArray[np.float64]]:
    """The first number of a Poisson distribution that is ever drawn, and the chance of each and all below it.

    Numbers beyond `FAR` deviations have together less than the least chance that 53 bits can tell.
    """
    reach = FAR * math.sqrt(mean) + FAR**2
    first = max(math.floor(mean - reach), 0)
    k = np.arange(first, math.ceil(mean + reach) + 1, dtype=np.float64)
    if first:  # Stirling's formula; differences of large numbers would lose the digits that count
        off = (k - mean) / mean
        logs = -mean * ((1 + off) * np.log1p(off) - off) - np.log(2 * np.pi * k) / 2 - 1 / (12 * k)
    else:
        logs = k * math.log(mean) - mean - np.cumsum(np.log(np.maximum(k, 1))) if mean else np.where(k, -np.inf, 0.0)
    below = np.cumsum(np.exp(logs))
    return first, below / below[-1]


def drawn(draw: Draw, variance: float, count: int) -> NDArray[np.int64]:
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
