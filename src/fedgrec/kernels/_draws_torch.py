"""The draws of `fedgrec.cable.draws` for many users at once, in PyTorch: the same words, on any device.

PyTorch has no unsigned 64-bit arithmetic, so products wrap in int64: their low 64 bits are those of the unsigned
product, and a mask after every shift drops the sign that was copied in. A row beyond what its user draws holds no
meaning; callers mask it.
"""

import torch
from torch import Tensor

from fedgrec.cable.draws import FEISTEL_M, MASK, PHILOX_M, PHILOX_W, Purpose, Shelves, feedback_bound

BEYOND = 2**62  # sorts behind every item


def philox(keys: Tensor, slots: Tensor, step: int, round_: int, purpose: int) -> Tensor:
    """Four random words for each user's key and each slot.  # [S], [n] → [S, n, 4]"""
    c0, keys = slots.expand(len(keys), -1), keys[:, None]
    k0, k1 = keys & MASK, (keys >> 32) & MASK
    c1, c2, c3 = (torch.full_like(c0, word & MASK) for word in (step, round_, purpose))
    for _ in range(10):
        p0, p1 = c0 * PHILOX_M[0], c2 * PHILOX_M[1]
        c0, c1, c2, c3 = ((p1 >> 32) & MASK) ^ c1 ^ k0, p1 & MASK, ((p0 >> 32) & MASK) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + PHILOX_W[0]) & MASK, (k1 + PHILOX_W[1]) & MASK
    return torch.stack([c0, c1, c2, c3], dim=-1)


def words(keys: Tensor, count: int, step: int, round_: int, purpose: int) -> Tensor:
    """The first `count` words of every user's stream.  # [S, count]"""
    slots = torch.arange((count + 3) // 4, device=keys.device)
    return philox(keys, slots, step, round_, purpose).flatten(1)[:, :count]


def below(random: Tensor, bound: Tensor) -> Tensor:
    """Words mapped to 0..bound−1 by multiply and shift."""
    return (random * bound) >> 32  # bounds are below 2³¹, so no product reaches the sign


def permuted(count: int, sizes: Tensor, keys: Tensor, round_: int, purpose: int, step: int = 0) -> Tensor:
    """Where each user's keyed permutation of 0..size−1 sends 0..count−1, see draws.permuted.  # [S, count]"""
    sizes = sizes.clamp(min=1)[:, None]
    n_columns = sizes.to(torch.float64).sqrt().ceil().to(torch.int64)
    n_rows = (sizes + n_columns - 1) // n_columns
    k = words(keys, 5, step, round_, purpose)
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


def negatives(
    keys: Tensor, round_: int, count: int, positives: Tensor, n_positives: Tensor, n_items: int, step: int = 0
) -> Tensor:
    """Distinct items that are not among each user's (sorted, padded) positives.  # [S, count]"""
    rank = permuted(count, n_items - n_positives, keys, round_, Purpose.NEGATIVES, step)
    if not positives.shape[1]:
        return rank
    place = torch.arange(positives.shape[1], device=keys.device)
    before = torch.where(place < n_positives[:, None], positives - place, BEYOND)  # non-positives before each
    return rank + torch.searchsorted(before, rank, right=True)


def negatives_from(
    keys: Tensor, round_: int, shelves: Shelves, positives: Tensor, n_positives: Tensor
) -> tuple[Tensor, Tensor]:
    """See draws.negatives_from; and how many each user has drawn.  # [S, n], [S]"""
    order, place = (torch.tensor(table, device=keys.device) for table in (shelves.order, shelves.place))
    columns = torch.arange(positives.shape[1], device=keys.device)
    mine = torch.where(columns < n_positives[:, None], place[positives], BEYOND).sort(dim=1)[0]
    drawn, real = [], []
    for shelf, quota in enumerate(shelves.quotas.tolist()):
        start, end = shelves.first[shelf : shelf + 2].tolist()
        before = (mine < start).sum(dim=1)
        n_taken = (mine < end).sum(dim=1) - before
        width = int(n_taken.max())
        at = (before[:, None] + columns[:width]).clamp(max=max(mine.shape[1] - 1, 0))
        found = negatives(keys, round_, quota, mine.gather(1, at) - start, n_taken, end - start, shelf)
        drawn.append(order[start + found.clamp(max=end - start - 1)])
        real.append(torch.arange(quota, device=keys.device) < (end - start - n_taken)[:, None])
    there = torch.cat(real, dim=1)
    first = torch.argsort(~there, dim=1, stable=True)  # a shelf's missing draws become padding at the end
    return torch.cat(drawn, dim=1).gather(1, first), there.sum(dim=1)


def pairs(keys: Tensor, round_: int, step: int, count: int, n_positives: Tensor) -> Tensor:
    """For each negative the position of the positive it meets in this local step.  # [S, count]"""
    return below(words(keys, count, step, round_, Purpose.PAIRS), n_positives[:, None])


def positives_sample(keys: Tensor, round_: int, n_positives: Tensor, cap: int) -> Tensor:
    """Positions of the positives that train, sorted: of users with more than `cap` a fresh sample.  # [S, cap]"""
    chosen = torch.arange(cap, device=keys.device).repeat(len(keys), 1)
    many = (n_positives > cap).nonzero()[:, 0]
    if len(many):
        chosen[many] = permuted(cap, n_positives[many], keys[many], round_, Purpose.POSITIVES).sort(dim=1)[0]
    return chosen


def shifts(keys: Tensor, round_: int, items: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """See draws.shifts.  # items [S, m] → [S, m, width]"""
    drawn = words(keys, 1, 0, round_, Purpose.ROUNDING).to(torch.int64)[..., None]
    columns = torch.arange(width, device=items.device) * FEISTEL_M[1]
    turned = (drawn + items[..., None] * FEISTEL_M[0] + columns) & 0xFFFFFFFF
    return ((turned - ((turned >> 31) << 32)) >> 8).to(dtype) * 2.0**-24


def feedback(keys: Tensor, round_: int, count: int, share: float) -> Tensor:
    """Which positives' updates are sent this round.  # [S, count]"""
    return words(keys, count, 0, round_, Purpose.FEEDBACK) < feedback_bound(share)
