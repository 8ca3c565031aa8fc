"""The same training round, written in PyTorch twice: a loop of users with autograd, and one padded batch.

Both are careful code without a compiler: rows are gathered from ready tensors, sums are added into tensors made once,
Adam and weight decay (L2) are PyTorch's. Neither clips or rounds, and negatives are plain uniform draws (ours are
distinct and never positives): that saves them work.

    symbols as in fedgrec.kernels.reference: f_u = p·e_u + B, f_t = p·x_t + a_t, s_t = f_uᵀf_t
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, softplus
from torch.optim import SGD, Adam, Optimizer

from fedgrec.cable.core import Cohort, ServerState
from fedgrec.config.configuration import FedGRecOptions


@dataclass
class Federation:
    """The server's and all users' state as tensors; rounds change it in place."""

    items: Tensor  # [K+1, N, d]
    embeddings: Tensor  # [M, K+1, d]
    sent: Tensor  # [M, K, d]
    moment1: Tensor  # [M, d]
    moment2: Tensor  # [M, d]
    steps: Tensor  # [M]
    indptr: Tensor  # [M+1]
    pairs: Tensor  # [nnz] items of all users
    weights: Tensor  # [nnz] w_ut
    sums: "Sums"  # of the present round
    server: Adam

    @staticmethod
    def of(server: ServerState, users: Cohort, o: FedGRecOptions) -> "Federation":
        """A copy of a federation's state after its warm-up."""
        items, s = torch.tensor(server.items), users.state
        degrees = torch.tensor(server.degrees[users.items] * users.degrees[users.owner], dtype=items.dtype)
        e, sent, m, v = (torch.tensor(x) for x in (s.embeddings, s.sent, s.moment1, s.moment2))
        sums = Sums(torch.empty_like(items[0]), torch.empty_like(items[1:]))
        adam = Adam([items[0]], o.server_rate, (o.beta1, o.beta2), o.adam_epsilon, maximize=True, fused=True)
        return Federation(
            items, e, sent, m, v, torch.tensor(s.steps, dtype=torch.float32), torch.tensor(users.indptr),
            torch.tensor(users.items, dtype=torch.int64), degrees.rsqrt(), sums, adam,
        )  # fmt: skip

    def zeroed(self) -> "Sums":
        for table in self.sums:
            table.zero_()
        return self.sums

    def apply(self, sums: "Sums", o: FedGRecOptions) -> None:
        """Eqs. (10) and (11)."""
        if o.server_optimizer == "adam":
            self.server.param_groups[0]["params"][0].grad = sums.items
            self.server.step()
        else:
            self.items[0].add_(sums.items, alpha=o.server_rate)
        self.items[1:].add_(sums.latents, alpha=o.latent_rate)


class Draws(NamedTuple):
    """A cohort's random choices, padded."""

    counts: Tensor  # [S] P, positives that train
    positives: Tensor  # [S, longest] their positions among the user's items
    negatives: Tensor  # [S, n] items
    partners: Tensor  # [τ, S, n] the positive that each negative meets


class Sums(NamedTuple):
    items: Tensor  # [N, d]
    latents: Tensor  # [K, N, d]


def draw(fed: Federation, users: Tensor, o: FedGRecOptions) -> Draws:
    """New random choices for these users."""
    degrees = fed.indptr[users + 1] - fed.indptr[users]
    cap = o.max_positives or int(degrees.max())
    counts = degrees.clamp(max=cap)
    positives = torch.arange(int(counts.max())).repeat(len(users), 1)
    for i in torch.nonzero(degrees > cap).flatten().tolist():
        positives[i] = torch.randperm(int(degrees[i]))[:cap]
    negatives = torch.randint(fed.items.shape[1], (len(users), o.negatives))
    partners = torch.rand(o.local_steps, len(users), o.negatives).mul_(counts[:, None]).long()
    return Draws(counts, positives, negatives, partners)


def weights(fed: Federation, o: FedGRecOptions) -> tuple[float, float, Tensor]:
    """α_0, the weight of the live term, and α_0 .. α_K."""
    alpha = o.weights()
    return alpha[0], alpha[1] if o.live else 0.0, torch.tensor(alpha, dtype=fed.items.dtype)


# ------------------------------------------------------------------------------ a loop of users, autograd


