# mypy: ignore-errors
"""The loops of `neumf_cpu`, compiled; they follow `neumf` with the same names.

Hidden units are laid out as [unit, LANES]: a user's items go through the network LANES at a time, and every inner loop
runs along items or along dimensions. Each thread adds finished, rounded rows to its own sums, and a user's arithmetic
does not depend on the other users of the cohort.
"""

from typing import Any, NamedTuple

import numpy as np

from fedgrec.kernels._draws_numba import ZERO, U, draw_negatives
from fedgrec.kernels._numba import add_product, fused, inlined, released, threaded

LANES, WIDE = 64, 128  # in training, where a last block may be half empty, and in ranking


class Numbers(NamedTuple):
    """Real options in the precision of training."""

    l2: Any
    item_rate: Any
    user_rate: Any
    beta1: Any
    beta2: Any
    epsilon: Any
    per_step: Any
    bound: Any
    per_theta_step: Any
    theta_bound: Any


class Flags(NamedTuple):
    """Whole and yes-or-no options."""

    steps: int
    mean: bool
    item_adam: bool
    user_adam: bool
    direct: bool  # a row's only step goes straight into the sums


class Desk(NamedTuple):
    """What a thread works on."""

    x: Any  # [4, LANES, d]: local rows of a block, q and q', and their gradients
    f_1: Any  # [LANES, H_1]
    f: Any  # [units, LANES]: f_1 .. f_L
    delta: Any  # [units, LANES]: δ_1 .. δ_L
    turned: Any  # [LANES·units of the widest layer]: one f_l on its side
    g: Any  # [LANES]
    theta: Any  # [5, |Θ|]: the local Θ, its gradient, its movement and moments
    moved: Any  # [1 or 3, m, 2, d]: movement of the user's rows, and moments


# -------------------------------------------------------------------------------------------- parts of Θ


@fused
def ends(theta, d, hidden):
    """W_p, W_q, h_g and h_m."""
    H = hidden[0]
    W_p, W_q = theta[: H * d].reshape(H, d), theta[H * d : 2 * H * d].reshape(H, d)
    last = 2 * H * d + d
    return W_p, W_q, theta[2 * H * d : last], theta[last : last + hidden[-1]]


@fused
def layer(theta, d, hidden, level):
    """b_l, and W_l where it is not the first."""
    at = (2 * hidden[0] + 1) * d + hidden[-1]
    start = at + hidden[:level].sum()
    bias, at = theta[start : start + hidden[level]], at + hidden.sum()
    for below in range(1, level):
        at += hidden[below] * hidden[below - 1]
    into = hidden[level - 1] if level else 0
    return bias, theta[at : at + hidden[level] * into].reshape(hidden[level], into)


# --------------------------------------------------------------------------------- LANES items at a time


@fused
def gather(rows, first, n, tables, projected, step, W_qT, of_user, desk):
    """Local rows and f_1 of a block; the last block is filled up with its last row, at slope 0."""
    x, f_1, f, zero = desk.x, desk.f_1, desk.f, desk.g.dtype.type(0)
    for i in range(LANES):
        place = first + min(i, n - 1)
        t = rows[place]
        for half in range(2):
            for j in range(x.shape[2]):
                x[half, i, j] = tables[half, t, j]
            if step:
                for j in range(x.shape[2]):
                    x[half, i, j] += desk.moved[0, place, half, j]
        for k in range(f_1.shape[1]):
            f_1[i, k] = zero if step else projected[t, k]
    if step:
        add_product(x[1], W_qT, f_1)
    for i in range(LANES):
        for k in range(f_1.shape[1]):
            f_1[i, k] = max(f_1[i, k] + of_user[k], zero)
            f[k, i] = f_1[i, k]


@fused
def upwards(theta, d, hidden, f):
    """f_2 .. f_L from f_1."""
    start = 0
    for level in range(1, len(hidden)):
        b, W = layer(theta, d, hidden, level)
        end = start + hidden[level - 1]
        out = f[end : end + hidden[level]]
        for o in range(len(out)):
            for i in range(f.shape[1]):
                out[o, i] = b[o]
        add_product(W, f[start:end], out)
        for o in range(len(out)):
            for i in range(f.shape[1]):
                out[o, i] = max(out[o, i], theta.dtype.type(0))
        start = end


@fused
def slopes(weighted, h_m, first, n, P, each, desk):
    """g_i of a block."""
    g, top, one = desk.g, desk.f[len(desk.f) - len(h_m) :], desk.g.dtype.type(1)
    for i in range(LANES):
        score = one - one
        for j in range(len(weighted)):
            score += weighted[j] * desk.x[0, i, j]
        g[i] = score
    for o in range(len(h_m)):
        for i in range(LANES):
            g[i] += h_m[o] * top[o, i]
    for i in range(LANES):
        y = one if first + i < P else one - one
        g[i] = each * (one / (one + np.exp(-g[i])) - y) if i < n else one - one


