"""NeuMF on a GPU: everybody's network side by side, and ranking with it. The maths and its names are those of `neumf`.

Every table has one row a user and, in its columns, first the positives and then the negatives, each part padded at its
end to that of the longest user. Padding has slope and decay 0: it never moves. In a round's first step Θ is the same
for all; only further steps have one for each user.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedgrec.cable.core import Floats, Ints
from fedgrec.kernels.devices import place
from fedgrec.kernels.neumf import Network, network
from fedgrec.kernels.rounds_torch import Rounds, Sums, adam

# ------------------------------------------------------------------------------------------- local training


class Problems(NamedTuple):
    """What S users train with in a round."""

    items: Tensor  # [S, m] ids; padding has any id
    real: Tensor  # [S, m] what is not padding
    n_positives: int  # columns of positives
    each: Tensor  # [S, 1] weight of one item's loss
    terms: Tensor  # [S, 1] weight of all items' losses


def forward(net: Network, e: Tensor, q: Tensor, q_: Tensor) -> tuple[Tensor, list[Tensor]]:
    """s_i of these items [S, m, 1], and f_1 .. f_L [S, m, H_l].  e: [S, 2, d], q and q': [S, m, d]"""
    f = [(q_ @ net.W_q.mT).add_(e[:, 1:] @ net.W_p.mT + net.b[0][:, None]).relu_()]
    for W, b in zip(net.W, net.b[1:], strict=True):
        f.append((f[-1] @ W.mT).add_(b[:, None]).relu_())
    return q @ (net.h_g * e[:, 0])[..., None] + f[-1] @ net.h_m[..., None], f


def gradients(at: list[Tensor], e: Tensor, problems: Problems, o: Any, scale: float) -> tuple[Tensor, list[Tensor]]:
    """neumf.gradients of (p_u, p'_u) [S, 2, d], and `scale` times those of Θ, q and q', which are in `at`.

    It scales small factors: scaling a table [S, m, d] would take as long as computing it.
    """
    theta, q, q_ = at
    net, p, p_ = network(theta, o), e[:, 0], e[:, 1]
    s, f = forward(net, e, q, q_)
    weight = (problems.each * problems.real)[..., None]  # [S, m, 1]
    g = s.sigmoid_()
    g[:, : problems.n_positives] -= 1
    g *= weight
    pull = (g.mT @ q)[:, 0]  # Σ g_i q_i  # [S, d]
    by_h_m = g.mT @ f[-1]
    by_W: list[Tensor] = []
    by_b: list[Tensor] = []
    delta = (g * net.h_m[:, None]).mul_(f[-1] > 0)  # δ_L  # [S, m, H_L]
    for level in range(len(f) - 1, 0, -1):
        by_W.insert(0, delta.mT @ f[level - 1])
        by_b.insert(0, delta.sum(1))
        delta = (delta @ net.W[level - 1]).mul_(f[level - 1] > 0)
    total = delta.sum(1)  # Σ δ_1  # [S, H_1]
    parts = [total[..., None] * p_[:, None], delta.mT @ q_, p * pull, by_h_m, total, *by_b, *by_W]
    decay = o.l2 * problems.terms
    by_theta = torch.cat([part.flatten(1) for part in parts], dim=1) + decay * theta

    by_e = torch.stack([net.h_g * pull, (total[:, None] @ net.W_p)[:, 0]], dim=1) + decay[..., None] * e
    shrink = scale * o.l2 * weight
    by_q = (q * shrink).addcmul_(g, (net.h_g * p)[:, None], value=scale)
    by_q_ = (q_ * shrink).baddbmm_(delta, net.W_q.expand(len(e), -1, -1), alpha=scale)
    return by_e, [by_theta * scale, by_q, by_q_]


def local_steps(start: list[Tensor], home: dict[str, Tensor], problems: Problems, o: Any) -> list[Tensor]:
    """τ steps from the broadcast Θ, q and q'; updates what users have at home, returns how far the three moved."""
    e, sgd = home["embeddings"], o.item_optimizer == "sgd"
    moved: list[Tensor] = []
    moments: list[tuple[Tensor, Tensor]] = []
    for step in range(o.local_steps):
        at = [a + b for a, b in zip(start, moved, strict=True)] if moved else start
        by_e, changes = gradients(at, e, problems, o, -o.item_rate if sgd else 1.0)
        del at  # frees its memory for what follows
        if not sgd and o.local_steps == 1:
            changes = [first_adam_step(grad, o.item_rate, o) for grad in changes]
        elif not sgd:
            moments = moments or [(torch.zeros_like(grad), torch.zeros_like(grad)) for grad in changes]
            pairs = zip(changes, moments, strict=True)
            changes = [adam(grad, *moment, step + 1, o.item_rate, o) for grad, moment in pairs]
        moved = [a.add_(b) for a, b in zip(moved, changes, strict=True)] if moved else changes
        if o.user_optimizer == "sgd":
            e -= o.user_rate * by_e
        else:
            home["steps"] += 1
            taken = home["steps"].to(torch.float64)[:, None, None]  # 1 − β^t is nearly 0 at first
            e += adam(by_e, home["moment1"], home["moment2"], taken, o.user_rate, o)
    return moved


