"""The item table in eight bits a number, with which a page recommends to people whom the model has never met.

Eq. (6) computes a person's vector from their items, and a score is an inner product. So a score is a sum over items:

    s_t = share(n) Σ_{s∈picked} ρ^k term(s, t)        term(s, t) = a_s b_t ⟨g_s, r_t⟩

g_s is what item s adds to a person who picks it, r_t is the row that ranks item t; both are rows of whole numbers up to
127, with the scales a_s and b_t. k items were picked after s, and ρ is `Method.recency`: 1, or less where the order
counts. share(n) is 1, 1/√n or 1/n for n items, as the method says (`Method.share`). Where a
newcomer's vector is no such sum, the page adds up `item_shares`, which come near to such vectors. A score of several
parts (`Method.parts`) has a table for each: the person standardises each part's scores over all items, and adds them by
the parts' weights.

`ranking.js` does the same arithmetic. An inner product of whole numbers is exact in any order of addition; all other
steps are products and sums of float64 in the order written here. So both give the same ranking, to the last bit.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Floats, Ints
from fedgrec.errors import FedgrecError
from fedgrec.methods.noisy import OPEN
from fedgrec.models.model import Model
from fedgrec.models.recommender import Recommender, Seen, distinct

SHARES: dict[str, Callable[[int], float]] = {
    "sum": lambda n: 1.0,
    "root": lambda n: 1 / math.sqrt(n),
    "mean": lambda n: 1 / n,
}
LEVELS = 127
LIST = 20  # items of the lists that are compared
BLOCK = 32  # picked items at a time, to keep memory small


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of whole numbers with a scale each."""

    whole: NDArray[np.int8]  # [N, D]
    scales: NDArray[np.float32]  # [N]

    @staticmethod
    def rounded(rows: Floats) -> "Rows":
        """The rows in 127 levels on either side of zero."""
        if not np.isfinite(rows).all():
            raise FedgrecError("the item table is not finite: training diverged; lower its rate, and train again")
        most = np.abs(rows).max(axis=1).astype(np.float64)  # [N]
        scales = (most / _levels(rows, most)).astype(np.float32)
        whole = np.rint(rows / np.where(scales > 0, scales, 1)[:, None].astype(np.float64))
        return Rows(np.clip(whole, -LEVELS, LEVELS).astype(np.int8), scales)