@fused
def downwards(theta, grad, d, hidden, h_m, by_h_m, desk):
    """δ_L .. δ_1 of a block, and the gradients of the network above its first layer."""
    f, delta, g, zero = desk.f, desk.delta, desk.g, desk.g.dtype.type(0)
    start = hidden[:-1].sum()
    for o in range(len(h_m)):
        total = zero
        for i in range(LANES):
            total += g[i] * f[start + o, i]
            delta[start + o, i] = g[i] * h_m[o] if f[start + o, i] > zero else zero
        by_h_m[o] += total
    for level in range(len(hidden) - 1, 0, -1):
        W = layer(theta, d, hidden, level)[1]
        by_b, by_W = layer(grad, d, hidden, level)
        n_in = hidden[level - 1]
        low, mine = start - n_in, delta[start : start + hidden[level]]
        turned = desk.turned[: LANES * n_in].reshape(LANES, n_in) if level > 1 else desk.f_1
        for k in range(n_in):
            for i in range(LANES):
                delta[low + k, i] = zero
                if level > 1:
                    turned[i, k] = f[low + k, i]
        add_sums(mine, by_b)
        add_product(mine, turned, by_W)
        add_product(W.T, mine, delta[low:start])
        for k in range(low, start):
            for i in range(LANES):
                delta[k, i] = delta[k, i] if f[k, i] > zero else zero
        start = low


@fused
def add_sums(delta, out):
    """out += Σ_i δ_i"""
    for k in range(len(delta)):
        total = out.dtype.type(0)
        for i in range(LANES):
            total += delta[k, i]
        out[k] += total


@fused
def row_gradients(weighted, W_q, by_W_q, by_user, pull, decay, desk):
    """The gradients of a block's rows, and what the block adds to that of W_q, to Σ δ_1 and to Σ g_i q_i."""
    x, g, delta = desk.x, desk.g, desk.delta[: len(W_q)]
    add_sums(delta, by_user)
    add_product(delta, x[1], by_W_q)
    for i in range(LANES):
        for j in range(len(weighted)):
            pull[j] += g[i] * x[0, i, j]
            x[2, i, j] = g[i] * weighted[j] + decay * x[0, i, j]
            x[3, i, j] = decay * x[1, i, j]
    add_product(delta.T, W_q, x[3])


@fused
def move_rows(rows, first, n, step, numbers, flags, desk, sums):
    """One optimizer step of a block's rows; their only step is also rounded and added. How many words the clip cut."""
    cut, moved, N = 0, desk.moved, len(sums) // 2
    for half in range(2):
        x = desk.x[2 + half]
        if flags.direct:
            scale = -numbers.item_rate * numbers.per_step
            cut += add_rows(rows[first : first + n], half * N, x, scale, numbers.bound, sums)
            continue
        for i in range(n):
            row, last = first + i, len(moved) - 1
            m, v = moved[min(1, last), row, half], moved[last, row, half]
            move(moved[0, row, half], x[i], m, v, step + 1, numbers.item_rate, numbers, flags.item_adam)
    return cut


@fused
def add_rows(rows, offset, x, scale, bound, sums):
    """Adds finished rows; how many words the clip cut."""
    over = x.dtype.type(0)
    for i in range(len(rows)):
        row = rows[i] + offset
        for j in range(x.shape[1]):
            word = np.rint(x[i, j] * scale)
            over += x.dtype.type(abs(word) > bound)
            sums[row, j] += sums.dtype.type(min(max(word, -bound), bound))
    return np.int64(over)


@fused
def move(x, grad, m, v, t, rate, numbers, adam):
    """One optimizer step of a row."""
    one, real = x.dtype.type(1), x.dtype.type
    if not adam:
        for j in range(len(x)):
            x[j] -= rate * grad[j]
        return
    unbias1, unbias2 = real(1 / (1 - numbers.beta1**t)), real(1 / (1 - numbers.beta2**t))
    for j in range(len(x)):
        m[j] = numbers.beta1 * m[j] + (one - numbers.beta1) * grad[j]
        v[j] = numbers.beta2 * v[j] + (one - numbers.beta2) * grad[j] * grad[j]
        x[j] -= rate * m[j] * unbias1 / (np.sqrt(v[j] * unbias2) + numbers.epsilon)


# ------------------------------------------------------------------------------------------------ one user


@inlined
def gradients(step, rows, P, e, by_e, tables, projected, theta, grad, hidden, decay, numbers, flags, desk, sums):
    """Adds the gradients of Θ and e; moves the rows, or adds their only step to the sums. How many words a clip cut."""
    m, d, real, cut = len(rows), tables.shape[2], theta.dtype.type, 0
    each = real(1 / m) if flags.mean else real(1)
    W_p, W_q, h_g, h_m = ends(theta, d, hidden)
    by_W_p, by_W_q, by_h_g, by_h_m = ends(grad, d, hidden)
    of_user, by_user = layer(theta, d, hidden, 0)[0].copy(), np.zeros(len(W_p), theta.dtype)  # W_p p' + b_1, Σ δ_1
    weighted, pull, W_qT = h_g * e[0], np.zeros_like(h_g), np.ascontiguousarray(W_q.T)  # h_g ⊙ p, Σ g_i q_i
    for k in range(len(W_p)):
        for j in range(d):
            of_user[k] += W_p[k, j] * e[1, j]
    for first in range(0, m, LANES):
        n = min(LANES, m - first)
        gather(rows, first, n, tables, projected, step, W_qT, of_user, desk)
        upwards(theta, d, hidden, desk.f)
        slopes(weighted, h_m, first, n, P, each, desk)
        downwards(theta, grad, d, hidden, h_m, by_h_m, desk)
        row_gradients(weighted, W_q, by_W_q, by_user, pull, decay, desk)
        cut += move_rows(rows, first, n, step, numbers, flags, desk, sums)
    by_b = layer(grad, d, hidden, 0)[0]
    for j in range(d):
        by_h_g[j] += e[0, j] * pull[j]
        by_e[0, j] += h_g[j] * pull[j]
    for k in range(len(W_p)):
        by_b[k] += by_user[k]
        for j in range(d):
            by_W_p[k, j] += by_user[k] * e[1, j]
            by_e[1, j] += by_user[k] * W_p[k, j]
    return cut


