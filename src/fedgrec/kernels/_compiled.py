"""The loops over users and items that all cores share: no two threads ever write to the same word.

One user's part is in `_steps_numba`. Tuples of arrays are unpacked before a loop: in it, every access would count
references. What Numba has to compile is kept small: loops instead of slices that are assigned, which come with the
text of their error message, and room that the caller makes.
"""

from typing import Any, NamedTuple

import numpy as np

from fedgrec.kernels._draws_numba import choose_from, rounding_shift, withheld
from fedgrec.kernels._numba import inlined, released, threaded
from fedgrec.kernels._steps_numba import constants, length, many_steps, one_step, penalties
from fedgrec.kernels._sums_numba import add_difference, add_leaning_row, add_row, add_small_row


class Users(NamedTuple):
    """A cohort: keys, items with their weights and targets, state, and what the round has told it."""

    keys: Any  # [n]
    indptr: Any  # [n+1]
    items: Any  # [nnz]
    weights: Any  # [nnz]
    targets: Any  # [nnz]
    embeddings: Any  # [n, K+1, d]
    moment1: Any  # [n, d]
    moment2: Any  # [n, d]
    steps: Any  # [n]
    B: Any  # [n, d]: Σ α_k e_u^k of the latents
    latents: Any  # [n, K, d]
    words: Any  # [n]: what turns the rounding


# ---------------------------------------------------------------------------------------------------- latents


@threaded
def refresh(begin, end, indptr, at, weights, tables, latents):
    for u in range(begin, end):
        for i in range(indptr[u], indptr[u + 1]):
            t, weight = at[i], weights[i]
            for k in range(tables.shape[0]):
                for j in range(tables.shape[2]):
                    latents[u, k, j] += weight * tables[k, t, j]


@threaded
def push(begin, end, order, first, owner, weights, old, new, per_step, bound, values, cut):
    for t in range(begin, end):
        over = new.dtype.type(0)
        for k in range(new.shape[1]):
            for place in range(first[t], first[t + 1]):
                edge = order[place]
                u = owner[edge]
                over += add_difference(weights[edge], old, new, u, k, per_step, bound, values, t)
        cut[t] = np.int64(over)


@threaded
def send(begin, end, index, order, first, owner, weights, held, words, per_step, bound, values, cut):
    real = held.dtype.type
    for i in range(begin, end):
        over = bound - bound
        for place in range(first[i], first[i + 1]):
            u, weight = owner[order[place]], weights[order[place]] * per_step
            for j in range(held.shape[1]):
                moved = np.rint(weight * held[u, j] + real(2.0**-24) * rounding_shift(words[u], index[i], j))
                over += real(abs(moved) > bound)
                values[i, j] += values.dtype.type(min(max(moved, -bound), bound))
        cut[i] = np.int64(over)


@threaded
def follow(begin, end, indptr, items, longest, table, weights, per_step, words, shake, bound, sums, cut):
    """These columns of users' rows, finished from the first item to the last and back, and added."""
    columns = range(np.uintp(begin), np.uintp(end))  # else each index may be one from the end, and nothing vectorises
    rows, carried = np.empty((longest, table.shape[1]), table.dtype), np.empty(table.shape[1], table.dtype)
    for u in range(len(words)):
        first, n, over = indptr[u], indptr[u + 1] - indptr[u], bound - bound
        decay, before, after = weights[0, u], weights[1, u], weights[2, u]
        carried[:] = 0
        for i in range(n):
            t = items[first + i]
            for j in columns:
                rows[i, j] = before * carried[j]
                carried[j] = carried[j] * decay + table[t, j]
        carried[:] = 0
        for i in range(n - 1, -1, -1):
            t = items[first + i]
            for j in columns:
                row = rows[i, j] + after * carried[j]
                moved = np.rint(row * per_step + shake * rounding_shift(words[u], t, j))
                over += table.dtype.type(abs(moved) > bound)
                sums[t, j] += sums.dtype.type(min(max(moved, -bound), bound))
                carried[j] = carried[j] * decay + table[t, j]
        cut[begin] += np.int64(over)


