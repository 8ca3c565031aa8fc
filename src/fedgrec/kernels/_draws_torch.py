"""The draws of `fedgrec.cable.draws` for many users at once, in PyTorch: the same words, on any device.

PyTorch has no unsigned 64-bit arithmetic, so products wrap in int64: their low 64 bits are those of the unsigned
product, and a mask after every shift drops the sign that was copied in. A row beyond what its user draws holds no
meaning; callers mask it.
"""

import torch
from torch import Tensor

from fedgrec.cable.draws import FEISTEL_M, MASK, PHILOX_M, PHILOX_W, Purpose

BEYOND = 2**62  # sorts behind every item


def words(keys: Tensor, count: int, round_: int, purpose: int) -> Tensor:
    """The first `count` words of every user's stream, of step 0.  # [S] → [S, count]"""
    slots, keys = torch.arange((count + 3) // 4, device=keys.device), keys[:, None]
    k0, k1, c0 = keys & MASK, (keys >> 32) & MASK, slots.expand(len(keys), -1)
    c1, c2, c3 = (torch.full_like(c0, word & MASK) for word in (0, round_, purpose))
    for _ in range(10):
        p0, p1 = c0 * PHILOX_M[0], c2 * PHILOX_M[1]
        c0, c1, c2, c3 = ((p1 >> 32) & MASK) ^ c1 ^ k0, p1 & MASK, ((p0 >> 32) & MASK) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + PHILOX_W[0]) & MASK, (k1 + PHILOX_W[1]) & MASK
    return torch.stack([c0, c1, c2, c3], dim=-1).flatten(1)[:, :count]


def below(random: Tensor, bound: Tensor) -> Tensor:
    """Words mapped to 0..bound−1 by multiply and shift."""
    return (random * bound) >> 32  # bounds are below 2³¹, so no product reaches the sign


def permuted(count: int, sizes: Tensor, keys: Tensor, round_: int, purpose: int) -> Tensor:
    """Where each user's keyed permutation of 0..size−1 sends 0..count−1, see draws.permuted.  # [S, count]"""
    sizes = sizes.clamp(min=1)[:, None]
    n_columns = sizes.to(torch.float64).sqrt().ceil().to(torch.int64)
    n_rows = (sizes + n_columns - 1) // n_columns
    k = words(keys, 5, round_, purpose)
    slots = torch.arange(count, device=keys.device)
    # A slot beyond the user's size could walk for ever through values beyond it, so it takes slot 0's walk.
    value = torch.where(slots < sizes, slots, 0)
    outside = torch.ones_like(value, dtype=torch.bool)
    while outside.any():
        row, column = value // n_columns, value % n_columns
        for r in (0, 2):
            row = (row + below(_mix(column, k[:, r, None]), n_rows)) % n_rows
            column = (column + below(_mix(row, k[:, r + 1, None]), n_columns)) % n_columns
        value = torch.where(outside, row * n_columns + column, value)
        outside = value >= sizes
    return (value + below(k[:, 4:], sizes)) % sizes


def _mix(half: Tensor, key: Tensor) -> Tensor:
    h = ((half ^ key) * FEISTEL_M[0]) & MASK
    h = h ^ (h >> 15)
    h = (h * FEISTEL_M[1]) & MASK
    return h ^ (h >> 13)


def negatives(keys: Tensor, round_: int, count: int, positives: Tensor, n_positives: Tensor, n_items: int) -> Tensor:
    """Distinct items that are not among each user's (sorted, padded) positives.  # [S, count]"""
    rank = permuted(count, n_items - n_positives, keys, round_, Purpose.NEGATIVES)
    if not positives.shape[1]:
        return rank
    place = torch.arange(positives.shape[1], device=keys.device)
    before = torch.where(place < n_positives[:, None], positives - place, BEYOND)  # non-positives before each
    return rank + torch.searchsorted(before, rank, right=True)


def pairs(keys: Tensor, round_: int, count: int, n_positives: Tensor) -> Tensor:
    """For each negative the position of the positive it meets in the first local step.  # [S, count]"""
    return below(words(keys, count, round_, Purpose.PAIRS), n_positives[:, None])


def positives_sample(keys: Tensor, round_: int, n_positives: Tensor, cap: int) -> Tensor:
    """Positions of the positives that train, sorted: of users with more than `cap` a fresh sample.  # [S, cap]"""
    chosen = torch.arange(cap, device=keys.device).repeat(len(keys), 1)
    many = (n_positives > cap).nonzero()[:, 0]
    if len(many):
        chosen[many] = permuted(cap, n_positives[many], keys[many], round_, Purpose.POSITIVES).sort(dim=1)[0]
    return chosen


def shifts(keys: Tensor, round_: int, items: Tensor, words_: Tensor) -> Tensor:
    """What random rounding adds to these words, see draws.shifts.  # items [S, P], words_ and result [S, P, d]"""
    rows = words(keys, 1, round_, Purpose.ROUNDING) + items * FEISTEL_M[0]
    columns = torch.arange(words_.shape[2], device=keys.device) * FEISTEL_M[1]
    turned = rows.to(torch.int32)[..., None] + columns.to(torch.int32)  # 32 bits wrap
    return (turned >> 8).to(words_.dtype) * 2.0**-24
