"""Groups rows of a sum that point in one direction, and finds which person a group belongs to."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Floats, Ints

THRESHOLDS = (0.9999, 0.999, 0.99, 0.97, 0.95, 0.9, 0.8)  # cosines: two rows with at least this one have one direction
LEAST = 3  # rows of a group
SEEDS = 512  # rows that are compared with all others at a time
PURE = 0.9  # the share of a group's rows that one person must have, and of a person's rows that a group must have
TINY = 1e-6  # a squared length below this may be rounding alone
GROUPS_STREAM = 6


class Lines:
    """Rows that several people sent; one person's rows are multiples of one vector."""

    def __init__(self, rows: NDArray[Any], either_sign: bool) -> None:
        self.unit, self.either_sign = _unit(rows), either_sign  # [r, d]

    def pairs(self, rows: Ints, seeds: Ints) -> Floats:
        """The cosines of some rows with some others.  # [r, t]"""
        return self._signed(self.unit[rows] @ self.unit[seeds].T)

    def centre(self, rows: Ints) -> Floats:
        """The mean direction of rows that lie around the first row; rows that point the other way are turned.  # [d]"""
        unit = self.unit[rows]
        total = np.where(unit @ unit[0] < 0, -1, 1) @ unit
        centre: Floats = total / np.sqrt(total @ total)
        return centre.astype(unit.dtype)

    def along(self, rows: Ints, direction: Floats) -> Floats:
        """The cosines of some rows with a direction.  # [r]"""
        return self._signed(self.unit[rows] @ direction)

    def _signed(self, cosines: Floats) -> Floats:
        return np.abs(cosines) if self.either_sign else cosines


class LeaningLines(Lines):
    """The same where each row is a multiple of u − (u·f)f: its person's u without the part along a public f.

    Without the parts along both public directions, two rows of one person are multiples of one vector. A row and its
    public direction span a plane that contains u. So u is the direction that is nearest to all planes of a person.
    """

    def __init__(self, rows: NDArray[Any], public: Floats, either_sign: bool) -> None:
        self.public = _unit(public)  # [r, d]
        super().__init__(rows - np.einsum("rd,rd->r", rows, self.public)[:, None] * self.public, either_sign)

    def pairs(self, rows: Ints, seeds: Ints) -> Floats:
        r, f, other, g = self.unit[rows], self.public[rows], self.unit[seeds], self.public[seeds]
        between, ahead, back = f @ g.T, r @ g.T, f @ other.T
        apart = np.maximum(1 - between**2, TINY)
        lengths = np.maximum((1 - ahead**2 / apart) * (1 - back**2 / apart), TINY)  # of what is left, squared
        return self._signed((r @ other.T + between * ahead * back / apart) / np.sqrt(lengths))

    def centre(self, rows: Ints) -> Floats:
        r, f = self.unit[rows], self.public[rows]
        nearest: Floats = np.linalg.eigh(r.T @ r + f.T @ f)[1][:, -1]
        return nearest if self.unit[rows[0]] @ nearest >= 0 else -nearest

    def along(self, rows: Ints, direction: Floats) -> Floats:
        left = np.maximum(1 - (self.public[rows] @ direction) ** 2, TINY)
        return self._signed((self.unit[rows] @ direction) / np.sqrt(left))


def _unit(rows: NDArray[Any]) -> Floats:
    lengths = np.sqrt(np.einsum("rd,rd->r", rows, rows, dtype=np.float64))
    unit: Floats = rows / np.maximum(lengths, np.finfo(np.float64).tiny)[:, None]
    return unit.astype(np.float32)


def group(lines: Lines, people: int) -> Ints:
    """A group for each row of what `people` people sent, −1 for none.  # [r]

    How near the rows of one person are depends on the method. But the server knows how many people there are. The right
    threshold gives about as many groups; among several, the one that leaves the fewest rows over. "About" means within
    a quarter: rows of several people add a few groups, and similar people share one.
    """
    tries = [_group_at(lines, threshold) for threshold in THRESHOLDS]

    def misfit(groups: Ints) -> tuple[float, int]:
        off = abs(int(groups.max(initial=-1)) + 1 - people)
        return max(off - people / 4, 0), int((groups < 0).sum())

    return min(tries, key=misfit)


def _group_at(lines: Lines, threshold: float) -> Ints:
    """Greedy: draw some rows, and let those with the most rows near them form groups; stop when a draw finds none."""
    rng = np.random.Generator(np.random.Philox(key=[len(lines.unit), GROUPS_STREAM]))
    groups = np.full(len(lines.unit), -1)
    found = -1
    while True:
        free, before = np.flatnonzero(groups < 0), found
        seeds = rng.choice(free, min(SEEDS, len(free)), replace=False)
        near = lines.pairs(free, seeds) >= threshold  # [free, seeds]
        for seed in np.argsort(-near.sum(axis=0), kind="stable"):
            around = free[near[:, seed] & (groups[free] < 0)]
            if groups[seeds[seed]] >= 0 or len(around) < LEAST:
                continue
            left = np.flatnonzero(groups < 0)
            members = left[lines.along(left, lines.centre(around)) >= threshold]
            if len(members) >= LEAST:
                found += 1
                groups[members] = found
        if found == before:
            return groups


def blind(popularity: Ints, people: int) -> tuple[Ints, Ints]:
    """Two guesses for rows with items of this popularity: random groups, and groups of about equally popular items."""
    n_rows = len(popularity)
    at_random = np.random.Generator(np.random.Philox(key=[n_rows, GROUPS_STREAM])).integers(0, people, n_rows)
    rank = np.empty(n_rows, np.int64)
    rank[np.argsort(popularity, kind="stable")] = np.arange(n_rows)
    return at_random, rank * people // max(n_rows, 1)


@dataclass(frozen=True)
class Tally:
    """How many rows of each group each person has; pairs of a group and a person who has none are left out."""

    sizes: Ints  # [g]
    groups: Ints  # [p]
    places: Ints  # [p]
    rows: Ints  # [p] how many

    @staticmethod
    def of(groups: Ints, rows: Ints, places: Ints, people: int) -> "Tally":
        """Groups of all rows, and the pairs (row, place) that there are; rows as positions in `groups`."""
        grouped = groups[rows] >= 0
        pairs, counts = np.unique(groups[rows][grouped] * people + places[grouped], return_counts=True)
        sizes = np.bincount(groups[groups >= 0], minlength=int(groups.max(initial=-1)) + 1)
        return Tally(sizes, pairs // people, pairs % people, counts)

    def owners(self) -> Ints:
        """The one person who has at least 90 % of a group's rows; −1 where that is nobody, or more than one.  # [g]"""
        pure = self.rows >= PURE * self.sizes[self.groups]
        found = np.full(len(self.sizes), -1)
        found[self.groups[pure]] = self.places[pure]
        found[np.bincount(self.groups[pure], minlength=len(self.sizes)) > 1] = -1
        return found

    def rows_of(self, owners: Ints) -> Ints:
        """How many rows of each group its owner has; 0 where it has none.  # [g]"""
        found, own = np.zeros(len(owners), np.int64), self.places == owners[self.groups]
        found[self.groups[own]] = self.rows[own]
        return found
