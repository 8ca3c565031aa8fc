"""What runs on the GPU. A round of a cohort is a few launches, one after the other:

    prepare      (user × level, user × rows)   latents by Eq. (6); the rows that train
    user_step    (user)                        f_u, and how it scores the positives            ┐ τ times; the last
    negatives    (user × rows)                 slopes of the negatives, their part of ∂L/∂f_u  ┘ user_step ends it
    send         (user × level, user × rows)   finished rows, clipped, rounded, added
    server_round (items)                       Eqs. (10) and (11)

The names are those of reference.local_problem, local_steps and gradients. The few positives of a user keep their state
between launches. The many negatives do not: the gradient of row i in step q is g_qi·p·f_q + λx_i, so the row's whole
history is its slopes g_0i, g_1i, ..., and `moved_by` plays it again whenever the row is needed. That costs arithmetic,
of which there is plenty, and saves the memory traffic of all rows and their moments in every step, which takes longer.
On GPUs that can keep them on the chip `resident` takes the place of user_step and negatives.

Every sum that has no fixed order is of integers, so a round has the same bits each time: finished rows, and the slopes
that the negatives of one positive add up to (in 2⁻⁴⁵). Two neighbouring words travel in one 64-bit addition.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from fedgrec.kernels._draws_triton import FEEDBACK, NEGATIVES, PAIRS, POSITIVES, permuted, skipped, words

SLOPE_STEPS = tl.constexpr(2.0**45)

# ------------------------------------------------------------------------------------------------ one user


@triton.jit
def rounded(x):
    """The nearest whole number, ties to even."""
    r = tl.floor(x + 0.5)
    odd = r != 2 * tl.floor(0.5 * r)
    return tl.where((r - x > 0.5) | ((r - x == 0.5) & odd), r - 1, r)


class Federation(NamedTuple):
    """Where training stands, and who takes part in each round of a stretch."""

    counter: Any  # the next round
    now: Any  # the round that runs
    first_round: Any  # of the stretch
    sampled: Any  # [stretch, S]
    counts: Any  # [stretch]
    cut: Any  # words that a clip cut


class Users(NamedTuple):
    """The population: everybody's key, items with their weights and targets, state."""

    keys: Any  # [M]
    indptr: Any  # [M+1]
    items: Any  # [nnz]
    gather: Any  # [nnz]
    push: Any  # [nnz]
    targets: Any  # [nnz]
    embeddings: Any  # [M, K+1, d]
    sent: Any  # [M, K, d]
    moment1: Any  # [M, d]
    moment2: Any  # [M, d]
    steps: Any  # [M]


class Server(NamedTuple):
    """The server's tables."""

    items: Any  # [K+1, N, d]
    moment1: Any  # [N, d]
    moment2: Any  # [N, d]
    a: Any  # [N, d]: a_t
    f: Any  # [N, d]: f_t = p·e_t^0 + a_t
    sums: Any  # [K+1, N, D/2], two words in one
    touched: Any  # [N]: whether a latent of the item changes


class Scratch(NamedTuple):
    """What the users of a cohort remember between launches."""

    rows: Any  # [S, M]: items that train, positives first
    edges: Any  # [S, C]: which of the user's items the positives are
    scores: Any  # [S, C]: of the positives; for the MSE their slopes
    gathered: Any  # [S, C]: what the slopes of a positive's negatives add up to
    positives: Any  # [S, C, 4, D]: f, how far x moved, and its two moments
    slopes: Any  # [S, τ+1, n]: of the negatives
    partners: Any  # [S, τ, n]: the positive that a negative meets in each step
    f: Any  # [S, τ+1, D]: f_u by step
    parts: Any  # [S, splits, D]: of ∂L/∂f_u
    moments: Any  # [S, 2, D]: Adam's of the user, where they start fresh


class Numbers(NamedTuple):
    """Options. Real ones in arrays keep their precision; whole ones in arrays need no compilation of their own."""

    real: Any  # p, live, λ, item rate, user rate, β1, β2, ε, steps to 1 and bound of items and of latents, 1/half-life
    whole: Any  # N, negatives, the most positives, the last bias correction, feedback
    alphas: Any  # [K+1]
    rates: Any  # [τ+1]: of the items' Adam, by step
    epsilons: Any  # [τ+1]
    unbias1: Any
    unbias2: Any
    server: Any  # server rate, latent rate · step, step of the items, β1, β2, ε


class User(NamedTuple):
    """The user of a slot, and how many rows of each kind train."""

    u: Any
    start: Any
    degree: Any
    P: Any
    N: Any


class Decay(NamedTuple):
    """λ of the user, of a positive and of a negative; and the factor that makes a sum the mean, if wanted."""

    user: Any
    positive: Any
    negative: Any
    scale: Any


