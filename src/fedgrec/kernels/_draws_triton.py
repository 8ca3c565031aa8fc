"""The draws of `fedgrec.cable.draws` on a GPU, word for word."""

import triton
import triton.language as tl

from fedgrec.cable.draws import FEISTEL_M, Purpose

F0, F1 = tl.constexpr(FEISTEL_M[0]), tl.constexpr(FEISTEL_M[1])
NEGATIVES, PAIRS = tl.constexpr(int(Purpose.NEGATIVES)), tl.constexpr(int(Purpose.PAIRS))
POSITIVES, FEEDBACK = tl.constexpr(int(Purpose.POSITIVES)), tl.constexpr(int(Purpose.FEEDBACK))
ROUNDING = tl.constexpr(int(Purpose.ROUNDING))


@triton.jit
def mixed(half, key):
    h = (half.to(tl.uint32) ^ key) * F0
    h ^= h >> 15
    h = h * F1
    return h ^ (h >> 13)


@triton.jit
def turned(half, other, key, bound):
    """half + F(other) modulo bound."""
    moved = half + tl.umulhi(mixed(other, key), bound.to(tl.uint32)).to(tl.int32)
    return moved - tl.where(moved >= bound, bound, 0)


@triton.jit
def permuted(i, wanted, size, key, round_, purpose, step=0):
    """Where the keyed permutation of 0..size−1 sends the wanted ones of i."""
    n_columns = tl.maximum(tl.sqrt(size.to(tl.float32)).to(tl.int32), 1)
    while n_columns * n_columns < size:
        n_columns += 1
    while (n_columns > 1) & ((n_columns - 1) * (n_columns - 1) >= size):
        n_columns -= 1
    n_rows = (size + n_columns - 1) // n_columns
    zero = round_ * 0
    k0, k1, k2, k3 = tl.philox(key, zero, zero + step, round_, zero + purpose)
    k4, _, _, _ = tl.philox(key, zero + 1, zero + step, round_, zero + purpose)
    value = i
    outside = wanted
    while tl.max(outside.to(tl.int32), axis=0) > 0:
        row = value // n_columns
        column = value % n_columns
        row = turned(row, column, k0, n_rows)
        column = turned(column, row, k1, n_columns)
        row = turned(row, column, k2, n_rows)
        column = turned(column, row, k3, n_columns)
        value = tl.where(outside, row * n_columns + column, value)
        outside = outside & (value >= size)
    value += tl.umulhi(k4, size.to(tl.uint32)).to(tl.int32)
    return value - tl.where(value >= size, size, 0)


@triton.jit
def shifts(t, key, round_, D: tl.constexpr):
    """draws.shifts of items t. [len(t), D]"""
    zero = round_ * 0
    drawn, _, _, _ = tl.philox(key, zero, zero, round_, zero + ROUNDING)
    turn = t.to(tl.uint32)[:, None] * F0 + tl.arange(0, D).to(tl.uint32)[None, :] * F1 + drawn.to(tl.uint32)
    return (turn.to(tl.int32, bitcast=True) >> 8).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def words(key, i, step, round_, purpose):
    """The i-th words of a stream."""
    zero = i * 0
    w0, w1, w2, w3 = tl.philox(key, i // 4, zero + step, zero + round_, zero + purpose)
    lane = i % 4
    return tl.where(lane < 2, tl.where(lane == 0, w0, w1), tl.where(lane == 2, w2, w3))


@triton.jit
def skipped(rank, mine, P, least=0):
    """The rank-th number from `least` on that is not among the P sorted ones at `mine`: rank + those before it."""
    before = rank * 0
    step = 1
    while 2 * step <= P:
        step *= 2
    while (step > 0) & (P > 0):
        last = tl.minimum(before + step, P) - 1
        before = tl.where(tl.load(mine + last) - least - last <= rank, last + 1, before)
        step //= 2
    return rank + before
