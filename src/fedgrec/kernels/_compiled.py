"""All that Numba compiles, in one file: its cache on disk notices changes in a function's own file only.

Three parts, each calling those above it: the draws of `fedgrec.draws`, word for word; one user's local training, which
follows reference.local_problem, local_steps and gradients line by line with the same names; and the parallel loops over
users and items, in which no two threads ever write to the same word.

`f_table` holds f_t = p·e_t^0 + a_t of every item. Inner loops index whole tables and never take a row as an array of
its own: Numba counts references to such views with atomic operations, which cost more than the arithmetic.
"""

from typing import Any, NamedTuple

import numba as nb
import numpy as np

from fedgrec.draws import FEISTEL_M, PHILOX_M, PHILOX_W, Purpose

# Sums may be reassociated and a division by zero gives infinity, so that loops vectorise; NaN keeps its meaning, so
# divergence is seen.
FAST = {"reassoc", "contract", "arcp", "nsz"}
fused = nb.njit(cache=True, fastmath=FAST, error_model="numpy")
# For loop bodies: a call hands over every field of every array, which costs more than a row of arithmetic.
inlined = nb.njit(cache=True, fastmath=FAST, error_model="numpy", inline="always")
threaded = nb.njit(parallel=True, cache=True, fastmath=FAST, error_model="numpy")

# --------------------------------------------------------------------------------------------------- draws
# Every constant is uint64: mixed with a signed integer, Numba would fall back to floating point.

U = np.uint64
LOW, SHIFT = U(0xFFFFFFFF), U(32)
M0, M1, W0, W1 = U(PHILOX_M[0]), U(PHILOX_M[1]), U(PHILOX_W[0]), U(PHILOX_W[1])
F0, F1 = U(FEISTEL_M[0]), U(FEISTEL_M[1])
NEGATIVES, PAIRS, POSITIVES = U(Purpose.NEGATIVES), U(Purpose.PAIRS), U(Purpose.POSITIVES)
FEEDBACK = U(Purpose.FEEDBACK)


@fused
def philox(key, slot, step, round_, purpose):
    k0, k1 = key & LOW, key >> SHIFT
    c0, c1, c2, c3 = U(slot) & LOW, U(step), U(round_), U(purpose)
    for _ in range(10):
        p0, p1 = M0 * c0, M1 * c2
        c0, c1, c2, c3 = (p1 >> SHIFT) ^ c1 ^ k0, p1 & LOW, (p0 >> SHIFT) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
    return c0, c1, c2, c3


@fused
def mix(half, key):
    h = ((half ^ key) * F0) & LOW
    h ^= h >> U(15)
    h = (h * F1) & LOW
    return h ^ (h >> U(13))


@fused
def permuted(out, size, key, round_, purpose):
    """Fills `out` with where the keyed permutation of 0..size−1 sends 0, 1, 2, ..."""
    n_columns = max(np.int64(np.sqrt(size)), 1)
    while n_columns * n_columns < size:
        n_columns += 1
    n_rows = (size + n_columns - 1) // n_columns
    k0, k1, k2, k3 = philox(key, 0, 0, round_, purpose)
    k4, _, _, _ = philox(key, 1, 0, round_, purpose)
    offset = np.int64((k4 * U(size)) >> SHIFT)
    start_row, start_column = 0, 0
    for i in range(len(out)):
        row, column = start_row, start_column
        while True:
            row = turned(row, column, k0, n_rows)
            column = turned(column, row, k1, n_columns)
            row = turned(row, column, k2, n_rows)
            column = turned(column, row, k3, n_columns)
            value = row * n_columns + column
            if value < size:
                break
        out[i] = value + offset - (size if value + offset >= size else 0)
        start_column += 1
        if start_column == n_columns:
            start_row, start_column = start_row + 1, 0


@fused
def turned(half, other, key, bound):
    """half + F(other) modulo bound."""
    moved = half + np.int64((mix(U(other), key) * U(bound)) >> SHIFT)
    return moved - (bound if moved >= bound else 0)


@fused
def draw_negatives(out, key, round_, positives, n_items):
    """Distinct non-positives: the rank among non-positives, then skip the positives before it."""
    P = len(positives)
    permuted(out, n_items - P, key, round_, NEGATIVES)
    half = 1
    while 2 * half <= P:
        half *= 2
    for i in range(len(out)):
        rank, before, step = out[i], 0, half
        while step and P:  # a binary search whose length depends on P alone, so it is never mispredicted
            last = min(before + step, P) - 1
            before = last + 1 if positives[last] - last <= rank else before
            step //= 2
        out[i] = rank + before


