"""One round of each compared method with fused loops on Gowalla: our cpu kernel against a plain PyTorch loop of users.

The rival is careful code without a compiler: rows are gathered from ready tensors, sums are added into tensors made
once, gradients come from autograd, Adam is PyTorch's. It neither clips nor rounds, and its negatives are plain uniform
draws (ours are distinct and never positives): that saves it work. Before any timing, its sums of a small round are
checked against ours.
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

METHODS, OPTIONS = ("fedmf", "federank"), {"max_positives": 0}
RIVAL, ASKED = "autograd per user", 10.0  # and our goal: how many times as fast as the rival our round should be


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


class Loop:
    """FedMF and FedeRank by autograd for every user, started from ours: SGD on rows, Adam of the user's, on the server.

    `local` does the users' part of a round, `apply` the server's.
    """

    def __init__(self, ours: Ours) -> None:
        self.options, users = ours.method.options, ours.users
        self.indptr, self.pairs = users.indptr.tolist(), torch.tensor(users.items, dtype=torch.int64)
        state = users.state
        e, self.m, self.v = (torch.tensor(part) for part in (state.embeddings, state.moment1, state.moment2))
        self.e, self.steps = e[:, 0], torch.tensor(state.steps, dtype=torch.float32)
        o, self.x = self.options, torch.tensor(ours.server.items[0])
        self.rows = torch.empty_like(self.x)
        self.adam = torch.optim.Adam(
            [self.x], o.server_rate, (o.beta1, o.beta2), o.adam_epsilon, maximize=True, fused=True
        )

    def local(self, users: list[int], chance: Chance) -> Tensor:
        """The sum of the round; users keep their new state."""
        o = self.options
        self.rows.zero_()
        for u in users:
            positives = self.pairs[self.indptr[u] : self.indptr[u + 1]]
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
        return self.rows

    def move(self, user: int, e: Tensor) -> None:
        """One step along e.grad; the user keeps e and its moments."""
        o = self.options
        optimizer = torch.optim.Adam([e], o.user_rate, (o.beta1, o.beta2), o.adam_epsilon, fused=True)
        optimizer.state[e] = {"step": self.steps[user], "exp_avg": self.m[user], "exp_avg_sq": self.v[user]}
        optimizer.step()
        self.e[user] = e.detach()

    def apply(self, total: Tensor) -> None:
        self.x.grad = total
        self.adam.step()

    def round(self, ours: Ours, threads: int) -> None:
        torch.set_num_threads(threads)
        self.apply(self.local(ours.sample().tolist(), Chance(len(self.x))))


def bench(repeats: int = 5) -> dict[str, Any]:
    """Median seconds of each method's round, ours and the rival's, and their ratios."""
    errors = {name: {RIVAL: verify(name)} for name in METHODS}
    data, train = gowalla()
    return {"data": data, "verified": errors, "rounds": {name: measure(name, train, repeats) for name in METHODS}}


def measure(name: str, train: Interactions, repeats: int) -> dict[str, Any]:
    """One method; the rival at its best number of threads."""
    ours = Ours.of(name, OPTIONS, train)
    ours.round()  # compiles, if nothing is cached yet
    theirs = Loop(ours)
    hows = [partial(theirs.round, ours, threads) for threads in sorted({1, CORES})]
    best = min(hows, key=lambda how: min(seconds(how) for _ in range(2)))
    times = alternate({"fedgrec": ours.round, RIVAL: best}, repeats)
    return {
        "options": OPTIONS,
        "users": ours.method.sampled,
        "seconds": times,
        "ratio": {RIVAL: times[RIVAL] / times["fedgrec"]},
        "required_ratio": {RIVAL: ASKED},
        "threads": {RIVAL: best.args[1]},
    }


def verify(name: str) -> float:
    """How far the rival's items are from ours after two small rounds with our draws, as a share of the tolerance."""
    options = OPTIONS | {"precision": "float64", "users_per_round": 20, "server_rate": 1e-3}
    ours = Ours.of(name, options, heavy_tailed(50, 900, 1_000))
    theirs = Loop(ours)
    for _ in range(2):
        users = ours.sample()
        theirs.apply(theirs.local(users.tolist(), SameChance(ours)))
        ours.round(users)
    # Not the largest error: Adam turns the rounding of a tiny gradient into a whole step.
    found = float((theirs.x - torch.from_numpy(ours.server.items[0])).abs().quantile(0.99)) / 1e-6
    if not found <= 1:
        raise AssertionError(f"the rival computes something else, so nothing was measured: {found}")
    return found
