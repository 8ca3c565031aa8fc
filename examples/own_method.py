"""Add your own federated method: this file is a complete example.

Each user has an embedding e_u and weights g_u, one for each direction. The user learns both at home and ranks by
s_t = (e_u ∘ g_u)ᵀ x_t. The loss is the squared error over the user's items (wanted: 1) and a few other items (0).

A method implements the few functions of `fedgrec.methods.contract.Method`. Once `METHODS` knows its name, every command
accepts it: train, compare, tune, federation. docs/methods.md goes through it step by step.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from fedgrec import FedGRec
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
    quantize,
)
from fedgrec.config.options import METHODS, MethodOptions, option
from fedgrec.methods.contract import WORD, Contents, Method

TRAIN = Stage("train", everyone=False)


@dataclass(frozen=True)
class Options(MethodOptions):
    """Every option has its default, help and bounds here; the command line and option files use them."""

    dim: int = option(8, "d, the size of an embedding", least=1)
    users_per_round: int = option(20, "S, users sampled in a round", least=1)
    negatives: int = option(16, "items that a user has not, drawn in a round", least=1)
    rate: float = option(0.3, "learning rate on both sides", least=0)


@dataclass
class Taste(State):
    """The state of users, one row each; it never leaves the device."""

    embeddings: Floats  # [n, 1, d]
    weights: Floats  # [n, d]: how much each direction matters to this user


@dataclass(frozen=True)
class OwnMethod(Method):
    """Its functions keep no state: the server's and the users' state are arguments and results."""

    name = "own"
    State = Taste
    contents = Contents("items")  # one of many abilities: now `fedgrec audit` knows which leaf to attack
    options: Options
    n_items: int
    n_users: int

    @property
    def stages(self) -> tuple[Stage, ...]:
        """One kind of round. FedGRec counts degrees and warms up first."""
        return (TRAIN,)

    def spec(self, stage: Stage) -> UploadSpec:
        """The upload, which is all that leaves a device: a row of integers for each item, inside a sum."""
        users = min(self.options.users_per_round, self.n_users)
        return UploadSpec((Leaf("items", self.n_items, self.options.dim, 2.0, finest_step(2.0, users)),), users)

    def init(self, seed: int) -> ServerState:
        """The server starts with a random table of items."""
        shape = (self.n_items, self.options.dim)
        items = 0.3 * np.random.default_rng(seed).standard_normal((1, *shape))
        nothing = np.zeros((0, 0))
        return ServerState(items, np.zeros(self.n_items, np.int64), nothing, nothing)

    def init_users(self, keys: NDArray[np.uint64], indptr: Ints, items: Ints, targets: Floats | None = None) -> Cohort:
        """Users draw their first embeddings with their own keys."""
        drawn = draws.normal(keys, 2 * self.options.dim)
        d = self.options.dim
        return Cohort(keys, np.array(indptr), np.array(items), Taste(0.3 * drawn[:, None, :d], 1 + 0.3 * drawn[:, d:]))

    def broadcast(self, server: ServerState, stage: Stage, level: int = 0) -> Broadcast:
        """Every user gets the same: the whole item table."""
        return Broadcast(server.round, self.n_items, server.items, server.degrees)

    def local_update(self, cohort: Cohort, stage: Stage, broadcast: Broadcast) -> tuple[Upload, Pending]:
        """On the device: one gradient step for the user, and the rounded gradient of the items for the sum."""
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
        """At the server: step along the sum of all gradients."""
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
        """Bytes of a round, for the report."""
        n, table = len(degrees), self.n_items * self.options.dim * WORD
        sent = int((degrees[: n - lost] + self.options.negatives).sum()) * (1 + self.options.dim) * WORD
        return Traffic(sent, n * table, self.secure_upload(stage, n - lost), n * table)


def make(options: Options, n_items: int, n_users: int, kernel: Any = None) -> OwnMethod:
    return OwnMethod(options, n_items, n_users)


def main(rounds: int = 60) -> float:
    METHODS["own"] = "own_method" if __name__ == "__main__" else __name__  # this line makes the method known
    # 60 users, 40 items: half of the users like even items, the others odd ones. A third of the clicks is for the test.
    likes = np.arange(60)[:, None] % 2 == np.arange(40) % 2
    hidden = np.random.default_rng(0).random(likes.shape) < 1 / 3
    model = FedGRec(method="own", rounds=rounds, topk=(5,))
    model.fit(sp.csr_array(likes & ~hidden), test=sp.csr_array(likes & hidden))
    return float(model.metrics[-1]["recall@5"])


if __name__ == "__main__":
    print(f"after 5 rounds Recall@5 is {main(5):.2f}, after 60 it is {main():.2f}")
