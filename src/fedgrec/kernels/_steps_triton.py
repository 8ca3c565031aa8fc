"""The local steps of a cohort on the GPU, lines 16 to 21 of Algorithm 1: user_step and negatives, τ times.

The names are those of reference.local_problem, local_steps and gradients. The few positives of a user keep their state
between launches. The many negatives do not: the gradient of row i in step q is g_qi·p·f_q + λx_i, so the row's whole
history is its slopes g_0i, g_1i, ..., and `moved_by` plays it again whenever the row is needed. That costs arithmetic,
of which there is plenty, and saves the memory traffic of all rows and their moments in every step, which takes longer.
"""

import triton
import triton.language as tl

from fedgrec.kernels._state_triton import decays, find_user, row_of, takes_part

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
def moved_by(
    x0, slot, i, ok, decay, done, scratch, numbers, col,
    n: tl.constexpr, D: tl.constexpr, TAU: tl.constexpr, ADAM: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """How far negatives have moved after `done` steps. Adam's moments are without their factor 1 − β."""
    p = tl.load(numbers.real)
    item_rate = tl.load(numbers.real + 3)
    beta1 = tl.load(numbers.real + 5)
    beta2 = tl.load(numbers.real + 6)
    slopes = scratch.slopes + slot * (TAU + 1) * n + i
    f_history = scratch.f + slot * (TAU + 1) * D + col
    shrink = decay * x0
    moved = x0 * 0
    first = x0 * 0
    second = x0 * 0
    # What the next step needs is loaded while this one is computed.
    g = tl.load(slopes, mask=ok, other=0.0)
    f_u = tl.load(f_history)
    rate = tl.load(numbers.rates)
    epsilon = tl.load(numbers.epsilons)
    for q in range(done):
        slope = p * g
        direction = f_u
        rate_now = rate
        epsilon_now = epsilon
        g = tl.load(slopes + (q + 1) * n, mask=ok, other=0.0)
        f_u = tl.load(f_history + (q + 1) * D)
        rate = tl.load(numbers.rates + q + 1)
        epsilon = tl.load(numbers.epsilons + q + 1)
        grad = slope[:, None] * direction[None, :] + (decay * moved + shrink)
        if ADAM:
            first = beta1 * first + grad
            second = beta2 * second + grad * grad
            moved -= rate_now * adam_step(first, second, epsilon_now, FAST)
        else:
            moved -= item_rate * grad
    return moved


@triton.jit(do_not_specialize=["step"])
def user_step(
    step, F, users, server, scratch, numbers,
    S: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr, C: tl.constexpr,
    TAU: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr, EXCLUDE: tl.constexpr, LIVE: tl.constexpr,
    LOSS: tl.constexpr, MEAN: tl.constexpr, PER_ROW: tl.constexpr, CONCAT: tl.constexpr, ITEM_ADAM: tl.constexpr,
    USER_ADAM: tl.constexpr, KEPT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """End local step `step` − 1 of a user, if there was one, and begin the next, if there is one."""
    slot = tl.program_id(0)
    if not takes_part(F, slot):
        return
    user = find_user(F, users, numbers, slot, S, EXCLUDE)
    if user.P == 0:
        return
    decay = decays(numbers, user, LOSS, MEAN, PER_ROW)
    p = tl.load(numbers.real)
    live = tl.load(numbers.real + 1)
    col = tl.arange(0, D)
    inside = col < DIM
    n = tl.arange(0, BLOCK)
    home = users.embeddings + user.u * (K + 1) * DIM + col
    history = scratch.f + slot * (TAU + 1) * D + col
    mine = scratch.positives + slot.to(tl.int64) * C * 4 * D + col[None, :]
    e = tl.load(home, mask=inside, other=0.0)
    drift = e * 0
    if step == 0:
        for at in range(0, user.P, BLOCK):
            ok = at + n < user.P
            t = tl.load(scratch.rows + slot * M + at + n, mask=ok, other=0).to(tl.int64)
            f = row_of(server.f, t, ok, col, inside, DIM)
            tl.store(mine + (at + n)[:, None] * (4 * D), f, mask=ok[:, None])
    else:
        split = tl.arange(0, SPLITS)
        grad_f = tl.sum(tl.load(scratch.parts + (slot * SPLITS + split)[:, None] * D + col[None, :]), axis=0)
        if LIVE:  # positives feel ∂L/∂f_u, so it must be known before they move
            for at in range(0, user.P, BLOCK):
                ok = at + n < user.P
                f = tl.load(mine + (at + n)[:, None] * (4 * D), mask=ok[:, None], other=0.0)
                grad_f += tl.sum(positive_slopes(scratch, slot * C + at + n, ok, LOSS)[:, None] * f, axis=0)
            tl.debug_barrier()
        before = tl.load(history + (step - 1) * D)
        rate = tl.load(numbers.real + 3)
        if ITEM_ADAM:
            rate = tl.load(numbers.rates + step - 1)
        for at in range(0, user.P, BLOCK):
            ok = at + n < user.P
            t = tl.load(scratch.rows + slot * M + at + n, mask=ok, other=0).to(tl.int64)
            g = positive_slopes(scratch, slot * C + at + n, ok, LOSS)
            state = mine + (at + n)[:, None] * (4 * D)
            old = ok[:, None] & (n[:, None] * 0 + step > 1)
            moved = tl.load(state + D, mask=old, other=0.0)
            x = row_of(server.items, t, ok, col, inside, DIM) + moved
            grad = (p * g)[:, None] * before[None, :] + decay.positive * x
            if LIVE:
                edge = tl.load(scratch.edges + slot * C + at + n, mask=ok, other=0)
                w = tl.load(users.gather + user.start + edge, mask=ok, other=0.0)
                grad += w[:, None] * (live * grad_f)[None, :]
            else:
                f = tl.load(state, mask=ok[:, None], other=0.0)
                grad_f += tl.sum(g[:, None] * f, axis=0)
            if ITEM_ADAM:
                first = tl.load(numbers.real + 5) * tl.load(state + 2 * D, mask=old, other=0.0) + grad
                second = tl.load(numbers.real + 6) * tl.load(state + 3 * D, mask=old, other=0.0) + grad * grad
                tl.store(state + 2 * D, first, mask=ok[:, None])
                tl.store(state + 3 * D, second, mask=ok[:, None])
                grad = adam_step(first, second, tl.load(numbers.epsilons + step - 1), FAST)
            moved -= rate * grad
            tl.store(state + D, moved, mask=ok[:, None])
            if TAU > 1:
                f = row_of(server.f, t, ok, col, inside, DIM) + p * moved
                tl.store(state, f, mask=ok[:, None])
                if LIVE:  # e_u^1 follows the local items
                    drift += tl.sum(w[:, None] * moved, axis=0)
        e = move_user(
            e, grad_f, decay.user, step, tl.load(F.now), slot, user, users, scratch, numbers, col, inside,
            D, DIM, USER_ADAM, KEPT,
        )  # fmt: skip
        tl.store(home, e, mask=inside)
    if step < TAU:
        tl.debug_barrier()  # what was stored above is read by other lanes below
        f_u = p * e + live * drift
        if not CONCAT:
            for k in range(1, K + 1):
                f_u += tl.load(numbers.alphas + k) * tl.load(home + k * DIM, mask=inside, other=0.0)
        tl.store(history + step * D, f_u)
        for at in range(0, user.P, BLOCK):
            ok = at + n < user.P
            f = tl.load(mine + (at + n)[:, None] * (4 * D), mask=ok[:, None], other=0.0)
            score = tl.sum(f * f_u[None, :], axis=1)
            if CONCAT:
                t = tl.load(scratch.rows + slot * M + at + n, mask=ok, other=0).to(tl.int64)
                score += constant(users, server, numbers, user, t, ok, col, inside, K, DIM)
            if LOSS == 0:
                tl.store(scratch.gathered + slot * C + at + n, tl.zeros((BLOCK,), tl.int64), mask=ok)
            else:
                edge = tl.load(scratch.edges + slot * C + at + n, mask=ok, other=0)
                score = 2 * decay.scale * (score - tl.load(users.targets + user.start + edge, mask=ok, other=0.0))
            tl.store(scratch.scores + slot * C + at + n, score, mask=ok)


@triton.jit
def positive_slopes(scratch, i, ok, LOSS: tl.constexpr):
    """∂L/∂s of positives once their negatives are known."""
    if LOSS > 0:
        return tl.load(scratch.scores + i, mask=ok, other=0.0)
    total = tl.load(scratch.gathered + i, mask=ok, other=0)
    return -(total.to(scratch.scores.dtype.element_ty) * (1.0 / SLOPE_STEPS))


@triton.jit
def constant(users, server, numbers, user, t, ok, col, inside, K: tl.constexpr, DIM: tl.constexpr):
    """c_t of the canonical score: for concat the latent products."""
    words_of_table = tl.load(numbers.whole) * DIM
    c = tl.sum(row_of(server.items, t, ok, col, inside, DIM) * 0, axis=1)
    for k in range(1, K + 1):
        latent = tl.load(users.embeddings + (user.u * (K + 1) + k) * DIM + col, mask=inside, other=0.0)
        c += tl.sum(row_of(server.items + k * words_of_table, t, ok, col, inside, DIM) * latent[None, :], axis=1)
    return c


@triton.jit
def move_user(
    e, grad_f, decay, taken, round_, slot, user, users, scratch, numbers, col, inside,
    D: tl.constexpr, DIM: tl.constexpr, ADAM: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """One optimizer step of e_u^0, the `taken`-th of this round."""
    rate = tl.load(numbers.real + 4) * tl.exp2(-round_ * tl.load(numbers.real + 12))
    grad = tl.load(numbers.real) * grad_f + decay * e
    if not ADAM:
        return e - rate * grad
    beta1 = tl.load(numbers.real + 5)
    beta2 = tl.load(numbers.real + 6)
    if KEPT:
        taken = tl.load(users.steps + user.u) + 1
        at1 = users.moment1 + user.u * DIM + col
        at2 = users.moment2 + user.u * DIM + col
        first = tl.load(at1, mask=inside, other=0.0)
        second = tl.load(at2, mask=inside, other=0.0)
    else:
        at1 = scratch.moments + 2 * slot * D + col
        at2 = at1 + D
        old = inside & (col * 0 + taken > 1)
        first = tl.load(at1, mask=old, other=0.0)
        second = tl.load(at2, mask=old, other=0.0)
    tl.debug_barrier()  # several lanes hold the same word: all have read it before one writes
    if KEPT:
        tl.store(users.steps + user.u, taken)
    first = beta1 * first + (1 - beta1) * grad
    second = beta2 * second + (1 - beta2) * grad * grad
    tl.store(at1, first, mask=inside)
    tl.store(at2, second, mask=inside)
    place = tl.minimum(taken, tl.load(numbers.whole + 3))
    root = tl.sqrt(second * tl.load(numbers.unbias2 + place)) + tl.load(numbers.real + 7)
    return e - rate * (first * tl.load(numbers.unbias1 + place)) / root


@triton.jit(do_not_specialize=["step"])
def negatives(
    step, F, users, server, scratch, numbers,
    S: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr, C: tl.constexpr,
    n_all: tl.constexpr, TAU: tl.constexpr, SPLITS: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK: tl.constexpr, EXCLUDE: tl.constexpr, LOSS: tl.constexpr, MEAN: tl.constexpr, PER_ROW: tl.constexpr,
    CONCAT: tl.constexpr, ITEM_ADAM: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The slopes of a stretch of a user's negatives in this local step, and their part of ∂L/∂f_u."""
    slot = tl.program_id(0)
    split = tl.program_id(1)
    if not takes_part(F, slot):
        return
    user = find_user(F, users, numbers, slot, S, EXCLUDE)
    decay = decays(numbers, user, LOSS, MEAN, PER_ROW)
    p = tl.load(numbers.real)
    col = tl.arange(0, D)
    inside = col < DIM
    n = tl.arange(0, BLOCK)
    f_u = tl.load(scratch.f + (slot * (TAU + 1) + step) * D + col)
    total = tl.zeros((BLOCK, D), users.gather.dtype.element_ty)
    for at in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, user.N), BLOCK):
        ok = at + n < user.N
        t = tl.load(scratch.rows + slot * M + user.P + at + n, mask=ok, other=0).to(tl.int64)
        f = row_of(server.f, t, ok, col, inside, DIM)
        if TAU > 1:
            x0 = row_of(server.items, t, ok, col, inside, DIM)
            moved = moved_by(
                x0, slot, at + n, ok, decay.negative, step, scratch, numbers, col, n_all, D, TAU, ITEM_ADAM, FAST
            )
            f += p * moved
        score = tl.sum(f * f_u[None, :], axis=1)
        if CONCAT:
            score += constant(users, server, numbers, user, t, ok, col, inside, K, DIM)
        if LOSS == 0:  # Eq. (5): every negative meets one random positive
            partner = tl.load(scratch.partners + (slot * TAU + step) * n_all + at + n, mask=ok, other=0)
            g = decay.scale / (1 + tl.exp(tl.load(scratch.scores + slot * C + partner, mask=ok, other=0.0) - score))
            tl.atomic_add(scratch.gathered + slot * C + partner, (g * SLOPE_STEPS).to(tl.int64), mask=ok, sem="relaxed")
        else:
            g = 2 * decay.scale * score
        g = tl.where(ok, g, 0.0)
        tl.store(scratch.slopes + (slot * (TAU + 1) + step) * n_all + at + n, g, mask=ok)
        total += g[:, None] * f
    tl.store(scratch.parts + (slot * SPLITS + split) * D + col, tl.sum(total, axis=0))
