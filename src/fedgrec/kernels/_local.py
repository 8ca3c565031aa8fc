"""One user's local training in Numba, called by `cpu` for every user of a cohort.

Follows reference.local_problem, local_steps and gradients line by line; names are the same. `f_table` holds
f_t = p·e_t^0 + a_t of every item, so a_t is f_t − p·x_t. Inner loops index whole tables and never take a row as an
array of its own: Numba counts references to such views with atomic operations, which cost more than the arithmetic.
"""

from typing import Any, NamedTuple

import numpy as np

from fedgrec.kernels._draws import (
    PAIRS,
    POSITIVES,
    SHIFT,
    U,
    draw_negatives,
    fused,
    inlined,
    permuted,
    philox,
)


class Numbers(NamedTuple):
    """Real options in the precision of training."""

    p: Any
    live: Any
    l2: Any
    item_rate: Any
    user_rate: Any
    beta1: Any
    beta2: Any
    epsilon: Any
    per_step: Any
    bound: Any


class Flags(NamedTuple):
    """Whole and yes-or-no options."""

    round: int
    steps: int
    negatives: int
    max_positives: int
    exclude: bool
    mse: bool
    mean: bool
    per_row: bool
    concat: bool
    item_adam: bool
    user_adam: bool
    kept: bool


@fused
def choose_rows(key, items, n_items, flags):
    """The user's training rows of the round, positives first, and which of its items those are."""
    P = min(len(items), flags.max_positives)
    chosen = np.arange(len(items))
    if len(items) > P:
        chosen = np.empty(P, np.int64)
        permuted(chosen, len(items), key, flags.round, POSITIVES)
        chosen.sort()
    excluded = items if flags.exclude else items[:0]
    n = min(flags.negatives, n_items - len(excluded)) if P else 0
    rows = np.empty(P + n, np.int64)
    for i in range(P):
        rows[i] = items[chosen[i]]
    draw_negatives(rows[P:], key, flags.round, excluded, n_items)
    return rows, chosen


@fused
def constants(rows, latents, tables, flags):
    """c_t of the canonical score: for concat the latent products, else nothing."""
    c = np.zeros(len(rows), tables.dtype)
    if flags.concat:
        for i in range(len(rows)):
            for k in range(len(latents)):
                for j in range(latents.shape[1]):
                    c[i] += latents[k, j] * tables[k + 1, rows[i], j]
    return c


