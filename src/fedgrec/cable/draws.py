"""A user's random integers: a pure function of the user's own key, never of a public seed.

With a public seed the server could recompute a user's negatives and subtract them from its query; what is
left are the positives. So every draw is Philox4x32-10 (Salmon et al. 2011) under the user's 64-bit key, at
the counter (slot, step, round, purpose). Nothing is stored: any round can be drawn again, on any machine,
in any order. Kernels repeat these few integer operations in their own language; a test holds them equal.
"""

import math
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

PHILOX_M = (0xD2511F53, 0xCD9E8D57)
PHILOX_W = (0x9E3779B9, 0xBB67AE85)
FEISTEL_M = (0x9E3779B1, 0x85EBCA77)
MASK = 0xFFFFFFFF
FEW = 8  # slots that Python draws faster than NumPy
AT_ONCE = 2**14  # users that Gaussians are drawn for at a time: drawing takes ten times the memory of the draws


class Purpose(IntEnum):
    """What a draw is for: draws of different purposes never share a counter."""

    INIT = 0
    NEGATIVES = 1
    PAIRS = 2
    POSITIVES = 3
    FEEDBACK = 4
    ROUNDING = 5
    COUNTED = 6


def philox(key: U64 | int, slot: U64 | int, step: int, round_: int, purpose: int) -> U32:
    """Four random words for each (key, slot); keys and slots broadcast.  # [..., 4]"""
    keys, slots = np.broadcast_arrays(np.asarray(key, np.uint64), np.asarray(slot, np.uint64))
    return np.stack(_four_words(keys, slots, step, round_, purpose), axis=-1).astype(np.uint32)


def _four_words(key: Any, slot: Any, step: int, round_: int, purpose: int) -> tuple[Any, ...]:
    """The ten rounds, for one key and slot as whole numbers or for arrays of them."""
    k0, k1 = key & MASK, key >> 32
    c0, c1, c2, c3 = slot & MASK, int(step) & MASK, int(round_) & MASK, int(purpose) & MASK
    for _ in range(10):
        p0, p1 = PHILOX_M[0] * c0, PHILOX_M[1] * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + PHILOX_W[0]) & MASK, (k1 + PHILOX_W[1]) & MASK
    return c0, c1, c2, c3


def words(key: int, count: int, step: int, round_: int, purpose: int) -> U32:
    """The first `count` words of one stream."""
    slots = (count + 3) // 4
    if slots > FEW:
        return philox(key, np.arange(slots, dtype=np.uint64), step, round_, purpose).ravel()[:count]
    few = [_four_words(int(key), slot, step, round_, purpose) for slot in range(slots)]
    return np.array(few, np.uint32).ravel()[:count]