def autograd_round(fed: Federation, users: Tensor, draws: Draws, o: FedGRecOptions, fused: bool) -> Sums:
    """Lines 15 to 22 user by user; new user states are stored, the sums returned."""
    p, live, alpha = weights(fed, o)
    a_table = torch.tensordot(alpha[1:], fed.items[1:], 1)
    sums = fed.zeroed()
    indptr, counts = fed.indptr.tolist(), draws.counts.tolist()
    tables = fed.items[: o.layers]
    for i, u in enumerate(users.tolist()):
        mine, w = fed.pairs[indptr[u] : indptr[u + 1]], fed.weights[indptr[u] : indptr[u + 1]]
        latents = w @ tables.index_select(1, mine)  # Eq. (6)  # [K, d]
        chosen, negatives = draws.positives[i, : counts[i]], draws.negatives[i]
        positives, w_chosen = mine[chosen], w[chosen]
        starts = fed.items[0].index_select(0, positives), fed.items[0].index_select(0, negatives)
        x_pos, x_neg = (x.clone().requires_grad_() for x in starts)
        a_pos, a_neg = a_table.index_select(0, positives), a_table.index_select(0, negatives)
        B, e = alpha[1:] @ latents, fed.embeddings[u, 0].clone().requires_grad_()
        optimizers = _optimizers(e, (x_pos, x_neg), o, fused)
        if o.user_moments == "kept":
            kept = {"step": fed.steps[u], "exp_avg": fed.moment1[u], "exp_avg_sq": fed.moment2[u]}
            optimizers[-1].state[e] = kept
        for step in range(o.local_steps):
            f_u = p * e + B
            if live:
                f_u = f_u + live * (w_chosen @ (x_pos - starts[0]))
            s_pos, s_neg = p * (x_pos @ f_u) + a_pos @ f_u, p * (x_neg @ f_u) + a_neg @ f_u
            loss = softplus(s_neg - s_pos[draws.partners[step, i]]).mean()  # Eq. (5)
            x_pos.grad, x_neg.grad, e.grad = torch.autograd.grad(loss, (x_pos, x_neg, e))
            for optimizer in optimizers:
                optimizer.step()
        for index, x, start in ((positives, x_pos, starts[0]), (negatives, x_neg, starts[1])):
            sums.items.index_add_(0, index, x.detach() - start)
        new = torch.cat([e.detach()[None], latents])
        change = w[:, None] * (new[:-1] - fed.sent[u])[:, None]  # Eqs. (7), (11)  # [K, |N_u|, d]
        for k in range(o.layers):
            sums.latents[k].index_add_(0, mine, change[k])
        fed.embeddings[u], fed.sent[u] = new, new[:-1]
    return sums


def _optimizers(e: Tensor, x: tuple[Tensor, Tensor], o: FedGRecOptions, fused: bool) -> list[Optimizer]:
    """Optimizers of the items (positives, negatives) and, last, of the user; L2 as `pair` scales it."""
    rows = [{"params": [y], "weight_decay": o.l2 / len(y)} for y in x]
    user = {"params": [e], "weight_decay": o.l2, "lr": o.user_rate}
    adam = partial(Adam, lr=o.item_rate, betas=(o.beta1, o.beta2), eps=o.adam_epsilon, fused=fused)
    if o.item_optimizer == "adam":
        return [adam([*rows, user])]
    return [SGD(rows, o.item_rate, foreach=False), adam([user])]


# ------------------------------------------------------------------------- the whole cohort, closed form


@torch.no_grad()
def batched_round(fed: Federation, users: Tensor, draws: Draws, o: FedGRecOptions, chunk: int) -> Sums:
    """Lines 15 to 22 for padded chunks of users, with closed-form gradients; fastest if users are sorted by degree."""
    p, live, alpha = weights(fed, o)
    f_table = torch.tensordot(alpha, fed.items, 1)
    sums = fed.zeroed()
    degrees = fed.indptr[users + 1] - fed.indptr[users]
    first = degrees.cumsum(0) - degrees
    edges = torch.arange(int(degrees.sum())) + (fed.indptr[users] - first).repeat_interleave(degrees)
    mine, w = fed.pairs[edges], fed.weights[edges]
    bags = [embedding_bag(mine, table, first, mode="sum", per_sample_weights=w) for table in fed.items[:-1]]
    latents = torch.stack(bags, 1)  # Eq. (6)  # [S, K, d]
    B = torch.tensordot(latents, alpha[1:], ([1], [0]))
    new = torch.cat([fed.embeddings[users, :1], latents], 1)
    for lo in range(0, len(users), chunk):
        part = slice(lo, lo + chunk)
        local = Draws(draws.counts[part], draws.positives[part], draws.negatives[part], draws.partners[:, part])
        new[part, 0] = _train(fed, users[part], local, o, p, live, f_table, B[part], sums.items)
    owner = torch.arange(len(users)).repeat_interleave(degrees)
    change = new[:, :-1] - fed.sent[users]
    for k in range(o.layers):  # Eqs. (7), (11)
        sums.latents[k].index_add_(0, mine, change[:, k].index_select(0, owner).mul_(w[:, None]))
    fed.embeddings[users], fed.sent[users] = new, new[:, :-1]
    return sums


