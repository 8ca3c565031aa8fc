"""One user's local training in Numba, called by `cpu` for every user of a cohort.

Follows reference.local_problem, local_steps and gradients line by line; names are the same.
"""

from typing import NamedTuple

import numba as nb
import numpy as np

from fedgrec.draws import FEISTEL_M, PHILOX_M, PHILOX_W, Purpose

# Sums may be reassociated and a division by zero gives infinity, so that loops vectorise; NaN keeps its meaning, so
# divergence is seen.
FAST = {"reassoc", "contract", "arcp", "nsz"}
fused = nb.njit(cache=True, fastmath=FAST, error_model="numpy")


class Numbers(NamedTuple):
    """Real options in the precision of training."""

    p: float
    live: float
    l2: float
    item_rate: float
    user_rate: float
    beta1: float
    beta2: float
    epsilon: float
    per_step: float
    bound: float


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


# ---------------------------------------------------------------------- draws, as in fedgrec.draws
# Every constant is uint64: mixed with a signed integer, Numba would fall back to floating point.

U = np.uint64
LOW, SHIFT = U(0xFFFFFFFF), U(32)
M0, M1, W0, W1 = U(PHILOX_M[0]), U(PHILOX_M[1]), U(PHILOX_W[0]), U(PHILOX_W[1])
F0, F1 = U(FEISTEL_M[0]), U(FEISTEL_M[1])
NEGATIVES, PAIRS, POSITIVES = U(Purpose.NEGATIVES), U(Purpose.PAIRS), U(Purpose.POSITIVES)


@fused
def philox(key, slot, step, round_, purpose):  # type: ignore[no-untyped-def]
    k0, k1 = key & LOW, key >> SHIFT
    c0, c1, c2, c3 = U(slot) & LOW, U(step), U(round_), U(purpose)
    for _ in range(10):
        p0, p1 = M0 * c0, M1 * c2
        c0, c1, c2, c3 = (p1 >> SHIFT) ^ c1 ^ k0, p1 & LOW, (p0 >> SHIFT) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
    return c0, c1, c2, c3


@fused
def mix(half, key):  # type: ignore[no-untyped-def]
    h = ((half ^ key) * F0) & LOW
    h ^= h >> U(15)
    h = (h * F1) & LOW
    return h ^ (h >> U(13))


