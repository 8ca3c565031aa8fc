"""What runs on the GPU. A round of a cohort is a few launches, one after the other:

    prepare      (user × level, user × rows)   latents by Eq. (6); the rows that train
    user_step    (user)                        f_u, and how it scores the positives            ┐ τ times; the last
    negatives    (user × rows)                 slopes of the negatives, their part of ∂L/∂f_u  ┘ user_step ends it
    send         (user × level, user × rows)   finished rows, clipped, rounded, added
    server_round (items)                       Eqs. (10) and (11)

The two in the middle are in `_steps_triton` and `_negatives_triton`.

Every sum that has no fixed order is of integers, so a round has the same bits each time: finished rows, and the slopes
that the negatives of one positive add up to (in 2⁻⁴⁵). Two neighbouring words travel in one 64-bit addition.
"""

import triton
import triton.language as tl

from fedgrec.kernels._draws_triton import FEEDBACK, NEGATIVES, PAIRS, POSITIVES, permuted, shifts, skipped, words
from fedgrec.kernels._negatives_triton import moved_by
from fedgrec.kernels._state_triton import (
    MOVED,
    decays,
    find_user,
    items_at,
    positives_at,
    power_of_two,
    rounded,
    rows_of,
    takes_part,
    travelled,
)

# ---------------------------------------------------------------------------------- line 15, and which rows


@triton.jit
def latents_are_due(round_, numbers):
    """FedGRecMethod.training."""
    done = round_ - tl.load(numbers.whole.begun)
    turns = done * tl.load(numbers.whole.sampled) // tl.load(numbers.whole.n_users)
    every = tl.load(numbers.whole.latents_every)  # 0: in rounds of their own, which are not run here
    return (every > 0) & ((done + 1) % tl.minimum(tl.maximum(every, 1), 1 + turns) == 0)


@triton.jit
def prepare(at, size, BLOCK: tl.constexpr, DRAWN: tl.constexpr):
    slot = tl.program_id(0)
    part = tl.program_id(1)
    F = at.federation
    if (slot == 0) & (part == 0):
        tl.store(F.now, tl.load(F.counter))
    if not takes_part(F, slot):
        return
    user = find_user(at, slot, size)
    if part < size.K:
        due = latents_are_due(tl.load(F.counter), at.numbers)
        if size.COMBINED:  # noqa: SIM102
            if part == 0:
                gather(at.server.c, at.scratch.B + slot * size.D, 0, at, user, size, BLOCK)
        if due or not size.COMBINED:
            table = at.server.items + part * tl.load(at.numbers.whole.n_items) * size.DIM
            home = at.users.embeddings + (user.u * (size.K + 1) + part + 1) * size.DIM
            gather(table, home, size.KIND, at, user, size, BLOCK)
    else:
        key = tl.load(at.users.keys + user.u)
        round_ = tl.load(F.counter)
        if part == size.K:
            choose_positives(at, user, key, round_, size)
        else:
            choose_negatives((part - size.K - 1) * DRAWN + tl.arange(0, DRAWN), at, user, key, round_, size)


@triton.jit
def gather(table, home, KIND: tl.constexpr, at, user, size, BLOCK: tl.constexpr):
    """Eq. (6): e_u^{k+1} = Σ_t w_ut e_t^k, with the table as it travels."""
    n = tl.arange(0, BLOCK)
    col = tl.arange(0, size.D)
    users = at.users
    total = tl.zeros((BLOCK, size.D), users.gather.dtype.element_ty)
    for first in range(0, user.degree, BLOCK):
        ok = first + n < user.degree
        t = tl.load(users.items + user.start + first + n, mask=ok, other=0).to(tl.int64)
        w = tl.load(users.gather + user.start + first + n, mask=ok, other=0.0)
        total += w[:, None] * travelled(rows_of(table, t, ok, size), KIND)
    tl.store(home + col, tl.sum(total, axis=0), mask=col < size.DIM)


