"""Rows of a sum that point in one direction, put into one group; and whose groups these are."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.core import Floats, Ints

THRESHOLDS = (0.9999, 0.999, 0.99, 0.97, 0.95, 0.9, 0.8)  # cosines from which on two rows are of one direction
LEAST = 3  # rows of a group
SEEDS = 512  # rows that are compared with all others at a time
PURE = 0.9  # the share of a group's rows that one person must have, and of a person's rows that a group must have
GROUPS_STREAM = 6


def group(rows: NDArray[Any], people: int, either_sign: bool) -> Ints:
    """A group for each row [r, d] of what `people` people sent, −1 for none.  # [r]

    How near rows of one person are depends on the method. But how many people there are is known to a server: the
    threshold that gives about so many groups is the right one; of several the one that leaves the fewest rows over.
    "About" is within a quarter: rows of several people make a few groups more, people alike a few less.
    """
    lengths = np.sqrt(np.einsum("rd,rd->r", rows, rows, dtype=np.float64))
    unit = (rows / np.maximum(lengths, np.finfo(np.float64).tiny)[:, None]).astype(np.float32)
    tries = [_group_at(unit, threshold, either_sign) for threshold in THRESHOLDS]

    def misfit(groups: Ints) -> tuple[float, int]:
        off = abs(int(groups.max(initial=-1)) + 1 - people)
        return max(off - people / 4, 0), int((groups < 0).sum())

    return min(tries, key=misfit)


def _group_at(unit: Floats, threshold: float, either_sign: bool) -> Ints:
    """Greedy: of some rows at a time, those with the most rows near them take these, until such a round finds none."""
    rng = np.random.Generator(np.random.Philox(key=[len(unit), GROUPS_STREAM]))
    groups = np.full(len(unit), -1)
    found = -1
    while True:
        free, before = np.flatnonzero(groups < 0), found
        seeds = rng.choice(free, min(SEEDS, len(free)), replace=False)
        near = _near(unit[free], unit[seeds], threshold, either_sign)  # [free, seeds]
        for seed in np.argsort(-near.sum(axis=0), kind="stable"):
            around = near[:, seed] & (groups[free] < 0)
            if groups[seeds[seed]] >= 0 or around.sum() < LEAST:
                continue
            centre = _centre(unit[free[around]])
            left = np.flatnonzero(groups < 0)
            members = left[_near(unit[left], centre[None], threshold, either_sign)[:, 0]]
            if len(members) >= LEAST:
                found += 1
                groups[members] = found
        if found == before:
            return groups


def _near(unit: Floats, to: Floats, threshold: float, either_sign: bool) -> NDArray[np.bool_]:
    """Which rows are in which directions.  # [r, d], [t, d] → [r, t]"""
    cosines = unit @ to.T
    near: NDArray[np.bool_] = (np.abs(cosines) if either_sign else cosines) >= threshold
    return near


def _centre(unit: Floats) -> Floats:
    """The direction in the middle of those that lie around the first, which may point the other way."""
    total = np.where(unit @ unit[0] < 0, -1, 1) @ unit
    centre: Floats = total / np.sqrt(total @ total)
    return centre.astype(unit.dtype)


def at_random(n_rows: int, people: int) -> Ints:
    """Groups by a guess that knows nothing."""
    return np.random.Generator(np.random.Philox(key=[n_rows, GROUPS_STREAM])).integers(0, people, n_rows)


def by_popularity(popularity: Ints, people: int) -> Ints:
    """Groups by a guess that knows only how popular each row's item is: rows of like popularity together."""
    rank = np.empty(len(popularity), np.int64)
    rank[np.argsort(popularity, kind="stable")] = np.arange(len(popularity))
    return rank * people // max(len(popularity), 1)


@dataclass(frozen=True)
class Tally:
    """How many rows of each group each person has."""

    sizes: Ints  # [g]
    shared: Ints  # [g, n]

    @staticmethod
    def of(groups: Ints, rows: Ints, places: Ints, people: int) -> "Tally":
        """Groups of all rows, and the pairs (row, place) that there are; rows as positions in `groups`."""
        n_groups = int(groups.max(initial=-1)) + 1
        grouped = groups[rows] >= 0
        pairs = groups[rows][grouped] * people + places[grouped]
        shared = np.bincount(pairs, minlength=n_groups * people).reshape(n_groups, people)
        return Tally(np.bincount(groups[groups >= 0], minlength=n_groups), shared)

    def owners(self) -> Ints:
        """The one person who has at least 90 % of a group's rows; −1 where that is nobody, or more than one.  # [g]"""
        pure = self.shared >= PURE * np.maximum(self.sizes, 1)[:, None]
        return np.where(pure.sum(axis=1) == 1, pure.argmax(axis=1), -1)
