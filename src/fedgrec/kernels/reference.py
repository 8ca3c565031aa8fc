"""The local computations of FedGRec, one user at a time in NumPy: the page one reads, and what a device runs.

Every other kernel has these functions with these signatures, and tests hold it equal to this one.

One canonical score serves all ways of combining embeddings,

    s_t = (p·e_u + B)ᵀ(p·x_t + a_t) + c_t        x_t: the local copy of e_t^0, the only item row that trains

    mean, last   p = α_0,  B = Σ_{k≥1} α_k e_u^k,  a_t = Σ_{k≥1} α_k e_t^k,  c_t = 0
    concat       p = 1,    B = 0,                  a_t = 0,                  c_t = Σ_{k≥1} e_u^k · e_t^k

so its gradients are closed form: with f_u and f_t the two brackets and g_t = ∂L/∂s_t,
∂L/∂f_u = Σ_t g_t f_t,  ∂L/∂e_u = p·∂L/∂f_u,  ∂L/∂x_t = p·∂L/∂f_t = p·g_t·f_u.

Where the score is their cosine, ĥ being h/|h|,  s_t = f̂_uᵀf̂_t  and
∂L/∂f_u = Σ_t g_t (f̂_t − s_t f̂_u)/|f_u|,  ∂L/∂f_t = g_t (f̂_u − s_t f̂_t)/|f_t|.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgrec.cable import draws
from fedgrec.cable.core import (
    Broadcast,
    Cohort,
    Floats,
    Ints,
    Leaf,
    Rows,
    ServerState,
    UploadSpec,
    UserState,
    fitting,
    quantize,
    travelling,
)
from fedgrec.config.options import AdamOptions, FedGRecOptions

NAME = "reference"


def refresh(cohort: Cohort, weights: Floats, tables: Floats, at: Ints) -> Floats:
    """Eq. (6) for every user and every given item table: e_u^{k+1} = Σ_{t∈N_u} w_ut e_t^k.  # [n, L, d]"""
    latents = np.zeros((len(cohort), len(tables), tables.shape[2]), tables.dtype)
    for u in range(len(cohort)):
        mine = slice(cohort.indptr[u], cohort.indptr[u + 1])
        for k, table in enumerate(tables):
            latents[u, k] = times(weights[mine], table[at[mine]])
    return latents


def push(
    cohort: Cohort, weights: Floats, old: Floats, new: Floats, leaf: Leaf, dtype: np.dtype[Any], n_items: int
) -> tuple[Rows, int]:
    """Eqs. (7) and (11): Σ_u w_ut(ẽ_u^k − e_u^k) for the items of each user, at leaf rows k·N + t.

    A user rounds its whole standing contribution w_ut·e_u^k, before and after, and sends the difference of the two
    integers. Over any number of rounds these differences telescope: the server always holds the rounded contribution of
    what each user last sent, and rounding errors never pile up.
    """
    half = Leaf(leaf.name, leaf.rows, leaf.width, leaf.clip / 2, leaf.step)  # two such differ by at most the clip
    parts, cut = [], 0
    for u in range(len(cohort)):
        mine = slice(cohort.indptr[u], cohort.indptr[u + 1])
        for k in range(new.shape[1]):
            before, _ = quantize(weights[mine, None] * old[u, k], half, dtype)
            after, over = quantize(weights[mine, None] * new[u, k], half, dtype)
            parts.append(Rows(k * n_items + cohort.items[mine], after - before))
            cut += over
    return total(parts, leaf.width, dtype), cut


def send(
    cohort: Cohort, weights: Floats, held: Floats, leaf: Leaf, dtype: np.dtype[Any], round_: int
) -> tuple[Rows, int]:
    """Σ_u w_ut·h_u for the items of each user, in words that each user rounds at random; `held` is [n, 1, d]."""
    parts, cut = [], 0
    for u, key in enumerate(cohort.keys.tolist()):
        items, mine = cohort.items_of(u), slice(cohort.indptr[u], cohort.indptr[u + 1])
        shift = draws.shifts(key, round_, items, leaf.width).astype(held.dtype)
        rows, over = quantize(weights[mine, None] * held[u], leaf, dtype, shift=shift)
        parts.append(Rows(items, rows))
        cut += over
    return total(parts, leaf.width, dtype), cut


