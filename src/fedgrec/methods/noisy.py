"""What methods do when their sums hold noise: count few items of a user, work with open items, keep to a norm.

An item is *open* if its noisy count stands out of the noise. That follows from the noisy counts alone, so it tells
nothing more. Nobody sends anything about closed items, and they are never recommended: their rows would be noise alone.
`open` in what the server holds and broadcasts is 1 for open items and 0 for closed ones; without noise it is not there.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedgrec.cable import draws
from fedgrec.cable.core import Broadcast, Cohort, Floats, Ints, Leaf, Rows, ServerState, fitting
from fedgrec.errors import FedgrecError

OPEN = "open"
STANDS_OUT = 3  # an open item's count is at least so many standard deviations of its noise
FINE = 2**14  # steps in a norm: so many that rounding takes little of it
NEVER = -1e9  # a score below that of every open item


def step_for(norm: float) -> float:
    """The power of two in which a norm has about `FINE` steps."""
    return float(2.0 ** math.ceil(math.log2(norm / FINE)))


def bounded(leaf: Leaf, norm: float, multiplier: float) -> Leaf:
    """The leaf for users who add no more than this norm to it, with noise of `multiplier` times the norm."""
    steps = norm / leaf.step
    return replace(leaf, norm=steps, noise=(multiplier * steps) ** 2)


def counted(cohort: Cohort, most: int) -> Rows:
    """How many users have each item; a user with more than `most` items counts a sample of `most`."""
    parts = [cohort.items[:0]]
    for user, key in enumerate(cohort.keys.tolist()):
        mine = cohort.items_of(user)
        if len(mine) > most:
            mine = mine[draws.permuted(most, len(mine), key, 0, draws.Purpose.COUNTED)]
        parts.append(mine)
    index, counts = np.unique(np.concatenate(parts), return_counts=True)
    return Rows(index, counts[:, None])


def take_counts(server: ServerState, counts: Rows, leaf: Leaf) -> None:
    """Degrees of open items, and which items are open: one at least, whatever the noise is."""
    found = np.zeros(len(server.degrees), np.int64)
    found[counts.index] = counts.values[:, 0]
    is_open = found >= min(max(STANDS_OUT * math.sqrt(leaf.noise), 1), found.max())
    server.degrees[:] = np.where(is_open, np.maximum(found, 1), 0)
    server.more[OPEN] = is_open.astype(server.items.dtype)


# ------------------------------------------------------------------------------------ a world of open items


def compact(cohort: Cohort, broadcast: Broadcast) -> tuple[Cohort, Broadcast, Ints]:
    """The same without closed items, open ones numbered from 0; and their original numbers.  # [open items]"""
    is_open = broadcast.more[OPEN] > 0
    ids, place = np.flatnonzero(is_open), np.cumsum(is_open) - 1
    cohort = without_closed(cohort, broadcast.more)
    more = {name: part for name, part in broadcast.more.items() if name != OPEN}
    tables = np.ascontiguousarray(broadcast.tables[:, ids])  # rows in their order: loops are compiled for that alone
    kept = replace(broadcast, n_items=len(ids), tables=tables, degrees=broadcast.degrees[ids], more=more)
    return replace(cohort, items=place[cohort.items].astype(cohort.items.dtype)), kept, ids


def without_closed(cohort: Cohort, more: Mapping[str, Floats]) -> Cohort:
    """Users with their open items; with all items where nothing is closed."""
    if OPEN not in more:
        return cohort
    kept = more[OPEN][cohort.items] > 0
    indptr = np.concatenate([[0], np.cumsum(kept)])[cohort.indptr]
    targets = None if cohort.targets is None else cohort.targets[kept]
    return replace(cohort, indptr=indptr, items=cohort.items[kept], targets=targets)


def expanded(rows: Rows, ids: Ints, n_items: int) -> Rows:
    """Rows of a world of open items, under the items' original numbers; the levels' rows follow each other."""
    level, item = np.divmod(rows.index, len(ids))
    return Rows(level * n_items + ids[item], rows.values)


def open_rows(rows: Rows, more: Mapping[str, Floats]) -> Rows:
    """The rows of a sum that belong to open items; all, where nothing is closed."""
    if OPEN not in more:
        return rows
    kept = more[OPEN][rows.index % len(more[OPEN])] > 0
    return Rows(rows.index[kept], rows.values[kept])


# ----------------------------------------------------------------------------------------------- norms


def fitted(cohort: Cohort, weights: Floats, held: Floats, step: float, norm: float) -> Floats:
    """What users hold, scaled down where w_ut·held_u, rounded, would be longer than `norm` steps over their items.

    Each level has this norm for itself.  # [n, L, d]
    """
    lengths, words = _lengths(cohort, weights, held, step)
    scaled: Floats = held * fitting(lengths, words, norm)[..., None].astype(held.dtype)
    return scaled


def check_held(cohort: Cohort, weights: Floats, held: Floats, step: float, norm: float) -> None:
    """What users hold was fitted under earlier weights: a server that lies about degrees could stretch it."""
    lengths, words = _lengths(cohort, weights, held, step)
    if (lengths > np.maximum(norm - 0.5 * np.sqrt(words), 0)).any():
        raise FedgrecError("the server sent other degrees than those under which users sent their latents")


def _lengths(cohort: Cohort, weights: Floats, held: Floats, step: float) -> tuple[Floats, Ints]:
    """Lengths of w_ut·held_u over a user's items, in steps, [n, L]; and the words of a level, [n, 1]."""
    squares = np.bincount(cohort.owner, weights.astype(np.float64) ** 2, len(cohort))
    lengths: Floats = np.sqrt(squares)[:, None] * np.sqrt((held.astype(np.float64) ** 2).sum(axis=2)) / step
    return lengths, (cohort.degrees * held.shape[2])[:, None]


# --------------------------------------------------------------------------------------------- ranking


def as_users(vectors: Floats, more: Mapping[str, Floats]) -> Floats:
    """Users' representations with one more number, which puts closed items last.  # [n, D+1]"""
    return np.hstack([vectors, np.ones_like(vectors[:, :1])]) if OPEN in more else vectors


def as_items(vectors: Floats, more: Mapping[str, Floats]) -> Floats:
    """Items' representations with that number.  # [N, D+1]"""
    if OPEN not in more:
        return vectors
    is_open = more[OPEN] > 0
    return np.hstack([vectors * is_open[:, None], np.where(is_open, 0, NEVER)[:, None]]).astype(vectors.dtype)