@triton.jit
def choose_positives(at, user, key, round_, size):
    """All of the user's items, or a sorted sample of those that may train."""
    i = tl.arange(0, size.C)
    edge = i
    if user.degree > user.P:
        drawn = permuted(i, i < user.P, user.degree, key, round_, POSITIVES)
        edge = tl.sort(tl.where(i < user.P, drawn, 2147483647))
    ok = i < user.P
    tl.store(at.scratch.edges + user.slot * size.C + i, edge, mask=ok)
    t = tl.load(at.users.items + user.start + edge, mask=ok, other=0)
    tl.store(at.scratch.rows + user.slot * size.M + i, t, mask=ok)


@triton.jit
def choose_negatives(i, at, user, key, round_, size):
    """Negatives i, and the positive that each meets in every step."""
    ok = i < user.N
    t = i * 0
    shelf = user.u * (size.SHELVES + 1)
    for b in range(size.SHELVES):
        begin = tl.load(at.users.begins + shelf + b)
        here = ok & (i >= begin) & (i < tl.load(at.users.begins + shelf + b + 1))
        if tl.max(here.to(tl.int32), axis=0) > 0:
            least = tl.load(at.server.first + b)
            mine = tl.load(at.users.taken + shelf + b)
            P = tl.load(at.users.taken + shelf + b + 1) - mine
            free = tl.load(at.server.first + b + 1) - least - P
            rank = tl.where(here, permuted(i - begin, here, free, key, round_, NEGATIVES, b), 0)
            place = least + skipped(rank, at.users.ranked + user.start + mine, P, least)
            t = tl.where(here, tl.load(at.server.order + place, mask=here, other=0), t)
    tl.store(at.scratch.rows + user.slot * size.M + user.P + i, t, mask=ok)
    for step in range(size.TAU * size.PAIRED):
        partner = tl.umulhi(words(key, i, step, round_, PAIRS), user.P.to(tl.uint32)).to(tl.int32)
        tl.store(at.scratch.partners + (user.slot * size.TAU + step) * size.MANY + i, partner, mask=ok)


# ------------------------------------------------------------------------------------------------ line 22


