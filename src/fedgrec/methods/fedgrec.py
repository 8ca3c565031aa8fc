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

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable import draws
from fedgrec.cable.core import (
    Broadcast,
    Cohort,
    Floats,
    Ints,
    Pending,
    Rows,
    ServerState,
    Stage,
    Upload,
    UploadSpec,
    UserState,
    as_server,
    clamp,
)
from fedgrec.config.options import FedGRecOptions, at_round
from fedgrec.errors import FedgrecError
from fedgrec.kernels import reference
from fedgrec.methods import change, noisy
from fedgrec.methods import degrees as counts
from fedgrec.methods.contract import DEGREES, RECOUNT, Contents
from fedgrec.methods.fedgrec_uploads import PROPAGATE, RESEND, TRAIN, Round, Uploads
from fedgrec.methods.lengths import no_longer_than_usual

__all__ = ["DEGREES", "PROPAGATE", "RECOUNT", "RESEND", "TRAIN", "FedGRecMethod", "Options", "make", "temperature"]


class Rule(NamedTuple):
    """A linear message passing rule: edge weights from the two degrees (item's first)."""

    gather: Callable[[Floats, Floats], Floats]  # what a user multiplies its items' rows by, Eq. (6)
    push: Callable[[Floats, Floats], Floats]  # what an item's row gains from its users, Eq. (7)


def _symmetric(item: Floats, user: Floats) -> Floats:
    return 1.0 / (np.sqrt(item) * np.sqrt(user))


CLICKS, ITEMS, SHARP = 25, 40_000, 0.11  # clicks of a user, items of a catalogue, and the temperature for both


def temperature(clicks: float, n_items: int) -> float:
    """Softer where users have few clicks (less is certain) and where items are few (more of them suit a user)."""
    few, small = max(CLICKS / max(clicks, 1), 1.0), max(ITEMS / n_items, 1.0)
    return float(SHARP * few**0.4 * small**0.2)


RULES = {
    "symmetric": Rule(_symmetric, _symmetric),
    "mean": Rule(lambda item, user: 1.0 / user + 0.0 * item, lambda item, user: 1.0 / item + 0.0 * user),
}
STANDING = "standing"  # kept [K, N, d]: the latents in steps, where a sum must give back exactly what was added
Options = FedGRecOptions


