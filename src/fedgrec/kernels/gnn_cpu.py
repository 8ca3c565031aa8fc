"""FedGNN's local computation for a whole cohort on all cores: the fused twin of `kernels.gnn`.

Same draws, same integers up to the last rounding. This page prepares the arrays; the loops are in `_gnn`.
"""

from typing import Any

import numpy as np

from fedgrec.cable import draws
from fedgrec.cable.core import Broadcast, Cohort, Floats, Leaf, Rows
from fedgrec.errors import FedgrecError
from fedgrec.kernels import _gnn as loops
from fedgrec.kernels._sums_numba import GradientParts, by_item
from fedgrec.kernels.gnn import GnnState


def train(
    cohort: Cohort, v: Floats, B: Floats, broadcast: Broadcast, o: Any, leaf: Leaf, dtype: np.dtype[Any]
) -> tuple[Rows, GnnState, int]:
    """One round of every user, see gnn.train. Needs the whole item table (a simulation has it)."""
    x, state, n = broadcast.tables[0], cohort.state.copy(), len(cohort)
    n_items, d = x.shape
    numbers = _numbers(o, leaf, x.dtype)
    flags = loops.Flags(broadcast.round, o.max_positives or n_items, o.loss == "mse")
    longest = min(int(cohort.degrees.max(initial=0)), flags.max_positives) + o.negatives
    parts = GradientParts.empty(n, longest, d, x.dtype)
    targets = np.ones(len(cohort.items), x.dtype) if cohort.targets is None else cohort.targets
    own = (state.embeddings, state.moment1, state.moment2, state.steps)
    users = (cohort.keys, cohort.indptr, cohort.items, v, targets, B, *own)
    shelves = draws.shelves(np.ones(n_items), o.negatives, 0.0)  # one: all items are equal
    loops.user_slopes(n, users, x, shelves, numbers, flags, parts)
    if not np.isfinite(state.embeddings).all():
        raise FedgrecError(f"the update of {leaf.name!r} is not finite: training diverged; lower the learning rates")
    who, where, first = by_item(parts.rows, parts.counts, n_items)
    sums, cut = np.empty((n_items, d), dtype), np.zeros(n_items, np.int64)
    reaches = np.abs(parts.f_users).max(axis=1, initial=0)
    loops.add_up(n_items, x, who, where, first, parts, reaches, numbers, sums, cut)
    return Rows(np.arange(n_items), sums), state, int(cut.sum())


def _numbers(o: Any, leaf: Leaf, dtype: np.dtype[Any]) -> loops.Numbers:
    per_step = 1 / leaf.step
    return loops.Numbers(
        own=dtype.type(o.own),
        omega=dtype.type(o.negative_weight),
        l2=dtype.type(o.l2),
        user_rate=dtype.type(o.user_rate),
        beta1=dtype.type(o.beta1),
        beta2=dtype.type(o.beta2),
        epsilon=dtype.type(o.adam_epsilon),
        per_step=dtype.type(per_step),
        bound=dtype.type(leaf.bound),
    )


def means(third: Any) -> Floats:
    """methods.expansion.means, without making the replies.  # [nnz, d]"""
    from_neighbours = np.empty((len(third.owner), third.offer.embeddings.shape[1]), third.offer.embeddings.dtype)
    whose = third.owner[third.circle]  # the user at each place of a circle
    circles = (third.place, third.first, third.size, third.neighbours)
    loops.add_neighbours(len(from_neighbours), whose, *circles, third.offer.embeddings, from_neighbours)
    return from_neighbours
