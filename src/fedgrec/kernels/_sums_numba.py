# mypy: ignore-errors
"""How finished rows enter a sum: rounded, clipped and added, so that neither order nor threads can be seen in it."""

from typing import Any, NamedTuple

import numpy as np

from fedgrec.kernels._draws_numba import rounding_shift
from fedgrec.kernels._numba import fused, inlined, released

TINY = np.finfo(np.float64).tiny


class GradientParts(NamedTuple):
    """What makes up the rows that users send: item t gets g_t·f_u + λx_t + w_t·pull, for cosines + lean_t·f_t."""

    rows: Any  # [n, longest]: items, positives first
    g: Any  # [n, longest]
    w: Any  # [n, longest]
    f_users: Any  # [n, d]
    pulls: Any  # [n, d]
    counts: Any  # [n, 2]: positives, and all rows
    decays: Any  # [n, 2]: λ of a positive and of a negative
    lean: Any  # [n, longest], or nothing

    @classmethod
    def empty(cls, n: int, longest: int, d: int, dtype: Any, cosine: bool = False) -> "GradientParts":
        """To be filled in; a user without rows has zeros."""
        rows, (g, w) = np.empty((n, longest), np.int32), np.empty((2, n, longest), dtype)
        f_users, pulls = np.zeros((2, n, d), dtype)
        counts, decays, lean = (
            np.zeros((n, 2), np.int64),
            np.zeros((n, 2), dtype),
            np.empty((n, longest * cosine), dtype),
        )
        return cls(rows, g, w, f_users, pulls, counts, decays, lean)


@inlined
def add_row(to_steps, slope, decay, weight, u, t, f_users, pulls, x, bound, shake, word, sums):
    """Adds one user's rounded and clipped row to_steps·(g_t·f_u + λx_t + w_ut·pull); how many words the clip cut."""
    over = bound - bound
    for j in range(x.shape[1]):
        moved = to_steps * (slope * f_users[u, j] + decay * x[t, j] + weight * pulls[u, j])
        moved = np.rint(moved + shake * rounding_shift(word, t, j))
        over += x.dtype.type(abs(moved) > bound)
        sums[t, j] += sums.dtype.type(min(max(moved, -bound), bound))
    return over


@inlined
def add_leaning_row(to_steps, slope, lean, decay, weight, u, t, f_users, f_table, pulls, x, bound, shake, word, sums):
    """`add_row` for cosines."""
    over = bound - bound
    for j in range(x.shape[1]):
        grad = slope * f_users[u, j] + lean * f_table[t, j] + decay * x[t, j] + weight * pulls[u, j]
        moved = np.rint(to_steps * grad + shake * rounding_shift(word, t, j))
        over += x.dtype.type(abs(moved) > bound)
        sums[t, j] += sums.dtype.type(min(max(moved, -bound), bound))
    return over


@inlined
def add_small_row(to_steps, slope, decay, u, t, f_users, x, shake, word, sums):
    """`add_row` for a row without pull that no clip can touch: what nearly every negative is."""
    for j in range(x.shape[1]):
        moved = to_steps * (slope * f_users[u, j] + decay * x[t, j])
        sums[t, j] += sums.dtype.type(np.rint(moved + shake * rounding_shift(word, t, j)))


@inlined
def add_difference(weight, old, new, u, k, per_step, bound, sums, t):
    """Adds what one user's standing contribution to one latent row changed by; how many words the clip cut."""
    over = per_step - per_step
    for j in range(new.shape[2]):
        before, after = np.rint(weight * old[u, k, j] * per_step), np.rint(weight * new[u, k, j] * per_step)
        over += new.dtype.type(abs(after) > bound)
        before, after = min(max(before, -bound), bound), min(max(after, -bound), bound)
        sums[k, t, j] += sums.dtype.type(after) - sums.dtype.type(before)
    return over


@fused
def round_and_add(rows, x, x0, per_steps, word, numbers, sums):
    """Adds how far each row moved, within the norm, clipped and rounded; how many words the clip cut."""
    cut, bound, real = numbers.p - numbers.p, numbers.bound, x.dtype.type
    share = within_norm(rows, x, x0, per_steps, numbers.norm) if numbers.norm else real(1)
    for i in range(len(rows)):
        t = rows[i]
        per_step = share * per_steps[t]
        for j in range(x.shape[1]):
            moved = np.rint((x[i, j] - x0[t, j]) * per_step + numbers.shake * rounding_shift(word, t, j))
            cut += real(abs(moved) > bound)
            sums[t, j] += sums.dtype.type(min(max(moved, -bound), bound))
    return np.int64(cut)


@fused
def within_norm(rows, x, x0, per_steps, norm):
    """core.fitting: the factor with which the user's words together are no longer than `norm` after rounding."""
    total = 0.0
    for i in range(len(rows)):
        t = rows[i]
        for j in range(x.shape[1]):
            moved = np.float64((x[i, j] - x0[t, j]) * per_steps[t])
            total += moved * moved
    room = max(norm - 0.5 * np.sqrt(len(rows) * x.shape[1]), 0.0) * (1 - 2.0**-16)
    return x.dtype.type(room / max(np.sqrt(total), room, TINY))


@released
def by_item(rows, counts, n_items):
    """Where each item occurs in `rows`, item by item: a counting sort."""
    first = np.zeros(n_items + 1, np.int64)
    for u in range(len(rows)):
        for i in range(counts[u, 1]):
            if rows[u, i] >= 0:
                first[rows[u, i] + 1] += 1
    for t in range(n_items):
        first[t + 1] += first[t]
    at = first.copy()
    who, where = np.empty(first[n_items], np.int32), np.empty(first[n_items], np.int32)
    for u in range(len(rows)):
        for i in range(counts[u, 1]):
            t = rows[u, i]
            if t >= 0:  # others stay at home
                who[at[t]], where[at[t]] = u, i
                at[t] += 1
    return who, where, first