@triton.jit
def takes_part(F, slot):
    return slot < tl.load(F.counts + (tl.load(F.counter) - tl.load(F.first_round)))


@triton.jit
def find_user(F, users, numbers, slot, S: tl.constexpr, EXCLUDE: tl.constexpr):
    turn = tl.load(F.counter) - tl.load(F.first_round)
    u = tl.load(F.sampled + turn * S + slot).to(tl.int64)
    start = tl.load(users.indptr + u)
    degree = (tl.load(users.indptr + u + 1) - start).to(tl.int32)
    P = tl.minimum(degree, tl.load(numbers.whole + 2).to(tl.int32))
    free = tl.load(numbers.whole).to(tl.int32)
    if EXCLUDE:
        free -= degree
    N = tl.minimum(tl.load(numbers.whole + 1).to(tl.int32), free)
    return User(u, start, degree, P, tl.where(P > 0, N, 0))


@triton.jit
def decays(numbers, user, LOSS: tl.constexpr, MEAN: tl.constexpr, PER_ROW: tl.constexpr):
    l2 = tl.load(numbers.real + 2)
    whole = l2
    positive = l2
    negative = l2
    scale = l2 * 0 + 1
    terms = user.N  # pairs, or rows
    if LOSS > 0:
        terms += user.P
    if not PER_ROW:
        if not MEAN:
            whole = l2 * terms
        positive = whole / tl.maximum(user.P, 1)
        negative = whole / tl.maximum(user.N, 1)
    if MEAN:
        scale /= tl.maximum(terms, 1)
    return Decay(whole, positive, negative, scale)


@triton.jit
def row_of(table, t, ok, col, inside, DIM: tl.constexpr):
    """Rows of a table, zero where there is none."""
    return tl.load(table + t[:, None] * DIM + col[None, :], mask=ok[:, None] & inside[None, :], other=0.0)


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


# ---------------------------------------------------------------------------------- line 15, and which rows