def _train(
    fed: Federation, users: Tensor, draws: Draws, o: FedGRecOptions, p: float, live: float, f_table: Tensor,
    B: Tensor, sums: Tensor,
) -> Tensor:  # fmt: skip
    """τ local steps of some users: adds the items' movements to `sums`, returns the new e_u^0.  # [S, d]"""
    S, P, n, d = len(users), int(draws.counts.max()), o.negatives, B.shape[1]
    real = torch.arange(P) < draws.counts[:, None]  # [S, P]
    edge = torch.where(real, fed.indptr[users, None] + draws.positives[:, :P], 0)
    rows = torch.cat([fed.pairs[edge], draws.negatives], 1).flatten()  # [S·m]
    start, f = (table.index_select(0, rows).view(S, P + n, d) for table in (fed.items[0], f_table))
    many, adam = o.local_steps > 1, o.item_optimizer == "adam"
    x, a = start.clone() if many or adam else start, f.sub(start, alpha=p) if many else f
    item = Adam([x], o.item_rate, (o.beta1, o.beta2), o.adam_epsilon, fused=True)
    user = UserAdam(fed, users, o)
    w = torch.where(real, fed.weights[edge], 0)
    decay = torch.full((S, P + n, 1), o.l2 / n, dtype=x.dtype)
    decay[:, :P, 0] = torch.where(real, o.l2 / draws.counts[:, None], 0)
    e, g = fed.embeddings[users, 0], x.new_zeros(S, P + n, 2 if live else 1)
    if live:
        g[:, :P, 1] = w  # the live term pulls every positive along ∂L/∂f_u
    for step in range(o.local_steps):
        f_u = p * e + B
        if step:
            torch.add(a, x, alpha=p, out=f)
            if live:
                f_u += live * torch.einsum("sp,spd->sd", w, x[:, :P] - start[:, :P])
        scores = torch.bmm(f, f_u[:, :, None])[..., 0]  # [S, m]
        partner = draws.partners[step]
        slope = torch.sigmoid(scores[:, P:] - scores.gather(1, partner)).div_(n)
        g[:, :P, 0] = 0
        g[:, P:, 0] = slope
        g[..., 0].scatter_add_(1, partner, -slope)
        grad_f = torch.einsum("sm,smd->sd", g[..., 0], f)
        sides = torch.stack([p * f_u, live * grad_f], 1) if live else (p * f_u)[:, None]
        grad = torch.bmm(g, sides).addcmul_(decay, x)
        if adam:
            x.grad = grad
            item.step()
        else:
            sums.index_add_(0, rows, grad.view(-1, d), alpha=-o.item_rate)
            if step + 1 < o.local_steps:
                x.sub_(grad, alpha=o.item_rate)
        e = user.step(e, p * grad_f + o.l2 * e)
    if adam:
        sums.index_add_(0, rows, x.sub_(start).view(-1, d))
    return e


class UserAdam:
    """Adam for the rows of some users, each at a step of its own, its moments kept or fresh."""

    def __init__(self, fed: Federation, users: Tensor, o: FedGRecOptions) -> None:
        self.fed, self.users, self.o = fed, users, o
        kept = o.user_moments == "kept"
        self.moments = [m[users] if kept else torch.zeros_like(m[users]) for m in (fed.moment1, fed.moment2)]
        self.steps = fed.steps[users] if kept else torch.zeros_like(fed.steps[users])

    def step(self, e: Tensor, grad: Tensor) -> Tensor:
        o, (m, v) = self.o, self.moments
        self.steps += 1
        m.lerp_(grad, 1 - o.beta1)
        v.mul_(o.beta2).addcmul_(grad, grad, value=1 - o.beta2)
        steps = self.steps.to(torch.float64)[:, None]
        rate, unbias = o.user_rate / (1 - o.beta1**steps), 1 / (1 - o.beta2**steps)
        e = e - rate.to(e.dtype) * m / ((v * unbias.to(e.dtype)).sqrt_() + o.adam_epsilon)
        if o.user_moments == "kept":
            self.fed.moment1[self.users], self.fed.moment2[self.users] = m, v
            self.fed.steps[self.users] = self.steps
        return e
