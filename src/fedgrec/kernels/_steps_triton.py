"""The local steps of a cohort on the GPU, lines 16 to 21 of Algorithm 1: the user and its positives, step by step.

The names are those of reference.local_problem, local_steps and gradients. `user_step` here and `negatives` in
`_negatives_triton` take turns, τ times. The few positives of a user keep their state between launches.
"""

import triton
import triton.language as tl

from fedgrec.kernels._negatives_triton import SLOPE_STEPS, adam_step, constant
from fedgrec.kernels._state_triton import (
    BPR,
    FIRST,
    MOVED,
    SECOND,
    SOFTMAX,
    TINY,
    decays,
    find_user,
    items_at,
    lengths,
    positives_at,
    rows_of,
    takes_part,
)

# ------------------------------------------------------------------------------------ the user and its positives


@triton.jit(do_not_specialize=["step"])
def user_step(step, at, size, rules, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """End local step `step` − 1 of a user, if there was one, and begin the next, if there is one."""
    slot = tl.program_id(0)
    if not takes_part(at.federation, slot):
        return
    user = find_user(at, slot, size)
    if user.P == 0:
        return
    decay = decays(at.numbers, user, rules)
    col = tl.arange(0, size.D)
    home = at.users.embeddings + user.u * (size.K + 1) * size.DIM + col
    e = tl.load(home, mask=col < size.DIM, other=0.0)
    drift = tl.zeros_like(e)
    if step == 0:
        copy_positives(at, user, size, BLOCK)
    else:
        grad_f = user_gradient(step, decay.scale, at, user, size, rules, SPLITS, BLOCK)
        grad_f, drift = move_positives(step, grad_f, decay, at, user, size, rules, BLOCK)
        e = move_user(step, e, grad_f, decay.user, at, user, size, rules)
        tl.store(home, e, mask=col < size.DIM)
    if step < size.TAU:
        tl.debug_barrier()  # what was stored above is read by other lanes below
        f_u = combined(e, drift, home, at, user, size, rules)
        if rules.COSINE:
            norm = tl.sqrt(tl.sum(f_u * f_u, axis=0) + TINY)
            tl.store(at.scratch.norms + user.slot * (size.TAU + 1) + step, norm)
            f_u /= norm
        tl.store(at.scratch.f + user.slot * (size.TAU + 1) * size.D + col + step * size.D, f_u)
        if rules.LOSS != SOFTMAX:  # softmax has one slope for all positives, whatever they score
            score_positives(f_u, decay.scale, at, user, size, rules, BLOCK)


@triton.jit
def copy_positives(at, user, size, BLOCK: tl.constexpr):
    """f of the positives, as it arrived, into their state."""
    n = tl.arange(0, BLOCK)
    for first in range(0, user.P, BLOCK):
        ok = first + n < user.P
        t = items_at(at.scratch, user, first + n, ok, size)
        tl.store(positives_at(at.scratch, user, first + n, size), rows_of(at.server.f, t, ok, size), mask=ok[:, None])


@triton.jit
def user_gradient(step, scale, at, user, size, rules, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """∂L/∂f_u = Σ g f. Where the positives' step needs it, their part is added here; else in `move_positives`."""
    n = tl.arange(0, BLOCK)
    scratch = at.scratch
    part = user.slot * SPLITS + tl.arange(0, SPLITS)
    parts = tl.load(scratch.parts + part[:, None] * size.D + tl.arange(0, size.D)[None, :])
    leans = tl.load(scratch.leans + part)
    before = user.slot * (size.TAU + 1) + step - 1
    if rules.LOSS == SOFTMAX:
        tops = tl.load(scratch.tops + part)
        top = tl.max(tops, axis=0)
        weight = tl.exp(tops - top)
        total = tl.maximum(tl.sum(weight * tl.load(scratch.totals + part), axis=0), TINY)
        tl.store(scratch.logs + before, top + tl.log(total))
        numbers = at.numbers.real
        weight *= scale * tl.load(numbers.negative_weight) * tl.load(numbers.per_temperature) / total
        parts *= weight[:, None]
        leans *= weight
    grad_f = tl.sum(parts, axis=0)
    leaning = tl.sum(leans, axis=0)
    if rules.LIVE or rules.COSINE:
        f_u = tl.load(scratch.f + before * size.D + tl.arange(0, size.D))
        for first in range(0, user.P, BLOCK):
            ok = first + n < user.P
            f = tl.load(positives_at(scratch, user, first + n, size), mask=ok[:, None], other=0.0)
            g = positive_slopes(scale, at, user, first + n, ok, size, rules)
            if rules.COSINE:
                f /= lengths(f)[:, None]
                leaning += tl.sum(g * tl.sum(f * f_u[None, :], axis=1), axis=0)
            grad_f += tl.sum(g[:, None] * f, axis=0)
        if rules.COSINE:
            grad_f = (grad_f - leaning * f_u) / tl.load(scratch.norms + before)
        tl.debug_barrier()
    return grad_f


@triton.jit
def move_positives(step, grad_f, decay, at, user, size, rules, BLOCK: tl.constexpr):
    """One optimizer step of the positives; ∂L/∂f_u with their part, and Σ w·moved, by which e_u^1 follows them."""
    n = tl.arange(0, BLOCK)
    p = tl.load(at.numbers.real.share)
    live = tl.load(at.numbers.real.live_share)
    rate = tl.load(at.numbers.real.item_rate)
    if rules.ITEM_ADAM:
        rate = tl.load(at.numbers.rates + step - 1)
    f_u = tl.load(at.scratch.f + (user.slot * (size.TAU + 1) + step - 1) * size.D + tl.arange(0, size.D))
    drift = tl.zeros_like(grad_f)
    for first in range(0, user.P, BLOCK):
        i = first + n
        ok = i < user.P
        t = items_at(at.scratch, user, i, ok, size)
        g = positive_slopes(decay.scale, at, user, i, ok, size, rules)
        state = positives_at(at.scratch, user, i, size)
        old = ok[:, None] & (n[:, None] * 0 + step > 1)
        moved = tl.load(state + MOVED * size.D, mask=old, other=0.0)
        grad = decay.positive * (rows_of(at.server.items, t, ok, size) + moved)
        if rules.COSINE:
            f = tl.load(state, mask=ok[:, None], other=0.0)
            norm = lengths(f)
            g /= norm
            grad -= (p * g * tl.sum(f * f_u[None, :], axis=1) / (norm * norm))[:, None] * f
        grad += (p * g)[:, None] * f_u[None, :]
        if rules.LIVE:
            edge = tl.load(at.scratch.edges + user.slot * size.C + i, mask=ok, other=0)
            w = tl.load(at.users.gather + user.start + edge, mask=ok, other=0.0)
            grad += w[:, None] * (live * grad_f)[None, :]
        elif not rules.COSINE:
            grad_f += tl.sum(g[:, None] * tl.load(state, mask=ok[:, None], other=0.0), axis=0)
        if rules.ITEM_ADAM:
            grad = positives_adam(step, grad, state, ok, old, at.numbers, size, rules)
        moved -= rate * grad
        tl.store(state + MOVED * size.D, moved, mask=ok[:, None])
        if size.TAU > 1:
            tl.store(state, rows_of(at.server.f, t, ok, size) + p * moved, mask=ok[:, None])
            if rules.LIVE:
                drift += tl.sum(w[:, None] * moved, axis=0)
    return grad_f, drift


@triton.jit
def positives_adam(step, grad, state, ok, old, numbers, size, rules):
    """How far back positives move at rate 1; `old` ones have moments, which lack their factor 1 − β."""
    first = tl.load(numbers.real.beta1) * tl.load(state + FIRST * size.D, mask=old, other=0.0) + grad
    second = tl.load(numbers.real.beta2) * tl.load(state + SECOND * size.D, mask=old, other=0.0) + grad * grad
    tl.store(state + FIRST * size.D, first, mask=ok[:, None])
    tl.store(state + SECOND * size.D, second, mask=ok[:, None])
    return adam_step(first, second, tl.load(numbers.epsilons + step - 1), rules.FAST)


@triton.jit
def move_user(taken, e, grad_f, decay, at, user, size, rules):
    """One optimizer step of e_u^0, the `taken`-th of this round."""
    numbers, users = at.numbers, at.users
    done = tl.load(at.federation.now) - tl.load(numbers.whole.begun)
    rate = tl.load(numbers.real.user_rate) * tl.exp2(-done * tl.load(numbers.real.fall))
    grad = tl.load(numbers.real.share) * grad_f + decay * e
    if not rules.USER_ADAM:
        return e - rate * grad
    beta1 = tl.load(numbers.real.beta1)
    beta2 = tl.load(numbers.real.beta2)
    col = tl.arange(0, size.D)
    inside = col < size.DIM
    if rules.KEPT:
        taken = tl.load(users.steps + user.u) + 1
        at1 = users.moment1 + user.u * size.DIM + col
        at2 = users.moment2 + user.u * size.DIM + col
        first = tl.load(at1, mask=inside, other=0.0)
        second = tl.load(at2, mask=inside, other=0.0)
    else:
        at1 = at.scratch.moments + 2 * user.slot * size.D + col
        at2 = at1 + size.D
        old = inside & (col * 0 + taken > 1)
        first = tl.load(at1, mask=old, other=0.0)
        second = tl.load(at2, mask=old, other=0.0)
    tl.debug_barrier()  # several lanes hold the same word: all must read it before one writes
    if rules.KEPT:
        tl.store(users.steps + user.u, taken)
    first = beta1 * first + (1 - beta1) * grad
    second = beta2 * second + (1 - beta2) * grad * grad
    tl.store(at1, first, mask=inside)
    tl.store(at2, second, mask=inside)
    place = tl.minimum(taken, tl.load(numbers.whole.unbiased_after))
    root = tl.sqrt(second * tl.load(numbers.unbias2 + place)) + tl.load(numbers.real.epsilon)
    return e - rate * (first * tl.load(numbers.unbias1 + place)) / root


@triton.jit
def combined(e, drift, home, at, user, size, rules):
    """f_u; at `home` is e_u^0, and behind it are the latents."""
    numbers = at.numbers
    f_u = tl.load(numbers.real.share) * e + tl.load(numbers.real.live_share) * drift
    if size.COMBINED:
        return f_u + tl.load(at.scratch.B + user.slot * size.D + tl.arange(0, size.D))
    if not rules.CONCAT:
        inside = tl.arange(0, size.D) < size.DIM
        for k in range(1, size.K + 1):
            f_u += tl.load(numbers.alphas + k) * tl.load(home + k * size.DIM, mask=inside, other=0.0)
    return f_u


@triton.jit
def score_positives(f_u, scale, at, user, size, rules, BLOCK: tl.constexpr):
    """Scores of the positives, with nothing gathered yet; for the MSE their slopes, which need no negatives."""
    n = tl.arange(0, BLOCK)
    for first in range(0, user.P, BLOCK):
        i = first + n
        ok = i < user.P
        here = user.slot * size.C + i
        f = tl.load(positives_at(at.scratch, user, i, size), mask=ok[:, None], other=0.0)
        score = tl.sum(f * f_u[None, :], axis=1)
        if rules.COSINE:
            score /= lengths(f)
        if rules.CONCAT:
            score += constant(at, user, items_at(at.scratch, user, i, ok, size), ok, size)
        if rules.LOSS == BPR:
            tl.store(at.scratch.gathered + here, tl.zeros((BLOCK,), tl.int64), mask=ok)
        else:
            edge = tl.load(at.scratch.edges + here, mask=ok, other=0)
            score = 2 * scale * (score - tl.load(at.users.targets + user.start + edge, mask=ok, other=0.0))
        tl.store(at.scratch.scores + here, score, mask=ok)


@triton.jit
def positive_slopes(scale, at, user, i, ok, size, rules):
    """∂L/∂s of positives once their negatives are known."""
    scratch = at.scratch
    here = user.slot * size.C + i
    if rules.LOSS == SOFTMAX:
        return tl.where(ok, -scale * tl.load(at.numbers.real.per_temperature) / user.P, 0.0)
    if rules.LOSS > 0:
        return tl.load(scratch.scores + here, mask=ok, other=0.0)
    total = tl.load(scratch.gathered + here, mask=ok, other=0)
    return -(total.to(scratch.scores.dtype.element_ty) * (1.0 / SLOPE_STEPS))
