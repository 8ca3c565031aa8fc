"""One round of each compared method with fused loops on Gowalla: our cpu kernel against a plain PyTorch loop of users.

A rival is careful code without a compiler: rows are gathered from ready tensors, sums are added into tensors made once,
gradients come from autograd, Adam is PyTorch's. It neither clips nor rounds, and its negatives are plain uniform draws
(ours are distinct and never positives): that saves it work. Before any timing, its sums of a small round are checked
against ours. To measure another method, write its rival and name it in RIVALS.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from benchmarks.common import CORES, alternate, gowalla, heavy_tailed, seconds
from fedgrec.cable import draws
from fedgrec.cable.core import Cohort, Ints, ServerState, Upload
from fedgrec.config.options import method_module
from fedgrec.data import Interactions
from fedgrec.kernels import cpu
from fedgrec.methods.contract import Method, make_method


@dataclass
class Ours:
    """A federation in our code."""

    method: Method
    server: ServerState
    users: Cohort
    rng: np.random.Generator

    @staticmethod
    def of(name: str, options: dict[str, Any], train: Interactions) -> "Ours":
        rng, kernel = np.random.default_rng(0), [cpu] if "cpu" in make_method(name).kernels else []
        method = make_method(name, method_module(name).Options(**options), train.n_items, train.n_users, *kernel)
        keys = rng.integers(0, 2**64, train.n_users, dtype=np.uint64)
        server, users = method.init(0), method.init_users(keys, train.indptr, train.items)
        if any(stage.combine == "match" for stage in method.stages):
            users, _ = method.match(users, 0, 0)
        return Ours(method, server, users, rng)

    def sample(self) -> Ints:
        count = min(self.method.options.users_per_round, len(self.users))
        return self.rng.choice(len(self.users), count, replace=False, shuffle=False)

    def round(self, users: Ints | None = None) -> Upload:
        """What `Simulation` does in a round."""
        users, train = self.sample() if users is None else users, self.method.stages[-1]
        broadcast = self.method.broadcast(self.server, train)
        total, pending = self.method.local_update(self.users.take(users), train, broadcast)
        self.server = self.method.apply(self.server, train, total)
        self.method.commit(self.users, users, pending)
        return total


class Chance:
    """A rival's random draws for a user."""

    def __init__(self, n_items: int) -> None:
        self.n_items = n_items

    def negatives(self, user: int, count: int) -> Tensor:
        return torch.randint(self.n_items, (count,))

    def partners(self, user: int, count: int, n_positives: int) -> Tensor:
        """The positive that each negative meets."""
        return torch.randint(n_positives, (count,))

    def sent(self, user: int, n_positives: int, share: float) -> Tensor:
        """The positives whose update leaves the device."""
        return torch.rand(n_positives) < share


class SameChance(Chance):
    """The draws of our users in the present round."""

    def __init__(self, ours: Ours) -> None:
        super().__init__(ours.method.n_items)
        self.users, self.round = ours.users, ours.server.round

    def key(self, user: int) -> int:
        return int(self.users.keys[user])

    def negatives(self, user: int, count: int) -> Tensor:
        mine = self.users.items_of(user)
        return torch.from_numpy(draws.negatives(self.key(user), self.round, count, mine, self.n_items))

    def partners(self, user: int, count: int, n_positives: int) -> Tensor:
        return torch.from_numpy(draws.pairs(self.key(user), self.round, 0, count, n_positives))

    def sent(self, user: int, n_positives: int, share: float) -> Tensor:
        return torch.from_numpy(draws.feedback(self.key(user), self.round, n_positives, share))


class Rival:
    """A federation as tensors, started from ours. `local` does the users' part of a round, `apply` the server's."""

    def __init__(self, ours: Ours) -> None:
        self.options, self.n_users = ours.method.options, len(ours.users)
        self.indptr, self.pairs = ours.users.indptr.tolist(), torch.tensor(ours.users.items, dtype=torch.int64)
        self.items = torch.tensor(ours.server.items)

    def items_of(self, user: int) -> Tensor:
        return self.pairs[self.indptr[user] : self.indptr[user + 1]]

    def local(self, users: list[int], chance: Chance) -> list[Tensor]:
        """The sums of the round, in the order of our leaves; users keep their new state."""
        raise NotImplementedError

    def apply(self, sums: list[Tensor]) -> None:
        raise NotImplementedError

    def round(self, users: Ints, threads: int) -> None:
        torch.set_num_threads(threads)
        self.apply(self.local(users.tolist(), Chance(self.items.shape[1])))


class Learners(Rival):
    """Users with rows of their own, which they move by Adam."""

    def __init__(self, ours: Ours) -> None:
        super().__init__(ours)
        users = ours.users.state
        self.e, self.m, self.v = (torch.tensor(x) for x in (users.embeddings, users.moment1, users.moment2))
        self.steps = torch.tensor(users.steps, dtype=torch.float32)

    def move(self, user: int, e: Tensor) -> None:
        """One step along e.grad; the user keeps e and its moments."""
        o = self.options
        optimizer = torch.optim.Adam([e], o.user_rate, (o.beta1, o.beta2), o.adam_epsilon, fused=True)
        optimizer.state[e] = {"step": self.steps[user], "exp_avg": self.m[user], "exp_avg_sq": self.v[user]}
        optimizer.step()
        self.e[user] = e.detach()