@inlined
def local_steps(rows, P, user, tables, projected, theta, hidden, numbers, flags, desk, sums, of_theta):
    """τ steps of one user; its rows and Θ are rounded and added to the sums. How many words the clips cut."""
    e, moment1, moment2, steps = user
    m, real, cut, by_e = len(rows), theta.dtype.type, 0, np.empty_like(e)
    now, grad, moved = desk.theta[0], desk.theta[1], desk.theta[2]
    decay = real(numbers.l2 / m) if flags.mean else numbers.l2
    desk.theta[2:].fill(real(0))
    if not flags.direct:
        desk.moved.fill(real(0))
    for step in range(flags.steps):
        for j in range(len(theta)):
            now[j] = theta[j] + moved[j]
            grad[j] = real(decay * m) * now[j]
        for half in range(2):
            for j in range(e.shape[1]):
                by_e[half, j] = real(decay * m) * e[half, j]
        cut += gradients(
            step, rows, P, e, by_e, tables, projected, now, grad, hidden, decay, numbers, flags, desk, sums
        )
        move(moved, grad, desk.theta[3], desk.theta[4], step + 1, numbers.item_rate, numbers, flags.item_adam)
        steps[0] += flags.user_adam
        for half in range(2):
            m_u, v_u = moment1[half], moment2[half]
            move(e[half], by_e[half], m_u, v_u, steps[0], numbers.user_rate, numbers, flags.user_adam)
    if not flags.direct:
        for half in range(2):
            cut += add_rows(
                rows, half * (len(sums) // 2), desk.moved[0, :, half], numbers.per_step, numbers.bound, sums
            )
    zeroth = np.zeros(1, np.int64)
    return cut + add_rows(
        zeroth, 0, moved.reshape(1, -1), numbers.per_theta_step, numbers.theta_bound, of_theta.reshape(1, -1)
    )


# --------------------------------------------------------------------------------------------------- loops


@released
def train_users(first_user, last_user, problems, users, items, network, numbers, flags, desk, sums):
    """Some users, one after the other."""
    rows, first, positives = problems
    e, moment1, moment2, steps = users
    total, of_theta = sums
    cut = 0
    for u in range(first_user, last_user):
        if positives[u]:
            mine, user = slice(first[u], first[u + 1]), (e[u], moment1[u], moment2[u], steps[u : u + 1])
            cut += local_steps(
                rows[mine], positives[u], user, items[0], items[1], network[0], network[1], numbers, flags, desk, total,
                of_theta,
            )  # fmt: skip
    return cut


@threaded
def draw_rows(begin, end, keys, indptr, items, round_, n_items, first, rows):
    for u in range(begin, end):
        positives, mine = items[indptr[u] : indptr[u + 1]], rows[first[u] : first[u + 1]]
        if len(positives):
            for i in range(len(positives)):
                mine[i] = positives[i]
            draw_negatives(mine[len(positives) :], keys[u], U(round_), positives, n_items, ZERO)


@threaded
def project(begin, end, x, W_qT, out):
    """out += x W_qᵀ"""
    for block in range(begin, end):
        mine = slice(block * LANES, (block + 1) * LANES)
        add_product(x[mine], W_qT, out[mine])


@threaded
def add_network(begin, end, of_users, blocks, theta, hidden, d, out):
    """Adds the network's part to every score."""
    H, zero = hidden[0], theta.dtype.type(0)
    for block in range(begin, end):
        f, s = np.empty((hidden.sum(), WIDE), theta.dtype), np.empty(WIDE, theta.dtype)
        h_m = ends(theta, d, hidden)[3]
        for u in range(len(out)):
            for k in range(H):
                for i in range(WIDE):
                    f[k, i] = max(of_users[u, k] + blocks[block, k, i], zero)
            upwards(theta, d, hidden, f)
            top = len(f) - len(h_m)
            for i in range(WIDE):
                s[i] = zero
            for o in range(len(h_m)):
                for i in range(WIDE):
                    s[i] += h_m[o] * f[top + o, i]
            for i in range(min(WIDE, out.shape[1] - block * WIDE)):
                out[u, block * WIDE + i] += s[i]
