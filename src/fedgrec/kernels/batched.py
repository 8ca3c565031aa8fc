"""The local computations of FedGRec for a whole cohort in PyTorch, on any device: the batched twin of `reference`.

Users are laid side by side in padded tables [users, rows, d], as many at a time as `memory` allows. Same draws, same
integers up to the last rounding.

A user's numbers must not depend on who shares its batch, or a sum would change with the split. So nothing here is a
matrix product or a library's sum, whose order of adding follows from the shape: see `_trees_torch`. That costs memory
traffic: where a fused kernel runs, it is the faster one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Broadcast, Cohort, Floats, Ints, Leaf, Rows, ServerState, UserState, fitting
from fedgrec.cable.draws import shelves
from fedgrec.config.options import FedGRecOptions
from fedgrec.errors import FedgrecError, missing_extra
from fedgrec.kernels.devices import place

try:
    import torch
    from torch import Tensor
except ImportError:
    raise missing_extra("the batched kernel", "torch") from None

from fedgrec.kernels import _draws_torch as draws
from fedgrec.kernels import _steps_torch as steps
from fedgrec.kernels import reference
from fedgrec.kernels._trees_torch import across, added_up


@dataclass(frozen=True)
class Batched:
    """The five functions of a kernel on one device. Results do not depend on `memory`."""

    NAME = "batched"
    device: str = "cpu"
    memory: int = 2**26  # bytes of one working table [users, rows, d]; training holds about ten of them

    def __post_init__(self) -> None:
        place(self.device)  # raises an error that says why, if the device is not there

    def refresh(self, cohort: Cohort, weights: Floats, tables: Floats, at: Ints) -> Floats:
        """Eq. (6), see reference.refresh."""
        latents = np.zeros((len(cohort), len(tables), tables.shape[2]), tables.dtype)
        with self._enough_memory():
            w, rows_at, there = self._place(weights), self._place(at), self._place(tables)
            first, degrees = self._place(cohort.indptr[:-1]), self._place(cohort.degrees)
            for users in self._batches(cohort.degrees, tables):
                mine = self._place(users)
                edges, real = steps.padded(first[mine], degrees[mine], int(cohort.degrees[users].max()))
                rows, weight = rows_at[edges], torch.where(real, w[edges], 0)[..., None]
                for k, table in enumerate(there):
                    latents[users, k] = added_up(weight * table[rows]).cpu().numpy()
        return latents

    def push(
        self, cohort: Cohort, weights: Floats, old: Floats, new: Floats, leaf: Leaf, dtype: np.dtype[Any], n_items: int
    ) -> tuple[Rows, int]:
        """Eqs. (7) and (11), see reference.push."""
        index, place = np.unique(cohort.items, return_inverse=True)
        K, bound, cut = new.shape[1], int(leaf.clip / 2 / leaf.step), 0
        with self._enough_memory():
            to_row, owner, w = self._place(place), self._place(cohort.owner), self._place(weights)
            before, after = self._place(old), self._place(new)
            values = self._zeros((K, len(index), leaf.width), dtype)
            at_once = max(1, self.memory // (new.itemsize * leaf.width))
            for lo in range(0, len(place), at_once):
                edges = slice(lo, lo + at_once)
                for k in range(K):
                    held = (w[edges, None] * e[owner[edges], k] for e in (before, after))
                    (was, _), (now, over) = (rounded(rows, leaf, bound, values.dtype) for rows in held)
                    values[k].index_add_(0, to_row[edges], now - was)
                    cut += over
            rows = (np.arange(K)[:, None] * n_items + index).ravel()
            return Rows(rows, values.flatten(0, 1).cpu().numpy()), cut

    def train(
        self,
        cohort: Cohort,
        weights: Floats,
        broadcast: Broadcast,
        latents: Floats,
        o: FedGRecOptions,
        leaf: Leaf,
        dtype: np.dtype[Any],
    ) -> tuple[Rows, UserState, int]:
        """Algorithm 1, lines 16–21, see reference.train."""
        state, cut = cohort.state.copy(), 0
        positives = np.minimum(cohort.degrees, o.max_positives or broadcast.n_items)
        n_rows = np.where(positives > 0, positives + (o.negatives if o.loss != "mse" else 0), 0)
        with self._enough_memory():
            sums = self._zeros((broadcast.n_items, leaf.width), dtype)
            world = self._world(cohort, weights, broadcast, latents, o)
            per_steps = None if broadcast.row_steps is None else self._place(1 / broadcast.row_steps)
            for users in self._batches(n_rows, broadcast.tables):
                problem = steps.local_problems(world, self._place(users), o)
                moved = steps.local_steps(problem, state, users, o)
                P = problem.weights.shape[1]
                sent = draws.feedback(problem.keys, problem.round, P, o.feedback)
                moved[:, :P] = torch.where(sent[..., None], moved[:, :P], 0)
                if leaf.norm:
                    moved *= within_norm(moved, P, problem.real, leaf)
                if per_steps is None:
                    rows, over = rounded(moved, leaf, leaf.bound, sums.dtype)
                else:
                    shift = draws.shifts(problem.keys, problem.round, problem.items, leaf.width, moved.dtype)
                    moved = moved * per_steps[problem.items][..., None] + shift
                    rows, over = rounded(moved, leaf, leaf.bound, sums.dtype)
                sums.index_add_(0, problem.items.flatten(), rows.flatten(0, 1))
                cut += over
            return Rows(np.arange(broadcast.n_items), sums.cpu().numpy()), state, cut

    def combine(self, items: Floats, alphas: Floats, download: str, lean: bool) -> Floats:
        """See reference.combine; on the CPU, where the server's arrays are."""
        return reference.combine(items, alphas, download, lean)

    def server_adam(self, server: ServerState, update: Rows, steps_: Floats, o: FedGRecOptions) -> None:
        """See reference.server_adam. In place on the CPU: moving the server's arrays would take longer."""
        x, m, v = (torch.from_numpy(table) for table in (server.items[0], server.moment1, server.moment2))
        grad = torch.zeros_like(m)
        of_rows = torch.from_numpy(-steps_[update.index, None])
        grad[torch.from_numpy(update.index)] = torch.from_numpy(update.values).to(m.dtype) * of_rows
        at = steps.unbiased(o.beta1, server.round + 1), steps.unbiased(o.beta2, server.round + 1)
        x += steps.adam(grad, m, v, *at, o.server_rate, o)

    def add_rows(self, table: Floats, update: Rows, leaf: Leaf, rate: float) -> None:
        """See reference.add_rows."""
        change = torch.from_numpy(update.values).to(torch.float64) * (rate * leaf.step)
        there = torch.from_numpy(table)
        there[torch.from_numpy(update.index)] += change.to(there.dtype)

    # ------------------------------------------------------------------------------------------ plumbing

    def _world(
        self, cohort: Cohort, weights: Floats, broadcast: Broadcast, latents: Floats, o: FedGRecOptions
    ) -> steps.World:
        tables, latents_there = self._place(broadcast.tables), self._place(latents)
        if o.combined:
            tables, a, B = torch.zeros_like(tables[:1]), tables[0], latents_there[:, 0]
        else:
            a, B = steps.constants(tables, latents_there, o)
        return steps.World(
            broadcast.round,
            broadcast.n_items,
            keys=self._place(cohort.keys.view(np.int64)),
            first=self._place(cohort.indptr[:-1]),
            degrees=self._place(cohort.degrees),
            items=self._place(cohort.items),
            weights=self._place(weights),
            targets=self._place(np.ones_like(weights) if cohort.targets is None else cohort.targets),
            latents=latents_there,
            tables=tables,
            a=a,
            B=B,
            shelves=shelves(broadcast.degrees, o.negatives, o.popular_negatives)
            if o.popular_negatives and o.loss != "mse"
            else None,
        )

    def _place(self, array: NDArray[Any]) -> Tensor:
        """A copy on the device; whole numbers become int64, which indices must be."""
        return torch.tensor(array, dtype=torch.int64 if array.dtype.kind == "i" else None, device=self.device)

    def _zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        return torch.zeros(shape, dtype=getattr(torch, dtype.name), device=self.device)

    def _batches(self, n_rows: Ints, tables: Floats) -> Iterator[Ints]:
        return steps.side_by_side(n_rows, self.memory // (tables.itemsize * tables.shape[2]))

    @contextmanager
    def _enough_memory(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            raise FedgrecError(
                f"device {self.device!r} is out of memory: free some of it, lower dim or layers, or use device 'cpu'"
            ) from None


def within_norm(moved: Tensor, P: int, real: Tensor, leaf: Leaf) -> Tensor:
    """The factors that bring each user's rows within the leaf's norm.  # [S, 1, 1]"""
    squares = moved.to(torch.float64) ** 2
    both = added_up(squares[:, :P]) + added_up(squares[:, P:])  # each part is padded at its own end
    lengths, words = across(both).sqrt().cpu().numpy() / leaf.step, real.sum(1).cpu().numpy() * leaf.width
    return torch.tensor(fitting(lengths, words, leaf.norm), dtype=moved.dtype, device=moved.device)[:, None, None]


def rounded(rows: Tensor, leaf: Leaf, bound: int, dtype: torch.dtype) -> tuple[Tensor, int]:
    """core.quantize: finished rows → integers, clipped and rounded; and how many words the clip cut."""
    counted = (rows * (1 / leaf.step)).round_()
    if not torch.isfinite(counted).all():
        raise FedgrecError(f"the update of {leaf.name!r} is not finite: training diverged; lower the learning rates")
    cut = int((counted.abs() > bound).sum())
    return counted.clamp_(-bound, bound).to(dtype), cut
