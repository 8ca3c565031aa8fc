"""The local computations of FedGRec for a whole cohort on all cores: the fused Numba twin of `reference`.

Same functions, same draws, same integers up to the last rounding. Rows are finished, clipped and rounded before they
are added, so a sum depends neither on the order nor on the number of threads. This page prepares the arrays; the loops
are in `_compiled`, a user's part of them in `_steps_numba`.
"""

from typing import Any

import numba as nb
import numpy as np

from fedgrec.cable import draws
from fedgrec.cable.core import Broadcast, Cohort, Floats, Ints, Leaf, Rows, ServerState, UploadSpec, UserState
from fedgrec.config.options import FedGRecOptions
from fedgrec.errors import FedgrecError
from fedgrec.kernels import _compiled as loops
from fedgrec.kernels._numba import in_threads
from fedgrec.kernels._steps_numba import LOSSES, Flags, Numbers
from fedgrec.kernels._sums_numba import GradientParts, by_item

NAME = "cpu"
Given = tuple[loops.Users, Floats, Floats, Floats, draws.Shelves, Numbers, Flags]  # what every loop of a round gets


def refresh(cohort: Cohort, weights: Floats, tables: Floats, at: Ints) -> Floats:
    """Eq. (6), see reference.refresh."""
    latents = np.zeros((len(cohort), len(tables), tables.shape[2]), tables.dtype)
    loops.refresh(len(latents), cohort.indptr, at.astype(np.int32, copy=False), weights, tables, latents)
    return latents


def push(
    cohort: Cohort, weights: Floats, old: Floats, new: Floats, leaf: Leaf, dtype: np.dtype[Any], n_items: int
) -> tuple[Rows, int]:
    """Eqs. (7) and (11), see reference.push."""
    _finite(new, leaf.name)
    old, new = np.ascontiguousarray(old), np.ascontiguousarray(new)  # strided rows do not vectorise
    order = np.argsort(cohort.items, kind="stable")
    index, first = np.unique(cohort.items[order], return_index=True)
    values = np.zeros((new.shape[1], len(index), leaf.width), dtype)
    per_step, bound = new.dtype.type(1 / leaf.step), new.dtype.type(int(leaf.clip / 2 / leaf.step))
    cut = np.zeros(len(index), np.int64)
    first = np.append(first, len(order))
    loops.push(len(index), order, first, cohort.owner, weights, old, new, per_step, bound, values, cut)
    index = (np.arange(new.shape[1])[:, None] * n_items + index).ravel()
    return Rows(index, values.reshape(-1, leaf.width)), int(cut.sum())


def send(
    cohort: Cohort, weights: Floats, held: Floats, leaf: Leaf, dtype: np.dtype[Any], round_: int
) -> tuple[Rows, int]:
    _finite(held, leaf.name)
    order = np.argsort(cohort.items, kind="stable")
    index, first = np.unique(cohort.items[order], return_index=True)
    values, cut = np.zeros((len(index), leaf.width), dtype), np.zeros(len(index), np.int64)
    first, held = np.append(first, len(order)), np.ascontiguousarray(held[:, 0])
    words = draws.philox(cohort.keys, 0, 0, round_, draws.Purpose.ROUNDING)[:, 0].astype(np.int32)
    per_step, bound = held.dtype.type(1 / leaf.step), held.dtype.type(leaf.bound)
    loops.send(len(index), index, order, first, cohort.owner, weights, held, words, per_step, bound, values, cut)
    return Rows(index, values), int(cut.sum())


def follow(
    cohort: Cohort, table: Floats, weights: Floats, per_step: float, spec: UploadSpec, round_: int | None
) -> tuple[Rows, int]:
    """See reference.follow. Threads share out the columns: each user's row is added as soon as it is finished."""
    (leaf,), real = spec.leaves, table.dtype.type
    _finite(table, leaf.name)
    words = draws.philox(cohort.keys, 0, 0, round_ or 0, draws.Purpose.ROUNDING)[:, 0].astype(np.int32)
    shake, items = real(0 if round_ is None else 2.0**-24), cohort.items[cohort.by_time].astype(np.int32)
    rounding = (real(per_step / leaf.step), words, shake, real(leaf.bound))
    sums, cut = np.zeros(table.shape, spec.dtype), np.zeros(leaf.width, np.int64)
    longest, table = int(cohort.degrees.max(initial=0)), np.ascontiguousarray(table)
    loops.follow(leaf.width, cohort.indptr, items, longest, table, weights, *rounding, sums, cut)
    index = np.flatnonzero(np.bincount(items))
    return Rows(index, sums[index]), int(cut.sum())


