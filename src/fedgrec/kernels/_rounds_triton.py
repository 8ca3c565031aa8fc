"""One launch each for two tasks of `rounds_torch` on a GPU: to draw; and to round, clip and add rows.

In PyTorch each would take a dozen passes over tables [users, rows, d], or some hundred launches.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from fedgrec.kernels._draws_triton import NEGATIVES, PAIRS, POSITIVES, permuted, skipped, words
from fedgrec.kernels._state_triton import rounded

AT_ONCE = 256  # draws of a program
ELEMENTS = 2048  # words that a program rounds


@triton.jit(do_not_specialize=["round_"])
def draw_negatives(users, keys, first, degrees, items, out, n_items, width, round_, BLOCK: tl.constexpr):
    slot = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    u = tl.load(users + slot)
    degree = tl.load(degrees + u).to(tl.int32)
    free = n_items - degree
    ok = (i < width) & (i < free)
    rank = permuted(i, ok, free, tl.load(keys + u), round_, NEGATIVES)
    drawn = skipped(tl.where(ok, rank, 0), items + tl.load(first + u), degree)
    tl.store(out + slot.to(tl.int64) * width + i, tl.where(ok, drawn, 0), mask=i < width)


@triton.jit(do_not_specialize=["round_"])
def draw_pairs(users, keys, n_positives, out, width, round_, BLOCK: tl.constexpr):
    slot = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    random = words(tl.load(keys + tl.load(users + slot)), i, 0, round_, PAIRS)
    partner = tl.umulhi(random, tl.load(n_positives + slot).to(tl.uint32))
    tl.store(out + slot.to(tl.int64) * width + i, partner.to(tl.int64), mask=i < width)


@triton.jit(do_not_specialize=["round_"])
def draw_positives(users, keys, degrees, out, cap, round_, BLOCK: tl.constexpr):
    slot = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    u = tl.load(users + slot)
    degree = tl.load(degrees + u).to(tl.int32)
    has_more = degree > cap
    drawn = permuted(i, (i < cap) & has_more, degree, tl.load(keys + u), round_, POSITIVES)
    tl.store(out + slot.to(tl.int64) * cap + i, tl.where(has_more, drawn, i).to(tl.int64), mask=i < cap)


@triton.jit
def round_and_add(
    values, ids, sums, cut, broken, n_rows, to_steps, bound,
    DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    col = tl.arange(0, D)
    ok = (row < n_rows)[:, None] & (col < DIM)[None, :]
    x = tl.load(values + row[:, None] * DIM + col[None, :], mask=ok, other=0.0)
    most = (x * 0 + 1) * bound
    steps = rounded(x * to_steps)
    over = tl.sum(tl.sum((tl.abs(steps) > most).to(tl.int32), axis=1), axis=0)
    bad = tl.sum(tl.sum((x - x != 0).to(tl.int32), axis=1), axis=0)  # x − x is 0 unless x is infinite or NaN
    if over > 0:
        tl.atomic_add(cut, over.to(tl.int64), sem="relaxed")
    if bad > 0:
        tl.atomic_add(broken, bad.to(tl.int64), sem="relaxed")
    word = tl.minimum(tl.maximum(steps, -most), most).to(sums.dtype.element_ty)
    t = tl.load(ids + row, mask=row < n_rows, other=0)
    # Padding is rows of zeros, all of the same item: threads would wait for each other to add them.
    tl.atomic_add(sums + t[:, None] * DIM + col[None, :], word, mask=ok & (word != 0), sem="relaxed")


# ------------------------------------------------------------------------------------------ launched with


def negatives(population: Any, users: torch.Tensor, width: int) -> torch.Tensor:
    """_draws_torch.negatives of these users; 0 beyond what a user draws.  # [S, width]"""
    p = population
    given = p.keys, p.first, p.degrees, p.items
    return _drawn(draw_negatives, users, given, width, (p.method.n_items, width, p.round))


def pairs(population: Any, users: torch.Tensor, width: int, n_positives: torch.Tensor) -> torch.Tensor:
    """_draws_torch.pairs of a round's first local step.  # [S, width]"""
    return _drawn(draw_pairs, users, (population.keys, n_positives), width, (width, population.round))


def positives_sample(population: Any, users: torch.Tensor, cap: int) -> torch.Tensor:
    """_draws_torch.positives_sample of these users.  # [S, cap]"""
    p = population
    return _drawn(draw_positives, users, (p.keys, p.degrees), cap, (cap, p.round)).sort(dim=1)[0]


def _drawn(draw: Any, users: torch.Tensor, given: tuple[Any, ...], width: int, numbers: tuple[int, ...]) -> Any:
    out = torch.empty(len(users), width, dtype=torch.int64, device=users.device)
    if out.numel():
        draw[(len(users), triton.cdiv(width, AT_ONCE))](users, *given, out, *numbers, BLOCK=AT_ONCE)
    return out


def add_rows(population: Any, sums: torch.Tensor, ids: torch.Tensor, values: torch.Tensor, leaf: Any) -> None:
    """Rounds and clips values [S, m, d] and adds them to the sums of these items [S, m]."""
    D = triton.next_power_of_2(leaf.width)
    block = max(1, ELEMENTS // D)
    round_and_add[(triton.cdiv(ids.numel(), block),)](
        values.contiguous(), ids.contiguous(), sums, population.cut, population.broken,
        ids.numel(), 1 / leaf.step, leaf.bound, DIM=leaf.width, D=D, BLOCK=block,
    )  # fmt: skip
