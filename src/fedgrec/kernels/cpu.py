"""The local computations of FedGRec for a whole cohort on all cores: the fused Numba twin of `reference`.

Same functions, same draws, same integers up to the last rounding. Users run in parallel; a user's working set
stays in its core's cache. Each thread adds finished integer rows to its own table and the tables are added at
the end: integers, so neither the order nor the number of threads can be seen in the result.
"""

from typing import Any

import numba as nb
import numpy as np

from fedgrec.config import FedGRecOptions
from fedgrec.core import Broadcast, Cohort, Floats, Ints, Leaf, Rows, ServerState, UserState
from fedgrec.errors import FedgrecError
from fedgrec.kernels import _local
from fedgrec.kernels._draws import FAST, fused

NAME = "cpu"
threaded = nb.njit(parallel=True, cache=True, fastmath=FAST, error_model="numpy")


def refresh(cohort: Cohort, weights: Floats, tables: Floats, at: Ints) -> Floats:
    """Eq. (6), see reference.refresh."""
    latents = np.zeros((len(cohort), len(tables), tables.shape[2]), tables.dtype)
    _refresh(cohort.indptr, at, weights, tables, latents)
    return latents


@threaded
def _refresh(indptr, at, weights, tables, latents):  # type: ignore[no-untyped-def]
    for u in nb.prange(len(latents)):
        for i in range(indptr[u], indptr[np.int64(u) + 1]):
            t, weight = at[i], weights[i]
            for k in range(tables.shape[0]):
                for j in range(tables.shape[2]):
                    latents[u, k, j] += weight * tables[k, t, j]


def push(cohort: Cohort, weights: Floats, old: Floats, new: Floats, leaf: Leaf, dtype: np.dtype[Any],
         n_items: int) -> tuple[Rows, int]:
    """Eqs. (7) and (11), see reference.push."""
    _finite(new, leaf.name)
    order = np.argsort(cohort.items, kind="stable")
    index, first = np.unique(cohort.items[order], return_index=True)
    values = np.zeros((new.shape[1], len(index), leaf.width), dtype)
    per_step, bound = new.dtype.type(1 / leaf.step), new.dtype.type(int(leaf.clip / 2 / leaf.step))
    cut = np.zeros(len(index), np.int64)
    _push(order, np.append(first, len(order)), cohort.owner, weights, old, new, per_step, bound, values, cut)
    index = (np.arange(new.shape[1])[:, None] * n_items + index).ravel()
    return Rows(index, values.reshape(-1, leaf.width)), int(cut.sum())


@threaded
def _push(order, first, owner, weights, old, new, per_step, bound, values, cut):  # type: ignore[no-untyped-def]
    for t_ in nb.prange(len(first) - 1):
        t, over = np.int64(t_), new.dtype.type(0)
        for k in range(new.shape[1]):
            for place in range(first[t], first[t + 1]):
                edge = order[place]
                u = owner[edge]
                over += _local.add_difference(weights[edge], old, new, u, k, per_step, bound, values, t)
        cut[t] = np.int64(over)


def train(cohort: Cohort, weights: Floats, broadcast: Broadcast, latents: Floats, o: FedGRecOptions, leaf: Leaf,
          dtype: np.dtype[Any]) -> tuple[Rows, UserState, int]:
    """Algorithm 1, lines 16–21, see reference.train. Needs the whole item table (a simulation has it)."""
    tables, n_items, state = broadcast.tables, broadcast.n_items, cohort.state.copy()
    numbers, flags = _numbers(o, leaf, tables.dtype), _flags(o, broadcast)
    alpha = np.asarray(o.weights(), tables.dtype)
    if flags.concat:
        alpha[1:] = 0  # the latents enter through c_t alone
    f_table = np.empty_like(tables[0])
    _combine(alpha, tables, f_table)
    B = np.tensordot(latents, alpha[1:], (1, 0))
    targets = np.ones(len(cohort.items), tables.dtype) if cohort.targets is None else cohort.targets
    users = (cohort.keys, cohort.indptr, cohort.items, weights, targets, state.embeddings, state.moment1, state.moment2,
             state.steps, B, latents)
    longest = min(int(cohort.degrees.max(initial=0)), flags.max_positives) + flags.negatives
    loop = _one_step if flags.steps == 1 and not flags.item_adam else _many_steps
    sums, cut = loop(users, tables, f_table, numbers, flags, longest, dtype)
    _finite(state.embeddings[:, 0], leaf.name)
    return Rows(np.arange(n_items), sums), state, cut