def _levels(rows: Floats, most: Floats) -> Ints:
    """How many levels each row gets: 127, or fewer if the row is already whole numbers at fewer levels.  # [N]

    Tables that travel as int8 (the option `download`) have steps that are powers of two, and the largest entry of a row
    is 64 steps or more. Rounding to the same steps again loses nothing.
    """
    some = np.abs(rows[:, :16] / np.where(most > 0, most, 1)[:, None])  # [N, 16], up to 1: so many columns are enough
    levels = np.full(len(rows), LEVELS)
    for fewer in range(LEVELS // 2, LEVELS):  # the last that fits is the finest
        off = np.abs(some * fewer - np.rint(some * fewer)).max(axis=1)
        levels[off < 1e-3] = fewer
    return levels


@dataclass(frozen=True, eq=False)
class Table:
    """One part of a score, or the whole of it."""

    weight: float  # by which the standardised part counts; 0: the score has no parts
    gives: Rows
    ranks: Rows  # shares its whole numbers with `gives` if only the scales differ

    recency: float = 1.0  # ρ

    @staticmethod
    def of(weight: float, gives: Floats, ranks: Floats, recency: float = 1.0) -> "Table":
        given, ranked = Rows.rounded(gives), Rows.rounded(ranks)
        if np.abs(given.whole.astype(np.int16) - ranked.whole).max() <= 1:  # they differ by rounding alone
            given = Rows(ranked.whole, given.scales)
        return Table(weight, given, ranked, recency)

    @cached_property
    def _by(self) -> Floats:
        """`ranks` as floats that hold every sum exactly: float32 up to 2²⁴, else float64."""
        exact = np.float32 if self.ranks.whole.shape[1] * LEVELS**2 < 2**24 else np.float64
        by: Floats = self.ranks.whole.astype(exact)
        return by

    def scores(self, picked: Ints) -> Floats:
        """The sum of these items' terms by what they count, for every item; standardised if it is a part.  # [N]"""
        later: Floats = np.cumprod(np.append(1.0, np.full(len(picked), self.recency)))
        by_item, scores = np.argsort(picked), np.zeros(len(self._by))
        picked, counts = picked[by_item], later[-2::-1][by_item]
        for start in range(0, len(picked), BLOCK):
            some = picked[start : start + BLOCK]
            dots = self.gives.whole[some].astype(self._by.dtype) @ self._by.T  # [n, N], exact
            scales = self.gives.scales[some].astype(np.float64), counts[start : start + BLOCK]
            for scale, count, row in zip(*scales, dots.astype(np.float64), strict=True):
                scores += count * ((scale * self.ranks.scales.astype(np.float64)) * row)
        if not self.weight:
            return scores
        scores -= np.cumsum(scores)[-1] / len(scores)  # a cumulated sum adds one by one, as the page does
        deviation = math.sqrt(np.cumsum(scores * scores)[-1] / len(scores))
        return scores * (self.weight / deviation if deviation else 0.0)


@dataclass(frozen=True, eq=False)
class ItemTable:
    """The part of a model that a page has."""

    tables: tuple[Table, ...]
    share: str  # a key of SHARES
    closed: NDArray[np.bool_]  # [N] items that are never recommended

    @staticmethod
    def of(model: Recommender) -> "ItemTable":
        """The table of a model with item vectors."""
        n = len(model.item_ids)
        closed = np.zeros(n, np.bool_)
        closed[model.closed] = True
        if model.parts:
            return ItemTable(tuple(Table.of(*part) for part in model.parts), "sum", closed)
        one_each = np.arange(n + 1), np.arange(n, dtype=np.int32)
        shares = model.new_user_vectors(*one_each) if model.share else model.item_shares
        whole = Table.of(0.0, _plain(model, shares), _plain(model, model.item_vectors()), model.recency)
        return ItemTable((whole,), model.share or "root", closed)

    def recommend(self, picked: Ints, n: int = LIST) -> tuple[Ints, Floats]:
        """The n best items that were not picked, and their scores; ties to the lower index. As in ranking.js.

        Items are picked in this order.
        """
        picked = distinct(picked)
        scores = sum((table.scores(picked) for table in self.tables[1:]), self.tables[0].scores(picked))
        allowed = ~self.closed
        allowed[picked] = False
        left = np.flatnonzero(allowed)
        best = left[np.argsort(-scores[left], kind="stable")[:n]]
        return best, scores[best] * SHARES[self.share](max(len(picked), 1))


def _plain(model: Recommender, vectors: Floats) -> Floats:
    """The vectors without the last number, by which noisy methods rank closed items last."""
    has_mark = isinstance(model, Model) and OPEN in model.server.more
    return (vectors[:, :-1] if has_mark else vectors).astype(np.float64)


# ------------------------------------------------------------------------------------------- how alike


def agreement(model: Recommender, table: ItemTable, people: int = 50) -> tuple[float, int]:
    """How many of the model's 20 recommendations the table gives too: the mean, and over how many people.

    If a person has fewer than 20 items left, it is 20 times the share of these. They are users of the run, represented
    by their items alone; if only fold-in does that, they have the vectors that the model keeps of them. If a run has no
    users, people get random items.
    """
    rng, n_items = np.random.default_rng(0), len(model.item_ids)
    trained_on = model.trained_on
    owners = np.flatnonzero(np.diff(trained_on.indptr))
    if len(owners):
        chosen = np.sort(rng.choice(owners, min(people, len(owners)), replace=False))
        picks = [trained_on.row(int(user)) for user in chosen]
    else:
        picks = [rng.choice(n_items, min(5, n_items - 1), replace=False).astype(np.int32) for _ in range(people)]
    seen = Seen.of(picks)
    vectors = model.user_vectors(chosen) if model.folds_in else model.new_user_vectors(*seen)
    lists, _ = model.lists_for(vectors, min(LIST, n_items), seen)
    pairs = [(best[best >= 0], table.recommend(mine)[0]) for best, mine in zip(lists, picks, strict=True)]
    shares = [np.isin(best, shown).mean() if len(best) else 1.0 for best, shown in pairs]
    return LIST * float(np.mean(shares)), len(picks)
