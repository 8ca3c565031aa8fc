"""The negatives of a cohort on the GPU: their slopes in each local step, and how far they have moved.

Unlike positives, the many negatives keep no state between launches: the gradient of row i in step q is g_qi·p·f_q +
λx_i, so the row's whole history is its slopes g_0i, g_1i, ... (for softmax its scores, from which slopes follow), and
`moved_by` repeats the history whenever the row is needed. That costs arithmetic, and saves moving all rows and their
moments through memory in every step, which would take longer.
"""

import triton
import triton.language as tl

from fedgrec.kernels._state_triton import (
    LOWEST,
    SOFTMAX,
    decays,
    find_user,
    items_at,
    lengths,
    rows_of,
    takes_part,
)

SLOPE_STEPS = tl.constexpr(2.0**45)


@triton.jit
def adam_step(first, second, epsilon, FAST: tl.constexpr):
    """first / (√second + ε); FAST, for float32: by the hardware's own approximations, good to 2⁻²²."""
    if FAST:
        return tl.inline_asm_elementwise(
            "{ .reg .f32 r; sqrt.approx.ftz.f32 r, $2; add.f32 r, r, $3; rcp.approx.ftz.f32 r, r; mul.f32 $0, $1, r; }",
            "=f,f,f,f", [first, second, epsilon], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    return first / (tl.sqrt(second) + epsilon)


@triton.jit
def moved_by(x0, f0, done, i, ok, decay, at, user, size, rules):
    """How far negatives i have moved after `done` steps. Adam's moments are without their factor 1 − β.

    f0, their f as it arrived, is needed for cosines alone.
    """
    numbers = at.numbers
    p = tl.load(numbers.real.share)
    item_rate = tl.load(numbers.real.item_rate)
    beta1 = tl.load(numbers.real.beta1)
    beta2 = tl.load(numbers.real.beta2)
    slopes = at.scratch.slopes + user.slot * (size.TAU + 1) * size.MANY + i
    f_history = at.scratch.f + user.slot * (size.TAU + 1) * size.D + tl.arange(0, size.D)
    shrink = decay.negative * x0
    logs = at.scratch.logs + user.slot * (size.TAU + 1)
    moved = x0 * 0
    first = x0 * 0
    second = x0 * 0
    # What the next step needs is loaded while this one is computed.
    g = tl.load(slopes, mask=ok, other=0.0)
    f_u = tl.load(f_history)
    rate = tl.load(numbers.rates)
    epsilon = tl.load(numbers.epsilons)
    for q in range(done):
        if rules.LOSS == SOFTMAX:
            g = softmax_slopes(g, tl.load(logs + q), decay.scale, numbers)
            g = tl.where(ok, g, 0.0)
        slope = p * g
        tilt = x0 * 0
        if rules.COSINE:
            f = f0 + p * moved
            norm = lengths(f)
            slope /= norm
            tilt = -(slope * tl.sum(f * f_u[None, :], axis=1) / (norm * norm))[:, None] * f
        direction = f_u
        rate_now = rate
        epsilon_now = epsilon
        g = tl.load(slopes + (q + 1) * size.MANY, mask=ok, other=0.0)
        f_u = tl.load(f_history + (q + 1) * size.D)
        rate = tl.load(numbers.rates + q + 1)
        epsilon = tl.load(numbers.epsilons + q + 1)
        grad = slope[:, None] * direction[None, :] + (decay.negative * moved + shrink)
        if rules.COSINE:
            grad += tilt
        if rules.ITEM_ADAM:
            first = beta1 * first + grad
            second = beta2 * second + grad * grad
            moved -= rate_now * adam_step(first, second, epsilon_now, rules.FAST)
        else:
            moved -= item_rate * grad
    return moved


@triton.jit(do_not_specialize=["step"])
def negatives(step, at, size, rules, SPLITS: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    """The slopes of a stretch of a user's negatives in this local step, and their part of ∂L/∂f_u."""
    slot = tl.program_id(0)
    split = tl.program_id(1)
    if not takes_part(at.federation, slot):
        return
    user = find_user(at, slot, size)
    decay = decays(at.numbers, user, rules)
    p = tl.load(at.numbers.real.share)
    col = tl.arange(0, size.D)
    n = tl.arange(0, BLOCK)
    f_u = tl.load(at.scratch.f + (slot * (size.TAU + 1) + step) * size.D + col)
    total = tl.zeros((BLOCK, size.D), at.users.gather.dtype.element_ty)
    leaning = tl.sum(total, axis=1)
    summed = tl.sum(total, axis=1)
    top = tl.max(summed, axis=0) + LOWEST
    for first in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, user.N), BLOCK):
        i = first + n
        ok = i < user.N
        t = items_at(at.scratch, user, user.P + i, ok, size)
        f = rows_of(at.server.f, t, ok, size)
        if size.TAU > 1:
            x0 = rows_of(at.server.items, t, ok, size)
            f += p * moved_by(x0, f, step, i, ok, decay, at, user, size, rules)
        if rules.COSINE:
            f /= lengths(f)[:, None]
        score = tl.sum(f * f_u[None, :], axis=1)
        if rules.CONCAT:
            score += constant(at, user, t, ok, size)
        slopes = at.scratch.slopes + (slot * (size.TAU + 1) + step) * size.MANY + i
        if rules.LOSS == SOFTMAX:  # only the part of Σ exp up to this row is known
            tl.store(slopes, score, mask=ok)
            scaled = score * tl.load(at.numbers.real.per_temperature)
            higher = tl.maximum(top, tl.max(tl.where(ok, scaled, LOWEST), axis=0))
            fade = tl.exp(top - higher)
            top = higher
            g = tl.where(ok, tl.exp(scaled - top), 0.0)
            total *= fade
            leaning *= fade
            summed = summed * fade + g
        else:
            g = tl.where(ok, negative_slopes(step, score, i, ok, decay.scale, at.scratch, user, size, rules), 0.0)
            tl.store(slopes, g, mask=ok)
        total += g[:, None] * f
        if rules.COSINE:
            leaning += g * score
    part = slot * SPLITS + split
    tl.store(at.scratch.parts + part * size.D + col, tl.sum(total, axis=0))
    tl.store(at.scratch.leans + part, tl.sum(leaning, axis=0))
    if rules.LOSS == SOFTMAX:
        tl.store(at.scratch.tops + part, top)
        tl.store(at.scratch.totals + part, tl.sum(summed, axis=0))