@triton.jit
def prepare(
    F, users, server, scratch, numbers,
    S: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr, C: tl.constexpr,
    n_all: tl.constexpr, TAU: tl.constexpr, BLOCK: tl.constexpr, DRAWN: tl.constexpr, EXCLUDE: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    part = tl.program_id(1)
    if (slot == 0) & (part == 0):
        tl.store(F.now, tl.load(F.counter))
    if not takes_part(F, slot):
        return
    user = find_user(F, users, numbers, slot, S, EXCLUDE)
    if part < K:
        gather_level(users, server, numbers, user, part, K, D, DIM, BLOCK)
    else:
        key = tl.load(users.keys + user.u)
        round_ = tl.load(F.counter)
        if part == K:
            choose_positives(users, scratch, user, slot, key, round_, M, C)
        else:
            i = (part - K - 1) * DRAWN + tl.arange(0, DRAWN)
            ok = i < user.N
            excluded = user.degree
            if not EXCLUDE:
                excluded = excluded * 0
            free = tl.load(numbers.whole).to(tl.int32) - excluded
            rank = permuted(i, ok, free, key, round_, NEGATIVES)
            t = skipped(tl.where(ok, rank, 0), users.items + user.start, excluded)
            tl.store(scratch.rows + slot * M + user.P + i, t, mask=ok)
            for step in range(TAU):
                partner = tl.umulhi(words(key, i, step, round_, PAIRS), user.P.to(tl.uint32)).to(tl.int32)
                tl.store(scratch.partners + (slot * TAU + step) * n_all + i, partner, mask=ok)


@triton.jit
def gather_level(
    users, server, numbers, user, k,
    K: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Eq. (6): e_u^{k+1} = Σ_t w_ut e_t^k."""
    n = tl.arange(0, BLOCK)
    col = tl.arange(0, D)
    inside = col < DIM
    table = server.items + k * tl.load(numbers.whole) * DIM
    total = tl.zeros((BLOCK, D), users.gather.dtype.element_ty)
    for at in range(0, user.degree, BLOCK):
        ok = at + n < user.degree
        t = tl.load(users.items + user.start + at + n, mask=ok, other=0).to(tl.int64)
        w = tl.load(users.gather + user.start + at + n, mask=ok, other=0.0)
        total += w[:, None] * row_of(table, t, ok, col, inside, DIM)
    tl.store(users.embeddings + (user.u * (K + 1) + k + 1) * DIM + col, tl.sum(total, axis=0), mask=inside)


@triton.jit
def choose_positives(users, scratch, user, slot, key, round_, M: tl.constexpr, C: tl.constexpr):
    """All of the user's items, or a sorted sample of those that may train."""
    i = tl.arange(0, C)
    edge = i
    if user.degree > user.P:
        drawn = permuted(i, i < user.P, user.degree, key, round_, POSITIVES)
        edge = tl.sort(tl.where(i < user.P, drawn, 2147483647))
    ok = i < user.P
    tl.store(scratch.edges + slot * C + i, edge, mask=ok)
    t = tl.load(users.items + user.start + edge, mask=ok, other=0)
    tl.store(scratch.rows + slot * M + i, t, mask=ok)


# --------------------------------------------------------------------------------------- lines 16 to 21


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


# ------------------------------------------------------------------------------------------------ line 22


@triton.jit
def add_words(sums, t, values, ok, BLOCK: tl.constexpr, D: tl.constexpr):
    """Adds whole numbers to rows of the sums, two neighbours in one 64-bit word."""
    low, high = tl.split(tl.reshape(values.to(tl.int64), (BLOCK, D // 2, 2)))
    col = tl.arange(0, D // 2)
    tl.atomic_add(sums + t[:, None] * (D // 2) + col[None, :], low + (high << 32), mask=ok[:, None], sem="relaxed")


@triton.jit
def send(
    F, users, server, scratch, numbers,
    S: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr, C: tl.constexpr,
    n_all: tl.constexpr, TAU: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    EXCLUDE: tl.constexpr, LOSS: tl.constexpr, MEAN: tl.constexpr, PER_ROW: tl.constexpr, ITEM_ADAM: tl.constexpr,
    WITHHELD: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    part = tl.program_id(1)
    if not takes_part(F, slot):
        return
    user = find_user(F, users, numbers, slot, S, EXCLUDE)
    if part < K:
        send_level(F, users, server, numbers, user, part, K, D, DIM, BLOCK)
        return
    decay = decays(numbers, user, LOSS, MEAN, PER_ROW)
    to_steps = tl.load(numbers.real + 8)
    bound = tl.load(numbers.real + 9)
    col = tl.arange(0, D)
    inside = col < DIM
    n = tl.arange(0, BLOCK)
    over = tl.zeros((BLOCK,), tl.int32)
    if part == K:
        key = tl.load(users.keys + user.u)
        for at in range(0, user.P, BLOCK):
            ok = at + n < user.P
            t = tl.load(scratch.rows + slot * M + at + n, mask=ok, other=0).to(tl.int64)
            state = scratch.positives + ((slot.to(tl.int64) * C + at + n) * (4 * D))[:, None] + col[None, :]
            moved = tl.load(state + D, mask=ok[:, None], other=0.0)
            if WITHHELD:
                ok = ok & (words(key, at + n, 0, tl.load(F.now), FEEDBACK).to(tl.int64) < tl.load(numbers.whole + 4))
            moved = rounded(to_steps * moved)
            over += tl.sum((ok[:, None] & (tl.abs(moved) > bound)).to(tl.int32), axis=1)
            add_words(server.sums, t, tl.minimum(tl.maximum(moved, -bound), bound), ok, BLOCK, D)
    else:
        first = (part - K - 1) * SPLIT
        for at in range(first, tl.minimum(first + SPLIT, user.N), BLOCK):
            ok = at + n < user.N
            t = tl.load(scratch.rows + slot * M + user.P + at + n, mask=ok, other=0).to(tl.int64)
            x0 = row_of(server.items, t, ok, col, inside, DIM)
            moved = moved_by(
                x0, slot, at + n, ok, decay.negative, TAU, scratch, numbers, col, n_all, D, TAU, ITEM_ADAM, FAST
            )
            moved = rounded(to_steps * moved)
            over += tl.sum((ok[:, None] & (tl.abs(moved) > bound)).to(tl.int32), axis=1)
            add_words(server.sums, t, tl.minimum(tl.maximum(moved, -bound), bound), ok, BLOCK, D)
    count = tl.sum(over, axis=0)
    if count > 0:
        tl.atomic_add(F.cut, count.to(tl.int64), sem="relaxed")


@triton.jit
def send_level(
    F, users, server, numbers, user, k,
    K: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Eq. (11): the change of the user's standing contribution to its items' latents."""
    n = tl.arange(0, BLOCK)
    col = tl.arange(0, D)
    inside = col < DIM
    to_steps = tl.load(numbers.real + 10)
    bound = tl.load(numbers.real + 11)
    old = tl.load(users.sent + (user.u * K + k) * DIM + col, mask=inside, other=0.0)
    new = tl.load(users.embeddings + (user.u * (K + 1) + k) * DIM + col, mask=inside, other=0.0)
    sums = server.sums + (k + 1) * tl.load(numbers.whole) * (D // 2)
    over = tl.zeros((BLOCK,), tl.int32)
    for at in range(0, user.degree, BLOCK):
        ok = at + n < user.degree
        t = tl.load(users.items + user.start + at + n, mask=ok, other=0).to(tl.int64)
        w = tl.load(users.push + user.start + at + n, mask=ok, other=0.0)
        before = rounded(w[:, None] * old[None, :] * to_steps)
        after = rounded(w[:, None] * new[None, :] * to_steps)
        over += tl.sum((ok[:, None] & (tl.abs(after) > bound)).to(tl.int32), axis=1)
        before = tl.minimum(tl.maximum(before, -bound), bound)
        after = tl.minimum(tl.maximum(after, -bound), bound)
        add_words(sums, t, after.to(tl.int32) - before.to(tl.int32), ok, BLOCK, D)
        tl.store(server.touched + t, tl.full((BLOCK,), 1, tl.int8), mask=ok)
    tl.debug_barrier()  # all lanes have read what was sent before
    tl.store(users.sent + (user.u * K + k) * DIM + col, new, mask=inside)
    count = tl.sum(over, axis=0)
    if count > 0:
        tl.atomic_add(F.cut, count.to(tl.int64), sem="relaxed")


# ---------------------------------------------------------------------------------------------- the server


@triton.jit
def total_words(sums, t, ok, BLOCK: tl.constexpr, D: tl.constexpr):
    """Rows of the sums as real numbers; the rows are emptied."""
    where = sums + t[:, None] * (D // 2) + tl.arange(0, D // 2)[None, :]
    pair = tl.load(where, mask=ok[:, None], other=0)
    tl.store(where, pair * 0, mask=ok[:, None])
    low = pair.to(tl.int32)
    high = ((pair - low) >> 32).to(tl.int32)
    return tl.reshape(tl.join(low, high), (BLOCK, D))


@triton.jit
def server_round(
    F, server, numbers,
    K: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, ADAM: tl.constexpr, CONCAT: tl.constexpr,
):  # fmt: skip
    """Eqs. (10) and (11), the combined table for the next round, and empty sums."""
    round_ = tl.load(F.now)
    if tl.program_id(0) == 0:
        tl.store(F.counter, round_ + 1)
    if tl.load(F.counts + (round_ - tl.load(F.first_round))) == 0:
        return  # nobody's upload arrived
    n_items = tl.load(numbers.whole)
    t = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = t < n_items
    col = tl.arange(0, D)
    within = ok[:, None] & (col < DIM)[None, :]
    at = t[:, None] * DIM + col[None, :]
    x = tl.load(server.items + at, mask=within, other=0.0)
    total = total_words(server.sums, t, ok, BLOCK, D).to(x.dtype) * tl.load(numbers.server + 2)
    rate = tl.load(numbers.server) * tl.exp2(-round_ * tl.load(numbers.real + 12))
    if ADAM:
        beta1 = tl.load(numbers.server + 3)
        beta2 = tl.load(numbers.server + 4)
        place = tl.minimum(round_ + 1, tl.load(numbers.whole + 3))
        first = beta1 * tl.load(server.moment1 + at, mask=within, other=0.0) - (1 - beta1) * total
        second = beta2 * tl.load(server.moment2 + at, mask=within, other=0.0) + (1 - beta2) * total * total
        tl.store(server.moment1 + at, first, mask=within)
        tl.store(server.moment2 + at, second, mask=within)
        root = tl.sqrt(second * tl.load(numbers.unbias2 + place)) + tl.load(numbers.server + 5)
        x -= rate * (first * tl.load(numbers.unbias1 + place)) / root
    else:
        x += rate * total
    tl.store(server.items + at, x, mask=within)
    a = x * 0
    if K > 0:
        changed = tl.load(server.touched + t, mask=ok, other=0) > 0
        tl.debug_barrier()
        tl.store(server.touched + t, tl.zeros((BLOCK,), tl.int8), mask=changed)
        there = within & changed[:, None]
        scale = tl.load(numbers.server + 1)
        for k in range(1, K + 1):
            table = server.items + k * n_items * DIM
            latent = tl.load(table + at, mask=there, other=0.0)
            latent += total_words(server.sums + k * n_items * (D // 2), t, changed, BLOCK, D).to(x.dtype) * scale
            tl.store(table + at, latent, mask=there)
            a += tl.load(numbers.alphas + k) * latent
        if CONCAT:
            a = x * 0
        else:
            tl.store(server.a + at, a, mask=there)
            a = tl.where(there, a, tl.load(server.a + at, mask=within & (changed[:, None] == 0), other=0.0))
    tl.store(server.f + at, tl.load(numbers.alphas) * x + a, mask=within)
