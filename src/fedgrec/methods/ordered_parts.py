"""Ordered with Spectral beside it: what people take next, and what goes with all that they have.

rounds   the first `sums` are Spectral's, all later ones Ordered's; nothing is trained
score    s_ut = z_u(ordered)_t + β z_u(summed)_t        z_u: see standardised.py; β: `blend`
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from fedgrec.cable.core import Broadcast, Cohort, Ints, Pending, ServerState, Stage, Traffic, Upload, UploadSpec
from fedgrec.config.options import in_ranking, in_run
from fedgrec.errors import ConfigError
from fedgrec.methods import ordered
from fedgrec.methods.spectral import FIRST, TRUST, SpectralMethod, Sum
from fedgrec.methods.spectral import Options as SpectralOptions
from fedgrec.methods.standardised import DIRECTIONS, Standardised

IN_BOTH = "dim", "spare", "precision", "item_levels", "download", "longest"  # options of both kinds of sums


@dataclass(frozen=True)
class Options(ordered.Options):
    """Those of Ordered, and of the sums beside it."""

    rounds: ClassVar[int] = 8

    sums: int = in_run(4, "the first rounds: sums that know no order", least=2)
    blend: float = in_ranking(0.4, "β, the weight of the part that knows no order", least=0)

    def check_rounds(self, rounds: int) -> None:
        if rounds <= self.sums:
            raise ConfigError(f"rounds = {rounds}: the first {self.sums} (sums) know no order: raise it, or lower sums")


@dataclass(frozen=True)
class Unordered(Sum):
    """One of Spectral's sums."""


@dataclass(frozen=True)
class OrderedPartsMethod(Standardised, ordered.OrderedMethod):
    """Two kinds of sums. The server holds Spectral's table in `more`."""

    name = "ordered-parts"
    to_rank = (ordered.OTHER, DIRECTIONS, TRUST)
    share = ""  # each part is divided by its deviation
    options: Options

    @cached_property
    def spectral(self) -> SpectralMethod:
        options = SpectralOptions(**{name: getattr(self.options, name) for name in IN_BOTH})
        return SpectralMethod(options, self.n_items, self.n_users, self.kernel, item_degrees=self.item_degrees)

    @cached_property
    def trained(self) -> ordered.OrderedMethod:
        method = ordered.OrderedMethod(self.options, self.n_items, self.n_users, self.kernel)
        return replace(method, item_degrees=self.item_degrees)

    def training(self, round_: int) -> Stage:
        if round_ < self.options.sums:
            return Unordered(FIRST.name, everyone=True, begins=self.spectral.begins(round_))
        return super().training(round_)

    def begins(self, round_: int) -> bool:
        return super().begins(round_ - self.options.sums)

    def _method_of(self, stage: Stage) -> SpectralMethod:
        return self.spectral if isinstance(stage, Unordered) else self.trained

    def spec(self, stage: Stage) -> UploadSpec:
        return self._method_of(stage).spec(stage)

    def init(self, seed: int) -> ServerState:
        server = super().init(seed)
        server.more[DIRECTIONS] = self.spectral.init(seed).items[0]
        return server

    def broadcast(self, server: ServerState, stage: Stage, level: int = 0) -> Broadcast:
        if isinstance(stage, Unordered):
            return self.spectral.broadcast(self._summed(server), stage)
        return super().broadcast(server, stage, level)

    def local_update(self, cohort: Cohort, stage: Stage, broadcast: Broadcast) -> tuple[Upload, Pending]:
        return self._method_of(stage).local_update(cohort, stage, broadcast)

    def apply(self, server: ServerState, stage: Stage, total: Upload, level: int = 0) -> ServerState:
        if isinstance(stage, Unordered):
            return self._take_sum(server, stage, total)
        return super().apply(server, stage, total, level)

    def traffic(self, stage: Stage, degrees: Ints, lost: int = 0) -> Traffic:
        return self._method_of(stage).traffic(stage, degrees, lost)

    def weights(self, server: ServerState) -> tuple[float, float]:
        return 1.0, self.options.blend


make = OrderedPartsMethod
