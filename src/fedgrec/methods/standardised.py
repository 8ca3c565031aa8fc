"""Scores of two parts, each standardised for every user, then added by weights: one inner product of vectors.

    s_ut = Σ_p w_p z_u(p)_t        z_u(p): a user's scores of part p, minus their mean, by their deviation

Mean and deviation need no list of scores. For items' vectors x_t with mean 0 and Gram matrix G = Σ_t x_t x_tᵀ/N, the
scores ⟨v, x_t⟩ have mean 0 and variance vᵀGv. So both parts together are one inner product, of [v₁/√(v₁ᵀG₁v₁), …] and
[x_1, …]: ranking, serving and explaining need nothing else.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgrec.cable.core import Broadcast, Cohort, Floats, ServerState, Stage, Upload
from fedgrec.methods.contract import Method, Part
from fedgrec.methods.spectral import TRUST, SpectralMethod

DIRECTIONS = "directions"  # Q of the summed part, in what the server holds
ROWS = "trained_rows", "summed_rows"  # x_t of both parts, on a device that ranks
GRAM = "_gram"
TINY = 1e-12  # somebody without clicks has no scores to standardise


@dataclass(frozen=True)
class Standardised(Method):
    """A method with another's sums beside its own rounds; the server holds their table in `more`."""

    @property
    @abstractmethod
    def trained(self) -> Method:
        """The method of all other rounds, as it ranks alone."""

    @property
    @abstractmethod
    def spectral(self) -> SpectralMethod:
        """The method of the sums."""

    @abstractmethod
    def weights(self, server: ServerState) -> tuple[float, float]:
        """What the trained part counts, and the summed one."""

    def _weighing(self, cohort: Cohort) -> Cohort:
        """Users as the sums take them: ratings are no weights."""
        return cohort if self.takes_weights else replace(cohort, targets=None)

    @staticmethod
    def _summed(server: ServerState) -> ServerState:
        """The server as Spectral has it; what ranks has arrived already."""
        nothing, trust = np.zeros((0, 0), server.items.dtype), {TRUST: server.more[TRUST]}
        table, arrived = server.more[DIRECTIONS][None], ROWS[1] in server.more
        return ServerState(table, server.degrees, nothing, nothing, server.round, trust, arrived)

    def _summing(self, server: ServerState) -> ServerState:
        """The same for a sum, which changes the table in place."""
        found = self._summed(server)
        return replace(found, items=found.items.copy())

    def _take_sum(self, server: ServerState, stage: Stage, total: Upload) -> ServerState:
        found = self.spectral.apply(self._summing(server), stage, total)
        server.more |= {DIRECTIONS: found.items[0], **found.more}
        server.round += 1
        return server

    def served(self, server: ServerState) -> Broadcast:
        return self.with_ranking(super().served(server), server)

    def as_ranked(self, server: ServerState) -> ServerState:
        """With the items' vectors, of mean 0 and of length 1 on average, and their Gram matrices."""
        if ROWS[1] in server.more:
            return server
        here = super().as_ranked(server)
        summed = self.spectral.as_ranked(self._summed(here))
        vectors = self.trained.represent_items(here), self.spectral.represent_items(summed)
        more = {**here.more, DIRECTIONS: summed.items[0]}
        for name, rows in zip(ROWS, vectors, strict=True):
            more[name], more[name + GRAM] = centred(rows)
        return replace(here, more=more)

    def represent_items(self, server: ServerState) -> Floats:
        server = self.as_ranked(server)
        return np.hstack([math.sqrt(w) * server.more[name] for w, name in zip(self.weights(server), ROWS, strict=True)])

    def represent_users(self, server: ServerState, cohort: Cohort) -> Floats:
        server = self.as_ranked(server)
        vectors = self._vectors(server, cohort)
        return np.hstack([f * part for f, part in zip(self._factors(server, vectors), vectors, strict=True)])

    def _vectors(self, server: ServerState, cohort: Cohort) -> tuple[Floats, Floats]:
        """What users have in each part."""
        summed = self.spectral.represent_users(self._summed(server), self._weighing(cohort))
        return self.trained.represent_users(server, cohort), summed

    def explained(self, server: ServerState, person: Cohort) -> tuple[Floats, Floats]:
        """Two sums of terms, each by the factor of its part."""
        server = self.as_ranked(server)
        summed = self.spectral.explained(self._summed(server), self._weighing(person))
        parts = self.trained.explained(server, person), summed
        factors = self._factors(server, [own + rows.sum(axis=0) for own, rows in parts])
        own, rows = zip(*([f * own, f * rows] for f, (own, rows) in zip(factors, parts, strict=True)), strict=True)
        return np.hstack(own), np.hstack(rows)

    def _factors(self, server: ServerState, vectors: Sequence[Floats]) -> list[Floats]:
        """√weight / deviation of each part's scores, for each user.  # [n, 1] each"""
        return [
            math.sqrt(weight) / np.maximum(spread(part, server.more[name + GRAM]), TINY).astype(part.dtype)[:, None]
            for weight, name, part in zip(self.weights(server), ROWS, vectors, strict=True)
        ]

    def parts(self, server: ServerState) -> list[Part]:
        server = self.as_ranked(server)
        if not self.trained.share:
            return []
        one_each = self.strangers(np.arange(self.n_items + 1), np.arange(self.n_items))
        gives, ranks = self._vectors(server, one_each), [server.more[name] for name in ROWS]
        recency = self.trained.recency, self.spectral.recency
        return [Part(*about) for about in zip(self.weights(server), gives, ranks, recency, strict=True)]


def centred(rows: Floats) -> tuple[Floats, Floats]:
    """Items' vectors with mean 0 and, on average, length 1; and their Gram matrix, divided by their number."""
    rows = rows - rows.mean(axis=0)
    rows /= max(math.sqrt(float((rows.astype(np.float64) ** 2).sum()) / len(rows)), TINY)
    return rows, rows.T @ rows / len(rows)


def spread(vectors: Floats, gram: Floats) -> Floats:
    """The deviation of each vector's scores over all items.  # [n]"""
    found: Floats = np.sqrt(np.maximum(((vectors @ gram) * vectors).sum(axis=1), 0))
    return found