@triton.jit
def softmax_slopes(score, log, scale, numbers):
    """∂L/∂s of negatives, once all are known."""
    per_temperature = tl.load(numbers.real.per_temperature)
    return scale * tl.load(numbers.real.negative_weight) * per_temperature * tl.exp(score * per_temperature - log)


@triton.jit
def negative_slopes(step, score, i, ok, scale, scratch, user, size, rules):
    """∂L/∂s of negatives. Eq. (5): each meets one random positive, for which its slope is gathered."""
    if rules.LOSS > 0:
        return 2 * scale * score
    partner = tl.load(scratch.partners + (user.slot * size.TAU + step) * size.MANY + i, mask=ok, other=0)
    met = user.slot * size.C + partner
    g = scale / (1 + tl.exp(tl.load(scratch.scores + met, mask=ok, other=0.0) - score))
    tl.atomic_add(scratch.gathered + met, (g * SLOPE_STEPS).to(tl.int64), mask=ok, sem="relaxed")
    return g


@triton.jit
def constant(at, user, t, ok, size):
    """c_t of the canonical score: for concat the latent products."""
    words_of_table = tl.load(at.numbers.whole.n_items) * size.DIM
    col = tl.arange(0, size.D)
    c = tl.sum(rows_of(at.server.items, t, ok, size) * 0, axis=1)
    for k in range(1, size.K + 1):
        home = at.users.embeddings + (user.u * (size.K + 1) + k) * size.DIM
        latent = tl.load(home + col, mask=col < size.DIM, other=0.0)
        c += tl.sum(rows_of(at.server.items + k * words_of_table, t, ok, size) * latent[None, :], axis=1)
    return c