# ------------------------------------------------------------------------------------- one step: users, then items


@threaded
def user_slopes(begin, end, users, tables, f_table, shelves, numbers, flags, parts):
    """What makes up each user's gradient, see GradientParts; -1 for rows that stay at home. Moves the users."""
    keys, indptr, items, weights, targets, embeddings, moment1, moment2, steps, B, latents, _ = users
    rows, g, w, f_users, pulls, counts, decays, lean = parts
    for u in range(begin, end):
        start = indptr[u]
        found, chosen = choose_from(keys[u], items[start : indptr[u + 1]], shelves, flags)
        P, m = min(len(chosen), len(found)), len(found)
        counts[u, 0], counts[u, 1] = P, m
        _, decays[u, 0], decays[u, 1] = penalties(g.dtype.type, P, m, numbers, flags)
        y = np.empty(P, g.dtype)
        for i in range(m):
            rows[u, i] = found[i]
        for i in range(P):
            w[u, i], y[i] = weights[start + chosen[i]], targets[start + chosen[i]]
        constants(found, latents[u], tables, flags, g[u])
        user = (embeddings[u, 0], moment1[u], moment2[u], steps[u : u + 1], B[u])
        one_step(keys[u], P, found, y, g[u, :m], user, f_table, numbers, flags, f_users[u], pulls[u], lean[u])
        for i in range(P):
            if withheld(keys[u], i, flags):
                rows[u, i] = -1


@threaded
def gradients(begin, end, x, who, where, first, parts, words, reaches, per_steps, numbers, sums, cut):
    """Every item adds up its users' finished rows."""
    _, g, w, f_users, pulls, counts, decays, _ = parts
    real, bound, shake = x.dtype.type, numbers.bound, numbers.shake
    for t in range(begin, end):
        over = real(0)
        to_steps, limit = -numbers.item_rate * per_steps[t], bound / (numbers.item_rate * per_steps[t])
        for j in range(sums.shape[1]):
            sums[t, j] = 0
        reach = limit - limit
        for j in range(x.shape[1]):
            reach = max(reach, abs(x[t, j]))
        for entry in range(first[t], first[t + 1]):
            u, i = who[entry], where[entry]
            slope, positive = numbers.p * g[u, i], i < counts[u, 0]
            weight, decay = w[u, i] if positive else real(0), decays[u, 0 if positive else 1]
            if not positive and abs(slope) * reaches[u] + decay * reach < limit:
                add_small_row(to_steps, slope, decay, u, t, f_users, x, shake, words[u], sums)
            else:
                over += add_row(to_steps, slope, decay, weight, u, t, f_users, pulls, x, bound, shake, words[u], sums)
        cut[t] = np.int64(over)


@threaded
def gradients_of_cosines(begin, end, x, f_table, norms, who, where, first, parts, words, per_steps, numbers, sums, cut):
    """`gradients` where scores are cosines. A loop of its own: whoever runs one does not wait for both to compile."""
    _, g, w, f_users, pulls, counts, decays, lean = parts
    real = x.dtype.type
    for t in range(begin, end):
        over, to_steps = real(0), -numbers.item_rate * per_steps[t]
        for j in range(sums.shape[1]):
            sums[t, j] = 0
        share = numbers.p / norms[t]
        for entry in range(first[t], first[t + 1]):
            u, i = who[entry], where[entry]
            positive = i < counts[u, 0]
            weight, decay = w[u, i] if positive else real(0), decays[u, 0 if positive else 1]
            over += add_leaning_row(
                to_steps, share * g[u, i], share * lean[u, i], decay, weight,
                u, t, f_users, f_table, pulls, x, numbers.bound, numbers.shake, words[u], sums,
            )  # fmt: skip
        cut[t] = np.int64(over)


# ------------------------------------------------------------------------------------------------- many steps


