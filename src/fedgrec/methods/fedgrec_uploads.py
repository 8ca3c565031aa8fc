"""What FedGRec's users upload, in which round and in which steps; and how many bytes that takes."""

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fedgrec.cable.core import Floats, Ints, Leaf, ServerState, Stage, Traffic, UploadSpec, finest_step
from fedgrec.cable.noise import NO_NOISE, Multipliers
from fedgrec.config.options import FedGRecOptions
from fedgrec.errors import ConfigError
from fedgrec.kernels import Kernel, reference
from fedgrec.methods import degrees as counts
from fedgrec.methods import noisy
from fedgrec.methods.contract import DEGREES, RECOUNT, WORD, Method


@dataclass(frozen=True)
class Round(Stage):
    """A training round. If everybody takes part, it is a sweep, which sends latents alone."""

    lean: bool = False  # without latents
    fine: bool = True  # in the finest steps that 32 bits hold; else in few levels of a public step for each row


PROPAGATE = Stage("propagate", everyone=True)
RESEND = Stage("resend", everyone=True)  # latents under the new weights at once, where nobody waits for a round
TRAIN = Round("train", everyone=False)
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}  # of a number that travels down

USUAL = 400  # users of a round
LATENT_BITS = 26  # of a latent's word in a usual round, where words of item updates are short, too
SPREAD = 2.0  # with 20 levels an update may be so many times the usual of its row; more levels: larger, and finer too
SELDOM = 1 / 64  # the smallest share of rounds in which we assume one of an item's users
NOISY_EVERY = 20  # under noise one round in so many carries latents, unless the options say otherwise
FINE_ROUNDS, DRAWN = 20, 10  # steps follow from moments after so many rounds and draws of each item, at least