@triton.jit
def add_words(sums, t, values, ok, BLOCK: tl.constexpr, D: tl.constexpr):
    """Adds whole numbers to rows of the sums, two neighbours in one 64-bit word."""
    low, high = tl.split(tl.reshape(values.to(tl.int64), (BLOCK, D // 2, 2)))
    col = tl.arange(0, D // 2)
    tl.atomic_add(sums + t[:, None] * (D // 2) + col[None, :], low + (high << 32), mask=ok[:, None], sem="relaxed")


@triton.jit
def add_rows(t, moved, ok, at, user, rules, BLOCK: tl.constexpr, D: tl.constexpr):
    """Adds finished rows of item updates, clipped and rounded; how many words of each the clip cut."""
    moved *= tl.load(at.numbers.real.to_item_steps)
    bound = tl.load(at.numbers.real.item_bound)
    if rules.NARROW:
        round_ = tl.load(at.federation.now)
        if round_ >= tl.load(at.numbers.whole.fine_rounds):
            bound = tl.load(at.numbers.real.levels)
            steps = tl.load(at.server.steps + t, mask=ok, other=1.0)
            moved *= (tl.load(at.numbers.real.item_step) / steps)[:, None]
            moved += shifts(t, tl.load(at.users.keys + user.u), round_, D).to(moved.dtype)
    moved = rounded(moved)
    add_words(at.server.sums, t, tl.minimum(tl.maximum(moved, -bound), bound), ok, BLOCK, D)
    return tl.sum((ok[:, None] & (tl.abs(moved) > bound)).to(tl.int32), axis=1)


@triton.jit
def send(at, size, rules, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    slot = tl.program_id(0)
    part = tl.program_id(1)
    if not takes_part(at.federation, slot):
        return
    user = find_user(at, slot, size)
    if part < size.K:
        if latents_are_due(tl.load(at.federation.now), at.numbers):
            send_level(part, at, user, size, BLOCK)
    elif part == size.K:
        send_positives(at, user, size, rules, BLOCK)
    else:
        send_negatives((part - size.K - 1) * SPLIT, at, user, size, rules, SPLIT, BLOCK)


@triton.jit
def report(F, over):
    """Adds up how many words the clip cut."""
    count = tl.sum(over, axis=0)
    if count > 0:
        tl.atomic_add(F.cut, count.to(tl.int64), sem="relaxed")


@triton.jit
def send_positives(at, user, size, rules, BLOCK: tl.constexpr):
    key = tl.load(at.users.keys + user.u)
    n = tl.arange(0, BLOCK)
    over = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, user.P, BLOCK):
        i = first + n
        ok = i < user.P
        t = items_at(at.scratch, user, i, ok, size)
        moved = tl.load(positives_at(at.scratch, user, i, size) + MOVED * size.D, mask=ok[:, None], other=0.0)
        if rules.WITHHELD:
            drawn = words(key, i, 0, tl.load(at.federation.now), FEEDBACK).to(tl.int64)
            ok = ok & (drawn < tl.load(at.numbers.whole.feedback_bound))
        over += add_rows(t, moved, ok, at, user, rules, BLOCK, size.D)
    report(at.federation, over)


@triton.jit
def send_negatives(start, at, user, size, rules, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    decay = decays(at.numbers, user, rules)
    n = tl.arange(0, BLOCK)
    over = tl.zeros((BLOCK,), tl.int32)
    for first in range(start, tl.minimum(start + SPLIT, user.N), BLOCK):
        i = first + n
        ok = i < user.N
        t = items_at(at.scratch, user, user.P + i, ok, size)
        x0 = rows_of(at.server.items, t, ok, size)
        f0 = rows_of(at.server.f, t, ok, size) if rules.COSINE else x0
        moved = moved_by(x0, f0, size.TAU, i, ok, decay, at, user, size, rules)
        over += add_rows(t, moved, ok, at, user, rules, BLOCK, size.D)
    report(at.federation, over)


@triton.jit
def send_level(k, at, user, size, BLOCK: tl.constexpr):
    """Eq. (11): the change of the user's standing contribution to its items' latents."""
    users = at.users
    n = tl.arange(0, BLOCK)
    col = tl.arange(0, size.D)
    inside = col < size.DIM
    to_steps = tl.load(at.numbers.real.to_latent_steps)
    bound = tl.load(at.numbers.real.latent_bound)
    sent = users.sent + (user.u * size.K + k) * size.DIM + col
    old = tl.load(sent, mask=inside, other=0.0)
    new = tl.load(users.embeddings + (user.u * (size.K + 1) + k) * size.DIM + col, mask=inside, other=0.0)
    sums = at.server.sums + (k + 1) * tl.load(at.numbers.whole.n_items) * (size.D // 2)
    over = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, user.degree, BLOCK):
        ok = first + n < user.degree
        t = tl.load(users.items + user.start + first + n, mask=ok, other=0).to(tl.int64)
        w = tl.load(users.push + user.start + first + n, mask=ok, other=0.0)
        before = rounded(w[:, None] * old[None, :] * to_steps)
        after = rounded(w[:, None] * new[None, :] * to_steps)
        over += tl.sum((ok[:, None] & (tl.abs(after) > bound)).to(tl.int32), axis=1)
        before = tl.minimum(tl.maximum(before, -bound), bound)
        after = tl.minimum(tl.maximum(after, -bound), bound)
        add_words(sums, t, after.to(tl.int32) - before.to(tl.int32), ok, BLOCK, size.D)
        tl.store(at.server.touched + t, tl.full((BLOCK,), 1, tl.int8), mask=ok)
    tl.debug_barrier()  # all lanes have read what was sent before
    tl.store(sent, new, mask=inside)
    report(at.federation, over)


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
    NARROW: tl.constexpr, COMBINED: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Eqs. (10) and (11), the combined table for the next round, and empty sums."""
    round_ = tl.load(F.now)
    if tl.program_id(0) == 0:
        tl.store(F.counter, round_ + 1)
    n_items = tl.load(numbers.whole.n_items)
    t = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = t < n_items
    col = tl.arange(0, D)
    within = ok[:, None] & (col < DIM)[None, :]
    at = t[:, None] * DIM + col[None, :]
    if tl.load(F.counts + (round_ - tl.load(F.first_round))) == 0:  # nobody's upload arrived
        if NARROW:
            store_steps(tl.load(server.moment2 + at, mask=within, other=0.0), t, ok, round_, server, numbers)
        return
    x = tl.load(server.items + at, mask=within, other=0.0)
    step = tl.full((BLOCK,), 0, x.dtype) + tl.load(numbers.real.item_step)
    if NARROW:  # noqa: SIM102
        if round_ >= tl.load(numbers.whole.fine_rounds):
            step = tl.load(server.steps + t, mask=ok, other=1.0)
    total = total_words(server.sums, t, ok, BLOCK, D).to(x.dtype) * step[:, None]
    done = round_ - tl.load(numbers.whole.begun)
    rate = tl.load(numbers.real.server_rate) * tl.exp2(-done * tl.load(numbers.real.fall))
    if ADAM:
        beta1 = tl.load(numbers.real.beta1)
        beta2 = tl.load(numbers.real.beta2)
        place = tl.minimum(round_ + 1, tl.load(numbers.whole.unbiased_after))
        first = beta1 * tl.load(server.moment1 + at, mask=within, other=0.0) - (1 - beta1) * total
        second = beta2 * tl.load(server.moment2 + at, mask=within, other=0.0) + (1 - beta2) * total * total
        tl.store(server.moment1 + at, first, mask=within)
        tl.store(server.moment2 + at, second, mask=within)
        if NARROW:
            store_steps(second, t, ok, round_, server, numbers)
        root = tl.sqrt(second * tl.load(numbers.unbias2 + place)) + tl.load(numbers.real.epsilon)
        x -= rate * (first * tl.load(numbers.unbias1 + place)) / root
    else:
        x += rate * total
    tl.store(server.items + at, x, mask=within)
    a = x * 0
    rest = x * 0
    if K > 0:
        changed = tl.load(server.touched + t, mask=ok, other=0) > 0
        tl.debug_barrier()
        tl.store(server.touched + t, tl.zeros((BLOCK,), tl.int8), mask=changed)
        there = within & changed[:, None]
        scale = tl.load(numbers.real.latent_rate)
        for k in range(1, K + 1):
            table = server.items + k * n_items * DIM
            latent = tl.load(table + at, mask=there, other=0.0)
            latent += total_words(server.sums + k * n_items * (D // 2), t, changed, BLOCK, D).to(x.dtype) * scale
            tl.store(table + at, latent, mask=there)
            a += tl.load(numbers.alphas + k) * latent
            if COMBINED and k < K:
                rest += tl.load(numbers.alphas + k + 1) * latent
        if CONCAT:
            a = x * 0
        else:
            unchanged = within & (changed[:, None] == 0)
            tl.store(server.a + at, a, mask=there)
            a = tl.where(there, a, tl.load(server.a + at, mask=unchanged, other=0.0))
            if COMBINED:
                tl.store(server.rest + at, rest, mask=there)
                rest = tl.where(there, rest, tl.load(server.rest + at, mask=unchanged, other=0.0))
                c = travelled(tl.load(numbers.alphas + 1) * x + rest, KIND)
                tl.store(server.c + at, c, mask=within)
    f = tl.load(numbers.alphas) * x + a
    tl.store(server.f + at, travelled(f, KIND), mask=within)


@triton.jit
def store_steps(second, t, ok, round_, server, numbers):
    """FedGRecMethod.row_steps, for the next round."""
    place = tl.minimum(round_ + 1, tl.load(numbers.whole.unbiased_after))
    usual = tl.max(second, axis=1) * tl.load(numbers.unbias2 + place)
    usual *= tl.load(server.step_scales + t, mask=ok, other=1.0)
    bits = usual.to(tl.float32).to(tl.int32, bitcast=True)
    exponent = tl.minimum(((bits >> 23) - 126 + 1) >> 1, tl.load(numbers.whole.coarsest).to(tl.int32))
    exponent = tl.where(usual == 0, tl.load(numbers.whole.untouched).to(tl.int32), exponent)
    tl.store(server.steps + t, power_of_two(exponent).to(second.dtype), mask=ok)
