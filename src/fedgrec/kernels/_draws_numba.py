# mypy: ignore-errors
"""The draws of `fedgrec.cable.draws`, word for word, inside compiled loops.

Every constant is uint64: mixed with a signed integer, Numba would fall back to floating point. And a function is
called with the same types everywhere, since Numba compiles it anew for others, a literal number among them.
"""

import numpy as np

from fedgrec.cable.draws import FEISTEL_M, PHILOX_M, PHILOX_W, Purpose
from fedgrec.kernels._numba import fused, inlined

U = np.uint64
LOW, SHIFT = U(0xFFFFFFFF), U(32)
M0, M1, W0, W1 = U(PHILOX_M[0]), U(PHILOX_M[1]), U(PHILOX_W[0]), U(PHILOX_W[1])
F0, F1 = U(FEISTEL_M[0]), U(FEISTEL_M[1])
NEGATIVES, PAIRS, POSITIVES = U(Purpose.NEGATIVES), U(Purpose.PAIRS), U(Purpose.POSITIVES)
FEEDBACK = U(Purpose.FEEDBACK)
ZERO, ONE = U(0), U(1)


@fused
def philox(key, slot, step, round_, purpose):
    k0, k1 = key & LOW, key >> SHIFT
    c0, c1, c2, c3 = slot & LOW, step, round_, purpose
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
def permuted(out, size, key, round_, purpose, step):
    """Fills `out` with where the keyed permutation of 0..size−1 sends 0, 1, 2, ..."""
    n_columns = max(np.int64(np.sqrt(size)), 1)
    while n_columns * n_columns < size:
        n_columns += 1
    n_rows = (size + n_columns - 1) // n_columns
    k0, k1, k2, k3 = philox(key, ZERO, step, round_, purpose)
    k4, _, _, _ = philox(key, ONE, step, round_, purpose)
    offset = np.int64((k4 * U(size)) >> SHIFT)
    start_row, start_column = np.int64(0), np.int64(0)
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
            start_row, start_column = start_row + 1, np.int64(0)


@fused
def turned(half, other, key, bound):
    """half + F(other) modulo bound."""
    moved = half + np.int64((mix(U(other), key) * U(bound)) >> SHIFT)
    return moved - (bound if moved >= bound else 0)


@fused
def draw_negatives(out, key, round_, positives, n_items, step):
    """Distinct non-positives: the rank among non-positives, then skip the positives before it."""
    P = len(positives)
    permuted(out, n_items - P, key, round_, NEGATIVES, step)
    half = 1
    while 2 * half <= P:
        half *= 2
    for i in range(len(out)):
        rank, before, jump = out[i], 0, half
        while jump and P:  # a binary search whose length depends on P alone, so it is never mispredicted
            last = min(before + jump, P) - 1
            before = last + 1 if positives[last] - last <= rank else before
            jump //= 2
        out[i] = rank + before


@fused
def draw_from_shelves(out, key, round_, shelves, excluded):
    """Distinct non-positives, as many from each shelf as it has to give, see draws.negatives_from; returns how many."""
    order, first, quotas = shelves.order, shelves.first, shelves.quotas
    mine, drawn, passed = np.empty(len(excluded), np.int64), 0, 0
    for i in range(len(mine)):
        mine[i] = shelves.place[excluded[i]]
    sort(mine)
    for shelf in range(len(quotas)):
        start, size, begin = first[shelf], first[shelf + 1] - first[shelf], passed
        while passed < len(mine) and mine[passed] < start + size:
            passed += 1
        taken = mine[begin:passed]
        for i in range(len(taken)):
            taken[i] -= start
        part = out[drawn : drawn + min(quotas[shelf], size - len(taken))]
        draw_negatives(part, key, round_, taken, size, U(shelf))
        for i in range(len(part)):
            part[i] = order[start + part[i]]
        drawn += len(part)
    return drawn


@fused
def choose_positives(key, items, flags):
    """Which of the user's items train in this round."""
    P = min(len(items), flags.max_positives)
    chosen = np.empty(P, np.int64)
    if len(items) > P:
        permuted(chosen, len(items), key, U(flags.round), POSITIVES, ZERO)
        sort(chosen)
    else:
        for i in range(P):
            chosen[i] = i
    return chosen


@fused
def sort(numbers):
    """Shell's sort, in place: Numba's own takes two seconds to compile."""
    gap = len(numbers) // 2
    while gap:
        for i in range(gap, len(numbers)):
            number, at = numbers[i], i
            while at >= gap and numbers[at - gap] > number:
                numbers[at] = numbers[at - gap]
                at -= gap
            numbers[at] = number
        gap = 1 if gap == 2 else gap * 5 // 11


@fused
def choose_from(key, items, shelves, flags):
    """The user's training rows of the round, positives first, and which of its items those are."""
    chosen, excluded = choose_positives(key, items, flags), items if flags.exclude else items[:0]
    P = len(chosen)
    room = P
    for shelf in range(len(shelves.quotas)):
        room += shelves.quotas[shelf]
    rows = np.empty(room, np.int64)
    for i in range(P):
        rows[i] = items[chosen[i]]
    drawn = draw_from_shelves(rows[P:], key, U(flags.round), shelves, excluded) if P else 0
    return rows[: P + drawn], chosen


@fused
def withheld(key, i, flags):
    """Whether the update of the i-th positive stays at home this round, see draws.feedback."""
    if flags.feedback > LOW:
        return False
    words = philox(key, U(i // 4), ZERO, U(flags.round), FEEDBACK)
    return words[i % 4] >= U(flags.feedback)


ITEM_TURN, COLUMN_TURN = (np.int32(np.uint32(odd)) for odd in FEISTEL_M)


@inlined
def rounding_shift(word, t, j):
    """A shift of draws.shifts, before its factor 2⁻²⁴; `word` is the one draw of the user."""
    return np.int32(np.int32(word + np.int32(t) * ITEM_TURN) + np.int32(j) * COLUMN_TURN) >> np.int32(8)