@dataclass(frozen=True)
class FedGRecMethod(Uploads):
    """The verbs of FedGRec over `n_items` items and at most `n_users` users."""

    name = "fedgrec"
    kernels = ("reference", "cpu")
    engine, engine_needs = "fedgrec.kernels.cuda", "triton"
    takes_noise = True
    takes_decoys = True
    contents = Contents("items", counts="degrees", latents="latents")

    @property
    def takes_weights(self) -> bool:
        return self.options.loss == "softmax"

    # --------------------------------------------------------------------------------- initial state

    def init(self, seed: int) -> ServerState:
        """Line 4: item embeddings from N(0, σ); latents are placeholders until the warm-up."""
        o, shape = self.options, (self.n_items, self.options.dim)
        items = np.zeros((o.layers + 1, *shape), o.precision)
        items[0] = o.init_std * np.random.Generator(np.random.Philox(key=seed)).standard_normal(shape)
        zeros = np.zeros((2, *shape), o.precision)
        kept: dict[str, Ints] = {STANDING: np.zeros((o.layers, *shape), np.int64)} if o.latent_rate == 1 else {}
        return ServerState(items, np.zeros(self.n_items, np.int64), zeros[0], zeros[1], kept=kept)

    def grown(self, server: ServerState, seed: int) -> ServerState:
        """The server with a row for every item of a longer catalogue; old rows stay as they are."""
        whole, o = self.init(seed), self.options
        whole.round, n = server.round, len(server.degrees)
        for name in ("degrees", "moment1", "moment2"):
            getattr(whole, name)[:n] = getattr(server, name)
        whole.items[:, :n] = server.items
        whole.kept = {name: steps for name, steps in whole.kept.items() if name in server.kept}
        for name, steps in whole.kept.items():
            steps[:, :n] = server.kept[name]
        if o.levels and server.moment2.any():  # new rows begin with the steps that are usual by now
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
        if not isinstance(stage, Round):
            tables = items[level - 1 : level] if stage is PROPAGATE else items[:0]
            return Broadcast(server.round, self.n_items, tables, server.degrees, level, more)
        tables = items
        if o.combined:
            tables = self.kernel.combine(items, np.asarray(o.weights(), items.dtype), o.download, stage.lean)
        if not stage.fine:
            more["steps"] = self.row_steps(server)
        kind = o.download if o.combined else "float32"
        return Broadcast(server.round, self.n_items, tables, server.degrees, level, more, kind)

    def local_update(self, cohort: Cohort, stage: Stage, broadcast: Broadcast) -> tuple[Upload, Pending]:
        """What users compute at home: the summed upload of the cohort, and its pending state."""
        if stage is DEGREES:
            return counts.local_update(self, cohort)
        if noisy.OPEN in broadcast.more:
            cohort, broadcast, ids = noisy.compact(cohort, broadcast)
            upload, pending = replace(self, n_items=len(ids)).local_update(cohort, stage, broadcast)
            whole = {name: noisy.expanded(part, ids, self.n_items) for name, part in upload.leaves.items()}
            return Upload(whole, upload.users), pending._replace(weights=None)  # only a recount needs them
        if stage is RECOUNT:
            return Upload({"degrees": change.recounted(cohort)}, len(cohort)), Pending(cohort.state, 0, "counted")
        if stage is RESEND:
            _, push = self.edge_weights(cohort, broadcast.degrees)
            rows = change.moved(self.kernel.push, cohort, push, self.spec(stage), self.n_items)
            return Upload({"latents": rows}, len(cohort)), Pending(cohort.state, 0, "pushed", push)
        if not isinstance(stage, Round):
            return self._propagate(cohort, broadcast)
        return self._sweep(cohort, broadcast, stage) if stage.everyone else self._train(cohort, broadcast, stage)

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

    def _train(self, cohort: Cohort, broadcast: Broadcast, stage: Round) -> tuple[Upload, Pending]:
        """Lines 15 to 22; a lean round leaves out line 22: the next round with latents sends that change too."""
        o, spec = self.options_of(broadcast.round, broadcast.degrees), self.spec(stage)
        if self.noise.rest and broadcast.row_steps is not None:  # they could stretch rows beyond the norm
            raise FedgrecError("under noise all item updates have one fixed step, but the server sent other steps")
        gather, push = self.edge_weights(cohort, broadcast.degrees)
        tables = broadcast.tables[1:2] if o.combined else broadcast.tables[: o.layers]
        latents = self.kernel.refresh(cohort, gather, tables, cohort.items)  # line 15
        items, pending, cut = self.kernel.train(  # lines 16 to 21
            cohort, gather, broadcast, latents, o, spec.leaf("items"), spec.dtype
        )
        if not o.combined:
            pending.embeddings[:, 1:] = latents
        elif not stage.lean:  # training used only the sum of all levels
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
        """How the latents of all levels changed since they were last sent; `pending` notes them as sent."""
        old, leaf = cohort.state.sent, spec.leaf("latents")
        new = self._held(cohort, push, pending.embeddings[:, : self.options.layers], old)
        rows, cut = self.kernel.push(cohort, push, old, new, leaf, spec.dtype, self.n_items)
        if cohort.past is not None and cohort.past.pushed:
            rows += change.moved(self.kernel.push, cohort, push, spec, self.n_items)
        pending.sent[:] = new
        return rows, cut

    def _held(self, cohort: Cohort, push: Floats, embeddings: Floats, before: Floats) -> Floats:
        """What users hold in the latents: their embeddings; under noise, scaled down to a norm.  # [n, L, d]"""
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
        if stage is DEGREES:
            counts.apply(self, server, total)
        elif stage is RECOUNT:
            changed = total.leaves["degrees"]
            server.degrees[changed.index] += changed.values[:, 0]
        elif stage is PROPAGATE:  # Eq. (8)
            self._stand(server, total.leaves["latents"], 1.0, level)
        elif not isinstance(stage, Round):
            self._stand(server, total.leaves["latents"], 1.0)
        else:
            if not stage.everyone:
                self._move_items(server, total.leaves["items"], spec, stage, o)
            if o.layers and not stage.lean:  # Eq. (11), all levels as one table of K·N rows
                self._stand(server, total.leaves["latents"], o.latent_rate)
            server.round += 1
        return server

    def _move_items(self, server: ServerState, rows: Rows, spec: UploadSpec, stage: Round, o: FedGRecOptions) -> None:
        """Eq. (10), or Adam's step."""
        if o.server_optimizer == "adam":
            steps = spec.leaf("items").steps(server.items.dtype) if stage.fine else self.row_steps(server)
            self.kernel.server_adam(server, rows, steps, o)
        else:
            self.kernel.add_rows(server.items[0], rows, spec.leaf("items"), o.server_rate)

    def _stand(self, server: ServerState, rows: Rows, rate: float, level: int = 1) -> None:
        """Add to the latents from this level on. Where the server keeps them in steps, too, both change together."""
        table, dim = server.items[level:].reshape(-1, self.options.dim), self.options.dim
        if STANDING not in server.kept:
            self.kernel.add_rows(table, rows, self.latents, rate)
            return
        steps = server.kept[STANDING][level - 1 :].reshape(-1, dim)
        steps[rows.index] += rows.values
        table[rows.index] = (steps[rows.index] * self.latents.step).astype(table.dtype)

    def keep_possible(self, server: ServerState, late: int = 0) -> int:
        """Also clamp each latent to what `latent_clip` lets the item's users hold."""
        o, outside = self.options, super().keep_possible(server, late)
        if self.noise.rest:  # noise can carry latents anywhere
            return outside
        # With a rate α ≠ 1 a latent holds a user's first contribution, plus α times the change from first to last.
        each = o.latent_clip * max(1.0, 2 * o.latent_rate - 1)
        most = (each * (server.degrees + late))[:, None]  # [N, 1]
        if STANDING not in server.kept:
            most = most.astype(server.items.dtype)
            return outside + clamp(server.items[1:], -most, most)
        steps = np.rint(most / self.latents.step).astype(np.int64)
        found = clamp(server.kept[STANDING], -steps, steps)
        if found:
            server.items[1:] = (server.kept[STANDING] * self.latents.step).astype(server.items.dtype)
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
        vectors = self._ranked(tables[0]) if self.options.combined else self._combined(tables)
        return noisy.as_items(no_longer_than_usual(vectors, server.degrees, self.options.longest), server.more)

    def as_ranked(self, server: ServerState) -> ServerState:
        """The server as it arrived at a device: people rank with that."""
        return server if server.arrived else as_server(self.served(server))

    def served(self, server: ServerState) -> Broadcast:
        """Without the tables that only training needs."""
        return self.broadcast(server, replace(TRAIN, lean=True))

    @property
    def share(self) -> str:
        """Eq. (6); of cosines each stranger has its own."""
        o = self.options
        return "" if o.ranking == "cosine" else "mean" if o.message_passing == "mean" else "root"

    def explained(self, server: ServerState, person: Cohort) -> tuple[Floats, Floats]:
        """Eq. (6) in Eq. (2): α_0 e_u^0, and w_ut Σ_k α_k e_t^{k−1}; where cosines rank, by the length of the whole."""
        o = self.options
        if not (o.layers and o.evaluation_refresh):
            raise FedgrecError(
                "a score is a sum over the person's items only with latent embeddings that are made from them when "
                "they are ranked: train with layers of at least 1 and evaluation_refresh"
            )
        gather, alphas = self.edge_weights(person, server.degrees)[0].astype(np.float64)[:, None], o.weights()
        own = alphas[0] * person.state.embeddings[:, 0].astype(np.float64)
        if o.combined:  # the server's second table is Σ α_k e_t^{k−1}
            rows = gather * server.items[1][person.items]
        else:
            levels = [a * gather * level[person.items] for a, level in zip(alphas[1:], server.items, strict=False)]
            rows = np.sum(levels, axis=0)
            if o.combine == "concat":
                own = np.hstack([own, *(np.zeros_like(own) for _ in levels)])
                rows = np.hstack([np.zeros_like(levels[0]), *levels])
        if o.ranking == "cosine":
            length = np.linalg.norm(own + rows.sum(axis=0)) or 1.0
            own, rows = own / length, rows / length
        return own, rows

    def leaning(self, broadcast: Broadcast) -> Floats | None:
        """Where scores are cosines, the items' embeddings."""
        o, tables = self.options, broadcast.tables
        if o.similarity != "cosine":
            return None
        first: Floats = tables[0]
        return first if o.combined or o.combine == "concat" else np.tensordot(o.weights(), tables, 1)

    def _combined(self, embeddings: Floats) -> Floats:  # [K+1, n, d] → [n, D]
        o = self.options
        if o.combine == "concat":
            return self._ranked(np.concatenate(list(embeddings), axis=1))
        weights = np.asarray(o.weights(), embeddings.dtype)
        total: Floats = weights[0] * embeddings[0]
        for alpha, level in zip(weights[1:], embeddings[1:], strict=True):
            total += alpha * level  # no BLAS: its rounding depends on place and number of threads
        return self._ranked(total)

    def _ranked(self, rows: Floats) -> Floats:
        """Rows whose inner products rank; for cosines, rows of length 1."""
        return rows / reference.length(rows)[:, None] if self.options.ranking == "cosine" else rows

    def edge_weights(self, cohort: Cohort, degrees: Ints) -> tuple[Floats, Floats]:
        """w_ut of every edge of the cohort, for gathering and for pushing.  # [nnz] each"""
        rule, dtype = RULES[self.options.message_passing], cohort.state.embeddings.dtype
        # Degrees are frozen: an item that only later users have counts as if one user had it.
        item = np.maximum(degrees[cohort.items], 1).astype(np.float64)
        user = np.repeat(cohort.degrees, cohort.degrees).astype(np.float64)
        return rule.gather(item, user).astype(dtype), rule.push(item, user).astype(dtype)

    def push_weights(self, cohort: Cohort, degrees: Ints) -> Floats:
        return self.edge_weights(cohort, degrees)[1]

    def recovered(self, server: ServerState, users: Cohort) -> ServerState:
        """With the latents in steps, from what users sent."""
        if STANDING in server.kept:
            return server
        o, sent = self.options, users.state.sent
        leaf, push = replace(self.latents, rows=o.layers * self.n_items), self.push_weights(users, server.degrees)
        rows, _ = self.kernel.push(users, push, np.zeros_like(sent), sent, leaf, np.dtype(np.int64), self.n_items)
        steps = np.zeros((leaf.rows, o.dim), np.int64)
        steps[rows.index] = rows.values
        return replace(server, kept={STANDING: steps.reshape(o.layers, self.n_items, o.dim)})


make = FedGRecMethod
