"""Small random worlds, and a training run over them that a law can look into."""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fedgrec.cable.core import Cohort, ServerState, Upload
from fedgrec.config.configuration import FedGRecOptions
from fedgrec.kernels import reference
from fedgrec.methods.fedgrec import DEGREES, PROPAGATE, FedGRecMethod


@dataclass
class World:
    """Who likes what, and every random choice of a run, made beforehand."""

    Y: np.ndarray  # [M, N] bool
    options: FedGRecOptions
    seed: int

    @property
    def n_users(self) -> int:
        return self.Y.shape[0]

    @property
    def n_items(self) -> int:
        return self.Y.shape[1]

    def method(self, kernel: Any = reference) -> FedGRecMethod:
        return FedGRecMethod(self.options, self.n_items, self.n_users, kernel)

    def users(self, method: FedGRecMethod) -> Cohort:
        rng = np.random.default_rng(self.seed)
        indptr = np.concatenate([[0], np.cumsum(self.Y.sum(1))])
        items = np.nonzero(self.Y)[1].astype(np.int32)
        targets = rng.integers(1, 6, len(items)) / (5 if self.options.loss == "softmax" else 1)  # weights, or ratings
        targets = None if self.options.loss == "bpr" else targets
        return method.init_users(rng.integers(0, 2**64, self.n_users, dtype=np.uint64), indptr, items, targets)

    def weights(self, side: str) -> np.ndarray:
        """W of Eq. (1), written out in full, for gathering by users or pushing to items.  # [M, N]"""
        item, user = np.maximum(self.Y.sum(0), 1)[None, :], np.maximum(self.Y.sum(1), 1)[:, None]
        if self.options.message_passing == "symmetric":
            return self.Y / np.sqrt(item * user)
        return self.Y / (user if side == "gather" else item)


@st.composite
def worlds(draw: Any, max_users: int = 9, max_items: int = 14, **fixed: Any) -> World:
    """Ragged graphs (users without items, items without users) and option values, all at random."""
    n_users, n_items = draw(st.integers(2, max_users)), draw(st.integers(3, max_items))
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    Y = rng.random((n_users, n_items)) < draw(st.sampled_from([0.15, 0.4, 0.7]))
    Y[rng.integers(n_users), rng.integers(n_items)] = True
    combine = draw(st.sampled_from(["mean", "last", "concat"]))
    dim = draw(st.sampled_from([1, 3, 8]))  # in one dimension no cosine has a slope
    loss = draw(st.sampled_from(["bpr", "bpr", "mse", "mse0", "softmax", "softmax"]))
    server_optimizer = draw(st.sampled_from(["sum", "adam"]))
    similarity = "inner" if combine == "concat" or dim == 1 else draw(st.sampled_from(["inner", "cosine"]))
    # Steep losses at high rates multiply the last digit of a number in every step.
    gently = 0.02 if loss == "softmax" or similarity == "cosine" else 1.0
    choices = {
        "layers": draw(st.integers(0, 3)),
        "dim": dim,
        "combine": combine,
        "message_passing": draw(st.sampled_from(["symmetric", "mean"])),
        "users_per_round": draw(st.integers(1, n_users)),
        "latents_every": draw(st.sampled_from([0, 1, 2, 3])),
        "negatives": draw(st.integers(1, 2 * n_items)),
        "exclude_positives": draw(st.booleans()),
        "max_positives": draw(st.sampled_from([0, 2, 256])),
        "feedback": draw(st.sampled_from([1.0, 1.0, 0.5])),
        "loss": loss,
        "similarity": similarity,
        "temperature": draw(st.sampled_from([0.1, 1.0])),
        "negative_weight": draw(st.sampled_from([1.0, 0.7])),
        "popular_negatives": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "ranking": draw(st.sampled_from(["inner", "cosine"])),
        "reduction": draw(st.sampled_from(["mean", "sum"])),
        "l2": draw(st.sampled_from([0.0, 0.01])),
        "l2_scaling": draw(st.sampled_from(["pair", "row"])),
        "live": draw(st.booleans()) and combine != "concat",
        "local_steps": draw(st.sampled_from([1, 1, 4])),
        "item_optimizer": draw(st.sampled_from(["sgd", "adam"])),
        "item_rate": 0.05 * gently,
        "user_rate": 0.02 * gently,
        "user_optimizer": draw(st.sampled_from(["sgd", "adam"])),
        "user_moments": draw(st.sampled_from(["kept", "fresh"])),
        "server_optimizer": server_optimizer,
        "item_levels": draw(st.sampled_from([0, 20, 5000])) if server_optimizer == "adam" else 0,
        "fine_rounds": 1,
        "download": draw(st.sampled_from(["float32", "bfloat16", "int8"])),
        "precision": draw(st.sampled_from(["float32", "float64"])),
    }
    return World(Y, FedGRecOptions(**(choices | fixed)), seed)


@dataclass
class Run:
    """A world after its warm-up, ready for rounds."""

    world: World
    method: FedGRecMethod
    server: ServerState
    users: Cohort
    exchanged: Upload = field(default_factory=lambda: Upload({}, 0))  # the last sum

    @staticmethod
    def warmed_up(world: World, method: FedGRecMethod | None = None) -> "Run":
        method = method or world.method()
        run = Run(world, method, method.init(world.seed), world.users(method))
        everyone = np.arange(world.n_users)
        for stage, level in [(DEGREES, 0)] + [(PROPAGATE, k) for k in range(1, world.options.layers + 1)]:
            run.exchange(stage, everyone, np.ones(world.n_users, bool), level)
        return run

    def exchange(self, stage: Any, users: np.ndarray, arrived: np.ndarray, level: int = 0) -> Upload:
        """One stage in which only the uploads of `arrived` reach the sum."""
        broadcast = self.method.broadcast(self.server, stage, level=level)
        _, pending = self.method.local_update(self.users.take(users), stage, broadcast)
        total, _ = self.method.local_update(self.users.take(users[arrived]), stage, broadcast)
        self.server = self.method.apply(self.server, stage, total, level)
        self.method.commit(self.users, users, pending, arrived)
        self.exchanged = total
        return total

    def train(self, rounds: int, dropout: float = 0.0) -> "Run":
        rng = np.random.default_rng(self.world.seed + 1)
        n = min(self.world.options.users_per_round, self.world.n_users)
        for _ in range(rounds):
            stage = self.method.training(self.server.round)
            users = np.sort(rng.choice(self.world.n_users, self.world.n_users if stage.everyone else n, replace=False))
            self.exchange(stage, users, rng.random(len(users)) >= dropout)
        return self


def same(a: Upload, b: Upload, method: FedGRecMethod, stage: Any) -> bool:
    """Two sums have the same bits."""
    spec = method.spec(stage)
    return a.users == b.users and bool(np.array_equal(a.to_ring(spec), b.to_ring(spec)))


def with_options(world: World, **changes: Any) -> World:
    return replace(world, options=replace(world.options, **changes))


@cache
def for_python(compiled: Any) -> Any:
    """A function that compiled code alone can call, for Python."""
    import numba

    @numba.njit
    def call(*arguments: Any) -> Any:
        return compiled(*arguments)

    return call
