"""Local training of many users side by side in PyTorch: reference.local_problem and local_steps, padded.

The same names and the same order as there. Every table has one row a user and, in its columns, first the positives
and then the negatives, each part padded at its end to that of the longest user. Padding has weight, slope and decay 0:
it never moves.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedgrec.cable.core import Ints, UserState
from fedgrec.cable.draws import Shelves
from fedgrec.config.options import FedGRecOptions
from fedgrec.kernels import _draws_torch as draws
from fedgrec.kernels._trees_torch import added_up, dots, exponential, lengths, sums_by_partner


class World(NamedTuple):
    """A cohort and what was broadcast to it, on the device."""

    round: int
    n_items: int
    keys: Tensor  # [n]
    first: Tensor  # [n] of each user's edges
    degrees: Tensor  # [n]
    items: Tensor  # [nnz]
    weights: Tensor  # [nnz] w_ut
    targets: Tensor  # [nnz]
    latents: Tensor  # [n, K, d]
    tables: Tensor  # [K+1, N, d]; combined: zeros, since x_t is not known
    a: Tensor  # [N, d]
    B: Tensor  # [n, d]
    shelves: Shelves | None  # None: negatives are uniform


class Problems(NamedTuple):
    """What reference.LocalProblem holds, of S users."""

    round: int
    keys: Tensor  # [S]
    n_positives: Tensor  # [S, 1]
    n_negatives: Tensor  # [S, 1]
    real: Tensor  # [S, m] what is not padding
    items: Tensor  # [S, m] ids
    start: Tensor  # [S, m, d] x_t as broadcast
    a: Tensor  # [S, m, d]
    c: Tensor  # [S, m]
    B: Tensor  # [S, d]
    weights: Tensor  # [S, P] w_ut of the positives
    targets: Tensor  # [S, m], 0 for negatives


def constants(tables: Tensor, latents: Tensor, o: FedGRecOptions) -> tuple[Tensor, Tensor]:
    """a_t and B of the canonical score.  # [N, d], [n, d]"""
    a, B = torch.zeros_like(tables[0]), latents.new_zeros(len(latents), tables.shape[2])
    if o.combine != "concat":
        for k, alpha in enumerate(o.weights()[1:]):
            a, B = a + alpha * tables[k + 1], B + alpha * latents[:, k]
    return a, B


def side_by_side(n_rows: Ints, fit: int) -> Iterator[Ints]:
    """Users that have rows, those with few first; each batch, padded, fits into a table of `fit` rows."""
    order = np.argsort(n_rows, kind="stable")
    order = order[n_rows[order] > 0]
    while len(order):
        padded_to = n_rows[order] * np.arange(1, len(order) + 1)  # rows of a batch that ends here
        count = max(1, int(np.searchsorted(padded_to, fit, side="right")))
        yield order[:count]
        order = order[count:]