# ------------------------------------------------------------------------------------------------ one user


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
    feedback: int
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
    if flags.mse:
        scale = real(2 / m if flags.mean else 2)
        for i in range(m):
            g[i] = scale * (g[i] - (y[i] if i < P else real(0)))
        return
    n = m - P
    partner, negative = np.empty((n + 3) // 4 * 4, np.int32), g[P:]
    for block in range((n + 3) // 4):
        words = philox(key, block, step, flags.round, PAIRS)
        for lane in range(4):
            partner[4 * block + lane] = np.int32((words[lane] * U(P)) >> SHIFT)
    for i in range(n):
        negative[i] = g[partner[i]] - negative[i]
    scale = real(1 / n if flags.mean else 1)
    if g.itemsize == 4:
        for i in range(n):
            negative[i] = scale / (one32 + exp32(negative[i]))
    else:
        for i in range(n):
            negative[i] = scale / (1 + np.exp(negative[i]))
    g[:P] = 0
    for i in range(n):
        g[partner[i]] -= negative[i]


one32, log2_e = np.float32(1), np.float32(1.4426950408889634)
ln2_high, ln2_low = (
    np.float32(0.693359375),
    np.float32(-2.12194440e-4),
)  # ln 2 in two parts: x − n·ln 2 stays exact
c2, c3, c4, c5, c6 = (np.float32(1 / k) for k in (2, 6, 24, 120, 720))


@inlined
def exp32(x):
    """exp in float32 to 2e-7, written out so that loops over it vectorise (a library call would not)."""
    x = min(max(x, np.float32(-87)), np.float32(88))
    n = np.rint(x * log2_e)
    r = x - n * ln2_high - n * ln2_low
    fraction = ((((c6 * r + c5) * r + c4) * r + c3) * r + c2) * r * r + r + one32
    return fraction * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@fused
def penalties(real, P, m, numbers, flags):
    """λ for the user, for a positive and for a negative, as reference.penalties."""
    l2 = numbers.l2
    if flags.per_row:
        return l2, l2, l2
    terms = m if flags.mse else m - P
    whole = l2 * (1 if flags.mean else terms)
    return real(whole), real(whole / P), real(whole / max(m - P, 1))


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
    x, f = scratch[0], scratch[1]  # [m, d] each: the local item rows, and f_t = p·x_t + a_t beside them
    for i in range(m):
        t = rows[i]
        for j in range(d):
            x[i, j] = x0[t, j]
            f[i, j] = f_table[t, j]
    if flags.item_adam:
        for i in range(m):
            for j in range(d):
                scratch[2, i, j] = scratch[3, i, j] = 0
    user_decay, positive_decay, negative_decay = penalties(real, P, m, numbers, flags)
    drift, grad_f, pulled, g = np.zeros_like(e), np.empty_like(e), np.empty_like(e), np.empty(m, e.dtype)
    for step in range(flags.steps):
        f_u = p * e + B + numbers.live * drift
        for i in range(m):
            score = c[i]
            for j in range(d):
                score += f[i, j] * f_u[j]
            g[i] = score
        slopes(g, key, step, P, y, flags)
        weighted_sum(g, f, grad_f)
        rate = adam_rate(numbers.item_rate, step + 1, numbers) if flags.item_adam else numbers.item_rate
        epsilon = adam_epsilon(step + 1, numbers)
        for i in range(P):
            for j in range(d):
                pulled[j] = p * g[i] * f_u[j] + numbers.live * w[i] * grad_f[j]
            move_item(i, real(1), pulled, positive_decay, rate, epsilon, numbers, flags, scratch)
        for i in range(P, m):
            move_item(i, p * g[i], f_u, negative_decay, rate, epsilon, numbers, flags, scratch)
        move_user(user, grad_f, user_decay, numbers, flags)
        if numbers.live:
            drift[:] = 0
            for i in range(P):
                for j in range(d):
                    drift[j] += w[i] * (x[i, j] - x0[rows[i], j])
    for i in range(P):
        if withheld(key, i, flags):
            for j in range(d):
                x[i, j] = x0[rows[i], j]
    return round_and_add(rows, x, x0, numbers, sums)


@fused
def withheld(key, i, flags):
    """Whether the update of the i-th positive stays at home this round, see draws.feedback."""
    if flags.feedback > LOW:
        return False
    words = philox(key, i // 4, 0, flags.round, FEEDBACK)
    return words[i % 4] >= U(flags.feedback)


@fused
def weighted_sum(g, f, total):
    """Σ_i g_i f_i, four rows at a time so that the total is loaded and stored less often."""
    m, d = len(g), len(total)
    total[:] = 0
    for block in range(m // 4):
        i = 4 * block
        g0, g1, g2, g3 = g[i], g[i + 1], g[i + 2], g[i + 3]
        for j in range(d):
            total[j] += (g0 * f[i, j] + g1 * f[i + 1, j]) + (g2 * f[i + 2, j] + g3 * f[i + 3, j])
    for i in range(m // 4 * 4, m):
        for j in range(d):
            total[j] += g[i] * f[i, j]


@fused
def adam_rate(rate, step, numbers):
    """Adam's two bias corrections as one rate: rate·m̂/(√v̂ + ε) = adam_rate·m/(√v + adam_epsilon)."""
    return type(rate)(rate * np.sqrt(1 - numbers.beta2**step) / (1 - numbers.beta1**step))


@fused
def adam_epsilon(step, numbers):
    return type(numbers.epsilon)(numbers.epsilon * np.sqrt(1 - numbers.beta2**step))


@inlined
def move_item(i, slope, direction, decay, rate, epsilon, numbers, flags, scratch):
    """One optimizer step of one local item row (scratch: x, f, and Adam's moments)."""
    p, d = numbers.p, scratch.shape[2]
    if flags.item_adam:
        beta1, beta2 = numbers.beta1, numbers.beta2
        rest1, rest2 = scratch.dtype.type(1) - beta1, scratch.dtype.type(1) - beta2
        for j in range(d):
            grad = slope * direction[j] + decay * scratch[0, i, j]
            first = beta1 * scratch[2, i, j] + rest1 * grad
            second = beta2 * scratch[3, i, j] + rest2 * grad * grad
            moved = rate * first / (np.sqrt(second) + epsilon)
            scratch[2, i, j] = first
            scratch[3, i, j] = second
            scratch[0, i, j] -= moved
            scratch[1, i, j] -= p * moved
    else:
        for j in range(d):
            moved = rate * (slope * direction[j] + decay * scratch[0, i, j])
            scratch[0, i, j] -= moved
            scratch[1, i, j] -= p * moved


@fused
def round_and_add(rows, x, x0, numbers, sums):
    """Adds how far each row moved, clipped and rounded; how many words the clip cut."""
    cut, bound, real = numbers.p - numbers.p, numbers.bound, x.dtype.type
    for i in range(len(rows)):
        t = rows[i]
        for j in range(x.shape[1]):
            moved = np.rint((x[i, j] - x0[t, j]) * numbers.per_step)
            cut += real(abs(moved) > bound)
            sums[t, j] += sums.dtype.type(min(max(moved, -bound), bound))
    return np.int64(cut)


# --------------------------------------------------------------------------------------------------- loops


@threaded
def refresh(indptr, at, weights, tables, latents):
    for u in nb.prange(len(latents)):
        for i in range(indptr[u], indptr[np.int64(u) + 1]):
            t, weight = at[i], weights[i]
            for k in range(tables.shape[0]):
                for j in range(tables.shape[2]):
                    latents[u, k, j] += weight * tables[k, t, j]


@threaded
def push(order, first, owner, weights, old, new, per_step, bound, values, cut):
    for t_ in nb.prange(len(first) - 1):
        t, over = np.int64(t_), new.dtype.type(0)
        for k in range(new.shape[1]):
            for place in range(first[t], first[t + 1]):
                edge = order[place]
                u = owner[edge]
                over += add_difference(weights[edge], old, new, u, k, per_step, bound, values, t)
        cut[t] = np.int64(over)


@threaded
def user_slopes(
    keys,
    indptr,
    items,
    weights,
    targets,
    embeddings,
    moment1,
    moment2,
    steps,
    B,
    latents,
    tables,
    f_table,
    numbers,
    flags,
    rows,
    g,
    w,
    f_users,
    pulls,
    counts,
    decays,
):
    for u_ in nb.prange(len(keys)):
        u = np.int64(u_)
        mine = slice(indptr[u], indptr[u + 1])
        found, chosen = choose_rows(keys[u], items[mine], tables.shape[1], flags)
        P, m = min(len(chosen), len(found)), len(found)
        counts[u, 0], counts[u, 1] = P, m
        _, decays[u, 0], decays[u, 1] = penalties(g.dtype.type, P, m, numbers, flags)
        rows[u, :m], w[u, :P] = found, weights[mine][chosen]
        g[u, :m] = constants(found, latents[u], tables, flags)
        user = user_state(embeddings[u, 0], moment1[u], moment2[u], steps[u : u + 1], B[u], flags)
        one_step(
            keys[u],
            P,
            found,
            targets[mine][chosen],
            g[u, :m],
            user,
            f_table,
            numbers,
            flags,
            f_users[u],
            pulls[u],
        )
        for i in range(P):
            if withheld(keys[u], i, flags):
                rows[u, i] = -1


@fused
def by_item(rows, counts, n_items):
    """Where each item occurs in `rows`, item by item: a counting sort."""
    first = np.zeros(n_items + 1, np.int64)
    for u in range(len(rows)):
        for i in range(counts[u, 1]):
            if rows[u, i] >= 0:
                first[rows[u, i] + 1] += 1
    for t in range(n_items):
        first[t + 1] += first[t]
    at = first.copy()
    who, where = np.empty(first[n_items], np.int32), np.empty(first[n_items], np.int32)
    for u in range(len(rows)):
        for i in range(counts[u, 1]):
            t = rows[u, i]
            if t >= 0:  # others stay at home
                who[at[t]], where[at[t]] = u, i
                at[t] += 1
    return who, where, first


@threaded
def gradients(x, who, where, first, g, w, f_users, reaches, pulls, counts, decays, numbers, sums, cut):
    real, limit = x.dtype.type, numbers.bound / (numbers.item_rate * numbers.per_step)
    for t_ in nb.prange(x.shape[0]):
        t, over = np.int64(t_), real(0)
        for j in range(sums.shape[1]):
            sums[t, j] = 0
        reach = limit - limit
        for j in range(x.shape[1]):
            reach = max(reach, abs(x[t, j]))
        for entry in range(first[t], first[t + 1]):
            u, i = who[entry], where[entry]
            slope = numbers.p * g[u, i]
            if i < counts[u, 0]:
                over += add_row(slope, f_users, u, decays[u, 0], x, t, w[u, i], pulls, numbers, sums)
            elif abs(slope) * reaches[u] + decays[u, 1] * reach < limit:
                add_small_row(slope, f_users, u, decays[u, 1], x, t, numbers, sums)
            else:
                over += add_row(slope, f_users, u, decays[u, 1], x, t, real(0), pulls, numbers, sums)
        cut[t] = np.int64(over)


@threaded
def train_users(
    keys,
    indptr,
    items,
    weights,
    targets,
    embeddings,
    moment1,
    moment2,
    steps,
    B,
    latents,
    tables,
    f_table,
    numbers,
    flags,
    scratch,
    sums,
    cut,
):
    for u_ in nb.prange(len(keys)):
        u, thread = np.int64(u_), nb.get_thread_id()
        mine = slice(indptr[u], indptr[u + 1])
        rows, chosen = choose_rows(keys[u], items[mine], tables.shape[1], flags)
        if len(rows):
            user = user_state(embeddings[u, 0], moment1[u], moment2[u], steps[u : u + 1], B[u], flags)
            c = constants(rows, latents[u], tables, flags)
            cut[u] = many_steps(
                keys[u],
                len(chosen),
                rows,
                weights[mine][chosen],
                targets[mine][chosen],
                c,
                user,
                tables[0],
                f_table,
                numbers,
                flags,
                scratch[thread],
                sums[thread],
            )


@threaded
def add_up(sums):
    for t in nb.prange(sums.shape[1]):
        for thread in range(1, sums.shape[0]):
            for j in range(sums.shape[2]):
                sums[0, t, j] += sums[thread, t, j]


@threaded
def combine(alpha, tables, f_table):
    for t in nb.prange(f_table.shape[0]):
        for j in range(f_table.shape[1]):
            f_table[t, j] = alpha[0] * tables[0, t, j]
        for k in range(1, len(alpha)):
            for j in range(f_table.shape[1]):
                f_table[t, j] += alpha[k] * tables[k, t, j]


@threaded
def server_adam(x, m, v, where, values, step, rate, unbias2, beta1, beta2, epsilon):
    one = x.dtype.type(1)
    for t in nb.prange(x.shape[0]):
        row = where[t]
        for j in range(x.shape[1]):
            g = -step * values[row, j] if row >= 0 else x.dtype.type(0)
            m[t, j] = beta1 * m[t, j] + (one - beta1) * g
            v[t, j] = beta2 * v[t, j] + (one - beta2) * g * g
            x[t, j] -= rate * m[t, j] / (np.sqrt(v[t, j] * unbias2) + epsilon)


@threaded
def add_rows(table, index, values, scale):
    for i in nb.prange(len(index)):
        for j in range(table.shape[1]):
            table[index[i], j] += scale * values[i, j]
