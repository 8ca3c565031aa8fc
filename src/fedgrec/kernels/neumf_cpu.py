"""NeuMF for a whole cohort on all cores: the compiled twin of `neumf`. This page prepares the arrays for `_neumf`.

All users start from the same item rows and the same network, so W_q q'_i of the first layer, most of a score's
arithmetic, is computed once for all of them.
"""

from typing import Any

import numpy as np

from fedgrec.cable.core import Broadcast, Cohort, Floats, Ints, Leaf, Rows
from fedgrec.errors import FedgrecError
from fedgrec.kernels import _neumf as loops
from fedgrec.kernels._numba import in_threads
from fedgrec.kernels.neumf import network

LANES, WIDE = loops.LANES, loops.WIDE


def train(
    cohort: Cohort, broadcast: Broadcast, theta: Floats, o: Any, items: Leaf, weights: Leaf, dtype: np.dtype[Any]
) -> tuple[Rows, Rows, Any, int]:
    """See neumf.train."""
    state, N = cohort.state.copy(), broadcast.n_items
    rows, first = training_rows(cohort, broadcast.round, o.negatives, N)
    adam, user_adam = o.item_optimizer == "adam", o.user_optimizer == "adam"
    flags = loops.Flags(o.local_steps, o.reduction == "mean", adam, user_adam, o.local_steps == 1 and not adam)
    fixed_point = (1 / items.step, items.bound, 1 / weights.step, weights.bound)
    numbers = (o.l2, o.item_rate, o.user_rate, o.beta1, o.beta2, o.adam_epsilon, *fixed_point)
    tables = np.ascontiguousarray(broadcast.tables)
    table = projected(tables[1], theta, o)
    longest = 0 if flags.direct else int(np.diff(first).max(initial=0))

    def share(begin: int, end: int) -> tuple[Ints, Ints, int]:
        sums, of_theta = np.zeros((2 * N, o.dim), dtype), np.zeros(len(theta), dtype)
        cut = loops.train_users(
            begin,
            end,
            (rows, first, cohort.degrees),
            (state.embeddings, state.moment1, state.moment2, state.steps),
            (tables, table),
            (theta, np.array(o.hidden)),
            loops.Numbers(*map(theta.dtype.type, numbers)),
            flags,
            _desk(longest, flags, theta, o),
            (sums, of_theta),
        )
        return sums, of_theta, int(cut)

    (total, total_theta, cut), *others = in_threads(share, len(cohort))
    for sums, of_theta, more in others:
        total += sums
        total_theta += of_theta
        cut += more
    if not np.isfinite(state.embeddings).all():
        raise FedgrecError("the update of 'items' is not finite: training diverged; lower the learning rates")
    return Rows(np.arange(2 * N), total), Rows(np.zeros(1, np.int64), total_theta[None]), state, cut


def training_rows(cohort: Cohort, round_: int, count: int, n_items: int) -> tuple[Ints, Ints]:
    """Each user's positives, then its negatives, one user after the other; and where each user begins."""
    P = cohort.degrees
    first = np.concatenate([[0], np.cumsum(np.where(P > 0, P + np.minimum(count, n_items - P), 0))])
    rows = np.empty(first[-1], np.int64)
    loops.draw_rows(len(cohort), cohort.keys, cohort.indptr, cohort.items, round_, n_items, first, rows)
    return rows, first


def projected(table: Floats, theta: Floats, o: Any) -> Floats:
    """W_q q'_i of every item.  # [N, H_1]"""
    out = np.zeros((len(table), o.hidden[0]), theta.dtype)
    loops.project(
        -(-len(table) // LANES), np.ascontiguousarray(table), np.ascontiguousarray(network(theta, o).W_q.T), out
    )
    return out


def _desk(longest: int, flags: Any, theta: Floats, o: Any) -> Any:
    """Working memory for a thread."""
    shapes = loops.Desk(
        x=(4, LANES, o.dim),
        f_1=(LANES, o.hidden[0]),
        f=(sum(o.hidden), LANES),
        delta=(sum(o.hidden), LANES),
        turned=(LANES * max(o.hidden),),
        g=(LANES,),
        theta=(5, len(theta)),
        moved=(3 if flags.item_adam else 1, longest, 2, o.dim),
    )
    return loops.Desk(*(np.empty(shape, theta.dtype) for shape in shapes))


def scores(embeddings: Floats, items: Floats, theta: Floats, o: Any) -> Floats:
    """See neumf.scores; in blocks of items, each for all users, so that a block stays in cache."""
    net, n_items = network(theta, o), items.shape[1]
    blocks = np.zeros((-(-n_items // WIDE) * WIDE, o.hidden[0]), items.dtype)
    blocks[:n_items] = projected(items[1], theta, o)
    blocks = np.ascontiguousarray(blocks.reshape(-1, WIDE, o.hidden[0]).swapaxes(1, 2))  # [blocks, H_1, WIDE]
    of_users = embeddings[:, 1] @ net.W_p.T + net.b[0]  # [n, H_1]
    out: Floats = (embeddings[:, 0] * net.h_g) @ items[0].T  # [n, N]
    loops.add_network(len(blocks), of_users, blocks, theta, np.array(o.hidden), o.dim, out)
    return out
