"""FedGRec: Algorithm 1 of the paper, as the verbs between which the network cable runs.

    symbol      name                             symbol      name
    e_t^k       server.items[k, t]               e_u^k       state.embeddings[u, k]
    |N_t|       server.degrees[t]                |N_u|       cohort.degrees[u]
    w_ut        Rule.gather, Rule.push           τ           options.local_steps
    α           server_rate (10), latent_rate (11)           β: item_rate, user_rate
    S           options.users_per_round          K           options.layers

A simulation, a secure simulation and a deployed federation call the same verbs in the same order:
broadcast → local_update → (secure) sum → apply → commit. A user keeps its new state as *pending* until it learns
that its upload was in the sum; an upload that got lost leaves no trace on either side.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedgrec import draws
from fedgrec.core import (
    Broadcast,
    Cohort,
    Floats,
    Ints,
    Leaf,
    Pending,
    Rows,
    ServerState,
    Stage,
    Traffic,
    Upload,
    UploadSpec,
    UserState,
    as_server,
    clamp,
    finest_step,
)
from fedgrec.errors import FedgrecError
from fedgrec.kernels import reference
from fedgrec.methods import change, noisy
from fedgrec.methods.contract import WORD, Method
from fedgrec.noise import NO_NOISE, Multipliers
from fedgrec.options import FedGRecOptions, at_round

DEGREES = Stage("degrees", everyone=True)
PROPAGATE = Stage("propagate", everyone=True)
RECOUNT = Stage("recount", everyone=True)  # of what has changed since the users were counted
RESEND = Stage("resend", everyone=True)  # latents under the new weights at once, for those who cannot wait for a round
TRAIN = Stage("train", everyone=False)
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}  # of a number that travels down


class Rule(NamedTuple):
    """A linear message passing rule: edge weights from the two degrees (item's first)."""

    gather: Callable[[Floats, Floats], Floats]  # what a user multiplies its items' rows by, Eq. (6)
    push: Callable[[Floats, Floats], Floats]  # what an item's row gains from its users, Eq. (7)


def _symmetric(item: Floats, user: Floats) -> Floats:
    return 1.0 / (np.sqrt(item) * np.sqrt(user))


USUAL = 400  # users of a round
LATENT_BITS = 26  # of a latent's word in such a round, where words of item updates are short, too
SPREAD = 2.0  # how much larger than what is usual in a row an update of 20 levels may be; more levels serve both ends
SELDOM = 1 / 64  # the least share of rounds that an item's users are taken to be in
NOISY_EVERY = 20  # rounds of which one carries latents under noise, where nothing else is asked for
FINE_ROUNDS, DRAWN = 20, 10  # the fewest rounds, and times that an item is drawn, before steps follow from moments
CLICKS, ITEMS, SHARP = 25, 40_000, 0.11  # of a user, of a catalogue; the temperature there


def temperature(clicks: float, n_items: int) -> float:
    """Softer where users have few clicks, so that less is certain, and where items are few: more of them would do."""
    few, small = max(CLICKS / max(clicks, 1), 1.0), max(ITEMS / n_items, 1.0)
    return float(SHARP * few**0.4 * small**0.2)


RULES = {
    "symmetric": Rule(_symmetric, _symmetric),
    "mean": Rule(lambda item, user: 1.0 / user + 0.0 * item, lambda item, user: 1.0 / item + 0.0 * user),
}


class Kernel(Protocol):
    """The hot loops; `kernels.reference` is the page to read, the others are its fast twins."""

    NAME: str

    def refresh(self, cohort: Cohort, weights: Floats, tables: Floats, at: Ints) -> Floats: ...
    def push(
        self,
        cohort: Cohort,
        weights: Floats,
        old: Floats,
        new: Floats,
        leaf: Leaf,
        dtype: np.dtype[Any],
        n_items: int,
    ) -> tuple[Rows, int]: ...
    def train(
        self,
        cohort: Cohort,
        weights: Floats,
        broadcast: Broadcast,
        latents: Floats,
        o: FedGRecOptions,
        leaf: Leaf,
        dtype: np.dtype[Any],
    ) -> tuple[Rows, UserState, int]: ...
    def combine(self, items: Floats, alphas: Floats, download: str, lean: bool) -> Floats: ...
    def server_adam(self, server: ServerState, update: Rows, steps: Floats, o: FedGRecOptions) -> None: ...
    def add_rows(self, table: Floats, update: Rows, leaf: Leaf, rate: float) -> None: ...


Options = FedGRecOptions


def make(options: FedGRecOptions, n_items: int, n_users: int, kernel: Kernel = reference) -> "FedGRecMethod":
    """The method on a kernel: `kernels.reference`, or `kernels.cpu`, which supports every option."""
    return FedGRecMethod(options, n_items, n_users, kernel)


@dataclass(frozen=True)
class FedGRecMethod(Method):
    """The verbs of FedGRec over `n_items` items and at most `n_users` users."""

    name = "fedgrec"
    takes_noise = True
    options: FedGRecOptions
    n_items: int
    n_users: int
    kernel: Kernel = reference
    begun: int = 0  # the round in which this season began: since then rates fall, and latents travel less and less
    most_users: int = 0  # that there may ever be, where people come and go: the latents' step follows from it
    noise: Multipliers = NO_NOISE

    @property
    def recount(self) -> Stage | None:
        """Under noise nobody is counted again: what a user adds to the degrees and holds in the latents is bounded."""
        return None if self.noise.rest else RECOUNT

    # ------------------------------------------------------------------------------ what is uploaded

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (DEGREES, *(PROPAGATE,) * self.options.layers, TRAIN)

    @property
    def sampled(self) -> int:
        """S: users of a round."""
        return min(self.options.users_per_round, self.n_users)

    def training(self, round_: int) -> Stage:
        """Which kind a round is follows from its number.

        Latents travel more often at first, when embeddings change fast. Either everybody sends them in a round of their
        own, after 1, 2, 4, 8, … turns of this season, and where a season follows a recount in its first round; or those
        of a round send them in the last of every `latents_every` rounds, and while users have had t turns in the last
        of every t + 1. Under noise they cost privacy: they travel in the last of so many rounds, or of 20.
        """
        o, done = self.options, round_ - self.begun
        kind = replace(TRAIN, fine=not o.levels or bool(self.noise.rest) or round_ < self.fine_rounds)
        if not o.layers:
            return kind
        if self.noise.rest:
            return replace(kind, lean=(done + 1) % (o.latents_every or NOISY_EVERY) > 0)
        turns, before = (count * self.sampled // self.n_users for count in (done, done - 1))
        if not o.latents_every:
            first = done == 0 and self.begun > 0  # what a recount has changed, and who has left, leaves the latents
            due = first or (turns > max(before, 0) and turns & (turns - 1) == 0)
            return replace(kind, lean=not due, sweep=due)
        return replace(kind, lean=(done + 1) % min(o.latents_every, 1 + turns) > 0)

    @property
    def fine_rounds(self) -> int:
        """Rounds before steps follow from the server's moments."""
        o = self.options
        drawn = self.sampled * (o.negatives if o.loss != "mse" else 1)
        return o.fine_rounds or max(FINE_ROUNDS, -(-DRAWN * self.n_items // drawn))

    def spec(self, stage: Stage) -> UploadSpec:
        """The leaves of a stage: all that ever leaves a device, and only inside a sum."""
        o, N = self.options, self.n_items
        if stage in (DEGREES, RECOUNT):
            degrees = Leaf("degrees", N, 1, clip=1, step=1)
            if self.noise.counts:
                degrees = noisy.bounded(degrees, math.sqrt(o.count_items), self.noise.counts)
            return UploadSpec((degrees,), self.n_users)
        S, latents = self.sampled, self.latents
        if stage is PROPAGATE:  # one level, of users who hold nothing in it yet
            if self.noise.rest:
                latents = noisy.bounded(latents, self.level_norm, self.noise.rest)
            return UploadSpec((latents,), self.n_users)
        if stage is RESEND or stage.sweep:
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
        """Counted in the same step in warm-up, in training and after people have come, so that sums telescope."""
        o, clip = self.options, 2 * self.options.latent_clip
        if self.noise.rest:
            leaf = Leaf("latents", self.n_items, o.dim, clip, noisy.step_for(o.latent_norm))
            return noisy.bounded(leaf, o.latent_norm, self.noise.rest)
        users = USUAL if o.levels else min(o.users_per_round, max(self.most_users or self.n_users, USUAL))
        return Leaf("latents", self.n_items, o.dim, clip, finest_step(clip, users, LATENT_BITS if o.levels else 32))

    @property
    def level_norm(self) -> float:
        """Of what a user holds in one level of the latents: all levels, before and after, differ by `latent_norm`."""
        return self.options.latent_norm / (2 * math.sqrt(max(self.options.layers, 1)))

    # --------------------------------------------------------------------------------- initial state

    def init(self, seed: int) -> ServerState:
        """Line 4: item embeddings from N(0, σ); latents are placeholders until the warm-up."""
        o, shape = self.options, (self.n_items, self.options.dim)
        items = np.zeros((o.layers + 1, *shape), o.precision)
        items[0] = o.init_std * np.random.Generator(np.random.Philox(key=seed)).standard_normal(shape)
        zeros = np.zeros((2, *shape), o.precision)
        standing = np.zeros((o.layers, *shape), np.int64) if o.latent_rate == 1 else None
        return ServerState(items, np.zeros(self.n_items, np.int64), zeros[0], zeros[1], standing=standing)

    def grown(self, server: ServerState, seed: int) -> ServerState:
        """The server with a row for every item of a longer catalogue; rows of before stay what they are."""
        whole, o = self.init(seed), self.options
        whole.round, n = server.round, len(server.degrees)
        for name in ("degrees", "moment1", "moment2"):
            getattr(whole, name)[:n] = getattr(server, name)
        whole.items[:, :n] = server.items
        if server.standing is None:
            whole.standing = None
        elif whole.standing is not None:
            whole.standing[:, :n] = server.standing
        if o.levels and server.moment2.any():  # new rows begin in the steps that are usual by now
            touched = np.frexp(self.row_steps(server))[1][server.moment2.any(axis=1)] - 1
            whole.more["untouched"] = np.array([np.median(touched)], o.precision)
        return whole

    def init_users(self, keys: NDArray[np.uint64], indptr: Ints, items: Ints, targets: Floats | None = None) -> Cohort:
        """Line 5: each user draws e_u^0 from N(0, σ) under its own key; it has sent nothing yet."""
        o, n = self.options, len(keys)
        state = UserState(
            embeddings=np.zeros((n, o.layers + 1, o.dim), o.precision),
            sent=np.zeros((n, o.layers, o.dim), o.precision),
            moment1=np.zeros((n, o.dim), o.precision),
            moment2=np.zeros((n, o.dim), o.precision),
            steps=np.zeros(n, np.int64),
        )
        state.embeddings[:, 0] = o.init_std * draws.normal(keys, o.dim)
        targets = None if targets is None else targets.astype(o.precision)
        return Cohort(keys, np.array(indptr), np.array(items), state, targets)

    # ------------------------------------------------------------------------------------- the verbs

    def broadcast(self, server: ServerState, stage: Stage, level: int = 0) -> Broadcast:
        """What the server sends down: in warm-up round k the table k−1; in training what users compute with."""
        o, items = self.options, server.items
        more = {name: part for name, part in server.more.items() if name == noisy.OPEN}
        if stage.everyone:
            tables = items[level - 1 : level] if stage is PROPAGATE else items[:0]
            return Broadcast(server.round, self.n_items, tables, server.degrees, level, more)
        tables = items
        if o.combined:
            tables = self.kernel.combine(items, np.asarray(o.weights(), items.dtype), o.download, stage.lean)
        if not stage.fine:
            more["steps"] = self.row_steps(server)
        kind = o.download if o.combined else "float32"
        return Broadcast(server.round, self.n_items, tables, server.degrees, level, more, kind)

    def step_scales(self, degrees: Ints) -> Floats:
        """The square of a row's step, over the row's second moment.  # [N]

        A moment is a mean over all rounds, and an item's own users, whose updates are the large ones, are in few of
        them: the moment of the rounds that have one is larger by the share of such rounds.
        """
        share = np.clip(np.where(degrees > 0, degrees * (self.sampled / self.n_users), 1.0), SELDOM, 1.0)
        scales: Floats = SPREAD**2 / (20 * self.options.levels * share)
        return scales

    def untouched(self, server: ServerState) -> int:
        """The step of a row that nobody has touched yet, as a power of two."""
        if "untouched" in server.more:
            return int(server.more["untouched"][0])
        return math.ceil(math.log2(self.options.item_clip / self.options.levels))

    def row_steps(self, server: ServerState) -> Floats:
        """The step of every item's updates: what the largest entry of its row uses to change by, over the levels.

        Powers of two, so that scaling loses nothing. A row that nobody has touched has the step of the clip.  # [N]
        """
        o, real = self.options, server.moment2.dtype.type
        unbiased = real(1 / (1 - o.beta2 ** max(server.round, 1)))
        usual = server.moment2.max(axis=1) * unbiased * self.step_scales(server.degrees).astype(real)
        exponent = (np.frexp(usual.astype(np.float32))[1] + 1) // 2
        exponent[usual == 0] = self.untouched(server)
        steps: Floats = np.ldexp(real(1), exponent)
        return steps

    def local_update(self, cohort: Cohort, stage: Stage, broadcast: Broadcast) -> tuple[Upload, Pending]:
        """What users compute at home: the summed upload of the cohort, and its pending state."""
        if stage is DEGREES and self.noise.counts:
            return Upload({"degrees": noisy.counted(cohort, self.options.count_items)}, len(cohort)), Pending(
                cohort.state
            )
        if noisy.OPEN in broadcast.more:
            cohort, broadcast, ids = noisy.compact(cohort, broadcast)
            upload, pending = replace(self, n_items=len(ids)).local_update(cohort, stage, broadcast)
            whole = {name: noisy.expanded(part, ids, self.n_items) for name, part in upload.leaves.items()}
            return Upload(whole, upload.users), pending._replace(weights=None)  # for a recount, which there is none of
        if stage is DEGREES:
            index, counts = np.unique(cohort.items, return_counts=True)  # Eq. (9): Y_u
            return Upload({"degrees": Rows(index, counts[:, None])}, len(cohort)), Pending(cohort.state)
        if stage is RECOUNT:
            return Upload({"degrees": change.recounted(cohort)}, len(cohort)), Pending(cohort.state, 0, "counted")
        if stage is RESEND:
            _, push = self.edge_weights(cohort, broadcast.degrees)
            rows = change.moved(self.kernel.push, cohort, push, self.spec(stage), self.n_items)
            return Upload({"latents": rows}, len(cohort)), Pending(cohort.state, 0, "pushed", push)
        if stage is PROPAGATE:
            return self._propagate(cohort, broadcast)
        return self._sweep(cohort, broadcast, stage) if stage.sweep else self._train(cohort, broadcast, stage)

    def options_of(self, round_: int, degrees: Ints) -> FedGRecOptions:
        """The options of a round, with the temperature that follows from what was counted."""
        o: FedGRecOptions = at_round(self.options, round_ - self.begun)
        if o.temperature or o.loss != "softmax":
            return o
        return replace(o, temperature=temperature(degrees.sum() / self.n_users, self.n_items))

    def _propagate(self, cohort: Cohort, broadcast: Broadcast) -> tuple[Upload, Pending]:
        """Lines 7 and 8: e_u^k by Eq. (6); the update matrix of e_u^{k−1} by Eq. (7)."""
        k, spec, pending = broadcast.level, self.spec(PROPAGATE), cohort.state.copy()
        gather, push = self.edge_weights(cohort, broadcast.degrees)
        pending.embeddings[:, k : k + 1] = self.kernel.refresh(cohort, gather, broadcast.tables, cohort.items)
        old = cohort.state.sent[:, k - 1 : k]
        new = self._held(cohort, push, cohort.state.embeddings[:, k - 1 : k], old)
        rows, cut = self.kernel.push(cohort, push, old, new, spec.leaf("latents"), spec.dtype, self.n_items)
        pending.sent[:, k - 1 : k] = new
        return Upload({"latents": rows}, len(cohort)), Pending(pending, cut, "", push)

    def _train(self, cohort: Cohort, broadcast: Broadcast, stage: Stage) -> tuple[Upload, Pending]:
        """Lines 15 to 22; a lean round leaves out line 22, and what it would have sent is sent with the next."""
        o, spec = self.options_of(broadcast.round, broadcast.degrees), self.spec(stage)
        if self.noise.rest and broadcast.row_steps is not None:  # a server could stretch rows beyond the norm by them
            raise FedgrecError("under noise item updates are counted in one step, and the server sent others")
        gather, push = self.edge_weights(cohort, broadcast.degrees)
        tables = broadcast.tables[1:2] if o.combined else broadcast.tables[: o.layers]
        latents = self.kernel.refresh(cohort, gather, tables, cohort.items)  # line 15
        items, pending, cut = self.kernel.train(  # lines 16 to 21
            cohort, gather, broadcast, latents, o, spec.leaf("items"), spec.dtype
        )
        if not o.combined:
            pending.embeddings[:, 1:] = latents
        elif not stage.lean:  # what trained was their sum alone
            pending.embeddings[:, 1:] = self.kernel.refresh(cohort, gather, broadcast.tables[2:], cohort.items)
        if stage.lean or not o.layers:
            return Upload({"items": items}, len(cohort)), Pending(pending, cut)
        rows, over = self._push_latents(cohort, pending, push, spec)  # line 22
        return Upload({"items": items, "latents": rows}, len(cohort)), Pending(pending, cut + over, "pushed", push)

    def _sweep(self, cohort: Cohort, broadcast: Broadcast, stage: Stage) -> tuple[Upload, Pending]:
        """Lines 15 and 22 alone."""
        pending, first = cohort.state.copy(), 2 if self.options.combined else 0
        gather, push = self.edge_weights(cohort, broadcast.degrees)
        tables = broadcast.tables[first : first + self.options.layers]
        pending.embeddings[:, 1:] = self.kernel.refresh(cohort, gather, tables, cohort.items)
        rows, cut = self._push_latents(cohort, pending, push, self.spec(stage))
        return Upload({"latents": rows}, len(cohort)), Pending(pending, cut, "pushed", push)

    def _push_latents(self, cohort: Cohort, pending: UserState, push: Floats, spec: UploadSpec) -> tuple[Rows, int]:
        """What the latents of all levels have become since they were last sent; from now on they are sent."""
        old, leaf = cohort.state.sent, spec.leaf("latents")
        new = self._held(cohort, push, pending.embeddings[:, : self.options.layers], old)
        rows, cut = self.kernel.push(cohort, push, old, new, leaf, spec.dtype, self.n_items)
        if cohort.past is not None and cohort.past.pushed:
            rows += change.moved(self.kernel.push, cohort, push, spec, self.n_items)
        pending.sent[:] = new
        return rows, cut

    def _held(self, cohort: Cohort, push: Floats, embeddings: Floats, before: Floats) -> Floats:
        """What users hold in the latents: their embeddings, under noise within a norm.  # [n, L, d]"""
        if not self.noise.rest:
            return embeddings
        step = self.latents.step
        noisy.check_held(cohort, push, before, step, self.level_norm / step)
        return noisy.fitted(cohort, push, embeddings, step, self.level_norm / step)

    def apply(self, server: ServerState, stage: Stage, total: Upload, level: int = 0) -> ServerState:
        """The server's half; it consumes `server` and sees nothing of the users but their sum."""
        o, spec = at_round(self.options, server.round - self.begun), self.spec(stage)
        if noisy.OPEN in server.more:
            total = Upload(
                {name: noisy.open_rows(part, server.more) for name, part in total.leaves.items()}, total.users
            )
        if stage is DEGREES and self.noise.counts:
            noisy.take_counts(server, total.leaves["degrees"], spec.leaf("degrees"))
        elif stage is DEGREES:
            counts = total.leaves["degrees"]
            server.degrees[counts.index] = counts.values[:, 0]
        elif stage is RECOUNT:
            counts = total.leaves["degrees"]
            server.degrees[counts.index] += counts.values[:, 0]
        elif stage is PROPAGATE:  # Eq. (8)
            self._stand(server, total.leaves["latents"], 1.0, level)
        elif stage is RESEND:
            self._stand(server, total.leaves["latents"], 1.0)
        else:
            if not stage.sweep:
                self._move_items(server, total.leaves["items"], spec, stage, o)
            if o.layers and not stage.lean:  # Eq. (11), all levels as one table of K·N rows
                self._stand(server, total.leaves["latents"], o.latent_rate)
            server.round += 1
        return server

    def _move_items(self, server: ServerState, rows: Rows, spec: UploadSpec, stage: Stage, o: FedGRecOptions) -> None:
        """Eq. (10), or Adam's step."""
        if o.server_optimizer == "adam":
            steps = spec.leaf("items").steps(server.items.dtype) if stage.fine else self.row_steps(server)
            self.kernel.server_adam(server, rows, steps, o)
        else:
            self.kernel.add_rows(server.items[0], rows, spec.leaf("items"), o.server_rate)

    def _stand(self, server: ServerState, rows: Rows, rate: float, level: int = 1) -> None:
        """Add to the latents from this level on. Where they are counted in steps, rows and steps stay in step."""
        table, dim = server.items[level:].reshape(-1, self.options.dim), self.options.dim
        if server.standing is None:
            self.kernel.add_rows(table, rows, self.latents, rate)
            return
        steps = server.standing[level - 1 :].reshape(-1, dim)
        steps[rows.index] += rows.values
        table[rows.index] = (steps[rows.index] * self.latents.step).astype(table.dtype)

    def keep_possible(self, server: ServerState, late: int = 0) -> int:
        """Degrees; and of a latent what `latent_clip` lets each user of the item hold."""
        o, outside = self.options, super().keep_possible(server, late)
        if self.noise.rest:  # carries latents anywhere
            return outside
        # At another rate than 1 the latents are the first contribution and α times the way from there to the last.
        each = o.latent_clip * max(1.0, 2 * o.latent_rate - 1)
        most = (each * (server.degrees + late))[:, None]  # [N, 1]
        if server.standing is None:
            most = most.astype(server.items.dtype)
            return outside + clamp(server.items[1:], -most, most)
        steps = np.rint(most / self.latents.step).astype(np.int64)
        found = clamp(server.standing, -steps, steps)
        if found:
            server.items[1:] = (server.standing * self.latents.step).astype(server.items.dtype)
        return outside + found

    # -------------------------------------------------------------------------------------- ranking

    @property
    def knows_strangers(self) -> bool:
        """Eq. (6) needs only their items."""
        return self.options.layers > 0

    def represent_users(self, server: ServerState, cohort: Cohort) -> Floats:
        """Users' final representations, Eq. (2), after a refresh at home that is never stored.  # [n, D]"""
        o, embeddings = self.options, cohort.state.embeddings
        cohort = noisy.without_closed(cohort, server.more)
        if o.layers and o.evaluation_refresh:
            gather, _ = self.edge_weights(cohort, server.degrees)
            tables = self.as_ranked(server).items
            latents = self.kernel.refresh(
                cohort, gather, tables[1:2] if o.combined else tables[: o.layers], cohort.items
            )
            if o.combined:
                both = self._ranked(embeddings.dtype.type(o.weights()[0]) * embeddings[:, 0] + latents[:, 0])
                return noisy.as_users(both, server.more)
            embeddings = np.concatenate([embeddings[:, :1], latents], axis=1)
        return noisy.as_users(self._combined(embeddings.swapaxes(0, 1)), server.more)

    def represent_items(self, server: ServerState) -> Floats:
        """Items' final representations, Eq. (2).  # [N, D]"""
        tables = self.as_ranked(server).items
        return noisy.as_items(self._ranked(tables[0]) if self.options.combined else self._combined(tables), server.more)

    def as_ranked(self, server: ServerState) -> ServerState:
        """What of the server a device has, as it arrived there: people rank with that."""
        return server if server.arrived else as_server(self.broadcast(server, replace(TRAIN, lean=True)))

    def _combined(self, embeddings: Floats) -> Floats:  # [K+1, n, d] → [n, D]
        o = self.options
        if o.combine == "concat":
            return self._ranked(np.concatenate(list(embeddings), axis=1))
        weights = np.asarray(o.weights(), embeddings.dtype)
        total: Floats = weights[0] * embeddings[0]
        for alpha, level in zip(weights[1:], embeddings[1:], strict=True):
            total += alpha * level  # not a product of BLAS: that rounds by place and by the number of threads
        return self._ranked(total)

    def _ranked(self, rows: Floats) -> Floats:
        """Rows whose inner products rank: those of directions are cosines."""
        return rows / reference.length(rows)[:, None] if self.options.ranking == "cosine" else rows

    def edge_weights(self, cohort: Cohort, degrees: Ints) -> tuple[Floats, Floats]:
        """w_ut of every edge of the cohort, for gathering and for pushing.  # [nnz] each"""
        rule, dtype = RULES[self.options.message_passing], cohort.state.embeddings.dtype
        # Degrees are frozen: an item first met by a user who joined later counts as met once.
        item = np.maximum(degrees[cohort.items], 1).astype(np.float64)
        user = np.repeat(cohort.degrees, cohort.degrees).astype(np.float64)
        return rule.gather(item, user).astype(dtype), rule.push(item, user).astype(dtype)

    def push_weights(self, cohort: Cohort, degrees: Ints) -> Floats:
        return self.edge_weights(cohort, degrees)[1]

    # -------------------------------------------------------------------------------------- traffic

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
        positives = np.minimum(degrees, o.max_positives or N)
        negatives = np.where(degrees > 0, np.minimum(o.negatives if o.loss != "mse" else 0, N - degrees), 0)
        trained = 0 if stage.sweep else int((positives + negatives)[: n - lost].sum())
        latents = 0 if stage.lean or not o.layers else int(sent.sum()) * (word + o.layers * row)
        up = trained * (word + row) + latents
        down = (o.layers + 1) * row
        if o.combined:
            tables = 2 if stage.lean else 2 + o.layers
            down = tables * (o.dim * BYTES[o.download] + (o.download == "int8"))
        down = n * N * (down + word + (not stage.fine))  # with the item's degree and, as a byte, its step
        return Traffic(up, down, up_secure, down)