def follow(
    cohort: Cohort, table: Floats, weights: Floats, per_step: float, spec: UploadSpec, round_: int | None
) -> tuple[Rows, int]:
    """Σ_u of what `followers` finds, times `per_step`, for the items of each user; `weights` is [3, n].

    Words are rounded at random in this round, or to the nearest if there is none.
    """
    parts, cut, (leaf,), in_order = [], 0, spec.leaves, cohort.items[cohort.by_time]
    for u, key in enumerate(cohort.keys.tolist()):
        items = in_order[cohort.indptr[u] : cohort.indptr[u + 1]]
        shift = None if round_ is None else draws.shifts(key, round_, items, leaf.width).astype(table.dtype)
        found = followers(table[items], *weights[:, u]) * table.dtype.type(per_step)
        rows, over = quantize(found, leaf, spec.dtype, shift=shift)
        parts.append(Rows(items, rows))
        cut += over
    return total(parts, leaf.width, spec.dtype), cut


def followers(rows: Floats, decay: Any, before: Any, after: Any) -> Floats:
    """For each of the rows x Σ_j γ^(|j−i|−1) w_ij x_j over the others; w_ij: `before` for those above it.  # [n, d]

    Each sum but for its weight is γ times that of the row beside it, plus that row.
    """
    found = np.zeros_like(rows)
    for passed, out, weight in ((rows, found, before), (rows[::-1], found[::-1], after)):
        carried = np.zeros_like(rows, shape=rows.shape[1])
        for place in range(1, len(rows)):
            carried = carried * decay + passed[place - 1]
            out[place] += weight * carried
    return found


def train(
    cohort: Cohort,
    weights: Floats,
    broadcast: Broadcast,
    latents: Floats,
    o: FedGRecOptions,
    leaf: Leaf,
    dtype: np.dtype[Any],
) -> tuple[Rows, UserState, int]:
    """Algorithm 1, lines 16–21, for every user: item updates (rounded, summed), new user states, words clipped."""
    state, parts, cut = cohort.state.copy(), [], 0
    for u in range(len(cohort)):
        problem = local_problem(cohort, u, weights, broadcast, latents, o)
        moved = local_steps(problem, state, u, o)
        sent = draws.feedback(problem.key, problem.round, problem.n_positives, o.feedback)
        moved[: problem.n_positives][~sent] = 0
        if leaf.norm:
            length = np.sqrt((moved.astype(np.float64) ** 2).sum()) / leaf.step
            moved *= fitting(length, moved.size, leaf.norm).astype(moved.dtype)
        row_steps = shift = None
        if broadcast.row_steps is not None:
            row_steps = broadcast.row_steps[problem.items]
            shift = draws.shifts(problem.key, problem.round, problem.items, leaf.width).astype(moved.dtype)
        rows, over = quantize(moved, leaf, dtype, row_steps, shift)
        parts.append(Rows(problem.items, rows))
        cut += over
    return total(parts, leaf.width, dtype), state, cut


@dataclass(frozen=True)
class LocalProblem:
    """One user's training data of a round: its P positives first, then its negatives."""

    key: int
    round: int
    n_positives: int
    items: Ints  # [m] ids
    start: Floats  # [m, d] x_t as broadcast
    a: Floats  # [m, d]
    c: Floats  # [m]
    B: Floats  # [d]
    weights: Floats  # [P] w_ut of the positives, for the live term
    targets: Floats  # [P] y: what MSE aims at, or what each positive counts in softmax


def local_problem(
    cohort: Cohort, u: int, weights: Floats, broadcast: Broadcast, latents: Floats, o: FedGRecOptions
) -> LocalProblem:
    """Draw the user's positives and negatives, and take from the broadcast what its scores need."""
    key, everything = int(cohort.keys[u]), cohort.items_of(u)
    cap = o.max_positives or len(everything)
    chosen = cohort.indptr[u] + draws.positives_sample(key, broadcast.round, len(everything), cap)
    positives, n_items = cohort.items[chosen], broadcast.n_items
    excluded = everything if o.exclude_positives else everything[:0]
    count = o.negatives if o.loss != "mse" and len(positives) else 0
    if o.popular_negatives:
        shelves = draws.shelves(broadcast.degrees, count, o.popular_negatives)
        negatives = draws.negatives_from(key, broadcast.round, shelves, excluded)
    else:
        negatives = draws.negatives(key, broadcast.round, count, excluded, n_items)
    items = np.concatenate([positives, negatives])
    tables = broadcast.tables[:, items]  # [K+1, m, d]; combined: f_t, c_t and maybe more
    start, alpha = tables[0], np.asarray(o.weights(), tables.dtype)
    c = np.zeros(len(items), start.dtype)
    if o.combined:  # training needs only how far x_t moves
        a, B, start = start, latents[u, 0], np.zeros_like(start)
    elif o.combine == "concat":
        a, B = np.zeros_like(start), np.zeros(o.dim, start.dtype)
        for latent, table in zip(latents[u], tables[1:], strict=True):
            c += times(latent, table.T)
    else:
        a, B = times(alpha[1:], tables[1:]), times(alpha[1:], latents[u])
    targets = np.ones(len(positives), start.dtype) if cohort.targets is None else cohort.targets[chosen]
    return LocalProblem(key, broadcast.round, len(positives), items, start, a, c, B, weights[chosen], targets)