def _one_step(users: Any, tables: Floats, f_table: Floats, numbers: _local.Numbers, flags: _local.Flags, longest: int,
              dtype: np.dtype[Any]) -> tuple[Ints, int]:
    """Users find their slopes; then every item adds up its users' rounded rows, so no table is ever shared."""
    n, (_, n_items, d) = len(users[0]), tables.shape
    rows = np.empty((n, longest), np.int32)
    g, w = np.empty((2, n, longest), tables.dtype)
    f_users, pulls = np.empty((2, n, d), tables.dtype)
    counts, decays = np.zeros((n, 2), np.int64), np.empty((n, 2), tables.dtype)
    _slopes(*users, tables, f_table, numbers, flags, rows, g, w, f_users, pulls, counts, decays)
    who, where, first = _by_item(rows, counts, n_items)
    sums, cut = np.empty((n_items, d), dtype), np.zeros(n_items, np.int64)
    _gradients(tables[0], who, where, first, g, w, f_users, pulls, counts, decays, numbers, sums, cut)
    return sums, int(cut.sum())


@threaded
def _slopes(keys, indptr, items, weights, targets, embeddings, moment1, moment2, steps, B, latents, tables, f_table,
            numbers, flags, rows, g, w, f_users, pulls, counts, decays):  # type: ignore[no-untyped-def]
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
        _local.one_step(keys[u], P, found, targets[mine][chosen], g[u, :m], user, f_table, numbers, flags,
                        f_users[u], pulls[u])


@fused
def _by_item(rows, counts, n_items):  # type: ignore[no-untyped-def]
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
def _gradients(x, who, where, first, g, w, f_users, pulls, counts, decays, numbers, sums, cut):  # type: ignore[no-untyped-def]
    real = x.dtype.type
    for t_ in nb.prange(x.shape[0]):
        t, over = np.int64(t_), real(0)
        for j in range(sums.shape[1]):
            sums[t, j] = 0
        for entry in range(first[t], first[t + 1]):
            u, i = who[entry], where[entry]
            positive = i < counts[u, 0]
            decay, weight = (decays[u, 0], w[u, i]) if positive else (decays[u, 1], real(0))
            over += _local.add_row(numbers.p * g[u, i], f_users, u, decay, x, t, weight, pulls, numbers, sums)
        cut[t] = np.int64(over)


def _many_steps(users: Any, tables: Floats, f_table: Floats, numbers: _local.Numbers, flags: _local.Flags, longest: int,
                dtype: np.dtype[Any]) -> tuple[Ints, int]:
    """Each thread adds finished rows to a table of its own; the tables are added at the end."""
    threads = nb.get_num_threads()
    sums = np.zeros((threads, *tables.shape[1:]), dtype)
    scratch = np.empty((threads, 4 if flags.item_adam else 2, longest, tables.shape[2]), tables.dtype)
    cut = np.zeros(len(users[0]), np.int64)
    _train_users(*users, tables, f_table, numbers, flags, scratch, sums, cut)
    _add_up(sums)
    return sums[0], int(cut.sum())


@threaded
def _train_users(keys, indptr, items, weights, targets, embeddings, moment1, moment2, steps, B, latents, tables, f_table,
                 numbers, flags, scratch, sums, cut):  # type: ignore[no-untyped-def]
    for u_ in nb.prange(len(keys)):
        u, thread = np.int64(u_), nb.get_thread_id()
        mine = slice(indptr[u], indptr[u + 1])
        rows, chosen = _local.choose_rows(keys[u], items[mine], tables.shape[1], flags)
        if len(rows):
            user = _local.user_state(embeddings[u, 0], moment1[u], moment2[u], steps[u : u + 1], B[u], flags)
            c = _local.constants(rows, latents[u], tables, flags)
            cut[u] = _local.many_steps(keys[u], len(chosen), rows, weights[mine][chosen], targets[mine][chosen], c, user,
                                       tables[0], f_table, numbers, flags, scratch[thread], sums[thread])