@fused
def permuted(out, size, key, round_, purpose):  # type: ignore[no-untyped-def]
    """Fills `out` with where the keyed permutation of 0..size−1 sends 0, 1, 2, ..."""
    bits = 0
    while (1 << bits) < size:
        bits += 1
    bits = max(2, bits)
    low_bits = U(bits // 2)
    low_mask, high_mask = (U(1) << low_bits) - U(1), (U(1) << U(bits - bits // 2)) - U(1)
    k0, k1, k2, k3 = philox(key, 0, 0, round_, purpose)
    k4, _, _, _ = philox(key, 1, 0, round_, purpose)
    offset = np.int64((k4 * U(size)) >> SHIFT)
    for i in range(len(out)):
        value = U(i)
        while True:
            low, high = value & low_mask, value >> low_bits
            high ^= mix(low, k0) & high_mask
            low ^= mix(high, k1) & low_mask
            high ^= mix(low, k2) & high_mask
            low ^= mix(high, k3) & low_mask
            value = (high << low_bits) | low
            if value < U(size):
                break
        turned = np.int64(value) + offset
        out[i] = turned - size if turned >= size else turned


@fused
def draw_negatives(out, key, round_, positives, n_items):  # type: ignore[no-untyped-def]
    """Distinct non-positives: the rank among non-positives, then skip the positives before it."""
    P = len(positives)
    permuted(out, n_items - P, key, round_, NEGATIVES)
    for i in range(len(out)):
        first, last = 0, P
        while first < last:
            middle = (first + last) // 2
            if positives[middle] - middle <= out[i]:
                first = middle + 1
            else:
                last = middle
        out[i] += first


# ------------------------------------------------------------------------------------- one user


@fused
def train_user(key, items, weights, targets, e, moment1, moment2, steps, B, latents, tables, a, numbers, flags,
               scratch, sums):  # type: ignore[no-untyped-def]
    """Local training of one user; adds its rounded item updates to `sums` and returns how many words were cut."""
    P, n_items, d = min(len(items), flags.max_positives), tables.shape[1], len(e)
    if P == 0:
        return 0
    chosen = np.arange(len(items))
    if P < len(items):
        chosen = np.empty(P, np.int64)
        permuted(chosen, len(items), key, flags.round, POSITIVES)
        chosen.sort()
    excluded = items if flags.exclude else items[:0]
    n = min(flags.negatives, n_items - len(excluded))
    rows = np.empty(P + n, np.int64)
    for i in range(P):
        rows[i] = items[chosen[i]]
    draw_negatives(rows[P:], key, flags.round, excluded, n_items)
    w, y = weights[chosen], targets[chosen]
    c = np.zeros(P + n, e.dtype)
    if flags.concat:
        for i in range(P + n):
            for k in range(len(latents)):
                c[i] += dot(latents[k], tables[k + 1, rows[i]])
    if not flags.kept:
        moment1, moment2, steps = np.zeros(d, e.dtype), np.zeros(d, e.dtype), np.zeros(1, np.int64)
    user = (e, moment1, moment2, steps, B)
    if flags.steps == 1 and not flags.item_adam:
        return one_step(key, P, rows, w, y, c, user, tables[0], a, numbers, flags, sums)
    return many_steps(key, P, rows, w, y, c, user, tables[0], a, numbers, flags, scratch, sums)


@fused
def dot(x, y):  # type: ignore[no-untyped-def]
    total = x.dtype.type(0)
    for j in range(len(x)):
        total += x[j] * y[j]
    return total


@fused
def slopes(g, key, step, P, y, flags):  # type: ignore[no-untyped-def]
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
def penalties(real, P, m, numbers, flags):  # type: ignore[no-untyped-def]
    """λ for the user, for a positive and for a negative, as reference.penalties."""
    l2 = numbers.l2
    if flags.per_row:
        return l2, l2, l2
    n = P if flags.mse else m - P
    whole = l2 * (1 if flags.mean else n)
    return real(whole), real(whole / P), real(whole / max(n, 1))


@fused
def move_user(user, grad_f, decay, numbers, flags):  # type: ignore[no-untyped-def]
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
def one_step(key, P, rows, w, y, c, user, x, a, numbers, flags, sums):  # type: ignore[no-untyped-def]
    """τ = 1 with SGD on the items: the update is the gradient, so nothing but the scores is ever stored."""
    e, B = user[0], user[4]
    m, d, p, real = len(rows), len(e), numbers.p, e.dtype.type
    user_decay, positive_decay, negative_decay = penalties(e.dtype.type, P, m, numbers, flags)
    f_u = p * e + B
    g = c
    for i in range(m):
        x_t, a_t = x[rows[i]], a[rows[i]]
        score = g[i]
        for j in range(d):
            score += (p * x_t[j] + a_t[j]) * f_u[j]
        g[i] = score
    slopes(g, key, 0, P, y, flags)
    grad_f = np.zeros_like(e)
    for i in range(m):
        x_t, a_t = x[rows[i]], a[rows[i]]
        for j in range(d):
            grad_f[j] += g[i] * (p * x_t[j] + a_t[j])
    cut = real(0)
    to_steps, bound = -numbers.item_rate * numbers.per_step, numbers.bound
    for i in range(m):
        x_t, total = x[rows[i]], sums[rows[i]]
        slope, decay = p * g[i], positive_decay if i < P else negative_decay
        pull = numbers.live * w[i] if i < P else real(0)
        for j in range(d):
            moved = np.rint(to_steps * (slope * f_u[j] + decay * x_t[j] + pull * grad_f[j]))
            cut += real(1) if abs(moved) > bound else real(0)
            total[j] += sums.dtype.type(min(max(moved, -bound), bound))
    move_user(user, grad_f, user_decay, numbers, flags)
    return np.int64(cut)


@fused
def many_steps(key, P, rows, w, y, c, user, x0, a0, numbers, flags, scratch, sums):  # type: ignore[no-untyped-def]
    """Any τ, SGD or Adam on the items: the user's rows are copied once and stay in cache."""
    e, B = user[0], user[4]
    m, d, p, real = len(rows), len(e), numbers.p, e.dtype.type
    one = real(1)
    x, a = scratch[0], scratch[1]
    for i in range(m):
        for j in range(d):
            x[i, j], a[i, j] = x0[rows[i], j], a0[rows[i], j]
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
        start, total = x0[rows[i]], sums[rows[i]]
        for j in range(d):
            moved = np.rint((x[i, j] - start[j]) * numbers.per_step)
            cut += real(1) if abs(moved) > bound else real(0)
            total[j] += sums.dtype.type(min(max(moved, -bound), bound))
    return np.int64(cut)