def local_steps(problem: LocalProblem, state: UserState, u: int, o: FedGRecOptions) -> Floats:
    """τ local steps from the broadcast values; updates `state` of user u, returns how far each item row moved."""
    kept = o.user_moments == "kept"
    e = state.embeddings[u, 0]
    user = Optimizer(o, o.user_optimizer, o.user_rate, e.shape, e.dtype)
    if kept:
        user.moment1, user.moment2, user.steps = state.moment1[u], state.moment2[u], int(state.steps[u])
    item = Optimizer(o, o.item_optimizer, o.item_rate, problem.start.shape, e.dtype)
    moved = np.zeros_like(problem.start)
    for step in range(o.local_steps if len(problem.items) else 0):
        grad_e, grad_x = gradients(problem, e, moved, step, o)
        e = e + user.move(grad_e)
        moved += item.move(grad_x)
    state.embeddings[u, 0] = e
    if kept:
        state.moment1[u], state.moment2[u], state.steps[u] = user.moment1, user.moment2, user.steps
    return moved


def gradients(problem: LocalProblem, e: Floats, moved: Floats, step: int, o: FedGRecOptions) -> tuple[Floats, Floats]:
    """∂L/∂e_u^0 [d] and ∂L/∂x_t [m, d] of the local loss with its L2 penalty."""
    P, alpha = problem.n_positives, o.weights()
    p, live = alpha[0], alpha[1] if o.live and o.layers else 0.0
    x = problem.start + moved
    f_u = p * e + problem.B + live * times(problem.weights, moved[:P])  # e_u^1 follows the local items
    f = p * x + problem.a
    norm_u, norm = (length(f_u), length(f)) if o.similarity == "cosine" else (1.0, np.ones(len(f), f.dtype))
    f_u, f = f_u / norm_u, f / norm[:, None]
    scores = times(f_u, f.T) + problem.c
    g = slopes(problem, scores, step, o)
    lean = g * scores if o.similarity == "cosine" else 0 * g
    grad_f = (times(g, f) - lean.sum() * f_u) / norm_u
    user_decay, item_decay = penalties(problem, o)
    grad_e = p * grad_f + user_decay * e
    grad_x = (p / norm)[:, None] * (np.outer(g, f_u) - lean[:, None] * f) + item_decay[:, None] * x
    grad_x[:P] += live * np.outer(problem.weights, grad_f)
    return grad_e, grad_x.astype(x.dtype)


def times(weights: Floats, rows: Floats) -> Floats:
    """Σ_r w_r·row_r, by NumPy itself: a twin to compare with must not depend on the machine's BLAS."""
    if not len(weights):  # einsum would add 0 times whatever the memory holds, which may be NaN
        return np.zeros(rows.shape[1:], rows.dtype)
    total: Floats = np.einsum("r,r...->...", weights, rows)
    return total


def length(f: Floats) -> Floats:
    """|f| of each row; a row of zeros has a tiny length, not 0, so that its direction is zeros too."""
    norm: Floats = np.sqrt((f * f).sum(axis=-1) + np.finfo(f.dtype).tiny)
    return norm


def slopes(problem: LocalProblem, scores: Floats, step: int, o: FedGRecOptions) -> Floats:
    """∂L/∂s_t."""
    if o.loss == "bpr":
        return bpr_slopes(problem, scores, step, o.reduction)
    return softmax_slopes(problem, scores, o) if o.loss == "softmax" else mse_slopes(problem, scores, o)


def bpr_slopes(problem: Any, scores: Floats, step: int, reduction: str) -> Floats:
    """∂L/∂s_t of Eq. (5): every negative i meets one random positive j, L = Σ softplus(s_i − s_j), or their mean."""
    P = problem.n_positives
    n = len(scores) - P
    partner = draws.pairs(problem.key, problem.round, step, n, P)
    with np.errstate(over="ignore"):  # exp(large) = inf gives the slope 0 that is meant
        slope = 1.0 / (1.0 + np.exp(scores[partner] - scores[P:]))  # σ(s_i − s_j) = softplus′
    if reduction == "mean":
        slope = slope / max(n, 1)
    g = np.concatenate([np.zeros(P, scores.dtype), slope.astype(scores.dtype)])
    np.subtract.at(g, partner, g[P:])
    return g


