# mypy: ignore-errors
"""One user's local training: reference.local_problem, local_steps and gradients line by line, with the same names.

`f_table` holds f_t = p·e_t^0 + a_t of every item; where scores are cosines, its direction. Inner loops index whole
tables and never take a row as an array of its own: Numba counts references to such views with atomic operations, which
cost more than the arithmetic.
"""

from typing import Any, NamedTuple

import numpy as np

from fedgrec.kernels._draws_numba import PAIRS, SHIFT, ZERO, U, philox, withheld
from fedgrec.kernels._numba import fused, inlined
from fedgrec.kernels._sums_numba import round_and_add


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
    bound: Any
    norm: Any  # the most that a user's words may measure together; 0: no bound
    shake: Any  # 2⁻²⁴ where rounding is random, else 0
    temperature: Any
    negative_weight: Any


class Flags(NamedTuple):
    """Whole and yes-or-no options."""

    round: int
    steps: int
    negatives: int
    max_positives: int
    exclude: bool
    feedback: int
    loss: int  # of LOSSES
    cosine: bool
    mean: bool
    per_row: bool
    concat: bool
    item_adam: bool
    user_adam: bool


LOSSES = {"bpr": 0, "mse": 1, "mse0": 1, "softmax": 2}


# --------------------------------------------------------------------------------------------------- slopes


@fused
def constants(rows, latents, tables, flags, c):
    """Fills in c_t of the canonical score: for concat the latent products, else nothing."""
    for i in range(len(rows)):
        c[i] = 0
        if flags.concat:
            for k in range(len(latents)):
                for j in range(latents.shape[1]):
                    c[i] += latents[k, j] * tables[k + 1, rows[i], j]


@fused
def slopes(g, key, step, P, y, numbers, flags):
    """Scores in, ∂L/∂s_t out, as reference.slopes."""
    m, real = len(g), g.dtype.type
    if flags.loss == 2:
        softmax_slopes(g, P, y, numbers.temperature, numbers.negative_weight, real(1 if flags.mean else P))
    elif flags.loss == 1:
        scale = real(2 / m if flags.mean else 2)
        for i in range(m):
            g[i] = scale * (g[i] - (y[i] if i < P else real(0)))
    else:
        bpr_slopes(g, key, step, U(flags.round), P, real(1 / (m - P) if flags.mean else 1))