class MFLoop(Learners):
    """FedMF and FedeRank by autograd for every user: τ = 1, SGD on rows, Adam of the user's, Adam on the server."""

    def __init__(self, ours: Ours) -> None:
        super().__init__(ours)
        o, self.x, self.e = self.options, self.items[0], self.e[:, 0]
        self.rows = torch.empty_like(self.x)
        self.adam = torch.optim.Adam(
            [self.x], o.server_rate, (o.beta1, o.beta2), o.adam_epsilon, maximize=True, fused=True
        )

    def local(self, users: list[int], chance: Chance) -> list[Tensor]:
        o = self.options
        self.rows.zero_()
        for u in users:
            positives = self.items_of(u)
            mine, P = torch.cat([positives, chance.negatives(u, o.negatives)]), len(positives)
            x, e = (t.requires_grad_() for t in (self.x.index_select(0, mine), self.e[u].clone()))
            scores = x @ e
            if o.loss == "bpr":
                partners = chance.partners(u, len(mine) - P, P)
                loss = softplus(scores[P:] - scores[partners]).mean()
            else:
                loss = ((scores[:P] - 1).square().sum() + scores[P:].square().sum()) / len(mine)
            sizes = x[:P].square().sum() / P + x[P:].square().sum() / (len(mine) - P)
            by_x, e.grad = torch.autograd.grad(loss + o.l2 / 2 * (e.square().sum() + sizes), (x, e))
            if o.feedback < 1:
                by_x[:P] *= chance.sent(u, P, o.feedback)[:, None]
            self.rows.index_add_(0, mine, by_x, alpha=-o.item_rate)
            self.move(u, e)
        return [self.rows]

    def apply(self, sums: list[Tensor]) -> None:
        (self.x.grad,) = sums
        self.adam.step()


# For each method: its options, its rivals, and our goal: how many times as fast as the rival ours should be.
RIVALS: dict[str, tuple[dict[str, Any], dict[str, tuple[type[Rival], float | None]]]] = {
    "fedmf": ({"max_positives": 0}, {"autograd per user": (MFLoop, 10.0)}),
    "federank": ({"max_positives": 0}, {"autograd per user": (MFLoop, 10.0)}),
}


def bench(repeats: int = 5, names: list[str] | None = None) -> dict[str, Any]:
    """Median seconds of each method's round, ours and its rivals', and their ratios."""
    chosen = {name: RIVALS[name] for name in names or RIVALS}
    errors = {name: verify(name, *entry) for name, entry in chosen.items()}
    data, train = gowalla()
    rounds = {name: measure(name, *entry, train, repeats) for name, entry in chosen.items()}
    return {"data": data, "verified": errors, "rounds": rounds}


def measure(
    name: str,
    options: dict[str, Any],
    rivals: dict[str, tuple[type[Rival], float | None]],
    train: Interactions,
    repeats: int,
) -> dict[str, Any]:
    """One method: each rival at its best number of threads."""
    ours = Ours.of(name, options, train)
    ours.round()  # compiles, if nothing is cached yet
    rounds: dict[str, partial[None]] = {}
    for rival, (kind, _) in rivals.items():
        theirs = kind(ours)
        hows = [partial(_round, theirs, ours, threads) for threads in sorted({1, CORES})]
        rounds[rival] = min(hows, key=lambda how: min(seconds(how) for _ in range(2)))
    times = alternate({"fedgrec": ours.round, **rounds}, repeats)
    return {
        "options": options,
        "users": ours.method.options.users_per_round,
        "seconds": times,
        "ratio": {rival: times[rival] / times["fedgrec"] for rival in rivals},
        "required_ratio": {rival: asked for rival, (_, asked) in rivals.items() if asked},
        "threads": {rival: rounds[rival].args[2] for rival in rivals},
    }


def _round(rival: Rival, ours: Ours, threads: int) -> None:
    rival.round(ours.sample(), threads)


def verify(name: str, options: dict[str, Any], rivals: dict[str, tuple[type[Rival], float | None]]) -> dict[str, float]:
    """How far each rival's items are from ours after two small rounds with our draws, as a share of the tolerance."""
    small = {"negatives": 64} if "negatives" in options else {}
    options = options | small | {"precision": "float64", "users_per_round": 20, "server_rate": 1e-3}
    found = {}
    for rival, (kind, _) in rivals.items():
        ours = Ours.of(name, options, heavy_tailed(50, 900, 1_000))
        theirs = kind(ours)
        for _ in range(2):
            users = ours.sample()
            theirs.apply(theirs.local(users.tolist(), SameChance(ours)))
            ours.round(users)
        # Not the largest error: Adam turns the rounding of a tiny gradient into a whole step.
        found[rival] = float((theirs.items - torch.from_numpy(ours.server.items)).abs().quantile(0.99)) / 1e-6
    if not max(found.values()) <= 1:
        raise AssertionError(f"a rival computes something else, so nothing was measured: {found}")
    return found
