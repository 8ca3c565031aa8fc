"""Metrics of a ranking, for each user and for the catalogue. docs/data.md has all definitions.

This module needs only NumPy: a user computes its own metrics at home.

`hits[..., r]` says whether rank r holds a test item; the last axis is the list of k, a leading axis is users.
A user without test items has no recall: it gets NaN, and `mean` leaves it out.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from fedgrec.errors import ConfigError, nearest

Ideal = Literal["capped", "paper"]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer]

USUAL = ("recall", "ndcg", "coverage", "popularity")  # what `fedgrec train` prints
GROUPS = ("head", "middle", "tail")  # of items, by popularity
NAMES = (*USUAL, "hitrate", "mrr", "map", "novelty", *(f"recall_{group}" for group in GROUPS))


def named(text: str) -> tuple[str, ...]:
    """The metrics in a text such as `recall,map`, or all of them for `all`."""
    found = tuple(name for word in text.split(",") if (name := word.strip().lower()))
    known = f"{', '.join(NAMES)}, or all"
    for name in found:
        if name not in (*NAMES, "all"):
            raise ConfigError(f"--metrics: there is no metric {name!r}.{nearest(name, [*NAMES])} Metrics: {known}")
    if not found:
        raise ConfigError(f"--metrics is empty: name some of {known}")
    return NAMES if "all" in found else found


def recall(hits: npt.NDArray[np.bool_], n_test: npt.ArrayLike) -> Floats:
    """Hits / |test|: divided by all test items, even when they are more than the list can hold."""
    return ratio(np.asarray(hits.sum(axis=-1)), np.asarray(n_test))


def ndcg(hits: npt.NDArray[np.bool_], n_test: npt.ArrayLike, ideal: Ideal = "capped") -> Floats:
    """Σ over hits at rank r = 1.. of 1/log2(r+1), over the same sum for the ideal list.

    The ideal list is min(|test|, k) hits ("capped", as everyone computes it), or all |test| items ("paper", the
    appendix's literal form, which no list of k can reach once |test| > k).
    """
    if ideal not in ("capped", "paper"):
        raise ValueError(f"ideal must be 'capped' or 'paper', not {ideal!r}")
    k, wanted = hits.shape[-1], np.asarray(n_test)
    if ideal == "capped":
        wanted = np.minimum(wanted, k)
    gains = 1 / np.log2(np.arange(max(k, int(wanted.max(initial=0)))) + 2)
    ideal_gain = np.concatenate([[0.0], np.cumsum(gains)])  # [n]: the sum of the first n gains
    return ratio(hits @ gains[:k], ideal_gain[wanted])


def hit_rate(hits: npt.NDArray[np.bool_], n_test: npt.ArrayLike) -> Floats:
    """1 where the list holds a test item, 0 where it holds none."""
    return ratio(np.asarray(hits.any(axis=-1)), np.asarray(n_test) > 0)


def reciprocal_rank(hits: npt.NDArray[np.bool_], n_test: npt.ArrayLike) -> Floats:
    """1/r of the first hit, 0 where the list has none; its mean is MRR."""
    first = 1 / (hits.argmax(axis=-1) + 1)
    return ratio(np.where(hits.any(axis=-1), first, 0.0), np.asarray(n_test) > 0)


def average_precision(hits: npt.NDArray[np.bool_], n_test: npt.ArrayLike) -> Floats:
    """Σ over hits at rank r of (hits up to r)/r, over min(|test|, k): a perfect list has 1. Its mean is MAP."""
    k = hits.shape[-1]
    precision = np.cumsum(hits, axis=-1, dtype=np.int32) / np.arange(1, k + 1)
    return ratio((precision * hits).sum(axis=-1), np.minimum(n_test, k))


def mean(per_user: Floats) -> float:
    """The mean over the users that have test items; NaN if no user has any."""
    counted = per_user[~np.isnan(per_user)]
    return float(counted.mean()) if counted.size else float("nan")


def coverage(recommended: Ints, n_items: int) -> float:
    """The share of the catalogue that is recommended to at least one user (id −1 marks an empty place)."""
    shown = np.zeros(n_items, dtype=bool)
    shown[recommended[recommended >= 0]] = True
    return float(shown.mean())


def popularity(recommended: Ints, degrees: Ints) -> float:
    """The mean train degree of the recommended items; NaN if there are none."""
    return mean(degrees[recommended[recommended >= 0]].astype(np.float64))


def novelty(recommended: Ints, degrees: Ints, n_users: int) -> float:
    """The mean of −log2(the share of users who have the item); an item without users counts as having one."""
    return mean(np.log2(max(n_users, 1) / np.maximum(degrees, 1))[recommended[recommended >= 0]])


def popularity_groups(degrees: Ints) -> Ints:
    """Each item's place in GROUPS. [N]

    Items lie in thirds of all interactions, the most popular first: an item is in the head if items that are more
    popular have less than a third of all interactions, in the middle if they have less than two thirds, else in the
    tail. So equally popular items are in one group.
    """
    pairs = np.bincount(degrees) * np.arange(degrees.max(initial=0) + 1)  # of all items with this degree
    above = (pairs.sum() - np.cumsum(pairs))[degrees]  # [N] interactions of more popular items
    groups: Ints = np.minimum(len(GROUPS) * above // max(int(pairs.sum()), 1), len(GROUPS) - 1)
    return groups


def ratio(part: Ints | Floats | npt.NDArray[np.bool_], whole: Ints | Floats | npt.NDArray[np.bool_]) -> Floats:
    """part / whole, NaN where whole is 0."""
    found: Floats = np.full(np.broadcast_shapes(part.shape, whole.shape), np.nan)
    np.divide(part, whole, out=found, where=whole > 0)
    return found