@threaded
def _add_up(sums):  # type: ignore[no-untyped-def]
    for t in nb.prange(sums.shape[1]):
        for thread in range(1, sums.shape[0]):
            for j in range(sums.shape[2]):
                sums[0, t, j] += sums[thread, t, j]


@threaded
def _combine(alpha, tables, f_table):  # type: ignore[no-untyped-def]
    for t in nb.prange(f_table.shape[0]):
        for j in range(f_table.shape[1]):
            f_table[t, j] = alpha[0] * tables[0, t, j]
        for k in range(1, len(alpha)):
            for j in range(f_table.shape[1]):
                f_table[t, j] += alpha[k] * tables[k, t, j]


def _numbers(o: FedGRecOptions, leaf: Leaf, dtype: np.dtype[Any]) -> _local.Numbers:
    alpha, real = o.weights(), dtype.type
    live = alpha[1] if o.live and o.layers else 0.0
    return _local.Numbers(*map(real, (
        alpha[0], live, o.l2, o.item_rate, o.user_rate, o.beta1, o.beta2, o.epsilon, 1 / leaf.step, leaf.bound,
    )))


def _flags(o: FedGRecOptions, broadcast: Broadcast) -> _local.Flags:
    return _local.Flags(
        round=broadcast.round, steps=o.local_steps, negatives=o.negatives if o.loss == "bpr" else 0,
        max_positives=o.max_positives or broadcast.n_items, exclude=o.exclude_positives, mse=o.loss == "mse",
        mean=o.reduction == "mean", per_row=o.l2_scaling == "row", concat=o.combine == "concat",
        item_adam=o.item_optimizer == "adam", user_adam=o.user_optimizer == "adam", kept=o.user_moments == "kept",
    )


def server_adam(server: ServerState, update: Rows, leaf: Leaf, o: FedGRecOptions) -> None:
    """See reference.server_adam."""
    float_, t = server.items.dtype.type, server.round + 1
    where = np.full(len(server.degrees), -1, np.int64)
    where[update.index] = np.arange(len(update.index))
    _server_adam(server.items[0], server.moment1, server.moment2, where, update.values, float_(leaf.step),
                 float_(o.server_rate / (1 - o.beta1**t)), float_(1 / (1 - o.beta2**t)), float_(o.beta1),
                 float_(o.beta2), float_(o.epsilon))


@threaded
def _server_adam(x, m, v, where, values, step, rate, unbias2, beta1, beta2, epsilon):  # type: ignore[no-untyped-def]
    one = x.dtype.type(1)
    for t in nb.prange(x.shape[0]):
        row = where[t]
        for j in range(x.shape[1]):
            g = -step * values[row, j] if row >= 0 else x.dtype.type(0)
            m[t, j] = beta1 * m[t, j] + (one - beta1) * g
            v[t, j] = beta2 * v[t, j] + (one - beta2) * g * g
            x[t, j] -= rate * m[t, j] / (np.sqrt(v[t, j] * unbias2) + epsilon)


def add_rows(table: Floats, update: Rows, leaf: Leaf, rate: float) -> None:
    """See reference.add_rows."""
    _add_rows(table, update.index, update.values, table.dtype.type(rate * leaf.step))


@threaded
def _add_rows(table, index, values, scale):  # type: ignore[no-untyped-def]
    for i in nb.prange(len(index)):
        for j in range(table.shape[1]):
            table[index[i], j] += scale * values[i, j]


def _finite(values: Floats, name: str) -> None:
    if not np.isfinite(values).all():
        raise FedgrecError(f"the update of {name!r} is not finite: training diverged; lower the learning rates")


def use_threads(count: int) -> None:
    """How many cores to use from now on; 0: all."""
    nb.set_num_threads(min(count or nb.config.NUMBA_NUM_THREADS, nb.config.NUMBA_NUM_THREADS))