@fused
def slopes(g, key, step, P, y, flags):
    """Scores in, ∂L/∂s_t out, as reference.bpr_slopes and mse_slopes."""
    m, real = len(g), g.dtype.type
    one = real(1)
    if flags.mse:
        scale = real(2 / m if flags.mean else 2)
        for i in range(m):
            g[i] = scale * (g[i] - y[i])
        return
    positive = g[:P].copy()
    g[:P] = 0
    n = m - P
    scale = real(1 / n if flags.mean else 1)
    for block in range((n + 3) // 4):
        words = philox(key, block, step, flags.round, PAIRS)
        for lane in range(min(4, n - 4 * block)):
            i = P + 4 * block + lane
            partner = np.int64((words[lane] * U(P)) >> SHIFT)
            slope = scale / (one + np.exp(positive[partner] - g[i]))
            g[i] = slope
            g[partner] -= slope


@fused
def penalties(real, P, m, numbers, flags):
    """λ for the user, for a positive and for a negative, as reference.penalties."""
    l2 = numbers.l2
    if flags.per_row:
        return l2, l2, l2
    n = P if flags.mse else m - P
    whole = l2 * (1 if flags.mean else n)
    return real(whole), real(whole / P), real(whole / max(n, 1))


@fused
def move_user(user, grad_f, decay, numbers, flags):
    """One optimizer step of e_u^0."""
    e, moment1, moment2, steps, _ = user
    real = e.dtype.type
    one = real(1)
    steps[0] += flags.user_adam
    unbias1 = real(1 / (1 - numbers.beta1 ** steps[0])) if flags.user_adam else one
    unbias2 = real(1 / (1 - numbers.beta2 ** steps[0])) if flags.user_adam else one
    for j in range(len(e)):
        g = numbers.p * grad_f[j] + decay * e[j]
        if flags.user_adam:
            moment1[j] = numbers.beta1 * moment1[j] + (one - numbers.beta1) * g
            moment2[j] = numbers.beta2 * moment2[j] + (one - numbers.beta2) * g * g
            g = moment1[j] * unbias1 / (np.sqrt(moment2[j] * unbias2) + numbers.epsilon)
        e[j] -= numbers.user_rate * g


@fused
def user_state(e, moment1, moment2, steps, B, flags):
    """e_u^0 with its optimizer state, its own or a fresh one, and B."""
    if flags.kept:
        return e, moment1, moment2, steps, B
    return e, np.zeros_like(e), np.zeros_like(e), np.zeros(1, np.int64), B


@inlined
def add_row(slope, f_users, u, decay, x, t, weight, pulls, numbers, sums):
    """Adds one user's finished, clipped and rounded SGD step on one item; how many words the clip cut."""
    to_steps, bound, over = -numbers.item_rate * numbers.per_step, numbers.bound, numbers.p - numbers.p
    for j in range(x.shape[1]):
        moved = np.rint(to_steps * (slope * f_users[u, j] + decay * x[t, j] + weight * pulls[u, j]))
        over += x.dtype.type(abs(moved) > bound)
        sums[t, j] += sums.dtype.type(min(max(moved, -bound), bound))
    return over


@inlined
def add_small_row(slope, f_users, u, decay, x, t, numbers, sums):
    """`add_row` for a row without pull that no clip can touch: what nearly every negative is."""
    to_steps = -numbers.item_rate * numbers.per_step
    for j in range(x.shape[1]):
        sums[t, j] += sums.dtype.type(np.rint(to_steps * (slope * f_users[u, j] + decay * x[t, j])))


@inlined
def add_difference(weight, old, new, u, k, per_step, bound, sums, t):
    """Adds what one user's standing contribution to one latent row changed by; how many words the clip cut."""
    over = per_step - per_step
    for j in range(new.shape[2]):
        before, after = np.rint(weight * old[u, k, j] * per_step), np.rint(weight * new[u, k, j] * per_step)
        over += new.dtype.type(abs(after) > bound)
        before, after = min(max(before, -bound), bound), min(max(after, -bound), bound)
        sums[k, t, j] += sums.dtype.type(after) - sums.dtype.type(before)
    return over


@fused
def one_step(key, P, rows, y, g, user, f_table, numbers, flags, f_u, pull):
    """τ = 1 with SGD on the items: every item's gradient is g_t·p·f_u + λx_t (+ w_ut·pull), so three numbers tell it.

    g holds c_t on the way in and the slopes on the way out; f_u and pull = live·∂L/∂f_u are filled in.
    """
    e, B = user[0], user[4]
    m, d, p = len(rows), len(e), numbers.p
    for j in range(d):
        f_u[j] = p * e[j] + B[j]
    for i in range(m):
        t, score = rows[i], g[i]
        for j in range(d):
            score += f_table[t, j] * f_u[j]
        g[i] = score
    slopes(g, key, 0, P, y, flags)
    grad_f = np.zeros_like(e)
    for i in range(m):
        t, slope = rows[i], g[i]
        for j in range(d):
            grad_f[j] += slope * f_table[t, j]
    for j in range(d):
        pull[j] = numbers.live * grad_f[j]
    if m:
        move_user(user, grad_f, penalties(e.dtype.type, P, m, numbers, flags)[0], numbers, flags)


@fused
def many_steps(key, P, rows, w, y, c, user, x0, f_table, numbers, flags, scratch, sums):
    """Any τ, SGD or Adam on the items: the user's rows are copied once and stay in cache."""
    e, B = user[0], user[4]
    m, d, p, real = len(rows), len(e), numbers.p, e.dtype.type
    one = real(1)
    x, a = scratch[0], scratch[1]
    for i in range(m):
        for j in range(d):
            x[i, j] = x0[rows[i], j]
            a[i, j] = f_table[rows[i], j] - p * x[i, j]
    if flags.item_adam:
        m1, m2 = scratch[2], scratch[3]
        m1[:m], m2[:m] = 0, 0
    user_decay, positive_decay, negative_decay = penalties(e.dtype.type, P, m, numbers, flags)
    drift, grad_f, g = np.zeros_like(e), np.empty_like(e), np.empty(m, e.dtype)
    for step in range(flags.steps):
        f_u = p * e + B + numbers.live * drift
        for i in range(m):
            score = c[i]
            for j in range(d):
                score += (p * x[i, j] + a[i, j]) * f_u[j]
            g[i] = score
        slopes(g, key, step, P, y, flags)
        grad_f[:] = 0
        for i in range(m):
            for j in range(d):
                grad_f[j] += g[i] * (p * x[i, j] + a[i, j])
        rate1 = real(numbers.item_rate / (1 - numbers.beta1 ** (step + 1)))
        unbias2 = real(1 / (1 - numbers.beta2 ** (step + 1)))
        drift[:] = 0
        for i in range(m):
            slope, decay = p * g[i], positive_decay if i < P else negative_decay
            pull = numbers.live * w[i] if i < P else real(0)
            if flags.item_adam:
                for j in range(d):
                    grad = slope * f_u[j] + decay * x[i, j] + pull * grad_f[j]
                    m1[i, j] = numbers.beta1 * m1[i, j] + (one - numbers.beta1) * grad
                    m2[i, j] = numbers.beta2 * m2[i, j] + (one - numbers.beta2) * grad * grad
                    x[i, j] -= rate1 * m1[i, j] / (np.sqrt(m2[i, j] * unbias2) + numbers.epsilon)
            else:
                for j in range(d):
                    x[i, j] -= numbers.item_rate * (slope * f_u[j] + decay * x[i, j] + pull * grad_f[j])
            if i < P:
                for j in range(d):
                    drift[j] += w[i] * (x[i, j] - x0[rows[i], j])
        move_user(user, grad_f, user_decay, numbers, flags)
    cut, bound = real(0), numbers.bound
    for i in range(m):
        t = rows[i]
        for j in range(d):
            moved = np.rint((x[i, j] - x0[t, j]) * numbers.per_step)
            cut += real(abs(moved) > bound)
            sums[t, j] += sums.dtype.type(min(max(moved, -bound), bound))
    return np.int64(cut)