def first_adam_step(grad: Tensor, rate: float, o: Any) -> Tensor:
    """Adam's first step (to add), in place: m̂ is the gradient and √v̂ its size, so no moments are needed."""
    return grad.div_(grad.abs().add_(o.adam_epsilon)).mul_(-rate)


class Engine(Rounds):
    """The population of FedNCF on a GPU."""

    def rows(self, counts: Ints) -> Ints:
        n_rows: Ints = counts + self._n_negatives(counts)
        return n_rows

    def _n_negatives(self, counts: Any) -> Any:
        return (self.method.n_items - counts).clip(max=self.options.negatives)

    def local_update(self, users: Tensor, counts: Ints, sums: Sums) -> None:
        N, problems = self.method.n_items, self.problems(users, counts)
        start = [self.more["network"][None], *(table[problems.items] for table in self.server["items"])]
        home = {name: value[users] for name, value in self.state.items()}
        of_theta, *of_items = local_steps(start, home, problems, self.options)
        del start
        for name, value in home.items():
            self.state[name][users] = value
        words = self.rounded(of_theta, self.spec.leaf("network"))
        sums["network"] += words.sum(0, dtype=words.dtype)
        for k, moved in enumerate(of_items):
            self.add_rows(sums["items"][k * N : (k + 1) * N], problems.items, moved, self.spec.leaf("items"))

    def problems(self, users: Tensor, counts: Ints) -> Problems:
        o, degrees = self.options, self.degrees[users]
        n_negatives, widest = self._n_negatives(degrees), int(self._n_negatives(counts).max())
        edges, is_mine = self.edges(users, int(counts.max()))
        positives = self.items[edges]
        drawn = self.negatives(users, widest)
        is_drawn = torch.arange(widest, device=self.device) < n_negatives[:, None]
        m = (degrees + n_negatives)[:, None].to(self.server["items"].dtype)
        return Problems(
            items=torch.cat([positives, torch.where(is_drawn, drawn, 0)], dim=1),
            real=torch.cat([is_mine, is_drawn], dim=1),
            n_positives=positives.shape[1],
            each=1 / m if o.reduction == "mean" else torch.ones_like(m),
            terms=torch.ones_like(m) if o.reduction == "mean" else m,
        )

    def apply(self, sums: Sums, users: int) -> None:
        o, spec, names = self.options, self.spec, ("network", "network_moment1", "network_moment2")
        share = 1 / users if o.network_reduction == "mean" else 1.0
        tables = [self.server[name].flatten(0, 1) for name in ("items", "moment1", "moment2")]  # views
        self._move(tables, sums["items"], spec.leaf("items").step, o.server_rate)
        weights = [self.more[name][None] for name in names]
        self._move(weights, sums["network"], spec.leaf("network").step * share, o.network_rate)

    def _move(self, tables: list[Tensor], total: Tensor, step: float, rate: float) -> None:
        """One table with its moments, in place, as the server's optimizer says."""
        (x, *moments), o, exact = tables, self.options, total.to(torch.float64)
        if o.server_optimizer == "adam":
            x += adam((exact * -step).to(x.dtype), moments[0], moments[1], self.round + 1, rate, o)
        else:
            x += (exact * (rate * step)).to(x.dtype)


# ------------------------------------------------------------------------------------------------ ranking


def scorer(
    embeddings: Floats, items: Floats, theta: Floats, o: Any, device: str, memory: int = 2**28
) -> Callable[[Ints], Tensor]:
    """neumf.scores of the users at some positions. No layer of users × items takes more than `memory` bytes."""
    there = place(device)
    e, (q, q_), flat = (torch.tensor(part, device=there) for part in (embeddings, items, theta))
    W_p, W_q, h_g, h_m, b, W = network(flat, o)
    of_items, of_users = q_ @ W_q.T, e[:, 1] @ W_p.T + b[0]  # [N, H_1], [n, H_1]
    pairs = max(1, memory // (max(o.hidden) * e.element_size()))  # of a user and an item, at a time
    n_items = min(len(q), pairs)
    n_users = pairs // n_items

    def score(users: Ints) -> Tensor:
        mine = torch.from_numpy(users).to(there)
        scores = torch.mm(h_g * e[mine, 0], q.T)
        for u in range(0, len(mine), n_users):
            for i in range(0, len(q), n_items):
                f = (of_users[mine[u : u + n_users], None] + of_items[i : i + n_items]).relu_()  # [users, items, H_1]
                for weights, bias in zip(W, b[1:], strict=True):
                    f = (f @ weights.T).add_(bias).relu_()
                scores[u : u + n_users, i : i + n_items] += f @ h_m
        return scores

    return score