def below(random: U32 | U64, bound: int) -> NDArray[np.int64]:
    """Words mapped to 0..bound−1 by multiply and shift (bias under bound/2³²)."""
    return ((random.astype(np.uint64) * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)


def permuted(count: int, size: int, key: int, round_: int, purpose: int, step: int = 0) -> NDArray[np.int64]:
    """Where a keyed permutation of 0..size−1 sends 0..count−1: `count` distinct draws without a table.

    A four-round Feistel network that adds on the rows and columns of a near-square grid. The few values that land on
    the grid's cells beyond `size` are sent through again until they fall inside (cycle walking), which keeps the map a
    bijection. The turn by a random offset at the end makes every single draw uniform, however small `size` is.
    """
    n_columns = math.isqrt(size - 1) + 1 if size else 1
    n_rows = -(-size // n_columns)
    k = words(key, 5, step, round_, purpose)
    value = np.arange(count)
    outside = np.arange(count)
    while len(outside):
        row, column = np.divmod(value[outside], n_columns)
        for r in (0, 2):
            row = (row + below(_mix(column, k[r]), n_rows)) % n_rows
            column = (column + below(_mix(row, k[r + 1]), n_columns)) % n_columns
        value[outside] = row * n_columns + column
        outside = outside[value[outside] >= size]
    return (value + below(k[4:], size)) % max(size, 1)


def _mix(half: NDArray[np.int64], key: np.uint32) -> U64:
    """The round function: 32-bit multiply-xorshift. It spreads draws; secrecy comes from the Philox key."""
    h = ((half.astype(np.uint64) ^ np.uint64(key)) * np.uint64(FEISTEL_M[0])) & np.uint64(MASK)
    h ^= h >> np.uint64(15)
    h = (h * np.uint64(FEISTEL_M[1])) & np.uint64(MASK)
    return h ^ (h >> np.uint64(13))


def negatives(
    key: int, round_: int, count: int, positives: NDArray[np.integer], n_items: int, step: int = 0
) -> NDArray[np.int64]:
    """Distinct items that are not among the (sorted) positives: the first `count` of a keyed permutation."""
    n_free = n_items - len(positives)
    rank = permuted(min(count, n_free), n_free, key, round_, Purpose.NEGATIVES, step)
    # The r-th non-positive is r plus the number of positives before it; positives[j] − j non-positives precede
    # positive j.
    return rank + np.searchsorted(positives - np.arange(len(positives)), rank, side="right")


class Shelves(NamedTuple):
    """Items in groups of about the same degree, and how many negatives come from each: public, as degrees are."""

    order: NDArray[np.int64]  # [N] items, shelf by shelf, ascending on each
    place: NDArray[np.int64]  # [N] where each item stands in `order`
    first: NDArray[np.int64]  # [B+1] where each shelf begins in `order`
    quotas: NDArray[np.int64]  # [B]


def shelves(degrees: NDArray[np.integer], count: int, popular: float) -> Shelves:
    """For `count` negatives of which the share `popular` follows the degrees and the rest is uniform.

    On a shelf degrees differ by a factor of √2 at most. So drawing distinct items of a shelf, all equally likely, is
    nearly drawing by degree; and no item is drawn twice, which a user's bounded upload needs.
    """
    return _shelves(degrees.astype(np.int64).tobytes(), count, popular)


@lru_cache(maxsize=4)  # all users of all rounds have the same
def _shelves(degrees: bytes, count: int, popular: float) -> Shelves:
    shares = np.maximum(np.frombuffer(degrees, np.int64), 1).astype(np.float64)
    n_items = len(shares)
    shelf = np.floor(2 * np.log2(shares)).astype(np.int64) if popular else np.zeros(n_items, np.int64)
    order = np.argsort(shelf, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(n_items)
    first = np.flatnonzero(np.diff(shelf[order], prepend=-1))
    wanted = count * ((1 - popular) / n_items + popular * shares / shares.sum())
    ends = np.rint(np.cumsum(np.add.reduceat(wanted[order], first))).astype(np.int64)
    return Shelves(order, place, np.append(first, n_items), np.diff(ends, prepend=0))


def negatives_from(key: int, round_: int, shelves: Shelves, positives: NDArray[np.integer]) -> NDArray[np.int64]:
    """Distinct items that are not among the positives: from each shelf its quota, or all that it has."""
    mine, parts = np.sort(shelves.place[positives]), []
    for shelf, quota in enumerate(shelves.quotas):
        start, end = shelves.first[shelf : shelf + 2]
        taken = mine[np.searchsorted(mine, start) : np.searchsorted(mine, end)] - start
        drawn = negatives(key, round_, int(quota), taken, int(end - start), step=shelf)
        parts.append(shelves.order[start + drawn])
    return np.concatenate(parts)


def pairs(key: int, round_: int, step: int, count: int, n_positives: int) -> NDArray[np.int64]:
    """For each of `count` negatives the position of the positive it meets in this local step."""
    return below(words(key, count, step, round_, Purpose.PAIRS), n_positives)


def positives_sample(key: int, round_: int, n_positives: int, cap: int) -> NDArray[np.int64]:
    """Positions of the positives that train this round: all, or a fresh sample of `cap` of them, sorted."""
    if n_positives <= cap:
        return np.arange(n_positives)
    return np.sort(permuted(cap, n_positives, key, round_, Purpose.POSITIVES))


def feedback(key: int, round_: int, n_positives: int, share: float) -> NDArray[np.bool_]:
    """Which positives' updates are sent this round: each with probability `share`."""
    return words(key, n_positives, 0, round_, Purpose.FEEDBACK) < np.uint64(feedback_bound(share))


def feedback_bound(share: float) -> int:
    """The word below which an update is sent; at 1 every word is."""
    return int(share * 2**32)


def shifts(key: int, round_: int, items: NDArray[np.integer], width: int) -> NDArray[np.float64]:
    """What random rounding adds to a user's words before it takes the nearest whole number.  # [len(items), width]

    Each is uniform in [−½, ½), so that the expectation of a rounded word is the word. One draw serves all words of a
    round: it is turned by multiples of two odd numbers, one for the item and one for the column.
    """
    drawn = int(words(key, 1, 0, round_, Purpose.ROUNDING)[0])
    rows, columns = items.astype(np.uint64)[:, None], np.arange(width, dtype=np.uint64)
    turn = np.uint64(drawn) + rows * np.uint64(FEISTEL_M[0]) + columns * np.uint64(FEISTEL_M[1])
    turned = (turn & np.uint64(MASK)).astype(np.uint32).view(np.int32)
    return (turned >> 8).astype(np.float64) * 2.0**-24


def normal(keys: U64, count: int, purpose: int = Purpose.INIT) -> NDArray[np.float64]:
    """Standard Gaussian draws for many users at once (Box–Muller).  # [len(keys), count]"""
    if len(keys) > AT_ONCE:
        return np.concatenate([normal(keys[at : at + AT_ONCE], count, purpose) for at in range(0, len(keys), AT_ONCE)])
    random = philox(keys[:, None], np.arange((count + 3) // 4, dtype=np.uint64)[None, :], 0, 0, purpose)
    uniform = (random.reshape(len(keys), -1, 2).astype(np.float64) + 0.5) / 2.0**32  # in (0, 1): log is finite
    radius, angle = np.sqrt(-2.0 * np.log(uniform[..., 0])), 2.0 * np.pi * uniform[..., 1]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(len(keys), -1)[:, :count]
