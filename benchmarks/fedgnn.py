"""One training round of FedGNN and FedGNN+BPR on Gowalla: our cpu kernel against a per-user PyTorch autograd loop.

A round is all that the simulation does in one: draw, pass messages, differentiate, sum, update the server, store the
users' states. First the loop is checked against our reference kernel, with the same draws.
"""

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.optim import Adam

from benchmarks.common import CORES, alternate, gowalla, heavy_tailed, seconds
from fedgrec.cable import draws
from fedgrec.cable.core import Ints
from fedgrec.data import Interactions
from fedgrec.kernels import cpu, reference
from fedgrec.methods import fedgnn, fedgnn_bpr
from fedgrec.methods.fedgnn import DEGREES, TRAIN

METHODS = {"fedgnn": fedgnn, "fedgnn-bpr": fedgnn_bpr}
RIVAL = "autograd per user"
Draws = tuple[Tensor, Tensor, Tensor]  # which positives train, the negatives, and the positive each of these meets


def bench(repeats: int = 5, names: list[str] | None = None) -> dict[str, Any]:
    """Median seconds of a round in each code, and their ratio."""
    chosen = {name: METHODS[name] for name in (METHODS if names is None else names)}
    errors = {name: verify(module) for name, module in chosen.items()}
    data, train = gowalla()
    rounds = {name: measure(module, train, repeats) for name, module in chosen.items()}
    return {"data": data, "verified": errors, "rounds": rounds}


def measure(module: Any, train: Interactions, repeats: int) -> dict[str, Any]:
    """One method; the loop uses its fastest number of threads."""
    ours = Ours(module, train, cpu)
    ours.round()  # compiles, if nothing is cached yet
    loop = Loop(ours)
    trials = {threads: seconds(partial(loop.round, threads)) for threads in sorted({1, CORES})}
    threads = min(trials, key=trials.__getitem__)
    times = alternate({"fedgrec": ours.round, RIVAL: partial(loop.round, threads)}, repeats)
    return {
        "users": ours.method.options.users_per_round,
        "seconds": times,
        "ratio": {RIVAL: times[RIVAL] / times["fedgrec"]},
        "required_ratio": {RIVAL: 10.0},
        "threads": {RIVAL: threads},
    }


class Ours:
    """A federation before its first round, in our code."""

    def __init__(self, module: Any, train: Interactions, kernel: Any, **changes: Any) -> None:
        self.method = module.make(module.Options(**changes), train.n_items, train.n_users, kernel)
        self.rng, self.server = np.random.default_rng(0), self.method.init(0)
        keys = self.rng.integers(0, 2**64, train.n_users, dtype=np.uint64)
        users = self.method.init_users(keys, train.indptr, train.items)
        total, _ = self.method.local_update(users, DEGREES, self.method.broadcast(self.server, DEGREES))
        self.server = self.method.apply(self.server, DEGREES, total)
        self.users, _ = self.method.match(users, 0, 0)

    def sample(self) -> Ints:
        count = min(self.method.options.users_per_round, len(self.users))
        return self.rng.choice(len(self.users), count, replace=False, shuffle=False)

    def round(self, users: Ints | None = None) -> Any:
        users = self.sample() if users is None else users
        broadcast = self.method.broadcast(self.server, TRAIN)
        total, pending = self.method.local_update(self.users.take(users), TRAIN, broadcast)
        self.server = self.method.apply(self.server, TRAIN, total)
        self.method.commit(self.users, users, pending)
        return total


