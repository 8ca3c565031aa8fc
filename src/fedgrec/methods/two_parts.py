"""Two parts, one model: Spectral's sums first, then FedGRec's rounds; every user blends the scores of both.

    season   `sums` rounds of everybody are Spectral's, from the same counts; all later rounds are FedGRec's
    score    s_ut = a z_u(trained)_t + (1 − a + aβ) z_u(summed)_t          a = T/(T + SOON), T: turns that a user had
    z_u      a user's scores of one part: minus their mean over all items, divided by their deviation (standardised.py)

So there is a model after four sums, and what is trained takes over as it learns. β falls with the number of people: few
people have too few clicks for a trained model, and the summed part is most of the score.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedgrec.cable.core import Broadcast, Cohort, Floats, Ints, Pending, ServerState, Stage, Traffic, Upload, UploadSpec
from fedgrec.config.options import FedGRecOptions, in_ranking, in_run, option
from fedgrec.methods.fedgrec import FedGRecMethod
from fedgrec.methods.spectral import TRUST, SpectralMethod, Sum
from fedgrec.methods.spectral import Options as SpectralOptions
from fedgrec.methods.standardised import DIRECTIONS, Standardised

SUM = Sum("train", everyone=True)  # a training round that is one of Spectral's sums
LATENTS = "latents"  # what sums of rows of people's own items are called
PEOPLE = "people"  # the number of users, in what the server holds
EXPONENT = 0.4  # Spectral's e; beside a trained part validation items see no difference between .3 and .5
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
class TwoPartsMethod(Standardised, FedGRecMethod):
    """FedGRec with Spectral beside it. The server holds Spectral's table in `more`."""

    name = "two-parts"
    takes_noise = False
    to_rank = (DIRECTIONS, TRUST, PEOPLE)
    share = ""  # each part is divided by its deviation
    options: Options

    @cached_property
    def spectral(self) -> SpectralMethod:
        o = self.options
        longest = max(
            o.longest, SpectralOptions.longest
        )  # what bounds trained vectors would cost the summed ones recall
        options = SpectralOptions(dim=o.directions, exponent=EXPONENT, precision=o.precision, longest=longest)
        return SpectralMethod(options, self.n_items, self.n_users, self.kernel, item_degrees=self.item_degrees)

    @cached_property
    def trained(self) -> FedGRecMethod:
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
        """If more people came, there are more directions."""
        fits = server.more[DIRECTIONS].shape == (self.n_items, self.spectral.width)
        return super()._summing(server if fits else replace(server, more=self._widened(server)))

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
        server.more[PEOPLE] = np.array([self.n_users], server.items.dtype)
        return self._take_sum(server, stage, Upload({"items": total.leaves[LATENTS]}, total.users))

    def traffic(self, stage: Stage, degrees: Ints, lost: int = 0) -> Traffic:
        if isinstance(stage, Sum):
            return self.spectral.traffic(stage, degrees, lost)
        return super().traffic(stage, degrees, lost)

    # ----------------------------------------------------------------------------------------- ranking

    def weights(self, server: ServerState) -> tuple[float, float]:
        people, rounds = float(server.more[PEOPLE][0]), max(server.round - self.options.sums, 0)
        turns = rounds * min(self.options.users_per_round / people, 1)
        trained, blend = turns / (turns + SOON), self.options.blend or usual_blend(people)
        return trained, 1 - trained + trained * blend


make = TwoPartsMethod
