"""ε from below: what the scores of canaries that took part, and of those that did not, prove.

If an attacker says "it took part" of a share p of the canaries that did and of a share q of those that did not, then
p ≤ e^ε·q + δ, so ln((p − δ)/q) is at most ε. Shares are exact intervals (Clopper and Pearson 1934) that are wrong with
a chance of `WRONG` together.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedgrec.cable.core import Floats, Rows, Stage

WRONG = 1e-3  # the chance that a bound is above the true ε, for each bound
DELTA = 1e-6


def lower_bound(there: Floats, away: Floats, delta: float = DELTA) -> float:
    """ε is at least this, by the scores of canaries that took part and of those that did not.

    Tried are thresholds that k of those that did not exceed, for many k, and, the other way round, fall below. The true
    share beyond such a threshold is Beta(k + 1, n − k). Bounds hold together (Bonferroni).
    """
    return max(_one_way(there, away, delta), _one_way(-away, -there, delta), 0.0)


def _one_way(there: Floats, away: Floats, delta: float) -> float:
    n, rising = len(away), np.sort(away)
    k = np.unique((1.2 ** np.arange(int(math.log(n, 1.2)))).astype(int)) - 1
    right, wrong = len(there) - np.searchsorted(np.sort(there), rising[n - 1 - k], "right"), WRONG / (4 * len(k))
    least = np.where(right, stats.beta.ppf(wrong, right, len(there) - right + 1), 0.0)
    most = stats.beta.ppf(1 - wrong, k + 1, n - k)
    return float(np.log(np.maximum((least - delta) / most, 1e-300)).max())


def stages(method: Any, rounds: int) -> Iterator[Stage]:
    """All sums of a training."""
    yield from method.stages[:-1]
    yield from map(method.training, range(rounds))


def dense(rows: Rows, leaf: Any) -> Floats:
    found = np.zeros((leaf.rows, leaf.width))
    found[rows.index] = rows.values
    return found


def cases(short: list[tuple[Any, ...]], long: list[tuple[Any, ...]]) -> list[Any]:
    return [*short, *(pytest.param(*case, marks=pytest.mark.slow) for case in long)]
