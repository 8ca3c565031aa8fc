"""Lines 16 to 21 of Algorithm 1 on a GPU: users train on their rows, and send what became of them.

Several programs share a user: each takes a stretch of its negatives, and keeps how far they moved and their moments in
registers from the first local step to the last, which is what makes it fast. All of them hold the user and its few
positives, each a copy of its own that moves alike, so in a step they must meet only once: when the slopes of all
negatives are known, but not yet what these add up to. Programs that wait for each other must run at the same time,
so there are only as many as the GPU holds, and a group that is done with a user goes on with another.

The names are those of reference.local_problem, local_steps and gradients.
"""

import triton
import triton.language as tl

from fedgrec.kernels._draws_triton import FEEDBACK, words
from fedgrec.kernels._state_triton import add_words, decays, find_user, rounded, row_of

SLOPE_STEPS = tl.constexpr(2.0**45)  # slopes are added as integers: their order does not matter


@triton.jit
def train(
    F, users, server, scratch, numbers,
    S: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr, C: tl.constexpr,
    CAP: tl.constexpr, n_all: tl.constexpr, TAU: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    TOGETHER: tl.constexpr, PARTS: tl.constexpr, GROUPS: tl.constexpr, EXCLUDE: tl.constexpr, LIVE: tl.constexpr,
    LOSS: tl.constexpr, MEAN: tl.constexpr, PER_ROW: tl.constexpr, CONCAT: tl.constexpr, ITEM_ADAM: tl.constexpr,
    USER_ADAM: tl.constexpr, KEPT: tl.constexpr, WITHHELD: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0) % TOGETHER
    present = tl.load(F.counts + (tl.load(F.counter) - tl.load(F.first_round)))
    for slot in range(tl.program_id(0) // TOGETHER, present, GROUPS):
        user = find_user(F, users, numbers, slot, S, EXCLUDE)
        if user.P > 0:
            train_user(
                slot, part, user, F, users, server, scratch, numbers,
                K, D, DIM, M, C, CAP, n_all, TAU, ROWS, BLOCK, TOGETHER, PARTS, LIVE, LOSS, MEAN, PER_ROW, CONCAT,
                ITEM_ADAM, USER_ADAM, KEPT, WITHHELD, FAST,
            )  # fmt: skip


@triton.jit
def train_user(
    slot, part, user, F, users, server, scratch, numbers,
    K: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr, C: tl.constexpr, CAP: tl.constexpr,
    n_all: tl.constexpr, TAU: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
    PARTS: tl.constexpr, LIVE: tl.constexpr, LOSS: tl.constexpr, MEAN: tl.constexpr, PER_ROW: tl.constexpr,
    CONCAT: tl.constexpr, ITEM_ADAM: tl.constexpr, USER_ADAM: tl.constexpr, KEPT: tl.constexpr,
    WITHHELD: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """One user's round: a part of its negatives, and all of the rest."""
    decay = decays(numbers, user, LOSS, MEAN, PER_ROW)
    p = tl.load(numbers.real)
    col = tl.arange(0, D)
    inside = col < DIM
    e, first, second, taken = user_state(users, user, col, inside, K, DIM, KEPT)
    latents = combined(users, numbers, user, col, inside, K, DIM, CONCAT)
    drift = e * 0
    i = part * ROWS + tl.arange(0, ROWS)
    ok = i < user.N
    moved = tl.zeros((ROWS, D), e.dtype)
    moment1 = tl.zeros((ROWS, D), e.dtype)
    moment2 = tl.zeros((ROWS, D), e.dtype)
    for step in range(TAU):
        f_u = p * e + tl.load(numbers.real + 1) * drift + latents
        score_positives(
            f_u, step, slot, user, users, server, scratch, numbers, decay, col, inside,
            K, D, DIM, M, C, CAP, BLOCK, LOSS, CONCAT,
        )  # fmt: skip
        t = tl.load(scratch.rows + slot * M + user.P + i, mask=ok, other=0).to(tl.int64)
        f = row_of(server.f, t, ok, col, inside, DIM) + p * moved
        score = tl.sum(f * f_u[None, :], axis=1)
        if CONCAT:
            score += constant(users, server, numbers, user, t, ok, col, inside, K, DIM)
        g = slopes(score, i, ok, step, slot, scratch, decay, C, n_all, TAU, LOSS)
        place = slot * TAU + step
        tl.store(scratch.parts + (place * TOGETHER + part) * D + col, tl.sum(g[:, None] * f, axis=0))
        arrive(scratch.arrived + place)
        x = row_of(server.items, t, ok, col, inside, DIM) + moved
        grad = (p * g)[:, None] * f_u[None, :] + decay.negative * x
        moved, moment1, moment2 = item_step(grad, moved, moment1, moment2, step, numbers, ITEM_ADAM, FAST)
        if (step + 1 < TAU) | (part == 0):  # in the end one holds the user and its positives, as good as all
            wait(scratch.arrived + place, TOGETHER)
            grad_f, drift = move_positives(
                f_u, step, slot, user, users, server, scratch, numbers, decay, col, inside,
                D, DIM, M, C, CAP, TAU, BLOCK, TOGETHER, PARTS, LIVE, LOSS, ITEM_ADAM, FAST,
            )  # fmt: skip
            taken += 1
            e, first, second = user_step(
                e, first, second, grad_f, taken, decay.user, tl.load(F.now), numbers, USER_ADAM
            )
    t = tl.load(scratch.rows + slot * M + user.P + i, mask=ok, other=0).to(tl.int64)
    send_rows(moved, t, ok, F, server, numbers, ROWS, D)
    if part == 0:
        send_positives(slot, user, F, users, server, scratch, numbers, col, D, M, CAP, BLOCK, WITHHELD)
        tl.store(users.embeddings + user.u * (K + 1) * DIM + col, e, mask=inside)
        if KEPT:
            tl.store(users.moment1 + user.u * DIM + col, first, mask=inside)
            tl.store(users.moment2 + user.u * DIM + col, second, mask=inside)
            tl.store(users.steps + user.u, taken)


# ------------------------------------------------------------------------------------------ meeting


@triton.jit
def arrive(counter):
    tl.debug_barrier()  # what all lanes have stored is there before the program counts as arrived
    tl.atomic_add(counter, 1, sem="release")


@triton.jit
def wait(counter, TOGETHER: tl.constexpr):
    """Until all have arrived. What they stored must then be read past the caches that programs do not share."""
    while tl.atomic_add(counter, 0, sem="relaxed") < TOGETHER:
        pass
    tl.debug_barrier()


# ---------------------------------------------------------------------------------------- negatives


@triton.jit
def slopes(
    score, i, ok, step, slot, scratch, decay,
    C: tl.constexpr, n_all: tl.constexpr, TAU: tl.constexpr, LOSS: tl.constexpr,
):  # fmt: skip
    """∂L/∂s of negatives; by Eq. (5) each meets one random positive, which feels as much."""
    if LOSS > 0:
        g = 2 * decay.scale * score
    else:
        place = slot * TAU + step
        partner = tl.load(scratch.partners + place * n_all + i, mask=ok, other=0)
        rival = tl.load(scratch.scores + tl.program_id(0) * C + partner, mask=ok, other=0.0)
        g = decay.scale / (1 + tl.exp(rival - score))
        tl.atomic_add(scratch.gathered + place * C + partner, (g * SLOPE_STEPS).to(tl.int64), mask=ok, sem="relaxed")
    return tl.where(ok, g, 0.0)


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
def item_step(grad, moved, moment1, moment2, step, numbers, ADAM: tl.constexpr, FAST: tl.constexpr):
    """One optimizer step of item rows. Adam's moments are without their factor 1 − β: rate and ε have it."""
    if ADAM:
        moment1 = tl.load(numbers.real + 5) * moment1 + grad
        moment2 = tl.load(numbers.real + 6) * moment2 + grad * grad
        root = adam_quotient(moment1, moment2, tl.load(numbers.epsilons + step), FAST)
        moved -= tl.load(numbers.rates + step) * root
    else:
        moved -= tl.load(numbers.real + 3) * grad
    return moved, moment1, moment2


@triton.jit
def adam_quotient(first, second, epsilon, FAST: tl.constexpr):
    """first / (√second + ε); FAST, for float32: by the hardware's own approximations, good to 2⁻²²."""
    if FAST:
        return tl.inline_asm_elementwise(
            "{ .reg .f32 r; sqrt.approx.ftz.f32 r, $2; add.f32 r, r, $3; rcp.approx.ftz.f32 r, r; mul.f32 $0, $1, r; }",
            "=f,f,f,f", [first, second, epsilon], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    return first / (tl.sqrt(second) + epsilon)


# ---------------------------------------------------------------------------------------- positives


@triton.jit
def state_of(scratch, at, col, D: tl.constexpr, CAP: tl.constexpr):
    """Where this program's copies of positives are: how far they moved, then two moments, D apart."""
    return scratch.positives + ((tl.program_id(0).to(tl.int64) * CAP + at) * (3 * D))[:, None] + col[None, :]


@triton.jit
def score_positives(
    f_u, step, slot, user, users, server, scratch, numbers, decay, col, inside,
    K: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr, C: tl.constexpr, CAP: tl.constexpr,
    BLOCK: tl.constexpr, LOSS: tl.constexpr, CONCAT: tl.constexpr,
):  # fmt: skip
    """Scores of the positives; for the MSE at once their slopes."""
    p = tl.load(numbers.real)
    for start in range(0, user.P, BLOCK):
        at = start + tl.arange(0, BLOCK)
        ok = at < user.P
        t = tl.load(scratch.rows + slot * M + at, mask=ok, other=0).to(tl.int64)
        old = ok[:, None] & (step > 0)
        f = row_of(server.f, t, ok, col, inside, DIM)
        f += p * tl.load(state_of(scratch, at, col, D, CAP), mask=old, other=0.0)
        score = tl.sum(f * f_u[None, :], axis=1)
        if CONCAT:
            score += constant(users, server, numbers, user, t, ok, col, inside, K, DIM)
        if LOSS > 0:
            edge = tl.load(scratch.edges + slot * C + at, mask=ok, other=0)
            score = 2 * decay.scale * (score - tl.load(users.targets + user.start + edge, mask=ok, other=0.0))
        tl.store(scratch.scores + tl.program_id(0) * C + at, score, mask=ok)
    tl.debug_barrier()  # other lanes look for their partners there


@triton.jit
def positive_slopes(
    scratch, at, ok, step, slot, decay, C: tl.constexpr, TAU: tl.constexpr, LOSS: tl.constexpr
):  # fmt: skip
    """∂L/∂s of positives, once all negatives are known."""
    if LOSS > 0:
        return tl.load(scratch.scores + tl.program_id(0) * C + at, mask=ok, other=0.0)
    total = tl.load(scratch.gathered + (slot * TAU + step) * C + at, mask=ok, other=0, cache_modifier=".cg")
    return -(total.to(decay.scale.dtype) * (1.0 / SLOPE_STEPS))


@triton.jit
def move_positives(
    f_u, step, slot, user, users, server, scratch, numbers, decay, col, inside,
    D: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr, C: tl.constexpr, CAP: tl.constexpr, TAU: tl.constexpr,
    BLOCK: tl.constexpr, TOGETHER: tl.constexpr, PARTS: tl.constexpr, LIVE: tl.constexpr, LOSS: tl.constexpr,
    ITEM_ADAM: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """One optimizer step of the positives: ∂L/∂f_u, and how far the user's first latent follows its items."""
    p = tl.load(numbers.real)
    part = tl.arange(0, PARTS)
    given = scratch.parts + ((slot * TAU + step) * TOGETHER + part)[:, None] * D + col[None, :]
    grad_f = tl.sum(tl.load(given, mask=(part < TOGETHER)[:, None], other=0.0, cache_modifier=".cg"), axis=0)
    if LIVE:  # positives feel ∂L/∂f_u, so it must be known before they move
        for start in range(0, user.P, BLOCK):
            at = start + tl.arange(0, BLOCK)
            ok = at < user.P
            t = tl.load(scratch.rows + slot * M + at, mask=ok, other=0).to(tl.int64)
            f = row_of(server.f, t, ok, col, inside, DIM)
            f += p * tl.load(state_of(scratch, at, col, D, CAP), mask=ok[:, None] & (step > 0), other=0.0)
            grad_f += tl.sum(positive_slopes(scratch, at, ok, step, slot, decay, C, TAU, LOSS)[:, None] * f, axis=0)
    drift = grad_f * 0
    for start in range(0, user.P, BLOCK):
        at = start + tl.arange(0, BLOCK)
        ok = at < user.P
        t = tl.load(scratch.rows + slot * M + at, mask=ok, other=0).to(tl.int64)
        old = ok[:, None] & (step > 0)
        state = state_of(scratch, at, col, D, CAP)
        moved = tl.load(state, mask=old, other=0.0)
        g = positive_slopes(scratch, at, ok, step, slot, decay, C, TAU, LOSS)
        x = row_of(server.items, t, ok, col, inside, DIM) + moved
        grad = (p * g)[:, None] * f_u[None, :] + decay.positive * x
        if LIVE:
            edge = tl.load(scratch.edges + slot * C + at, mask=ok, other=0)
            w = tl.load(users.gather + user.start + edge, mask=ok, other=0.0)
            grad += w[:, None] * (tl.load(numbers.real + 1) * grad_f)[None, :]
        else:
            f = row_of(server.f, t, ok, col, inside, DIM) + p * moved
            grad_f += tl.sum(g[:, None] * f, axis=0)
        moment1 = moved * 0
        moment2 = moved * 0
        if ITEM_ADAM:
            moment1 = tl.load(state + D, mask=old, other=0.0)
            moment2 = tl.load(state + 2 * D, mask=old, other=0.0)
        moved, moment1, moment2 = item_step(grad, moved, moment1, moment2, step, numbers, ITEM_ADAM, FAST)
        tl.store(state, moved, mask=ok[:, None])
        if ITEM_ADAM:
            tl.store(state + D, moment1, mask=ok[:, None])
            tl.store(state + 2 * D, moment2, mask=ok[:, None])
        if LIVE:
            drift += tl.sum(w[:, None] * moved, axis=0)
    return grad_f, drift


# ----------------------------------------------------------------------------------------- the user


@triton.jit
def user_state(users, user, col, inside, K: tl.constexpr, DIM: tl.constexpr, KEPT: tl.constexpr):
    """e_u^0, its moments and how many steps they have seen."""
    e = tl.load(users.embeddings + user.u * (K + 1) * DIM + col, mask=inside, other=0.0)
    first = e * 0
    second = e * 0
    taken = tl.load(users.steps + user.u)
    if KEPT:
        first = tl.load(users.moment1 + user.u * DIM + col, mask=inside, other=0.0)
        second = tl.load(users.moment2 + user.u * DIM + col, mask=inside, other=0.0)
    else:
        taken *= 0
    return e, first, second, taken


@triton.jit
def combined(
    users, numbers, user, col, inside, K: tl.constexpr, DIM: tl.constexpr, CONCAT: tl.constexpr
):  # fmt: skip
    """B of the canonical score: Σ_k α_k e_u^k for k > 0."""
    home = users.embeddings + user.u * (K + 1) * DIM + col
    total = tl.load(home, mask=inside, other=0.0) * 0
    if not CONCAT:
        for k in range(1, K + 1):
            total += tl.load(numbers.alphas + k) * tl.load(home + k * DIM, mask=inside, other=0.0)
    return total


@triton.jit
def user_step(e, first, second, grad_f, taken, decay, round_, numbers, ADAM: tl.constexpr):
    """One optimizer step of e_u^0, the `taken`-th that its moments see."""
    rate = tl.load(numbers.real + 4) * tl.exp2(-round_ * tl.load(numbers.real + 12))
    grad = tl.load(numbers.real) * grad_f + decay * e
    if ADAM:
        beta1 = tl.load(numbers.real + 5)
        beta2 = tl.load(numbers.real + 6)
        first = beta1 * first + (1 - beta1) * grad
        second = beta2 * second + (1 - beta2) * grad * grad
        place = tl.minimum(taken, tl.load(numbers.whole + 3))
        root = tl.sqrt(second * tl.load(numbers.unbias2 + place)) + tl.load(numbers.real + 7)
        e -= rate * (first * tl.load(numbers.unbias1 + place)) / root
    else:
        e -= rate * grad
    return e, first, second


# ------------------------------------------------------------------------------------------ sending


@triton.jit
def send_rows(moved, t, ok, F, server, numbers, ROWS: tl.constexpr, D: tl.constexpr):
    """Rows in steps, clipped, rounded and added to the sum."""
    steps = rounded(tl.load(numbers.real + 8) * moved)
    bound = tl.load(numbers.real + 9)
    over = tl.sum(tl.sum((ok[:, None] & (tl.abs(steps) > bound)).to(tl.int32), axis=1), axis=0)
    add_words(server.sums, t, tl.minimum(tl.maximum(steps, -bound), bound), ok, ROWS, D)
    if over > 0:
        tl.atomic_add(F.cut, over.to(tl.int64), sem="relaxed")


@triton.jit
def send_positives(
    slot, user, F, users, server, scratch, numbers, col,
    D: tl.constexpr, M: tl.constexpr, CAP: tl.constexpr, BLOCK: tl.constexpr, WITHHELD: tl.constexpr,
):  # fmt: skip
    for start in range(0, user.P, BLOCK):
        at = start + tl.arange(0, BLOCK)
        ok = at < user.P
        t = tl.load(scratch.rows + slot * M + at, mask=ok, other=0).to(tl.int64)
        moved = tl.load(state_of(scratch, at, col, D, CAP), mask=ok[:, None], other=0.0)
        if WITHHELD:
            key = tl.load(users.keys + user.u)
            ok = ok & (words(key, at, 0, tl.load(F.now), FEEDBACK).to(tl.int64) < tl.load(numbers.whole + 4))
        send_rows(moved, t, ok, F, server, numbers, BLOCK, D)
