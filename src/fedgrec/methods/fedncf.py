"""FedNCF: federated neural collaborative filtering (Perifanis & Efraimidis 2021), the model Fed-NeuMF.

A score adds a generalised matrix factorisation, h_gᵀ(p_u ⊙ q_i), and a small network over [p'_u, q'_i]; the loss is
binary cross-entropy over a user's positives and drawn negatives (`kernels.neumf` has the maths). Users keep p_u, p'_u
and their optimizer's moments at home; updates of the items and of the network Θ go up as sums. At τ = 1 with SGD and a
rate of 1 these are negative gradients, which the server may hand to Adam.

    symbol   name                       symbol     name                        symbol   name
    q_i      server.items[0, i]         q'_i       server.items[1, i]          Θ        server.more["network"]
    p_u      state.embeddings[u, 0]     p'_u       state.embeddings[u, 1]      τ        options.local_steps
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

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
    Rows,
    ServerState,
    Stage,
    State,
    Traffic,
    Upload,
    UploadSpec,
    finest_step,
)
from fedgrec.config.options import AdamOptions, option
from fedgrec.errors import ConfigError
from fedgrec.kernels import neumf, reference
from fedgrec.kernels.neumf import network, size
from fedgrec.methods.contract import WORD, Contents, Method


@dataclass(frozen=True)
class Options(AdamOptions):
    """FedNCF, with every choice that its paper leaves open."""

    dim: int = option(64, "d, the size of each of the two embeddings", least=1, most=1024)
    hidden: tuple[int, ...] = option((32, 16, 8), "units of the network's hidden layers")
    negatives: int = option(256, "negatives a user draws in a round, distinct and never positives", least=1)
    reduction: str = option("mean", "the loss is the mean or the sum over a user's items", choices=("mean", "sum"))
    l2: float = option(3e-4, "λ, the L2 penalty", least=0)
    local_steps: int = option(1, "τ, local steps in a round", least=1, most=1000)
    item_optimizer: str = option(
        "sgd",
        "local optimizer of item rows and network; its moments start fresh in every round",
        choices=("sgd", "adam"),
    )
    item_rate: float = option(1.0, "local rate of item rows and network", least=0)
    user_optimizer: str = option("adam", "optimizer of p_u, p'_u; its moments stay at home", choices=("sgd", "adam"))
    user_rate: float = option(0.1, "rate of p_u, p'_u", least=0)
    server_optimizer: str = option(
        "adam",
        "what the server does with summed updates: add them, or take them as a gradient for Adam",
        choices=("sum", "adam"),
    )
    server_rate: float = option(0.02, "the server's rate of item rows", least=0)
    network_rate: float = option(0.003, "the server's rate of the network", least=0, group="optimizer")
    network_reduction: str = option(
        "mean", "the network moves by its users' mean or sum", choices=("mean", "sum"), group="optimizer"
    )
    item_clip: float = option(0.3, "largest absolute item update that one user may send", least=1e-6)
    network_clip: float = option(
        3.0, "largest absolute update of a weight that one user may send", least=1e-6, group="wire"
    )

    def __post_init__(self) -> None:
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError("hidden needs at least one layer, each of 1 unit or more, such as  hidden = [32, 16, 8]")


@dataclass
class Home(State):
    """What users remember."""

    embeddings: Floats  # [n, 2, d]: p_u and p'_u
    moment1: Floats  # [n, 2, d]: Adam's moments of both
    moment2: Floats  # [n, 2, d]
    steps: Ints  # [n]: Adam steps taken


@dataclass(frozen=True)
class FedNCF(Method):
    """The verbs of FedNCF over `n_items` items and at most `n_users` users."""

    name = "fedncf"
    engine = "fedgrec.kernels.neumf_torch"
    takes_decoys = True
    contents = Contents("items")
    inner_product = False
    State = Home
    options: Options

    def spec(self, stage: Stage) -> UploadSpec:
        """Both tables' rows, the second behind the first; and the network's weights."""
        o, S = self.options, self.sampled
        items = Leaf("items", 2 * self.n_items, o.dim, o.item_clip, finest_step(o.item_clip, S))
        return UploadSpec((items, Leaf("network", 1, size(o), o.network_clip, finest_step(o.network_clip, S))), S)

    def init(self, seed: int) -> ServerState:
        """Embeddings from N(0, σ²), weights as He et al. scale them; h_g = 1, plain matrix factorisation."""
        o, rng = self.options, np.random.Generator(np.random.Philox(key=seed))
        items = (o.init_std * rng.standard_normal((2, self.n_items, o.dim))).astype(o.precision)
        theta = np.zeros(size(o), o.precision)
        net = network(theta, o)
        for weights, inputs in [(net.W_p, 2 * o.dim), (net.W_q, 2 * o.dim), *((W, W.shape[1]) for W in net.W)]:
            weights[:] = np.sqrt(2 / inputs) * rng.standard_normal(weights.shape)
        net.h_m[:] = np.sqrt(1 / len(net.h_m)) * rng.standard_normal(net.h_m.shape)
        net.h_g[:] = 1
        more = {"network": theta, "network_moment1": np.zeros_like(theta), "network_moment2": np.zeros_like(theta)}
        degrees = np.zeros(self.n_items, np.int64)
        return ServerState(items, degrees, np.zeros_like(items), np.zeros_like(items), more=more)

    def init_users(self, keys: NDArray[np.uint64], indptr: Ints, items: Ints, targets: Floats | None = None) -> Cohort:
        o, shape = self.options, (len(keys), 2, self.options.dim)
        start = (o.init_std * draws.normal(keys, 2 * o.dim)).reshape(shape).astype(o.precision)
        moments = np.zeros((2, *shape), o.precision)
        state = Home(start, moments[0], moments[1], np.zeros(len(keys), np.int64))
        return Cohort(keys, np.array(indptr), np.array(items), state)

    def broadcast(self, server: ServerState, stage: Stage, level: int = 0) -> Broadcast:
        return Broadcast(
            server.round, self.n_items, server.items, server.degrees, more={"network": server.more["network"]}
        )

    def local_update(self, cohort: Cohort, stage: Stage, broadcast: Broadcast) -> tuple[Upload, Pending]:
        spec, theta = self.spec(stage), broadcast.more["network"]
        items, weights, state, cut = neumf.train(
            cohort, broadcast, theta, self.options, spec.leaf("items"), spec.leaf("network"), spec.dtype
        )
        return Upload({"items": items, "network": weights}, len(cohort)), Pending(state, cut)

    def apply(self, server: ServerState, stage: Stage, total: Upload, level: int = 0) -> ServerState:
        o, spec, more, d = self.options, self.spec(stage), server.more, self.options.dim
        share = 1 / total.users if o.network_reduction == "mean" else 1.0
        weights = replace(spec.leaf("network"), step=spec.leaf("network").step * share)
        tables = [table.reshape(-1, d) for table in (server.items, server.moment1, server.moment2)]
        self._move(server.round, tables, total.leaves["items"], spec.leaf("items"), o.server_rate)
        names = ("network", "network_moment1", "network_moment2")
        self._move(server.round, [more[name][None] for name in names], total.leaves["network"], weights, o.network_rate)
        server.round += 1
        return server

    def _move(self, round_: int, tables: list[Floats], update: Rows, leaf: Leaf, rate: float) -> None:
        """One table with its moments, in place, as the server's optimizer says."""
        x, moment1, moment2 = tables
        if self.options.server_optimizer == "adam":
            part = ServerState(x[None], np.zeros(len(x), np.int64), moment1, moment2, round_)
            rules: Any = replace(self.options, server_rate=rate)
            reference.server_adam(part, update, leaf.steps(part.items.dtype), rules)
        else:
            reference.add_rows(x, update, leaf, rate)

    def scores(self, server: ServerState, cohort: Cohort) -> Floats:
        scores: Floats = neumf.scores(cohort.state.embeddings, server.items, server.more["network"], self.options)
        return scores

    def scorer(self, server: ServerState, users: Cohort, device: str) -> Callable[[Ints], Any] | None:
        from fedgrec.kernels import neumf_torch

        return neumf_torch.scorer(users.state.embeddings, server.items, server.more["network"], self.options, device)

    def traffic(self, stage: Stage, degrees: Ints, lost: int = 0) -> Traffic:
        """Down: both tables and the network. Up: two rows for each item trained with its number, and the network."""
        o, n, N, weights = self.options, len(degrees), self.n_items, WORD * size(self.options)
        trained = np.where(degrees > 0, degrees + np.minimum(o.negatives, N - degrees), 0)[: n - lost]
        up = int(trained.sum()) * WORD * (1 + 2 * o.dim) + int((trained > 0).sum()) * weights
        down = n * (2 * N * WORD * o.dim + weights)
        return Traffic(up, down, self.secure_upload(stage, n - lost), down)


make = FedNCF
