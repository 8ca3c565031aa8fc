"""Two parts, one model: Spectral's sums first, then FedGRec's rounds; every user blends the scores of both.

    season   `sums` rounds of everybody are Spectral's, from the same counts; all later rounds are FedGRec's
    score    s_ut = a z_u(trained)_t + (1 − a + aβ) z_u(summed)_t          a = T/(T + SOON), T: turns that a user had
    z_u      a user's scores of one part: minus their mean over all items, divided by their deviation

So there is a model after four sums, and what is trained takes over as it learns. β falls with the number of people: few
people have too few clicks for a trained model, and the summed part is most of the score.

Mean and deviation need no list of scores. For items' vectors x_t with mean 0 and Gram matrix G = Σ_t x_t x_tᵀ/N, the
scores ⟨v, x_t⟩ have mean 0 and variance vᵀGv. So both parts together are one inner product, of [v₁/√(v₁ᵀG₁v₁), …] and
[x_1, …]: ranking, serving and explaining need nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedgrec.cable.core import Broadcast, Cohort, Floats, Ints, Pending, ServerState, Stage, Traffic, Upload, UploadSpec
from fedgrec.config.options import FedGRecOptions, in_ranking, in_run, option
from fedgrec.methods.contract import Part
from fedgrec.methods.fedgrec import FedGRecMethod
from fedgrec.methods.spectral import TRUST, SpectralMethod, Sum
from fedgrec.methods.spectral import Options as SpectralOptions

SUM = Sum("train", everyone=True)  # a training round that is one of Spectral's sums
LATENTS = "latents"  # what sums of rows of people's own items are called
DIRECTIONS, PEOPLE = "directions", "people"  # Q, and the number of users, in what the server holds
ROWS = TRAINED_ROWS, SUMMED_ROWS = "trained_rows", "summed_rows"  # x_t of both parts, on a device that ranks
GRAM = "_gram"
EXPONENT = 0.4  # Spectral's e; beside a trained part validation items see no difference between .3 and .5
TINY = 1e-12  # somebody without clicks has no scores to standardise
SOON = 4  # turns of a user in training after which the trained part has half of its weight
BLEND, MANY, FEWER = 0.17, 30_000, 0.7  # β for so many people or more; it grows by this power where people are fewer


def usual_blend(people: float) -> float:
    """β for so many people."""
    return float(BLEND * max(MANY / max(people, 1), 1) ** FEWER)


@dataclass(frozen=True)
class Options(FedGRecOptions):
    """Those of FedGRec, and of the sums beside it."""

    sums: int = in_run(4, "sums of everybody with which a season begins", least=1)
    directions: int = option(
        1024, "the most directions that the sums find; fewer where users or items are few", least=1, most=8192
    )
    blend: float = in_ranking(
        0.0, f"β, the weight of the summed part; 0: {BLEND}, and more where people are fewer than {MANY:,}", least=0
    )


@dataclass(frozen=True)
class TwoPartsMethod(FedGRecMethod):
    """FedGRec with Spectral beside it. The server holds Spectral's table in `more`."""

    name = "two-parts"
    takes_noise = False
    to_rank = (DIRECTIONS, TRUST, PEOPLE)
    share = ""  # each part is divided by its deviation
    options: Options

    @cached_property
    def spectral(self) -> SpectralMethod:
        """The method of the sums."""
        o = self.options
        options = SpectralOptions(dim=o.directions, exponent=EXPONENT, precision=o.precision)
        return SpectralMethod(options, self.n_items, self.n_users, self.kernel, item_degrees=self.item_degrees)

    @cached_property
    def trained(self) -> FedGRecMethod:
        """The method of all other rounds, as it ranks alone."""
        return FedGRecMethod(self.options, self.n_items, self.n_users, self.kernel, self.begun, self.most_users)

    # ------------------------------------------------------------------------------------------ rounds

    @property
    def before(self) -> int:
        return self.options.sums

    def training(self, round_: int) -> Stage:
        return replace(SUM, begins=self.spectral.begins(round_)) if self.prepares(round_) else super().training(round_)

    def prepares(self, round_: int) -> bool:
        return round_ - self.begun < self.options.sums

    def spec(self, stage: Stage) -> UploadSpec:
        if not isinstance(stage, Sum):
            return super().spec(stage)
        spec = self.spectral.spec(stage)
        return replace(spec, leaves=tuple(replace(leaf, name=LATENTS) for leaf in spec.leaves))

    def init(self, seed: int) -> ServerState:
        server, first = super().init(seed), self.spectral.init(seed)
        people = np.array([self.n_users], server.items.dtype)
        server.more |= {DIRECTIONS: first.items[0], PEOPLE: people, **first.more}
        return server

    def grown(self, server: ServerState, seed: int) -> ServerState:
        whole = super().grown(server, seed)
        return replace(whole, more=whole.more | self._widened(server))

    def _widened(self, server: ServerState) -> dict[str, Floats]:
        """Spectral's table for as many items and directions as there are now; new directions are not trusted yet."""
        found, old = self.spectral.init(0), server.more[DIRECTIONS]
        (n, width), trust = old.shape, np.zeros_like(found.more[TRUST])
        found.items[0, :n, :width] = old[:, : found.items.shape[2]]
        trust[:width] = server.more[TRUST][: len(trust)]
        return {DIRECTIONS: found.items[0], TRUST: trust, PEOPLE: server.more[PEOPLE]}

    def _summing(self, server: ServerState) -> ServerState:
        """The server as Spectral has it, for a sum: if more people came, there are more directions."""
        fits = server.more[DIRECTIONS].shape == (self.n_items, self.spectral.width)
        found = self._summed(server if fits else replace(server, more=self._widened(server)))
        return replace(found, items=found.items.copy())  # which a sum changes in place

    def broadcast(self, server: ServerState, stage: Stage, level: int = 0) -> Broadcast:
        if not isinstance(stage, Sum):
            return super().broadcast(server, stage, level)
        return self.spectral.broadcast(self._summing(server), stage)

    def local_update(self, cohort: Cohort, stage: Stage, broadcast: Broadcast) -> tuple[Upload, Pending]:
        if isinstance(stage, Sum):
            upload, pending = self.spectral.local_update(self._weighing(cohort), stage, broadcast)
            return Upload({LATENTS: upload.leaves["items"]}, upload.users), pending
        return super().local_update(cohort, stage, broadcast)

    def apply(self, server: ServerState, stage: Stage, total: Upload, level: int = 0) -> ServerState:
        if not isinstance(stage, Sum):
            return super().apply(server, stage, total, level)
        total = Upload({"items": total.leaves[LATENTS]}, total.users)
        found = self.spectral.apply(self._summing(server), stage, total)
        people = np.array([self.n_users], server.items.dtype)
        server.more |= {DIRECTIONS: found.items[0], PEOPLE: people, **found.more}
        server.round += 1
        return server

    def _weighing(self, cohort: Cohort) -> Cohort:
        """Users as the sums take them: ratings are no weights."""
        return cohort if self.takes_weights else replace(cohort, targets=None)

    @staticmethod
    def _summed(server: ServerState) -> ServerState:
        """The server as Spectral has it; what ranks has arrived already."""
        nothing, trust = np.zeros((0, 0), server.items.dtype), {TRUST: server.more[TRUST]}
        table, arrived = server.more[DIRECTIONS][None], SUMMED_ROWS in server.more
        return ServerState(table, server.degrees, nothing, nothing, server.round, trust, arrived)

    def traffic(self, stage: Stage, degrees: Ints, lost: int = 0) -> Traffic:
        if isinstance(stage, Sum):
            return self.spectral.traffic(stage, degrees, lost)
        return super().traffic(stage, degrees, lost)

    # ----------------------------------------------------------------------------------------- ranking

    def served(self, server: ServerState) -> Broadcast:
        return self.with_ranking(super().served(server), server)

    def weights(self, server: ServerState) -> tuple[float, float]:
        """What the trained part counts, and the summed one."""
        people, rounds = float(server.more[PEOPLE][0]), max(server.round - self.options.sums, 0)
        turns = rounds * min(self.options.users_per_round / people, 1)
        trained, blend = turns / (turns + SOON), self.options.blend or usual_blend(people)
        return trained, 1 - trained + trained * blend

    def as_ranked(self, server: ServerState) -> ServerState:
        """With the items' vectors, of mean 0 and of length 1 on average, and their Gram matrices."""
        if SUMMED_ROWS in server.more:
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
        return [Part(*about) for about in zip(self.weights(server), gives, ranks, strict=True)]


def centred(rows: Floats) -> tuple[Floats, Floats]:
    """Items' vectors with mean 0 and, on average, length 1; and their Gram matrix, divided by their number."""
    rows = rows - rows.mean(axis=0)
    rows /= max(math.sqrt(float((rows.astype(np.float64) ** 2).sum()) / len(rows)), TINY)
    return rows, rows.T @ rows / len(rows)


def spread(vectors: Floats, gram: Floats) -> Floats:
    """The deviation of each vector's scores over all items.  # [n]"""
    found: Floats = np.sqrt(np.maximum(((vectors @ gram) * vectors).sum(axis=1), 0))
    return found


make = TwoPartsMethod