@released
def train_users(begin, end, users, tables, f_table, per_steps, shelves, numbers, flags, scratch, sums):
    """Users train and add their finished rows to the table of their thread; how many words the clip cut."""
    keys, indptr, items, weights, targets, embeddings, moment1, moment2, steps, B, latents, words = users
    cut = 0
    for u in range(begin, end):
        start = indptr[u]
        rows, chosen = choose_from(keys[u], items[start : indptr[u + 1]], shelves, flags)
        P = len(chosen)
        if len(rows):
            c, w, y = np.empty(len(rows), tables.dtype), np.empty(P, tables.dtype), np.empty(P, tables.dtype)
            constants(rows, latents[u], tables, flags, c)
            for i in range(P):
                w[i], y[i] = weights[start + chosen[i]], targets[start + chosen[i]]
            user = (embeddings[u, 0], moment1[u], moment2[u], steps[u : u + 1], B[u])
            cut += many_steps(
                keys[u], P, rows, w, y, c, user, tables[0], f_table, per_steps, words[u], numbers, flags, scratch, sums
            )
    return cut


# ------------------------------------------------------------------------------------------------- the server


@threaded
def combine(begin, end, alpha, tables, out):
    """Σ α_k e_t^k over as many tables as there are weights."""
    for t in range(begin, end):
        for j in range(out.shape[1]):
            out[t, j] = alpha[0] * tables[0, t, j]
        for k in range(1, len(alpha)):
            for j in range(out.shape[1]):
                out[t, j] += alpha[k] * tables[k, t, j]


@threaded
def sixteen_bits(begin, end, tables):
    """core.travelling as bfloat16, in place."""
    for t in range(begin, end):
        for level in range(tables.shape[0]):
            for j in range(tables.shape[2]):
                tables[level, t, j] = upper_half(tables[level, t, j])


@threaded
def eight_bits(begin, end, tables):
    """core.travelling as int8, in place."""
    for t in range(begin, end):
        for level in range(tables.shape[0]):
            top = tables[level, t, 0] - tables[level, t, 0]
            for j in range(tables.shape[2]):
                top = max(top, abs(tables[level, t, j]))
            bits = np.float32(top / 127).view(np.int32)
            exponent = (bits >> np.int32(23)) - np.int32(126) - np.int32((bits & np.int32(0x7FFFFF)) == 0)
            exponent = min(max(exponent, np.int32(-100)), np.int32(100))
            down = np.int32((np.int32(127) - exponent) << np.int32(23)).view(np.float32)
            up = np.int32((np.int32(127) + exponent) << np.int32(23)).view(np.float32)
            for j in range(tables.shape[2]):
                tables[level, t, j] = np.int32(np.rint(tables[level, t, j] * down)) * up


@inlined
def upper_half(x):
    """The nearest number that bfloat16 has, ties to even."""
    bits = np.float32(x).view(np.int32)
    return np.int32((bits + np.int32(0x7FFF) + ((bits >> np.int32(16)) & np.int32(1))) & np.int32(-65536)).view(
        np.float32
    )


@threaded
def directions(begin, end, f_table, norms):
    for t in range(begin, end):
        norms[t] = length(f_table[t])
        for j in range(f_table.shape[1]):
            f_table[t, j] /= norms[t]


@threaded
def server_adam(begin, end, x, m, v, where, values, steps, rate, unbias2, beta1, beta2, epsilon):
    one = x.dtype.type(1)
    for t in range(begin, end):
        row = where[t]
        for j in range(x.shape[1]):
            g = -steps[t] * values[row, j] if row >= 0 else x.dtype.type(0)
            m[t, j] = beta1 * m[t, j] + (one - beta1) * g
            v[t, j] = beta2 * v[t, j] + (one - beta2) * g * g
            x[t, j] -= rate * m[t, j] / (np.sqrt(v[t, j] * unbias2) + epsilon)


@threaded
def add_rows(begin, end, table, index, values, scale):
    for i in range(begin, end):
        for j in range(table.shape[1]):
            table[index[i], j] += scale * values[i, j]