@dataclass(frozen=True)
class Uploads(Method):
    """The public schedule: everybody can work it out from the options and the number of a round."""

    options: FedGRecOptions
    kernel: Kernel = reference
    begun: int = 0  # the round in which this season began: since then rates fall, and latents travel less and less
    most_users: int = 0  # the most ever, where people come and go; it sets the latents' step
    noise: Multipliers = NO_NOISE

    @property
    def recount(self) -> Stage | None:
        """None under noise, which bounds what a user adds to the degrees and holds in the latents."""
        return None if self.noise.rest else RECOUNT

    @property
    def resend(self) -> Stage | None:
        return RESEND if self.options.layers else None

    def season(self, begun: int, most_users: int = 0) -> Self:
        return replace(self, begun=begun, most_users=most_users)

    def check_grows(self, later: Method) -> None:
        if self.options.latent_rate != 1:
            raise ConfigError("with latent_rate other than 1 the latents are not what users sent: train anew")
        if self.options.layers and isinstance(later, Uploads) and later.latents.step != self.latents.step:
            raise ConfigError("with so many users latents are counted in another step: train anew")

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (DEGREES, *(PROPAGATE,) * self.options.layers, TRAIN)

    def training(self, round_: int) -> Stage:
        """The kind of a round follows from its number.

        Latents travel more often at first, when embeddings change fast. With `latents_every` 0, everybody sends them in
        a round of their own: after 1, 2, 4, 8, … turns of this season, and in the first round of a season that follows
        a recount. Otherwise a round's users send them, in the last of every `latents_every` rounds; while users have
        had fewer turns t, in the last of every t + 1. Under noise latents cost privacy: they travel in the last of
        every `latents_every` rounds, or of every 20.
        """
        o, done = self.options, round_ - self.begun - self.before
        kind = replace(TRAIN, fine=not o.levels or bool(self.noise.rest) or round_ < self.fine_rounds)
        if not o.layers:
            return kind
        if self.noise.rest:
            return replace(kind, lean=(done + 1) % (o.latents_every or NOISY_EVERY) > 0)
        turns, before = (count * self.sampled // self.n_users for count in (done, done - 1))
        if not o.latents_every:
            first = done == 0 and self.begun > 0  # latents drop what a recount changed and who left
            due = first or (turns > max(before, 0) and turns & (turns - 1) == 0)
            return replace(kind, lean=not due, everyone=due)
        return replace(kind, lean=(done + 1) % min(o.latents_every, 1 + turns) > 0)

    @property
    def before(self) -> int:
        """Rounds of a season that come before these: none, unless a method has others."""
        return 0

    @property
    def fine_rounds(self) -> int:
        """The round with which steps begin to follow from the server's moments."""
        o = self.options
        drawn = self.sampled * (o.negatives if o.loss != "mse" else 1)
        return self.before + (o.fine_rounds or max(FINE_ROUNDS, -(-DRAWN * self.n_items // drawn)))

    def spec(self, stage: Stage) -> UploadSpec:
        """The leaves of a stage: all that ever leaves a device, and only inside a sum."""
        o, N = self.options, self.n_items
        if stage in (DEGREES, RECOUNT):
            return counts.spec(self)
        S, latents = self.sampled, self.latents
        if stage is PROPAGATE:  # one level, of users who hold nothing in it yet
            if self.noise.rest:
                latents = noisy.bounded(latents, self.level_norm, self.noise.rest)
            return UploadSpec((latents,), self.n_users)
        if not isinstance(stage, Round) or stage.everyone:
            return UploadSpec((replace(latents, rows=o.layers * N),), self.n_users)
        items = Leaf("items", N, o.dim, o.item_clip, finest_step(o.item_clip, S))
        if self.noise.rest:
            fine = replace(items, step=noisy.step_for(o.item_norm))
            items = noisy.bounded(fine, o.item_norm, self.noise.rest)
        elif not stage.fine:
            items = Leaf("items", N, o.dim, clip=o.levels, step=1)
        if stage.lean or not o.layers:
            return UploadSpec((items,), S)
        return UploadSpec((items, replace(latents, rows=o.layers * N)), S)

    @property
    def latents(self) -> Leaf:
        """Latents have the same step in warm-up, in training and after people joined, so that sums telescope."""
        o, clip = self.options, 2 * self.options.latent_clip
        if self.noise.rest:
            leaf = Leaf("latents", self.n_items, o.dim, clip, noisy.step_for(o.latent_norm))
            return noisy.bounded(leaf, o.latent_norm, self.noise.rest)
        users = USUAL if o.levels else min(o.users_per_round, max(self.most_users or self.n_users, USUAL))
        return Leaf("latents", self.n_items, o.dim, clip, finest_step(clip, users, LATENT_BITS if o.levels else 32))

    @property
    def level_norm(self) -> float:
        """The norm of what a user holds in one level: old and new then differ, over all levels, by `latent_norm`."""
        return self.options.latent_norm / (2 * math.sqrt(max(self.options.layers, 1)))

    def step_scales(self, degrees: Ints) -> Floats:
        """The square of a row's step, divided by the row's second moment.  # [N]

        A moment is a mean over all rounds. The large updates come from the item's own users, who are in few rounds: the
        mean over those rounds alone is the moment divided by their share.
        """
        share = np.clip(np.where(degrees > 0, degrees * (self.sampled / self.n_users), 1.0), SELDOM, 1.0)
        scales: Floats = SPREAD**2 / (20 * self.options.levels * share)
        return scales

    def untouched(self, server: ServerState) -> int:
        """The step of a row that nobody has touched yet, as a power of two."""
        return int(server.more["untouched"][0]) if "untouched" in server.more else self.coarsest

    @property
    def coarsest(self) -> int:
        """The step, as a power of two, in which the levels reach the clip. Larger ones would serve liars alone."""
        return math.ceil(math.log2(self.options.item_clip / self.options.levels))

    def row_steps(self, server: ServerState) -> Floats:
        """The step of every item's updates: the usual change of its row's largest entry, divided by the levels.

        Powers of two, so that scaling loses nothing. No step is coarser than that of the clip, which a row that nobody
        has touched has. Without this bound the moments of a liar's large updates would permit larger ones.  # [N]
        """
        o, real = self.options, server.moment2.dtype.type
        unbiased = real(1 / (1 - o.beta2 ** max(server.round, 1)))
        usual = server.moment2.max(axis=1) * unbiased * self.step_scales(server.degrees).astype(real)
        exponent = np.minimum((np.frexp(usual.astype(np.float32))[1] + 1) // 2, self.coarsest)
        exponent[usual == 0] = self.untouched(server)
        steps: Floats = np.ldexp(real(1), exponent)
        return steps

    def traffic(self, stage: Stage, degrees: Ints, lost: int = 0) -> Traffic:
        """Bytes of a stage for users with these degrees, of whom the last `lost` never upload."""
        o, N = self.options, self.n_items
        word, row, n = WORD, WORD * o.dim, len(degrees)
        up_secure = self.secure_upload(stage, n - lost)
        sent = degrees[: n - lost]
        if stage in (DEGREES, RECOUNT):
            return Traffic(int(sent.sum()) * word, 0, up_secure, 0)
        if stage is PROPAGATE:
            down = n * N * (row + word)  # the degree of each item comes with its row
            return Traffic(int(sent.sum()) * (word + row), down, up_secure, down)
        kind = stage if isinstance(stage, Round) else replace(TRAIN, everyone=True)
        positives = np.minimum(degrees, o.max_positives or N)
        negatives = np.where(degrees > 0, np.minimum(o.negatives if o.loss != "mse" else 0, N - degrees), 0)
        trained = 0 if kind.everyone else int((positives + negatives)[: n - lost].sum())
        latents = 0 if kind.lean or not o.layers else int(sent.sum()) * (word + o.layers * row)
        up = trained * (word + row) + latents
        down = (o.layers + 1) * row
        if o.combined:
            tables = 2 if kind.lean else 2 + o.layers
            down = tables * (o.dim * BYTES[o.download] + (o.download == "int8"))
        down = n * N * (down + word + (not kind.fine))  # with the item's degree and, as a byte, its step
        return Traffic(up, down, up_secure, down)