@dataclass
class Loop:
    """A copy of our federation in PyTorch: a loop of users, each with its own graph and autograd."""

    ours: Ours

    def __post_init__(self) -> None:
        self.o, cohort, server = self.ours.method.options, self.ours.users, self.ours.server
        state = cohort.state
        self.x = torch.tensor(server.items[0])
        self.embeddings = torch.tensor(state.embeddings[:, 0])
        self.moments = torch.tensor(state.moment1), torch.tensor(state.moment2), torch.zeros(len(cohort))
        self.around, self.items = torch.tensor(cohort.around), torch.tensor(cohort.items, dtype=torch.int64)
        self.weights = torch.tensor(self.ours.method._edge_weights(cohort, self.ours.method.broadcast(server, TRAIN)))
        self.weights = self.weights.to(self.x.dtype)
        self.gamma = self.o.others * (self.around != 0).any(1).to(self.x.dtype)
        self.server = Adam(
            [self.x], self.o.server_rate, (self.o.beta1, self.o.beta2), self.o.adam_epsilon, maximize=True, fused=True
        )

    def round(self, threads: int) -> None:
        torch.set_num_threads(threads)
        o, N, cohort = self.o, len(self.x), self.ours.users
        users, chosen = self.ours.sample().tolist(), {}
        for u in users:
            P = int(cohort.degrees[u])
            mine = torch.randperm(P)[: o.max_positives or P]
            chosen[u] = mine, torch.randint(N, (o.negatives,)), torch.randint(len(mine), (o.negatives,))
        self.x.grad = self.sums(chosen)
        self.server.step()

    def sums(self, chosen: dict[int, Draws]) -> Tensor:
        """Clipped negative gradients of these users with these draws, summed; their new states are stored."""
        o, total = self.o, torch.zeros_like(self.x)
        indptr = self.ours.users.indptr
        for u, (mine, negatives, partner) in chosen.items():
            edges = slice(int(indptr[u]), int(indptr[u + 1]))
            items, w, gamma = self.items[edges], self.weights[edges], self.gamma[edges]
            every = self.x[items]
            e = self.embeddings[u].clone().requires_grad_()
            x_pos, x_neg = (self.x[rows].requires_grad_() for rows in (items[mine], negatives))
            # The messages from items that do not train in this round are constants.
            h = (1 - gamma)[:, None] * every.index_put((mine,), x_pos) + gamma[:, None] * self.around[edges]
            f_u = o.own * e + (1 - o.own) * (w @ h)
            s_pos, s_neg = x_pos @ f_u, x_neg @ f_u
            if o.loss == "bpr":
                loss = softplus(s_neg - s_pos[partner]).mean()
            else:
                loss = ((1 - s_pos) ** 2).mean() + o.negative_weight * (s_neg**2).mean()
            penalty = (e**2).sum() + (x_pos**2).sum() / len(mine) + (x_neg**2).sum() / len(negatives)
            grad_e, *grads = torch.autograd.grad(loss + o.l2 / 2 * penalty, (e, x_pos, x_neg))
            grads = [grad.clamp(-o.clip, o.clip) for grad in grads]
            total.index_add_(0, items[mine], grads[0], alpha=-1)
            total.index_add_(0, negatives, grads[1], alpha=-1)
            self._move(u, grad_e)
        return total

    def _move(self, u: int, grad: Tensor) -> None:
        """The user's own Adam."""
        o, (m, v, steps) = self.o, self.moments
        steps[u] += 1
        m[u].lerp_(grad, 1 - o.beta1)
        v[u].mul_(o.beta2).addcmul_(grad, grad, value=1 - o.beta2)
        t = float(steps[u])
        self.embeddings[u] -= (
            o.user_rate * (m[u] / (1 - o.beta1**t)) / ((v[u] / (1 - o.beta2**t)).sqrt() + o.adam_epsilon)
        )


def verify(module: Any) -> float:
    """The loop's largest error as a share of our rounding error, over one round with our draws."""
    ours = Ours(module, heavy_tailed(50, 900, 1_000), reference, precision="float64", users_per_round=20, negatives=64)
    loop, users = Loop(ours), ours.sample()
    sums = loop.sums(same_draws(ours, users))
    total, leaf = ours.round(users).leaves["items"], ours.method.spec(TRAIN).leaf("items")
    right = torch.zeros_like(sums)
    right[torch.from_numpy(total.index)] = torch.from_numpy(total.values * leaf.step)
    error = float((sums - right).abs().max()) / (leaf.step * len(users))
    error = max(error, float((loop.embeddings - torch.tensor(ours.users.state.embeddings[:, 0])).abs().max()) / 1e-7)
    if not error <= 1:
        raise AssertionError(f"the loop computes something else, so nothing was measured: {error}")
    return error


def same_draws(ours: Ours, users: Ints) -> dict[int, Draws]:
    """What these users draw in our code."""
    o, N, round_, chosen = ours.method.options, ours.method.n_items, ours.server.round, {}
    for u in users.tolist():
        key, items = int(ours.users.keys[u]), ours.users.items_of(u)
        mine = draws.positives_sample(key, round_, len(items), o.max_positives or len(items))
        negatives = draws.negatives(key, round_, o.negatives, items, N)
        partner = draws.pairs(key, round_, 0, len(negatives), len(mine))
        chosen[u] = torch.from_numpy(mine), torch.from_numpy(negatives), torch.from_numpy(partner)
    return chosen


if __name__ == "__main__":
    print(json.dumps(bench(), indent=2))