def train(
    cohort: Cohort,
    weights: Floats,
    broadcast: Broadcast,
    latents: Floats,
    o: FedGRecOptions,
    leaf: Leaf,
    dtype: np.dtype[Any],
) -> tuple[Rows, UserState, int]:
    """Algorithm 1, lines 16–21, see reference.train. Needs the whole item table (a simulation has it)."""
    tables, n_items, state = broadcast.tables, broadcast.n_items, cohort.state.copy()
    numbers, flags = _numbers(o, leaf, broadcast, tables.dtype), _flags(o, broadcast)
    alpha = np.asarray((1.0, 1.0) if o.combined else o.weights(), tables.dtype)
    if flags.concat:
        alpha[1:] = 0  # the latents enter through c_t alone
    if o.combined:  # x_t itself is never needed: no penalty depends on it
        tables = tables[:1]
    f_table = tables[0].copy()  # of a sum that came combined it is all
    if not o.combined:
        loops.combine(n_items, alpha, tables, f_table)
    shelves = draws.shelves(broadcast.degrees, flags.negatives, o.popular_negatives)
    B = np.zeros_like(latents, shape=(len(latents), latents.shape[2]))
    for k in range(latents.shape[1]):  # no BLAS: its rounding depends on a user's place in the batch
        B += alpha[k + 1] * latents[:, k]
    steps = np.full(n_items, leaf.step) if broadcast.row_steps is None else broadcast.row_steps
    per_steps = (1 / steps).astype(tables.dtype)
    targets = np.ones(len(cohort.items), tables.dtype) if cohort.targets is None else cohort.targets
    moments, kept = (state.moment1, state.moment2, state.steps), o.user_moments == "kept"
    m, v, t = (each if kept else np.zeros_like(each) for each in moments)
    words = draws.philox(cohort.keys, 0, 0, broadcast.round, draws.Purpose.ROUNDING)[:, 0].astype(np.int32)
    users = loops.Users(
        cohort.keys, cohort.indptr, cohort.items, weights, targets, state.embeddings, m, v, t, B, latents, words
    )
    longest = min(int(cohort.degrees.max(initial=0)), flags.max_positives) + flags.negatives
    loop = _one_step if flags.steps == 1 and not flags.item_adam and not leaf.norm else _many_steps
    sums, cut = loop((users, tables, f_table, per_steps, shelves, numbers, flags), longest, dtype)
    _finite(state.embeddings[:, 0], leaf.name)
    return Rows(np.arange(n_items), sums), state, cut


def _one_step(given: Given, longest: int, dtype: np.dtype[Any]) -> tuple[Ints, int]:
    """Users find their slopes; then every item adds up its users' rounded rows, so no table is ever shared."""
    users, tables, f_table, per_steps, shelves, numbers, flags = given
    n_items, d = tables.shape[1:]
    parts, norms = (
        GradientParts.empty(len(users.keys), longest, d, tables.dtype, flags.cosine),
        np.empty(n_items, tables.dtype),
    )
    if flags.cosine:
        loops.directions(n_items, f_table, norms)
    loops.user_slopes(len(users.keys), users, tables, f_table, shelves, numbers, flags, parts)
    who, where, first = by_item(parts.rows, parts.counts, n_items)
    sums, cut = np.empty((n_items, d), dtype), np.zeros(n_items, np.int64)
    if flags.cosine:
        leaning = (f_table, norms, who, where, first, parts, users.words, per_steps, numbers, sums, cut)
        loops.gradients_of_cosines(n_items, tables[0], *leaning)
    else:
        reaches = np.abs(parts.f_users).max(axis=1, initial=0)
        summed = (who, where, first, parts, users.words, reaches, per_steps, numbers, sums, cut)
        loops.gradients(n_items, tables[0], *summed)
    return sums, int(cut.sum())