@inlined
def bpr_slopes(g, key, step, round_, P, scale):
    """Scores in, ∂L/∂s_t out: every negative meets one random positive."""
    n = len(g) - P
    partner, negative = np.empty((n + 3) // 4 * 4, np.int32), g[P:]
    for block in range((n + 3) // 4):
        words = philox(key, U(block), step, round_, PAIRS)
        for lane in range(4):
            partner[4 * block + lane] = np.int32((words[lane] * U(P)) >> SHIFT)
    for i in range(n):
        negative[i] = g[partner[i]] - negative[i]
    exponentials(negative)
    one = g.dtype.type(1)
    for i in range(n):
        negative[i] = scale / (one + negative[i])
    for i in range(P):
        g[i] = 0
    for i in range(n):
        g[partner[i]] -= negative[i]


@inlined
def softmax_slopes(g, P, y, temperature, weight, scale):
    """Scores in, ∂L/∂s_t out: every positive meets all negatives, and counts y."""
    negative, total, top = g[P:], temperature - temperature, -np.inf
    for i in range(len(negative)):
        top = max(top, negative[i])
    per_temperature, top = scale / scale / temperature, g.dtype.type(top)
    for i in range(len(negative)):
        negative[i] = (negative[i] - top) * per_temperature
    exponentials(negative)
    for i in range(len(negative)):
        total += negative[i]
    counted = temperature - temperature
    for i in range(P):
        g[i] = -scale * per_temperature / P * y[i]
        counted += y[i]
    for i in range(len(negative)):
        negative[i] *= counted / P * scale * weight * per_temperature / total


@fused
def exponentials(x):
    if x.itemsize == 4:
        for i in range(len(x)):
            x[i] = exp32(x[i])
    else:
        for i in range(len(x)):
            x[i] = np.exp(x[i])


one32, log2_e = np.float32(1), np.float32(1.4426950408889634)
ln2_high, ln2_low = np.float32(0.693359375), np.float32(-2.12194440e-4)  # two parts: x − n·ln 2 stays exact
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
    terms = m - P if flags.loss == 0 else m if flags.loss == 1 else P
    whole = l2 * (1 if flags.mean else terms)
    return real(whole), real(whole / P), real(whole / max(m - P, 1))


# ------------------------------------------------------------------------------------------------- optimizers


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
def adam_rate(rate, step, numbers):
    """Adam's two bias corrections as one rate: rate·m̂/(√v̂ + ε) = adam_rate·m/(√v + adam_epsilon)."""
    return type(rate)(rate * np.sqrt(1 - numbers.beta2**step) / (1 - numbers.beta1**step))


@fused
def adam_epsilon(step, numbers):
    return type(numbers.epsilon)(numbers.epsilon * np.sqrt(1 - numbers.beta2**step))


@inlined
def move_item(i, slope, direction, tilt, decay, rate, epsilon, numbers, flags, scratch):
    """One optimizer step of one local item row (scratch: x, f, and Adam's moments); `tilt` of f is for cosines."""
    p, d = numbers.p, scratch.shape[2]
    if flags.item_adam:
        beta1, beta2 = numbers.beta1, numbers.beta2
        rest1, rest2 = scratch.dtype.type(1) - beta1, scratch.dtype.type(1) - beta2
        for j in range(d):
            grad = slope * direction[j] + tilt * scratch[1, i, j] + decay * scratch[0, i, j]
            first = beta1 * scratch[2, i, j] + rest1 * grad
            second = beta2 * scratch[3, i, j] + rest2 * grad * grad
            moved = rate * first / (np.sqrt(second) + epsilon)
            scratch[2, i, j] = first
            scratch[3, i, j] = second
            scratch[0, i, j] -= moved
            scratch[1, i, j] -= p * moved
    else:
        for j in range(d):
            moved = rate * (slope * direction[j] + tilt * scratch[1, i, j] + decay * scratch[0, i, j])
            scratch[0, i, j] -= moved
            scratch[1, i, j] -= p * moved


# ------------------------------------------------------------------------------------------------ local steps


@fused
def one_step(key, P, rows, y, g, user, f_table, numbers, flags, f_u, pull, lean):
    """τ = 1 with SGD on the items: every item's gradient is g_t·p·f_u + λx_t (+ w_ut·pull), so three numbers tell it.

    g holds c_t on the way in and the slopes on the way out; f_u and pull = live·∂L/∂f_u are filled in. For cosines f_u
    is a direction, and `lean` is filled with −g_t·s_t, what goes to f_t's own direction.
    """
    e, B = user[0], user[4]
    m, d, p = len(rows), len(e), numbers.p
    for j in range(d):
        f_u[j] = p * e[j] + B[j]
    norm_u = length(f_u) if flags.cosine else e.dtype.type(1)
    for j in range(d):
        f_u[j] /= norm_u
    for i in range(m):
        t, score = rows[i], g[i]
        for j in range(d):
            score += f_table[t, j] * f_u[j]
        g[i] = score
    if flags.cosine:
        for i in range(m):
            lean[i] = g[i]
    slopes(g, key, ZERO, P, y, numbers, flags)
    grad_f = np.empty(d, e.dtype)
    for j in range(d):
        grad_f[j] = 0
    for i in range(m):
        t, slope = rows[i], g[i]
        for j in range(d):
            grad_f[j] += slope * f_table[t, j]
    if flags.cosine:
        leaning = norm_u - norm_u
        for i in range(m):
            lean[i] *= -g[i]
            leaning += lean[i]
        for j in range(d):
            grad_f[j] = (grad_f[j] + leaning * f_u[j]) / norm_u
    for j in range(d):
        pull[j] = numbers.live * grad_f[j]
    if m:
        move_user(user, grad_f, penalties(e.dtype.type, P, m, numbers, flags)[0], numbers, flags)


@fused
def many_steps(key, P, rows, w, y, c, user, x0, f_table, per_steps, word, numbers, flags, scratch, sums):
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
    drift, grad_f, pulled, f_u = np.empty(d, e.dtype), np.empty(d, e.dtype), np.empty(d, e.dtype), np.empty(d, e.dtype)
    g, tilt, norms, cosines = np.empty(m, e.dtype), np.empty(m, e.dtype), np.empty(m, e.dtype), np.empty(m, e.dtype)
    norm_u, leaning = real(1), real(0)
    for i in range(m):
        tilt[i], norms[i] = 0, 1
    for j in range(d):
        drift[j] = 0
    for step in range(flags.steps):
        for j in range(d):
            f_u[j] = p * e[j] + B[j] + numbers.live * drift[j]
        for i in range(m):
            score = c[i]
            for j in range(d):
                score += f[i, j] * f_u[j]
            g[i] = score
        if flags.cosine:
            norm_u = divided_by_norms(f_u, f, g, norms)
            for i in range(m):
                cosines[i] = g[i]
        slopes(g, key, U(step), P, y, numbers, flags)
        if flags.cosine:
            leaning = lean_back(g, cosines, norms, tilt)
        weighted_sum(g, f, grad_f)
        for j in range(d):
            grad_f[j] = (grad_f[j] + leaning * f_u[j]) / norm_u
        rate = adam_rate(numbers.item_rate, step + 1, numbers) if flags.item_adam else numbers.item_rate
        epsilon = adam_epsilon(step + 1, numbers)
        for i in range(P):
            for j in range(d):
                pulled[j] = p * g[i] * f_u[j] + numbers.live * w[i] * grad_f[j]
            move_item(i, real(1), pulled, p * tilt[i], positive_decay, rate, epsilon, numbers, flags, scratch)
        for i in range(P, m):
            move_item(i, p * g[i], f_u, p * tilt[i], negative_decay, rate, epsilon, numbers, flags, scratch)
        move_user(user, grad_f, user_decay, numbers, flags)
        if numbers.live:
            for j in range(d):
                drift[j] = 0
            for i in range(P):
                for j in range(d):
                    drift[j] += w[i] * (x[i, j] - x0[rows[i], j])
    for i in range(P):
        if withheld(key, i, flags):
            for j in range(d):
                x[i, j] = x0[rows[i], j]
    return round_and_add(rows, x, x0, per_steps, word, numbers, sums)


@fused
def length(f):
    total = f[0] - f[0]
    for j in range(len(f)):
        total += f[j] * f[j]
    return f.dtype.type(np.sqrt(total + np.finfo(f.dtype).tiny))


@fused
def divided_by_norms(f_u, f, g, norms):
    """f_u becomes its direction and inner products in g cosines; fills in |f_t|, returns |f_u|."""
    norm_u = length(f_u)
    for j in range(len(f_u)):
        f_u[j] /= norm_u
    for i in range(len(g)):
        norms[i] = length(f[i])
        g[i] /= norm_u * norms[i]
    return norm_u


@fused
def lean_back(g, cosines, norms, tilt):
    """Slopes of cosines become those of f_t, and what each takes from f_t itself; returns what all take from f̂_u."""
    leaning = g.dtype.type(0)
    for i in range(len(g)):
        lean = -g[i] * cosines[i]
        leaning += lean
        tilt[i] = lean / (norms[i] * norms[i])
        g[i] /= norms[i]
    return leaning


@fused
def weighted_sum(g, f, total):
    """Σ_i g_i f_i, four rows at a time so that the total is loaded and stored less often."""
    m, d = len(g), len(total)
    for j in range(d):
        total[j] = 0
    for block in range(m // 4):
        i = 4 * block
        g0, g1, g2, g3 = g[i], g[i + 1], g[i + 2], g[i + 3]
        for j in range(d):
            total[j] += (g0 * f[i, j] + g1 * f[i + 1, j]) + (g2 * f[i + 2, j] + g3 * f[i + 3, j])
    for i in range(m // 4 * 4, m):
        for j in range(d):
            total[j] += g[i] * f[i, j]
