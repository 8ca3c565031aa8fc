"""What runs on the GPU. A round of a cohort is a few launches, one after the other:

    prepare      (user × level, user × rows)   latents by Eq. (6); the rows that train
    user_step    (user)                        f_u, and how it scores the positives            ┐ τ times; the last
    negatives    (user × rows)                 slopes of the negatives, their part of ∂L/∂f_u  ┘ user_step ends it
    send         (user × level, user × rows)   finished rows, clipped, rounded, added
    server_round (items)                       Eqs. (10) and (11)

The two in the middle are in `_steps_triton`; on GPUs that can keep all rows on the chip `resident` takes their place.

Every sum that has no fixed order is of integers, so a round has the same bits each time: finished rows, and the slopes
that the negatives of one positive add up to (in 2⁻⁴⁵). Two neighbouring words travel in one 64-bit addition.
"""

import triton
import triton.language as tl

from fedgrec.kernels._draws_triton import FEEDBACK, NEGATIVES, PAIRS, POSITIVES, permuted, skipped, words
from fedgrec.kernels._state_triton import decays, find_user, rounded, row_of, takes_part
from fedgrec.kernels._steps_triton import moved_by

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
            free = tl.load(numbers.whole).to(tl.int32)
            if EXCLUDE:
                free -= user.degree
            t = tl.where(ok, permuted(i, ok, free, key, round_, NEGATIVES), 0)
            if EXCLUDE:
                t = skipped(t, users.items + user.start, user.degree)
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