def _many_steps(given: Given, longest: int, dtype: np.dtype[Any]) -> tuple[Ints, int]:
    """Each thread adds finished rows to a table of its own; the tables are added at the end."""
    users, tables, *_, flags = given

    def share(begin: int, end: int) -> tuple[Ints, int]:
        sums = np.zeros(tables.shape[1:], dtype)
        scratch = np.empty((4 if flags.item_adam else 2, longest, tables.shape[2]), tables.dtype)
        return sums, int(loops.train_users(begin, end, *given, scratch, sums))

    (total, cut), *others = in_threads(share, len(users.keys))
    for sums, more in others:
        total += sums
        cut += more
    return total, cut


def _numbers(o: FedGRecOptions, leaf: Leaf, broadcast: Broadcast, dtype: np.dtype[Any]) -> Numbers:
    alpha, real = o.weights(), dtype.type
    live = alpha[1] if o.live and o.layers else 0.0
    return Numbers(
        p=real(alpha[0]),
        live=real(live),
        l2=real(o.l2),
        item_rate=real(o.item_rate),
        user_rate=real(o.user_rate),
        beta1=real(o.beta1),
        beta2=real(o.beta2),
        epsilon=real(o.adam_epsilon),
        bound=real(leaf.bound),
        norm=np.float64(leaf.norm),
        shake=real(0 if broadcast.row_steps is None else 2.0**-24),
        temperature=real(o.temperature),
        negative_weight=real(o.negative_weight),
    )


def _flags(o: FedGRecOptions, broadcast: Broadcast) -> Flags:
    return Flags(
        round=broadcast.round,
        steps=o.local_steps,
        negatives=o.negatives if o.loss != "mse" else 0,
        max_positives=o.max_positives or broadcast.n_items,
        exclude=o.exclude_positives,
        feedback=draws.feedback_bound(o.feedback),
        loss=LOSSES[o.loss],
        cosine=o.similarity == "cosine",
        mean=o.reduction == "mean",
        per_row=o.l2_scaling == "row",
        concat=o.combine == "concat",
        item_adam=o.item_optimizer == "adam",
        user_adam=o.user_optimizer == "adam",
    )


def combine(items: Floats, alphas: Floats, download: str, lean: bool) -> Floats:
    out = np.zeros((2 if lean else 1 + len(items), *items.shape[1:]), items.dtype)
    n_items, out[2:] = out.shape[1], items[: len(out) - 2]
    for place in range(min(len(alphas), 2)):  # f_t, and c_t with the weights of the levels above
        loops.combine(n_items, alphas[place:], items, out[place])
    if download != "float32":
        (loops.eight_bits if download == "int8" else loops.sixteen_bits)(n_items, out)
    return out


def server_adam(server: ServerState, update: Rows, steps: Floats, o: FedGRecOptions) -> None:
    float_, t = server.items.dtype.type, server.round + 1
    where = np.full(len(server.degrees), -1, np.int64)
    where[update.index] = np.arange(len(update.index))
    loops.server_adam(
        len(where),
        server.items[0],
        server.moment1,
        server.moment2,
        where,
        update.values,
        steps,
        float_(o.server_rate / (1 - o.beta1**t)),
        float_(1 / (1 - o.beta2**t)),
        float_(o.beta1),
        float_(o.beta2),
        float_(o.adam_epsilon),
    )


def add_rows(table: Floats, update: Rows, leaf: Leaf, rate: float) -> None:
    loops.add_rows(len(update.index), table, update.index, update.values, table.dtype.type(rate * leaf.step))


def _finite(values: Floats, name: str) -> None:
    if not np.isfinite(values).all():
        raise FedgrecError(f"the update of {name!r} is not finite: training diverged; lower the learning rates")


def use_threads(count: int) -> None:
    """How many cores to use from now on; 0: all."""
    most = int(nb.config.NUMBA_NUM_THREADS)
    nb.set_num_threads(min(count or most, most))
