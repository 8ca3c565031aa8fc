"""FedGNN's rounds on a GPU: everybody's subgraph side by side. The maths and its names are those of `kernels.gnn`.

Every table has one row a user and, in its columns, first the positives and then the negatives, each part padded at its
end to that of the longest user. A row's `share` is its part of the mean that it is in, 1/P or 1/M; padding has 0, so
its slope and its decay are 0 and it adds nothing.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedgrec.cable.core import Ints
from fedgrec.config.options import at_round
from fedgrec.kernels import _draws_torch as draws
from fedgrec.kernels.rounds_torch import Rounds, Sums, adam

WHOLE = 2.0**60  # a user's slopes sum to 1 at most: times this, as integers, they add up the same in any order


class Problems(NamedTuple):
    """What gnn.LocalProblem holds, of S users."""

    users: Tensor  # [S]
    n_positives: Tensor  # [S]
    items: Tensor  # [S, m] ids
    x: Tensor  # [S, m, d] as broadcast
    v: Tensor  # [S, P], 0 where padded
    targets: Tensor | float  # [S, P]
    share: Tensor  # [S, m]


class Engine(Rounds):
    """The population of FedGNN on a GPU, from one expansion to the next."""

    def __init__(self, method: Any, server: Any, users: Any, *where: Any, **how: Any) -> None:
        super().__init__(method, server, users, *where, **how)
        v, from_neighbours = method.from_neighbours(users, method.broadcast(server, method.stages[-1]))
        self.v, self.from_neighbours = self._place(v), self._place(from_neighbours)  # [nnz], [n, d]
        self.targets = None if users.targets is None else self._place(users.targets)

    def rows(self, counts: Ints) -> Ints:
        return np.maximum(counts, sum(self._sizes(counts)))  # a user hears all of its items

    def _sizes(self, counts: Ints) -> tuple[Ints, Ints]:
        """How many positives and negatives of these users train."""
        o, n_items = self.options, self.method.n_items
        return np.minimum(counts, o.max_positives or n_items), np.minimum(o.negatives, n_items - counts)

    def local_update(self, users: Tensor, counts: Ints, sums: Sums) -> None:
        o, problem = at_round(self.options, self.round), self._problems(users, counts)
        e, x, P = self.state["embeddings"][users, 0], problem.x, problem.v.shape[1]
        f_u = o.own * e + self._heard(users, counts)
        scores = (x @ f_u[..., None])[..., 0]
        g = self._bpr_slopes(problem, scores) if o.loss == "bpr" else mse_slopes(problem, scores, o)
        grad_f = (g[:, None] @ x)[:, 0]
        upload = x.mul_(problem.share[..., None] * -o.l2).addcmul_(g[..., None], f_u[:, None], value=-1)  # −∂L/∂x_t
        upload[:, :P].addcmul_(problem.v[..., None], grad_f[:, None], value=-1)
        self.add_rows(sums["items"], problem.items, upload, self.spec.leaf("items"))
        self._move_users(users, e, o.own * grad_f + o.l2 * e, o)

    def _problems(self, users: Tensor, counts: Ints) -> Problems:
        """Draw these users' positives and negatives."""
        degrees, n_items, Y = self.degrees[users], self.method.n_items, self.server["items"][0]
        P, M = (int(sizes.max()) for sizes in self._sizes(counts))
        edges, mine = self.edges(users, int(counts.max()))
        chosen, drawn = edges, self.negatives(users, M)
        if edges.shape[1] > P:  # some users have more items than train in one round
            mine, sample = mine[:, :P], draws.positives_sample(self.keys[users], self.round, degrees, P)
            chosen = torch.where(mine, self.first[users][:, None] + sample, 0)
        n_positives, n_negatives = degrees.clamp(max=P), (n_items - degrees).clamp(max=M)
        real = torch.cat([mine, torch.arange(M, device=self.device) < n_negatives[:, None]], dim=1)
        items = torch.where(real, torch.cat([self.items[chosen], drawn], dim=1), 0)
        ones = [(1 / n.clamp(min=1).to(Y.dtype))[:, None] for n in (n_positives, n_negatives)]
        share = torch.where(real, torch.cat([ones[0].expand(-1, P), ones[1].expand(-1, M)], dim=1), 0)
        targets = 1.0 if self.targets is None else self.targets[chosen]
        v = torch.where(mine, self.v[chosen], 0)
        return Problems(users, n_positives, items, Y[items], v, targets, share)

    def _heard(self, users: Tensor, counts: Ints) -> Tensor:
        """B = Σ v_t·x_t + (1−α)Σ w_ut·γ_t·a_t over all items of a user.  # [S, d]"""
        degrees, n_edges = self.degrees[users], int(counts.sum())
        owner = torch.repeat_interleave(degrees, output_size=n_edges)
        offset = self.first[users] - (degrees.cumsum(0) - degrees)
        edges = torch.arange(n_edges, device=self.device) + offset[owner]
        messages = self.v[edges, None] * self.server["items"][0][self.items[edges]]
        return self.from_neighbours[users] + torch.segment_reduce(messages, "sum", lengths=degrees, unsafe=True)

    def _bpr_slopes(self, problem: Problems, scores: Tensor) -> Tensor:
        """∂L/∂s_t, see reference.bpr_slopes.  # [S, m]"""
        P = problem.v.shape[1]
        n, keys = scores.shape[1] - P, self.keys[problem.users]
        partner = draws.pairs(keys, self.round, n, problem.n_positives)
        slope = (scores[:, P:] - scores.gather(1, partner)).sigmoid_().mul_(problem.share[:, P:])
        met = torch.zeros(len(scores), P, dtype=torch.int64, device=self.device)
        met.scatter_add_(1, partner, (slope.to(torch.float64) * WHOLE).to(torch.int64))
        return torch.cat([(met.to(torch.float64) / -WHOLE).to(slope.dtype), slope], dim=1)

    def _move_users(self, users: Tensor, e: Tensor, grad: Tensor, o: Any) -> None:
        """One step of Adam at home."""
        m, v, steps = (self.state[name][users] for name in ("moment1", "moment2", "steps"))
        steps += 1
        e += adam(grad, m, v, steps[:, None].to(torch.float64), o.user_rate, o)  # β^t of float32 is too coarse
        self.state["embeddings"][users, 0] = e
        for name, value in (("moment1", m), ("moment2", v), ("steps", steps)):
            self.state[name][users] = value

    def apply(self, sums: Sums, users: int) -> None:
        o, Y, step = at_round(self.options, self.round), self.server["items"][0], self.spec.leaf("items").step
        total = sums["items"].to(Y.dtype)
        if o.server_optimizer == "adam":
            moments = self.server["moment1"], self.server["moment2"]
            Y += adam(total.mul_(-step), *moments, self.round + 1, o.server_rate, o)
        else:
            Y += total.mul_(o.server_rate * step)


def mse_slopes(problem: Problems, scores: Tensor, o: Any) -> Tensor:
    """∂L/∂s_t, see gnn.mse_slopes.  # [S, m]"""
    P = problem.v.shape[1]
    errors = torch.cat([scores[:, :P] - problem.targets, o.negative_weight * scores[:, P:]], dim=1)
    return errors.mul_(problem.share).mul_(2)
