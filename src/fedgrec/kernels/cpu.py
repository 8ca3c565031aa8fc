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

NAME = "cpu"
threaded = nb.njit(parallel=True, cache=True, fastmath=_local.FAST, error_model="numpy")


def refresh(cohort: Cohort, weights: Floats, tables: Floats, at: Ints) -> Floats:
    """Eq. (6), see reference.refresh."""
    latents = np.zeros((len(cohort), len(tables), tables.shape[2]), tables.dtype)
    _refresh(cohort.indptr, at, weights, tables, latents)
    return latents


@threaded
def _refresh(indptr, at, weights, tables, latents):  # type: ignore[no-untyped-def]
    for u in nb.prange(len(latents)):
        for i in range(indptr[u], indptr[np.int64(u) + 1]):
            for k in range(tables.shape[0]):
                row = tables[k, at[i]]
                for j in range(tables.shape[2]):
                    latents[u, k, j] += weights[i] * row[j]


def push(cohort: Cohort, weights: Floats, old: Floats, new: Floats, leaf: Leaf, dtype: np.dtype[Any],
         n_items: int) -> tuple[Rows, int]:
    """Eqs. (7) and (11), see reference.push."""
    _finite(new, leaf.name)
    index, place = np.unique(cohort.items, return_inverse=True)
    levels = new.shape[1]
    values = np.zeros((levels, len(index), leaf.width), dtype)
    cut = np.zeros((levels, 4), np.int64)
    _push(cohort.indptr, place, weights, old, new, new.dtype.type(1 / leaf.step), int(leaf.clip / 2 / leaf.step), values, cut)
    index = (np.arange(levels)[:, None] * n_items + index).ravel()
    return Rows(index, values.reshape(-1, leaf.width)), int(cut.sum())


@threaded
def _push(indptr, place, weights, old, new, per_step, bound, values, cut):  # type: ignore[no-untyped-def]
    # Tasks own a level and a quarter of the columns, so no two threads ever add to the same word.
    levels, width = values.shape[0], values.shape[2]
    for task in nb.prange(levels * 4):
        k, quarter = np.int64(task) // 4, np.int64(task) % 4
        first, last = quarter * width // 4, (quarter + 1) * width // 4
        over = 0
        for u in range(len(indptr) - 1):
            for i in range(indptr[u], indptr[u + 1]):
                for j in range(first, last):
                    before = np.rint(weights[i] * old[u, k, j] * per_step)
                    after = np.rint(weights[i] * new[u, k, j] * per_step)
                    over += abs(after) > bound
                    before = min(max(before, -bound), bound)
                    after = min(max(after, -bound), bound)
                    values[k, place[i], j] += np.int64(after) - np.int64(before)
        cut[k, quarter] = over


def train(cohort: Cohort, weights: Floats, broadcast: Broadcast, latents: Floats, o: FedGRecOptions, leaf: Leaf,
          dtype: np.dtype[Any]) -> tuple[Rows, UserState, int]:
    """Algorithm 1, lines 16–21, see reference.train. Needs the whole item table (a simulation has it)."""
    tables, n_items, state = broadcast.tables, broadcast.n_items, cohort.state.copy()
    float_ = tables.dtype.type
    alpha = np.asarray(o.weights(), tables.dtype)
    concat = o.combine == "concat"
    a = np.zeros_like(tables[0])
    if not concat and o.layers:
        _combine(alpha[1:], tables[1:], a)
    B = np.zeros((len(cohort), o.dim), tables.dtype) if concat else np.tensordot(latents, alpha[1:], (1, 0))
    numbers = _local.Numbers(
        p=alpha[0], live=alpha[1] if o.live and o.layers else float_(0), l2=float_(o.l2),
        item_rate=float_(o.item_rate), user_rate=float_(o.user_rate), beta1=float_(o.beta1), beta2=float_(o.beta2),
        epsilon=float_(o.epsilon), per_step=float_(1 / leaf.step), bound=float_(leaf.bound),
    )
    flags = _local.Flags(
        round=broadcast.round, steps=o.local_steps, negatives=o.negatives if o.loss == "bpr" else 0,
        max_positives=o.max_positives or n_items, exclude=o.exclude_positives, mse=o.loss == "mse",
        mean=o.reduction == "mean", per_row=o.l2_scaling == "row", concat=concat,
        item_adam=o.item_optimizer == "adam", user_adam=o.user_optimizer == "adam", kept=o.user_moments == "kept",
    )
    threads = nb.get_num_threads()
    sums = np.zeros((threads, n_items, o.dim), dtype)
    longest = min(int(cohort.degrees.max(initial=0)), flags.max_positives) + flags.negatives
    buffers = 0 if flags.steps == 1 and not flags.item_adam else 4 if flags.item_adam else 2
    scratch = np.empty((threads, buffers, longest, o.dim), tables.dtype)
    targets = np.ones(len(cohort.items), tables.dtype) if cohort.targets is None else cohort.targets
    cut = np.zeros(len(cohort), np.int64)
    _train(cohort.keys, cohort.indptr, cohort.items, weights, targets, state.embeddings, state.moment1, state.moment2,
           state.steps, B, latents, tables, a, numbers, flags, scratch, sums, cut)
    _finite(state.embeddings[:, 0], leaf.name)
    _add_up(sums)
    return Rows(np.arange(n_items), sums[0]), state, int(cut.sum())


@threaded
def _combine(alpha, tables, a):  # type: ignore[no-untyped-def]
    for t in nb.prange(a.shape[0]):
        for k in range(tables.shape[0]):
            for j in range(a.shape[1]):
                a[t, j] += alpha[k] * tables[k, t, j]


@threaded
def _train(keys, indptr, items, weights, targets, embeddings, moment1, moment2, steps, B, latents, tables, a,
           numbers, flags, scratch, sums, cut):  # type: ignore[no-untyped-def]
    for u_ in nb.prange(len(keys)):
        u, thread = np.int64(u_), nb.get_thread_id()
        mine = slice(indptr[u], indptr[u + 1])
        cut[u] = _local.train_user(
            keys[u], items[mine], weights[mine], targets[mine], embeddings[u, 0], moment1[u], moment2[u],
            steps[u : u + 1], B[u], latents[u], tables, a, numbers, flags, scratch[thread], sums[thread],
        )


@threaded
def _add_up(sums):  # type: ignore[no-untyped-def]
    for t in nb.prange(sums.shape[1]):
        for thread in range(1, sums.shape[0]):
            for j in range(sums.shape[2]):
                sums[0, t, j] += sums[thread, t, j]


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
