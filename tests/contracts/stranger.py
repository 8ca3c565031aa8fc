"""A method as a stranger adds one: this file, and one line in `fedgrec.options.METHODS`.

A user has an embedding e_u and weights g_u, one for each direction, which it learns at home and ranks by:
s_t = (e_u ∘ g_u)ᵀ x_t, squared error over its items (1) and a few it does not have (0).
"""

from dataclasses import dataclass
from typing import Any

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
    State,
    Traffic,
    Upload,
    UploadSpec,
    finest_step,
    quantize,
)  # fmt: skip
from fedgrec.methods.contract import WORD, Method
from fedgrec.options import option

TRAIN = Stage("train", everyone=False)


@dataclass(frozen=True)
class Options:
    dim: int = option(8, "d, the size of an embedding", least=1)
    users_per_round: int = option(20, "S, users sampled in a round", least=1)
    negatives: int = option(16, "items that a user has not, drawn in a round", least=1)
    rate: float = option(0.3, "learning rate on both sides", least=0)


@dataclass
class Taste(State):
    embeddings: Floats  # [n, 1, d]
    weights: Floats  # [n, d]: how much each direction matters to this user


@dataclass(frozen=True)
class StrangersMethod(Method):
    name = "stranger"
    State = Taste
    options: Options
    n_items: int
    n_users: int

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (TRAIN,)

    def spec(self, stage: Stage) -> UploadSpec:
        users = min(self.options.users_per_round, self.n_users)
        return UploadSpec((Leaf("items", self.n_items, self.options.dim, 2.0, finest_step(2.0, users)),), users)

    def init(self, seed: int) -> ServerState:
        shape = (self.n_items, self.options.dim)
        items = 0.3 * np.random.default_rng(seed).standard_normal((1, *shape))
        nothing = np.zeros((0, 0))
        return ServerState(items, np.zeros(self.n_items, np.int64), nothing, nothing)

    def init_users(self, keys: NDArray[np.uint64], indptr: Ints, items: Ints, targets: Floats | None = None) -> Cohort:
        drawn = draws.normal(keys, 2 * self.options.dim)
        d = self.options.dim
        return Cohort(keys, np.array(indptr), np.array(items), Taste(0.3 * drawn[:, None, :d], 1 + 0.3 * drawn[:, d:]))

    def broadcast(self, server: ServerState, stage: Stage, level: int = 0) -> Broadcast:
        return Broadcast(server.round, self.n_items, server.items, server.degrees)

    def local_update(self, cohort: Cohort, stage: Stage, broadcast: Broadcast) -> tuple[Upload, Pending]:
        spec, new, cut = self.spec(stage), cohort.state.copy(), 0
        total = np.zeros((self.n_items, self.options.dim), spec.dtype)
        for u in range(len(cohort)):
            mine = cohort.items_of(u)
            others = draws.negatives(int(cohort.keys[u]), broadcast.round, self.options.negatives, mine, self.n_items)
            rows, wanted = np.concatenate([mine, others]), np.repeat([1.0, 0.0], [len(mine), len(others)])
            x, e, g = broadcast.tables[0][rows], cohort.state.embeddings[u, 0], cohort.state.weights[u]
            error = (x @ (e * g) - wanted)[:, None]
            new.embeddings[u, 0] -= self.options.rate * (error * x).mean(axis=0) * g
            new.weights[u] -= self.options.rate * (error * x).mean(axis=0) * e
            words, over = quantize(-error * (e * g), spec.leaf("items"), spec.dtype)
            total[rows] += words
            cut += over
        touched = np.flatnonzero(total.any(axis=1))
        return Upload({"items": Rows(touched, total[touched])}, len(cohort)), Pending(new, cut)

    def apply(self, server: ServerState, stage: Stage, total: Upload, level: int = 0) -> ServerState:
        rows = total.leaves["items"]
        step = self.options.rate / max(total.users, 1) ** 0.5 * self.spec(stage).leaf("items").step
        server.items[0][rows.index] += step * rows.values
        server.round += 1
        return server

    def represent_users(self, server: ServerState, cohort: Cohort) -> Floats:
        return cohort.state.embeddings[:, 0] * cohort.state.weights

    def represent_items(self, server: ServerState) -> Floats:
        return server.items[0]

    def traffic(self, stage: Stage, degrees: Ints, lost: int = 0) -> Traffic:
        n, table = len(degrees), self.n_items * self.options.dim * WORD
        sent = int((degrees[: n - lost] + self.options.negatives).sum()) * (1 + self.options.dim) * WORD
        return Traffic(sent, n * table, self.secure_upload(stage, n - lost), n * table)


def make(options: Options, n_items: int, n_users: int, kernel: Any = None) -> StrangersMethod:
    return StrangersMethod(options, n_items, n_users)