def padded(first: Tensor, counts: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """first, first + 1, ... of each user, and which of these are its own; padding repeats `first`.  # [S, longest]"""
    place = torch.arange(longest, device=counts.device)
    real = place < counts[:, None]
    return first[:, None] + torch.where(real, place, 0), real


def local_problems(world: World, users: Tensor, o: FedGRecOptions) -> Problems:
    """Draw positives and negatives of these users, who all have some items, and lay out what their scores need."""
    keys, first, degrees = world.keys[users], world.first[users], world.degrees[users]
    n_positives = degrees.clamp(max=o.max_positives or world.n_items)
    P = int(n_positives.max())
    real = torch.arange(P, device=keys.device) < n_positives[:, None]
    chosen = first[:, None] + torch.where(real, draws.positives_sample(keys, world.round, degrees, P), 0)
    n_excluded = degrees if o.exclude_positives else torch.zeros_like(degrees)
    everything, _ = padded(first, n_excluded, int(n_excluded.max()))
    n_negatives = (world.n_items - n_excluded).clamp(max=o.negatives if o.loss != "mse" else 0)
    if world.shelves is None:
        n = int(n_negatives.max())
        drawn = draws.negatives(keys, world.round, n, world.items[everything], n_excluded, world.n_items)
    else:
        drawn, n_negatives = draws.negatives_from(keys, world.round, world.shelves, world.items[everything], n_excluded)
        n = drawn.shape[1]
    real = torch.cat([real, torch.arange(n, device=keys.device) < n_negatives[:, None]], dim=1)
    items = torch.cat([world.items[chosen], drawn], dim=1)
    items = torch.where(real, items, world.items[first][:, None])
    c = world.tables.new_zeros(items.shape)
    if o.combine == "concat":
        for k in range(o.layers):
            c = c + dots(world.tables[k + 1][items], world.latents[users, k])
    targets = torch.zeros_like(c)
    targets[:, :P] = world.targets[chosen]
    weights = torch.where(real[:, :P], world.weights[chosen], 0)
    return Problems(
        world.round, keys, n_positives[:, None], n_negatives[:, None], real, items,
        world.tables[0][items], world.a[items], c, world.B[users], weights, targets,
    )  # fmt: skip


def local_steps(problem: Problems, state: UserState, users: Ints, o: FedGRecOptions) -> Tensor:
    """τ local steps; updates `state` of these users, returns how far each item row moved.  # [S, m, d]"""
    like, kept = problem.B, o.user_moments == "kept"
    e = torch.tensor(state.embeddings[users, 0], device=like.device)
    m, v = (torch.tensor(moment[users], device=like.device) for moment in (state.moment1, state.moment2))
    steps = state.steps[users]
    if not kept:
        m, v, steps = torch.zeros_like(m), torch.zeros_like(v), 0 * steps
    moved = torch.zeros_like(problem.start)
    item_moments = (torch.zeros_like(moved), torch.zeros_like(moved)) if o.item_optimizer == "adam" else None
    for step in range(o.local_steps):
        grad_e, grad_x = gradients(problem, e, moved, step, o)
        if o.user_optimizer == "adam":
            steps = steps + 1
            unbias = [like.new_tensor([unbiased(b, s) for s in steps.tolist()])[:, None] for b in (o.beta1, o.beta2)]
            e = e + adam(grad_e, m, v, unbias[0], unbias[1], o.user_rate, o)
        else:
            e = e + -o.user_rate * grad_e
        if item_moments:
            at = unbiased(o.beta1, step + 1), unbiased(o.beta2, step + 1)
            moved += adam(grad_x, *item_moments, *at, o.item_rate, o)
        else:
            moved += grad_x.mul_(-o.item_rate)
    state.embeddings[users, 0] = e.cpu().numpy()
    if kept:
        state.moment1[users], state.moment2[users], state.steps[users] = m.cpu().numpy(), v.cpu().numpy(), steps
    return moved


def gradients(problem: Problems, e: Tensor, moved: Tensor, step: int, o: FedGRecOptions) -> tuple[Tensor, Tensor]:
    """∂L/∂e_u^0 [S, d] and ∂L/∂x_t [S, m, d] of the local losses with their L2 penalties."""
    P, alpha = problem.weights.shape[1], o.weights()
    p, live = alpha[0], alpha[1] if o.live and o.layers else 0.0
    x = problem.start + moved
    w = problem.weights[..., None]
    f_u = p * e + problem.B
    if live and step:
        f_u = f_u + live * added_up(w * moved[:, :P])  # e_u^1 follows the local items
    f, cosine = (x * p).add_(problem.a), o.similarity == "cosine"
    share: float | Tensor = p
    if cosine:
        norm_u, norm = lengths(f_u)[:, None], lengths(f)
        f_u, share = f_u / norm_u, p / norm
        f.div_(norm[..., None])
    scores = dots(f, f_u) + problem.c
    g = slopes(problem, scores, step, o)
    lean, of_row = (g * scores)[..., None], (share * g)[..., None]
    user_decay, item_decay = penalties(problem, o)
    x.mul_(item_decay[..., None])
    if cosine:
        x.sub_((of_row * scores[..., None]) * f)
    f.mul_(g[..., None])
    grad_f = added_up(f[:, :P]) + added_up(f[:, P:])
    if cosine:
        grad_f = (grad_f - (added_up(lean[:, :P]) + added_up(lean[:, P:])) * f_u) / norm_u
    grad_x = x.add_(of_row * f_u[:, None])
    if live:
        grad_x[:, :P] += w * (live * grad_f)[:, None]
    return p * grad_f + user_decay * e, grad_x


def slopes(problem: Problems, scores: Tensor, step: int, o: FedGRecOptions) -> Tensor:
    """∂L/∂s_t, see reference.slopes.  # [S, m]"""
    if o.loss == "bpr":
        return bpr_slopes(problem, scores, step, o)
    return softmax_slopes(problem, scores, o) if o.loss == "softmax" else mse_slopes(problem, scores, o)


def softmax_slopes(problem: Problems, scores: Tensor, o: FedGRecOptions) -> Tensor:
    """See reference.softmax_slopes.  # [S, m]"""
    P, T, real = problem.weights.shape[1], o.temperature, problem.real
    least, count = torch.finfo(scores.dtype).min, problem.n_positives.to(scores.dtype)
    negative = torch.where(real[:, P:], scores[:, P:], least)
    if negative.shape[1]:
        negative = exponential((negative - negative.amax(dim=1, keepdim=True)) / T)
        negative = torch.where(real[:, P:], negative, 0)
        negative = negative * (o.negative_weight / (T * added_up(negative[..., None]).clamp(min=1.0)))
    positive = torch.where(real[:, :P], -1 / (T * count), 0)
    g = torch.cat([positive, negative], dim=1)
    return g if o.reduction == "mean" else count * g


def bpr_slopes(problem: Problems, scores: Tensor, step: int, o: FedGRecOptions) -> Tensor:
    """∂L/∂s_t of Eq. (5), see reference.bpr_slopes.  # [S, m]"""
    P = problem.weights.shape[1]
    partner = draws.pairs(problem.keys, problem.round, step, scores.shape[1] - P, problem.n_positives[:, 0])
    slope = 1.0 / (exponential(scores.gather(1, partner) - scores[:, P:]) + 1.0)
    if o.reduction == "mean":
        slope = slope / problem.n_negatives.clamp(min=1).to(slope.dtype)
    slope = torch.where(problem.real[:, P:], slope, 0)
    return torch.cat([-sums_by_partner(slope, torch.where(problem.real[:, P:], partner, P), P), slope], dim=1)


def mse_slopes(problem: Problems, scores: Tensor, o: FedGRecOptions) -> Tensor:
    """∂L/∂s_t of Eq. (3), see reference.mse_slopes.  # [S, m]"""
    g = 2.0 * scores - 2.0 * problem.targets
    if o.reduction == "mean":
        g = g / (problem.n_positives + problem.n_negatives).to(g.dtype)
    return torch.where(problem.real, g, 0)


def penalties(problem: Problems, o: FedGRecOptions) -> tuple[Tensor, Tensor]:
    """λ for the users' rows and for each item row, see reference.penalties.  # [S, 1], [S, m]"""
    P, n, dtype = problem.n_positives, problem.n_negatives, problem.B.dtype
    whole = torch.full_like(P, 1, dtype=torch.float64) * o.l2
    positive = negative = whole
    if o.l2_scaling == "pair":
        if o.reduction == "sum":
            whole = whole * {"bpr": n, "softmax": P, "mse": P, "mse0": P + n}[o.loss]
        positive, negative = whole / P, whole / n.clamp(min=1)
    width = problem.weights.shape[1]
    rows = torch.cat([positive.expand(-1, width), negative.expand(-1, problem.real.shape[1] - width)], dim=1)
    return whole.to(dtype), torch.where(problem.real, rows, 0).to(dtype)


def unbiased(beta: float, steps: int) -> float:
    """Adam's bias correction after these steps."""
    return 1 / (1 - beta**steps)


def adam(
    grad: Tensor, m: Tensor, v: Tensor, unbias1: Tensor | float, unbias2: Tensor | float, rate: float, o: FedGRecOptions
) -> Tensor:
    """Adam's step (to add); its moments are updated in place. Each operation rounds once, as everywhere here."""
    m.mul_(o.beta1).add_(grad * (1 - o.beta1))
    v.mul_(o.beta2).add_((grad * (1 - o.beta2)).mul_(grad))
    return (m * unbias1).mul_(-rate).div_((v * unbias2).sqrt_().add_(o.adam_epsilon))
