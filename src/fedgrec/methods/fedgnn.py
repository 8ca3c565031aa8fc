"""FedGNN (Wu et al. 2021, "FedGNN: Federated Graph Neural Network for Privacy-Preserving Recommendation").

    h_t = (1−γ)e_t + γ·mean of others' e_v       f_u = α·e_u + (1−α)·Σ_{t∈N_u} w_ut·h_t       ŷ_ut = f_uᵀe_t
    L_u = mean (1 − ŷ_ut)² over positives + ω·mean ŷ_ut² over drawn items, or BPR        (+ λ₂-penalty)
    upload: clip(−∂L_u/∂e_t, δ) of positives and pseudo-interacted items, summed

A user learns the embeddings of others who have its items through a third party (methods/expansion.py), again every
`expand_every` rounds. Its own embedding and that embedding's Adam stay at home; nothing but item rows goes up.

    symbol   name                 symbol   name                 symbol   name
    α        options.own          γ        options.others       ω        options.negative_weight
    δ        options.clip         M        options.negatives

Departures. Messages are linear: no attention, no weights to learn, so a user needs only its neighbours' mean. The
original predicts ratings, and its pseudo-interacted items carry random rows. With clicks alone every target is 1, and a
constant score would be the optimum; so here pseudo-interacted items have target 0 and carry their own gradients. Its
authors' code takes M = 1,000, 100 neighbours, and Laplace noise of scale 0.2 in every word, for an ε of 1 that adds up
over the rows of a round. That noise is far larger than the gradients of a mean over pairs, so here is none.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable import draws
from fedgrec.cable.core import (
    Broadcast,
    Cohort,
    Floats,
    Ints,
    Leaf,
    Pending,
    ServerState,
    Stage,
    Traffic,
    Upload,
    UploadSpec,
    finest_step,
)
from fedgrec.config.options import AdamOptions, at_round, option
from fedgrec.kernels import gnn, reference
from fedgrec.methods import degrees as counts
from fedgrec.methods import expansion
from fedgrec.methods.contract import DEGREES, TRAIN, WORD, Contents, Method

EXPAND = Stage("expand", everyone=True, combine="match")
THIRD_PARTY_STREAM = 4


@dataclass(frozen=True)
class Options(AdamOptions):
    """FedGNN: a local graph of one layer, gradients hidden among pseudo-interacted items."""

    own: float = option(
        0.25, "α, weight of the user's own embedding in its representation; its items have 1−α", least=0, most=1
    )
    others: float = option(
        0.1, "γ, weight of other users in an item's message; its own embedding has 1−γ", least=0, most=1
    )
    message_passing: str = option(
        "mean",
        "w_ut: mean, 1/|N_u|; root, 1/√|N_u|; symmetric, 1/√(|N_t||N_u|) as in LightGCN",
        choices=("mean", "root", "symmetric"),
    )
    neighbours: int = option(10, "the most other users whose embeddings a user hears for one item", least=1)
    expand_every: int = option(
        500, "rounds between expansions of the users' graphs; 0: only at the start", least=0, group="wire"
    )
    loss: str = option("mse", "mse, targets 1 (or ratings, if kept) and 0; or bpr", choices=("mse", "bpr"))
    negative_weight: float = option(
        50.0, "ω, weight of the mse over pseudo-interacted items; positives have 1", least=0
    )
    negatives: int = option(1024, "M, pseudo-interacted items of a user in a round, distinct", least=1)
    max_positives: int = option(
        256, "the most positives of a user that train in one round; a user with more draws some; 0: all", least=0
    )
    l2: float = option(1e-3, "λ₂: L2 penalty λ₂e_u, λ₂e_t/P for each of P positives, λ₂e_t/M for a negative", least=0)
    clip: float = option(0.1, "δ, the largest absolute number that a user may send", least=1e-6, group="privacy")
    user_rate: float = option(0.02, "learning rate of e_u, by Adam, whose moments stay at home", least=0)
    server_optimizer: str = option(
        "adam", "what the server does with the summed updates: add them, or Adam", choices=("sum", "adam")
    )
    server_rate: float = option(0.01, "the server's learning rate", least=0)
    half_life: int = option(
        0, "rounds in which server_rate and user_rate fall to half, again and again; 0: they stay", least=0
    )


@dataclass(frozen=True)
class FedGNN(Method):
    """The verbs of FedGNN over `n_items` items and at most `n_users` users."""

    name = "fedgnn"
    engine = "fedgrec.kernels.gnn_torch"
    contents = Contents("items", counts="degrees")
    State = gnn.GnnState
    options: Options

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (DEGREES, EXPAND, TRAIN)

    def spec(self, stage: Stage) -> UploadSpec:
        """What goes up in sums; an expansion sends nothing to the server."""
        o, N = self.options, self.n_items
        if stage is DEGREES:
            return counts.spec(self)
        if stage is EXPAND:
            return UploadSpec((), self.n_users)
        return UploadSpec((Leaf("items", N, o.dim, o.clip, finest_step(o.clip, self.sampled)),), self.sampled)

    # --------------------------------------------------------------------------------- initial state

    def init(self, seed: int) -> ServerState:
        o, shape = self.options, (self.n_items, self.options.dim)
        items = o.init_std * np.random.Generator(np.random.Philox(key=seed)).standard_normal((1, *shape))
        zeros = np.zeros((2, *shape), o.precision)
        return ServerState(items.astype(o.precision), np.zeros(self.n_items, np.int64), zeros[0], zeros[1])

    def init_users(self, keys: NDArray[np.uint64], indptr: Ints, items: Ints, targets: Floats | None = None) -> Cohort:
        o, n = self.options, len(keys)
        e = (o.init_std * draws.normal(keys, o.dim)).astype(o.precision)
        state = gnn.GnnState(e[:, None], np.zeros_like(e), np.zeros_like(e), np.zeros(n, np.int64))
        targets = None if targets is None else targets.astype(o.precision)
        return Cohort(keys, np.array(indptr), np.array(items), state, targets)

    # ------------------------------------------------------------------------------------- the verbs

    def rematch(self, round_: int) -> bool:
        return bool(self.options.expand_every and round_ and round_ % self.options.expand_every == 0)

    def match(self, users: Cohort, round_: int, seed: int) -> tuple[Cohort, Traffic]:
        """Expand everybody's graph; the third party draws for itself, here from the simulation's seed."""
        bits = np.random.Philox(key=[seed, THIRD_PARTY_STREAM], counter=[0, round_, 0, 0])
        third = expansion.ThirdParty(self.options.neighbours, np.random.Generator(bits))
        return expansion.expand(users, expansion.shared_key(users.keys), third)

    def local_update(self, cohort: Cohort, stage: Stage, broadcast: Broadcast) -> tuple[Upload, Pending]:
        if stage is DEGREES:
            return counts.local_update(self, cohort)
        spec, (v, B) = self.spec(TRAIN), self._heard(cohort, broadcast)
        o = at_round(self.options, broadcast.round)
        items, state, cut = gnn.train(cohort, v, B, broadcast, o, spec.leaf("items"), spec.dtype)
        return Upload({"items": items}, len(cohort)), Pending(state, cut)

    def _heard(self, cohort: Cohort, broadcast: Broadcast) -> tuple[Floats, Floats]:
        """v_t of every edge [nnz], and what users hear: B = Σ v_t·x_t + (1−α)Σ w_ut·γ_t·a_t  # [n, d]"""
        v, from_neighbours = self.from_neighbours(cohort, broadcast)
        B = reference.refresh(cohort, v, broadcast.tables, cohort.items)[:, 0]
        return v, B + from_neighbours

    def from_neighbours(self, cohort: Cohort, broadcast: Broadcast) -> tuple[Floats, Floats]:
        """What stays until the next expansion: v_t of every edge [nnz], and (1−α)Σ w_ut·γ_t·a_t  # [n, d]"""
        o, state, around = self.options, cohort.state, cohort.around
        dtype, w = state.embeddings.dtype, (1 - o.own) * self._edge_weights(cohort, broadcast)
        if around is None or not o.others:  # no user has heard of others
            return w.astype(dtype), np.zeros_like(state.embeddings[:, 0])
        gamma = o.others * (around != 0).any(axis=1)
        v, theirs = (w * (1 - gamma)).astype(dtype), (w * gamma).astype(dtype)
        return v, reference.refresh(cohort, theirs, around[None], np.arange(len(w)))[:, 0]

    def _edge_weights(self, cohort: Cohort, broadcast: Broadcast) -> Floats:
        """w_ut of every edge.  # [nnz]"""
        kind, user = self.options.message_passing, np.repeat(cohort.degrees, cohort.degrees).astype(np.float64)
        if kind == "symmetric":
            user *= np.maximum(broadcast.degrees[cohort.items], 1)
        weights: Floats = 1 / user if kind == "mean" else 1 / np.sqrt(user)
        return weights

    def apply(self, server: ServerState, stage: Stage, total: Upload, level: int = 0) -> ServerState:
        o = at_round(self.options, server.round)
        if stage is DEGREES:
            return counts.apply(self, server, total)
        update, leaf = total.leaves["items"], self.spec(TRAIN).leaf("items")
        if o.server_optimizer == "adam":
            reference.server_adam(server, update, leaf.steps(server.items.dtype), o)
        else:
            reference.add_rows(server.items[0], update, leaf, o.server_rate)
        server.round += 1
        return server

    # -------------------------------------------------------------------------------------- ranking

    @property
    def knows_strangers(self) -> bool:
        """Their items are enough where they count in f_u."""
        return self.options.own < 1

    @property
    def share(self) -> str:
        """w_ut: strangers have heard of nobody."""
        return "mean" if self.options.message_passing == "mean" else "root"

    def represent_users(self, server: ServerState, cohort: Cohort) -> Floats:
        """f_u, from the items as they are now.  # [n, d]"""
        _, B = self._heard(cohort, self.broadcast(server, TRAIN))
        f_u: Floats = self.options.own * cohort.state.embeddings[:, 0] + B
        return f_u

    # -------------------------------------------------------------------------------------- traffic

    def traffic(self, stage: Stage, degrees: Ints, lost: int = 0) -> Traffic:
        """As the contract says; for an expansion the most that it can take: `match` returns what it took."""
        o, N, n, row = self.options, self.n_items, len(degrees), WORD * self.options.dim
        sent = degrees[: n - lost]
        if stage is EXPAND:
            up = int(sent.sum()) * expansion.HASH_BYTES + len(sent) * row
            down = int(degrees.sum()) * (WORD + o.neighbours * row)
            return Traffic(up, down, up, down)
        up_secure = self.secure_upload(stage, n - lost)
        if stage is DEGREES:
            return Traffic(int(sent.sum()) * WORD, 0, up_secure, 0)
        positives = np.minimum(sent, o.max_positives or N)
        pseudo = np.where(sent > 0, np.minimum(o.negatives, N - sent), 0)
        down = n * N * row
        return Traffic(int((positives + pseudo).sum()) * (WORD + row), down, up_secure, down)


make = FedGNN
