# mypy: ignore-errors
"""All that Numba compiles for FedGNN: kernels.gnn for a whole cohort on all cores, with the same names."""

from typing import Any, NamedTuple

import numpy as np

from fedgrec.kernels._draws_numba import ZERO, U, choose_from
from fedgrec.kernels._numba import fused, threaded
from fedgrec.kernels._steps_numba import bpr_slopes
from fedgrec.kernels._sums_numba import add_row, add_small_row


class Numbers(NamedTuple):
    """Real options in the precision of training."""

    own: Any
    omega: Any
    l2: Any
    user_rate: Any
    beta1: Any
    beta2: Any
    epsilon: Any
    per_step: Any
    bound: Any


class Flags(NamedTuple):
    """Whole and yes-or-no options."""

    round: int
    max_positives: int
    mse: bool
    exclude: bool = True  # negatives are never positives


# ------------------------------------------------------------------------------------------------ one user


@fused
def mse_slopes(g, P, y, chosen, numbers):
    """Scores in, ∂L/∂s_t out."""
    real = g.dtype.type
    for_positive, for_negative = real(2 / P), real(2 * numbers.omega / max(len(g) - P, 1))
    for i in range(P):
        g[i] = for_positive * (g[i] - y[chosen[i]])
    for i in range(P, len(g)):
        g[i] *= for_negative


@fused
def move_user(e, moment1, moment2, steps, grad_f, numbers):
    """One step of Adam at home."""
    one = e.dtype.type(1)
    steps[0] += 1
    unbias1 = e.dtype.type(1 / (1 - numbers.beta1 ** steps[0]))
    unbias2 = e.dtype.type(1 / (1 - numbers.beta2 ** steps[0]))
    for j in range(len(e)):
        grad = numbers.own * grad_f[j] + numbers.l2 * e[j]
        moment1[j] = numbers.beta1 * moment1[j] + (one - numbers.beta1) * grad
        moment2[j] = numbers.beta2 * moment2[j] + (one - numbers.beta2) * grad * grad
        e[j] -= numbers.user_rate * (moment1[j] * unbias1) / (np.sqrt(moment2[j] * unbias2) + numbers.epsilon)


@fused
def one_user(key, items, v_items, y, B, user, x, shelves, numbers, flags, rows, g, v, f_u, pull, counts, decays):
    """A user's rows with the numbers that make up its gradient: ∂L/∂x_t = g_t·f_u + v_t·pull + decay·x_t.

    Moves the user.
    """
    e, moment1, moment2, steps = user
    d, nothing = x.shape[1], numbers.l2 - numbers.l2
    found, chosen = choose_from(key, items, shelves, flags)
    P, m = len(chosen), len(found)
    counts[0], counts[1] = P, m
    if m == 0:
        return
    decays[0], decays[1] = numbers.l2 / P, numbers.l2 / max(m - P, 1)
    for i in range(m):
        rows[i], v[i] = found[i], v_items[chosen[i]] if i < P else nothing
    for j in range(d):
        f_u[j], pull[j] = numbers.own * e[j] + B[j], 0
    for i in range(m):
        t, score = found[i], nothing
        for j in range(d):
            score += x[t, j] * f_u[j]
        g[i] = score
    if flags.mse:
        mse_slopes(g[:m], P, y, chosen, numbers)
    else:
        bpr_slopes(g[:m], key, ZERO, U(flags.round), P, g.dtype.type(1 / max(m - P, 1)))
    for i in range(m):
        t, slope = found[i], g[i]
        for j in range(d):
            pull[j] += slope * x[t, j]
    move_user(e, moment1, moment2, steps, pull, numbers)


# --------------------------------------------------------------------------------------------------- loops


@threaded
def user_slopes(begin, end, users, x, shelves, numbers, flags, parts):
    """The numbers that make up each user's gradient, see GradientParts; moves the users."""
    keys, indptr, items, v_edges, targets, B, embeddings, moment1, moment2, steps = users
    rows, g, v, f_users, pulls, counts, decays, _ = parts
    for u in range(begin, end):
        mine, user = slice(indptr[u], indptr[u + 1]), (embeddings[u, 0], moment1[u], moment2[u], steps[u : u + 1])
        one_user(
            keys[u], items[mine], v_edges[mine], targets[mine], B[u], user, x, shelves, numbers, flags,
            rows[u], g[u], v[u], f_users[u], pulls[u], counts[u], decays[u],
        )  # fmt: skip


@threaded
def add_up(begin, end, x, who, where, first, parts, reaches, numbers, sums, cut):
    """Every item adds up its users' finished rows, so no two threads ever write to one row."""
    _, g, v, f_users, pulls, counts, decays, _ = parts
    real, to_steps, bound, nearest = x.dtype.type, -numbers.per_step, numbers.bound, np.int32(0)
    limit = bound / numbers.per_step
    for t in range(begin, end):
        over = real(0)
        for j in range(sums.shape[1]):
            sums[t, j] = 0
        reach = limit - limit
        for j in range(x.shape[1]):
            reach = max(reach, abs(x[t, j]))
        for entry in range(first[t], first[t + 1]):
            u, i = who[entry], where[entry]
            slope, weight, decay = g[u, i], v[u, i], decays[u, 0 if i < counts[u, 0] else 1]
            if weight == 0 and abs(slope) * reaches[u] + decay * reach < limit:
                add_small_row(to_steps, slope, decay, u, t, f_users, x, real(0), nearest, sums)
            else:
                over += add_row(to_steps, slope, decay, weight, u, t, f_users, pulls, x, bound, real(0), nearest, sums)
        cut[t] = np.int64(over)


# ------------------------------------------------------------------------------------- the third party's circles


@threaded
def add_neighbours(begin, end, whose, place, first, size, most, embeddings, out):
    """For each hash, the mean of the next users in its circle, added in that order."""
    for edge in range(begin, end):
        row, count = out[edge], min(size[edge] - 1, most)
        for j in range(len(row)):
            row[j] = 0
        at = place[edge]
        for _ in range(count):
            at = at + 1 if at + 1 < first[edge] + size[edge] else first[edge]
            other = embeddings[whose[at]]
            for j in range(len(row)):
                row[j] += other[j]
        for j in range(len(row)):
            row[j] /= row.dtype.type(max(count, 1))
