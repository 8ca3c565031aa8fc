"""The graph of users and items, and its normalised adjacency Â as a linear operator."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedgrec.data import Interactions

CHUNKS = 64  # enough to share out among any number of cores, few enough to cost nothing


@dataclass(frozen=True, eq=False)
class Graph:
    """Â = diag(left) · A · diag(right) with A_rc = 1 for each edge; its nodes are the M users, then the N items.

    A's pattern is symmetric, so Â's transpose only swaps the two scalings, and one product serves both.
    """

    indptr: NDArray[np.int64]  # [M+N+1]
    indices: NDArray[np.int32]  # [nnz], sorted in each row
    left: NDArray[np.float32]  # [M+N]
    right: NDArray[np.float32]  # [M+N]

    def __len__(self) -> int:
        return len(self.left)

    @cached_property
    def transposed(self) -> "Graph":
        return replace(self, left=self.right, right=self.left)

    @cached_property
    def chunks(self) -> NDArray[np.int64]:
        return even_chunks(self.indptr)

    def to_scipy(self, dtype: Any = np.float32) -> Any:
        from scipy.sparse import csr_array

        values = np.repeat(self.left, np.diff(self.indptr)) * self.right[self.indices]
        return csr_array((values.astype(dtype), self.indices, self.indptr), shape=(len(self), len(self)))

    def product(self, x: NDArray[Any]) -> NDArray[Any]:
        """Â x, compiled."""
        from fedgrec.centralized._compiled import product_plus

        out, nothing = np.empty_like(x), np.full(len(self), -1, np.int32)
        product_plus(CHUNKS, nothing, x, self.chunks, self.indptr, self.indices, self.left, self.right, x, out)
        return out


def bipartite(
    train: Interactions, scaling: Literal["symmetric", "mean"] = "symmetric", self_loops: bool = False
) -> Graph:
    """symmetric: D^-½ A D^-½; mean: D⁻¹ A. A node without an edge has a row of zeros."""
    users, items = train.users(), train.items + np.int64(train.n_users)
    n = train.n_users + train.n_items
    loops = np.arange(n if self_loops else 0)
    rows, columns = np.concatenate([users, items, loops]), np.concatenate([items, users, loops])
    degrees = np.bincount(rows, minlength=n)
    inverse = np.where(degrees, 1 / np.maximum(degrees, 1), 0)
    left, right = (np.sqrt(inverse), np.sqrt(inverse)) if scaling == "symmetric" else (inverse, np.ones(n))
    return Graph(
        np.concatenate([[0], np.cumsum(degrees)]),
        columns[np.lexsort((columns, rows))].astype(np.int32),
        left.astype(np.float32),
        right.astype(np.float32),
    )


def even_chunks(indptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows at which to cut, so that each part has about as many edges: rows differ too much in length."""
    cuts = np.searchsorted(indptr, np.linspace(0, indptr[-1], CHUNKS + 1))
    cuts[0], cuts[-1] = 0, len(indptr) - 1
    return cuts
