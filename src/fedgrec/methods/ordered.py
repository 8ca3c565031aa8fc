"""Ordered: what people take next. The sums of `spectral` over pairs that follow each other, and no training.

    T = Σ_u D T_u D        from item i to item j; D = diag(1/√n_t); n_u = |N_u| + τ_u and n_t as in spectral.py
    (T_u)_ij = γ^(|j−i|−1) · (1 if j is after i, else b) / √n_u      i, j: an item's place in the user's order
    even round   user: for each of its items a row of T_u D V        server: U ← an orthonormal basis of D Σ_u (…)
    odd round    user: for each of its items a row of T_uᵀ D U       server: V ← likewise; two sums are a step
    score    s_ut = Σ_{s∈N_u} ρ^k n_s^−e ⟨U_s, V_t⟩ n_t^e'           k: how many items the user took after s

    γ, b, ρ  `decay`, `back`, `recency`        e, e'  `exponent`, `item_exponent`

T is not symmetric: U holds what items lead from, V what they lead to. A round turns the other side's columns, so that
column k of U and of V belong to one singular value. Users whose order nobody knows have (T_u)_ij = (1 + b)/2/√n_u for
all pairs, and ρ = 1 in their score.

A row has many terms, of which the largest is 1 and no longer 1/√n_u. A user adds the terms, then cuts and rounds one
row for each of its items. So a word of a sum is at most `item_levels` for each user who has the item, as in `spectral`.
A word of 32 bits is never cut: in a column of length 1 a row is less than √(|N_u| − 1)/√n_u, by Cauchy and Schwarz.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedgrec.cable.core import Broadcast, Cohort, Floats, Ints, Rows, ServerState, Stage, Upload
from fedgrec.config.options import option
from fedgrec.methods import degrees as counts
from fedgrec.methods import spectral
from fedgrec.methods.contract import DEGREES

OTHER = "other"  # the side that the last round did not find: V after an even round, U after an odd one  # [N, columns]


@dataclass(frozen=True)
class Options(spectral.Options):
    """Options of Ordered."""

    takes_order = True
    # Not of this method: what chance does to its directions is not known, and its sums hold no noise.
    chance: ClassVar[float] = 0.0  # type: ignore[misc]
    norm: ClassVar[float] = 0.0  # type: ignore[misc]
    count_items: ClassVar[int] = 0  # type: ignore[misc]

    shift: float = option(1.0, "τ: what is added to every degree, in mean degrees", least=0, most=100)
    decay: float = option(
        0.8, "γ: how much less items count for each other with every place between them", least=0, most=1
    )
    back: float = option(0.3, "b: how much what came before an item counts, beside what came after it", least=0, most=1)
    recency: float = option(
        0.5, "ρ: how much less an item says about the next one with every later item", least=0, most=1, group="ranking"
    )
    exponent: float = option(0.4, "e: how little a person's popular items say", least=0, most=1, group="ranking")
    item_exponent: float = option(
        0.2, "e': how much popular items are put first, 0 to 1", least=0, most=1, group="ranking"
    )


@dataclass(frozen=True)
class OrderedMethod(spectral.SpectralMethod):
    """Subspace iteration on what follows what."""

    name = "ordered"
    engine = "fedgrec.kernels.ordered_torch"
    takes_noise = False
    takes_decoys = False
    to_rank: ClassVar[tuple[str, ...]] = (OTHER,)
    options: Options

    @property
    def takes_weights(self) -> bool:
        return False

    def init(self, seed: int) -> ServerState:
        server = super().init(seed)
        server.more[OTHER] = server.items[0].copy()
        return server

    def broadcast(self, server: ServerState, stage: Stage, level: int = 0) -> Broadcast:
        return self.trained_on(super().broadcast(server, stage, level))

    def served(self, server: ServerState) -> Broadcast:
        return self.with_ranking(super().served(server), server)

    def step(self, degrees: Ints, round_: int) -> float:
        """The public step of short words: the usual size of a row's numbers, which is about the same in all rounds.

        For a user of mean degree a row adds up `near` squares of numbers of size 1/√N, each by its weight.
        """
        edges, o = max(float(degrees.sum()), 1.0), self.options
        mean = edges / self.n_users
        apart = np.arange(1.0, max(int(mean + 0.5), 2))
        near = (1 + o.back**2) * float(np.sum(o.decay ** (2 * (apart - 1)) * np.maximum(1 - apart / mean, 1 / mean)))
        return spectral.REACH * math.sqrt(near / (mean * edges)) / (1 + o.shift) / max(self.levels, 1)

    def _pushed(self, cohort: Cohort, stage: Stage, broadcast: Broadcast) -> tuple[Rows, int]:
        """T_u D V, or T_uᵀ D U: a row for each item of each user."""
        table, round_ = (broadcast.tables if len(broadcast.tables) else self.start)[0], broadcast.round
        items, shift = self.shifted(broadcast.degrees)
        table = table / np.sqrt(items).astype(table.dtype)[:, None]
        per_user = 1 / np.sqrt(cohort.degrees + shift).astype(table.dtype)
        decay, before, after = self.weights_of(round_, cohort.order is not None)
        weights = np.stack([np.full_like(per_user, decay), before * per_user, after * per_user])
        if cohort.order is None:
            cohort = cohort.ordered_by(cohort.items)
        per_step = 1 / self.step(broadcast.degrees, round_) if self.levels else 1.0
        return self.kernel.follow(cohort, table, weights, per_step, self.spec(stage), round_ if self.levels else None)

    def weights_of(self, round_: int, known: bool) -> tuple[float, float, float]:
        """γ, and what an item counts that came before another, and after it, if that is known."""
        o = self.options
        if not known:
            return 1.0, (1 + o.back) / 2, (1 + o.back) / 2
        return (o.decay, 1.0, o.back) if round_ % 2 else (o.decay, o.back, 1.0)

    def apply(self, server: ServerState, stage: Stage, total: Upload, level: int = 0) -> ServerState:
        if stage is DEGREES:
            return counts.apply(self, server, total)
        Z, before = self.summed(server, total), server.items[0].copy()
        server.items[0], shares = self.directions(Z)
        turn = Z.astype(before.dtype).T @ server.items[0] / np.sqrt(shares).astype(before.dtype)
        server.more[OTHER] = before @ turn
        server.round += 1
        return server

    # -------------------------------------------------------------------------------------- ranking

    @property
    def recency(self) -> float:
        return self.options.recency

    def strangers(self, indptr: Ints, items: Ints) -> Cohort:
        """People with these items, in this order."""
        owner = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        by_item = np.lexsort((items, owner))
        return super().strangers(indptr, np.asarray(items)[by_item]).ordered_by(by_item)

    def _weights(self, server: ServerState, cohort: Cohort) -> Floats:
        """ρ^k n_s^−e of each user's items.  # [nnz]"""
        weights = super()._weights(server, cohort)
        if cohort.order is None:
            return weights
        later: Floats = self.options.recency ** (cohort.degrees[cohort.owner] - 1.0 - cohort.order)
        return weights * later

    @property
    def item_exponent(self) -> float:
        return self.options.item_exponent

    def leading(self, server: ServerState, items: Ints | slice = slice(None)) -> Floats:
        """These rows of V."""
        return self._side(server, items, 1)

    def given(self, server: ServerState, items: Ints | slice = slice(None)) -> Floats:
        """These rows of U."""
        return self._side(server, items, 0)

    def _side(self, server: ServerState, items: Ints | slice, odd: int) -> Floats:
        server = self.as_ranked(server)
        found = (server.items if len(server.items) else self.start)[0]
        table = server.more[OTHER] if server.round % 2 == odd else found
        rows: Floats = table[items, : max(table.shape[1] - self.options.spare, 1)]
        return rows


make = OrderedMethod
