"""Means and their 95 % intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean, and half the width of its interval; None where there is only one value."""

    mean: float
    half: float | None
    over: Literal["seeds", "users"]  # what the interval is over
    n: int  # how many seeds or users


def half_width(values: Sequence[float] | NDArray[np.float64]) -> float | None:
    """t·s/√n with Student's t at n − 1 degrees of freedom: half the interval of the mean."""
    from scipy.special import stdtrit

    n = len(values)
    if n < 2:
        return None
    t = stdtrit(n - 1, (1 + CONFIDENCE) / 2)
    return float(t * np.std(values, ddof=1) / np.sqrt(n))


def over_seeds(values: Sequence[float]) -> Estimate:
    return Estimate(float(np.mean(values)), half_width(values), "seeds", len(values))