def softmax_slopes(problem: LocalProblem, scores: Floats, o: FedGRecOptions) -> Floats:
    """∂L/∂s_t of L = (1/P) Σ_p y_p (−s_p/T + w·log Σ_n exp(s_n/T)), or P times that: then all pairs count the same."""
    P, T, y = problem.n_positives, o.temperature, problem.targets
    negative = np.exp((scores[P:] - scores[P:].max(initial=-np.inf)) / T)
    negative *= y.mean() * o.negative_weight / (T * max(negative.sum(), 1.0))
    g = np.concatenate([(-1 / (T * P) * y).astype(scores.dtype), negative.astype(scores.dtype)])
    return g if o.reduction == "mean" else P * g


def mse_slopes(problem: LocalProblem, scores: Floats, o: FedGRecOptions) -> Floats:
    """∂L/∂s_t of Eq. (3): L = Σ (y_t − s_t)² over positives and, where negatives are drawn, 0 for those."""
    g = 2.0 * scores
    g[: problem.n_positives] -= 2.0 * problem.targets
    return g / len(scores) if o.reduction == "mean" else g


def penalties(problem: LocalProblem, o: FedGRecOptions) -> tuple[float, Floats]:
    """λ for the user's row and for each item row, as `l2_scaling` says."""
    P, m = problem.n_positives, len(problem.items)
    if o.l2_scaling == "row":
        return o.l2, np.full(m, o.l2, problem.start.dtype)
    terms = {"bpr": m - P, "softmax": P, "mse": P, "mse0": m}[o.loss]
    whole = o.l2 if o.reduction == "mean" else o.l2 * terms
    share = np.full(m, whole / max(m - P, 1), problem.start.dtype)
    share[:P] = whole / P
    return whole, share


class Optimizer:
    """SGD or Adam for one array."""

    def __init__(self, o: FedGRecOptions, kind: str, rate: float, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.o, self.kind, self.rate = o, kind, rate
        self.moment1 = np.zeros(shape, dtype)
        self.moment2 = np.zeros(shape, dtype)
        self.steps = 0

    def move(self, grad: Floats) -> Floats:
        """The step to add for this gradient."""
        if self.kind == "sgd":
            return -self.rate * grad
        self.steps += 1
        step, self.moment1, self.moment2 = adam(grad, self.moment1, self.moment2, self.steps, self.rate, self.o)
        return step


def adam(grad: Floats, m: Floats, v: Floats, steps: int, rate: float, o: AdamOptions) -> tuple[Floats, Floats, Floats]:
    """Adam's step (to add) and its new moments."""
    m = o.beta1 * m + (1 - o.beta1) * grad
    v = o.beta2 * v + (1 - o.beta2) * grad * grad
    return -rate * (m / (1 - o.beta1**steps)) / (np.sqrt(v / (1 - o.beta2**steps)) + o.adam_epsilon), m, v


def combine(items: Floats, alphas: Floats, download: str, lean: bool) -> Floats:
    """f_t = Σ α_k e_t^k and c_t = Σ α_k e_t^{k−1}, all that training and ranking need, as they travel.  # [2, N, d]

    Where latents are due, e_t^0 .. e_t^{K−1} behind them.  # [2+K, N, d]
    """
    both = np.zeros_like(items[:2])
    for k, alpha in enumerate(alphas):
        both[0] += alpha * items[k]
        if k:
            both[1] += alpha * items[k - 1]
    return travelling(both if lean else np.concatenate([both, items[:-1]]), download)


def server_adam(server: ServerState, update: Rows, steps: Floats, o: FedGRecOptions) -> None:
    """The server takes the summed updates as a negative gradient; rows nobody touched have gradient zero."""
    grad = np.zeros_like(server.moment1)
    grad[update.index] = update.values * -steps[update.index, None]
    step, m, v = adam(grad, server.moment1, server.moment2, server.round + 1, o.server_rate, o)
    server.items[0] += step
    server.moment1[:], server.moment2[:] = m, v


def add_rows(table: Floats, update: Rows, leaf: Leaf, rate: float) -> None:
    """table[index] += rate · values, decoded."""
    table[update.index] += (update.values * (rate * leaf.step)).astype(table.dtype)


def total(parts: list[Rows], width: int, dtype: np.dtype[Any]) -> Rows:
    """The integer sum of many users' rows."""
    if not parts:
        return Rows(np.zeros(0, np.int64), np.zeros((0, width), dtype))
    index, place = np.unique(np.concatenate([part.index for part in parts]), return_inverse=True)
    values = np.zeros((len(index), width), dtype)
    np.add.at(values, place, np.concatenate([part.values for part in parts]))
    return Rows(index, values)
