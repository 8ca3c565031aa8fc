"""The parallel loops of `cpu`. Users (or items) run in parallel; no two threads ever write to the same word."""

import numba as nb
import numpy as np

from fedgrec.kernels import _local
from fedgrec.kernels._draws import FAST, fused

threaded = nb.njit(parallel=True, cache=True, fastmath=FAST, error_model="numpy")


@threaded
def refresh(indptr, at, weights, tables, latents):
    for u in nb.prange(len(latents)):
        for i in range(indptr[u], indptr[np.int64(u) + 1]):
            t, weight = at[i], weights[i]
            for k in range(tables.shape[0]):
                for j in range(tables.shape[2]):
                    latents[u, k, j] += weight * tables[k, t, j]


@threaded
def push(order, first, owner, weights, old, new, per_step, bound, values, cut):
    for t_ in nb.prange(len(first) - 1):
        t, over = np.int64(t_), new.dtype.type(0)
        for k in range(new.shape[1]):
            for place in range(first[t], first[t + 1]):
                edge = order[place]
                u = owner[edge]
                over += _local.add_difference(weights[edge], old, new, u, k, per_step, bound, values, t)
        cut[t] = np.int64(over)


@threaded
def slopes(
    keys,
    indptr,
    items,
    weights,
    targets,
    embeddings,
    moment1,
    moment2,
    steps,
    B,
    latents,
    tables,
    f_table,
    numbers,
    flags,
    rows,
    g,
    w,
    f_users,
    pulls,
    counts,
    decays,
):
    for u_ in nb.prange(len(keys)):
        u = np.int64(u_)
        mine = slice(indptr[u], indptr[u + 1])
        found, chosen = _local.choose_rows(keys[u], items[mine], tables.shape[1], flags)
        P, m = min(len(chosen), len(found)), len(found)
        counts[u, 0], counts[u, 1] = P, m
        _, decays[u, 0], decays[u, 1] = _local.penalties(g.dtype.type, P, m, numbers, flags)
        rows[u, :m], w[u, :P] = found, weights[mine][chosen]
        g[u, :m] = _local.constants(found, latents[u], tables, flags)
        user = _local.user_state(embeddings[u, 0], moment1[u], moment2[u], steps[u : u + 1], B[u], flags)
        _local.one_step(
            keys[u],
            P,
            found,
            targets[mine][chosen],
            g[u, :m],
            user,
            f_table,
            numbers,
            flags,
            f_users[u],
            pulls[u],
        )


@fused
def by_item(rows, counts, n_items):
    """Where each item occurs in `rows`, item by item: a counting sort."""
    first = np.zeros(n_items + 1, np.int64)
    for u in range(len(rows)):
        for i in range(counts[u, 1]):
            first[rows[u, i] + 1] += 1
    for t in range(n_items):
        first[t + 1] += first[t]
    at = first.copy()
    who, where = np.empty(first[n_items], np.int32), np.empty(first[n_items], np.int32)
    for u in range(len(rows)):
        for i in range(counts[u, 1]):
            t = rows[u, i]
            who[at[t]], where[at[t]] = u, i
            at[t] += 1
    return who, where, first


@threaded
def gradients(x, who, where, first, g, w, f_users, reaches, pulls, counts, decays, numbers, sums, cut):
    real, limit = x.dtype.type, numbers.bound / (numbers.item_rate * numbers.per_step)
    for t_ in nb.prange(x.shape[0]):
        t, over = np.int64(t_), real(0)
        for j in range(sums.shape[1]):
            sums[t, j] = 0
        reach = limit - limit
        for j in range(x.shape[1]):
            reach = max(reach, abs(x[t, j]))
        for entry in range(first[t], first[t + 1]):
            u, i = who[entry], where[entry]
            slope = numbers.p * g[u, i]
            if i < counts[u, 0]:
                over += _local.add_row(slope, f_users, u, decays[u, 0], x, t, w[u, i], pulls, numbers, sums)
            elif abs(slope) * reaches[u] + decays[u, 1] * reach < limit:
                _local.add_small_row(slope, f_users, u, decays[u, 1], x, t, numbers, sums)
            else:
                over += _local.add_row(slope, f_users, u, decays[u, 1], x, t, real(0), pulls, numbers, sums)
        cut[t] = np.int64(over)


@threaded
def train_users(
    keys,
    indptr,
    items,
    weights,
    targets,
    embeddings,
    moment1,
    moment2,
    steps,
    B,
    latents,
    tables,
    f_table,
    numbers,
    flags,
    scratch,
    sums,
    cut,
):
    for u_ in nb.prange(len(keys)):
        u, thread = np.int64(u_), nb.get_thread_id()
        mine = slice(indptr[u], indptr[u + 1])
        rows, chosen = _local.choose_rows(keys[u], items[mine], tables.shape[1], flags)
        if len(rows):
            user = _local.user_state(embeddings[u, 0], moment1[u], moment2[u], steps[u : u + 1], B[u], flags)
            c = _local.constants(rows, latents[u], tables, flags)
            cut[u] = _local.many_steps(
                keys[u],
                len(chosen),
                rows,
                weights[mine][chosen],
                targets[mine][chosen],
                c,
                user,
                tables[0],
                f_table,
                numbers,
                flags,
                scratch[thread],
                sums[thread],
            )


@threaded
def add_up(sums):
    for t in nb.prange(sums.shape[1]):
        for thread in range(1, sums.shape[0]):
            for j in range(sums.shape[2]):
                sums[0, t, j] += sums[thread, t, j]


@threaded
def combine(alpha, tables, f_table):
    for t in nb.prange(f_table.shape[0]):
        for j in range(f_table.shape[1]):
            f_table[t, j] = alpha[0] * tables[0, t, j]
        for k in range(1, len(alpha)):
            for j in range(f_table.shape[1]):
                f_table[t, j] += alpha[k] * tables[k, t, j]


@threaded
def server_adam(x, m, v, where, values, step, rate, unbias2, beta1, beta2, epsilon):
    one = x.dtype.type(1)
    for t in nb.prange(x.shape[0]):
        row = where[t]
        for j in range(x.shape[1]):
            g = -step * values[row, j] if row >= 0 else x.dtype.type(0)
            m[t, j] = beta1 * m[t, j] + (one - beta1) * g
            v[t, j] = beta2 * v[t, j] + (one - beta2) * g * g
            x[t, j] -= rate * m[t, j] / (np.sqrt(v[t, j] * unbias2) + epsilon)


@threaded
def add_rows(table, index, values, scale):
    for i in nb.prange(len(index)):
        for j in range(table.shape[1]):
            table[index[i], j] += scale * values[i, j]
