"""Products on a GPU, and LightGCN: a batch is a graph of launches that is recorded once and replayed.

`_torch.Products` and `_torch.LightGCNEngine` compute the same in a few lines, and tests compare both.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from fedgrec.centralized import _lightgcn_triton as loops
from fedgrec.centralized._torch import LightGCNEngine, Products, in_batches, recorded
from fedgrec.centralized.contract import Ints
from fedgrec.centralized.graph import Graph
from fedgrec.centralized.options import BETA1, BETA2, EPSILON, LightGCNOptions

TRIPLES, WORDS = 32, 1024  # triples and words that a program holds at a time
LONG = 256  # edges of a row that one program adds up; longer rows are cut, or all would wait for the longest
ALL_ROWS = {"BLOCK": 16, "num_warps": 1}  # BLOCK: neighbours read at a time; most rows are short
SOME_ROWS = {"BLOCK": 64, "num_warps": 4}  # with so few rows, the longest decides the time


def sizes(dim: int) -> dict[str, int]:
    return {"DIM": dim, "D": max(triton.next_power_of_2(dim), 16)}


def pieces_of(indptr: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Rows cut into pieces, longest first [P, 4], and the long rows with their parts [L, 3]: see `loops.product`."""
    cuts = (indptr.diff() + longest - 1).div(longest, rounding_mode="floor").clamp(min=1)
    rows = torch.arange(len(cuts), device=indptr.device).repeat_interleave(cuts)
    before = torch.arange(len(rows), device=indptr.device) - (cuts.cumsum(0) - cuts)[rows]  # pieces of the same row
    first = indptr[rows] + longest * before
    last = torch.minimum(first + longest, indptr[rows + 1])
    several = cuts[rows] > 1
    pieces = torch.stack([rows, first, last, torch.where(several, several.cumsum(0) - 1, -1)], 1)
    long = torch.nonzero(cuts > 1).flatten()
    ends = cuts[long].cumsum(0)
    order = (last - first).sort(descending=True, stable=True).indices
    return pieces[order].int().contiguous(), torch.stack([long, ends - cuts[long], ends], 1).int()


class FusedProducts(Products):
    """One launch each, and one more for long rows; a product with S reads only the rows that are in S."""

    def __init__(self, A: Tensor, longest: int = LONG) -> None:
        super().__init__(A)
        self.edges = A.crow_indices(), A.col_indices(), A.values()
        self.pieces, self.long = pieces_of(A.crow_indices(), longest)
        self.parts = int(self.long[-1, 2]) if len(self.long) else 0

    def full(self, x: Tensor) -> Tensor:
        return self.into(torch.empty_like(x), x)

    def at(self, x: Tensor, rows: Tensor) -> Tensor:
        out = x.new_empty(rows.shape[1], x.shape[1])
        loops.product_at[(len(out),)](rows[0], *self.edges, x.contiguous(), out, **sizes(x.shape[1]), **SOME_ROWS)
        return out

    def of(self, x: Tensor, rows: Tensor) -> Tensor:
        S, counts = self.counted(x, rows)
        return self.into(torch.empty_like(S), S, counts=counts)

    def summed(self, x: Tensor, rows: Tensor) -> Tensor:
        return self.counted(x, rows)[0]

    def counted(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """S, and how often each of its rows is in `rows`."""
        n, dim = len(self.A), x.shape[1]
        S, counts = x.new_zeros(n, dim), torch.zeros(n, dtype=torch.int32, device=x.device)
        loops.add_up[(len(x),)](rows[1], rows[2], x.contiguous(), S, counts, len(x), n, **sizes(dim), num_warps=1)
        return S, counts

    def into(self, out: Tensor, x: Tensor, more: Tensor | None = None, counts: Tensor | None = None) -> Tensor:
        """out = A x, plus `more`. With counts, x is not read where they are 0."""
        size, x = sizes(x.shape[1]), x.contiguous()
        parts, add, some = x.new_empty(self.parts, x.shape[1]), more is not None, counts is not None
        unused = x  # a kernel needs a tensor for every argument
        loops.product[(len(self.pieces),)](
            self.pieces, *self.edges[1:], x, more if add else unused, counts if some else unused, parts, out,
            SOME=some, ADD=add, **size, **ALL_ROWS,
        )  # fmt: skip
        if self.parts:
            loops.join[(len(self.long),)](self.long, parts, more if add else unused, out, ADD=add, **size, num_warps=1)
        return out


class RecordedEngine(LightGCNEngine):
    """LightGCN's closed form on a GPU; within an epoch the host sends no data."""

    def __init__(self, graph: Graph, start: NDArray[Any], options: LightGCNOptions, device: str = "cuda") -> None:
        super().__init__(graph, start, options, device)
        self.E = self.learner["embeddings"].detach()
        self.n, self.dim = self.E.shape
        self.products = FusedProducts(self.A)
        self.m, self.v = self.learner.averages.values()
        self.steps = self.learner.steps[0]
        self.levels = self.E.new_zeros(max(options.layers - 1, 1), *self.E.shape)
        self.total, self.spare = (torch.zeros_like(self.E) for _ in range(2))
        self.F = self.E.new_zeros(3 * options.batch, self.dim)
        self.numbers = self.E.new_tensor([options.l2, BETA1, BETA2, EPSILON])
        self.batch = torch.zeros(1, dtype=torch.int32, device=self.device)
        self.triples = 0
        self._replay: Callable[[], None] | None = None

    def epoch(self, nodes: Ints) -> Tensor:
        self._open(torch.from_numpy(nodes))
        for _ in range(len(self.rows)):
            self._step()
        self.steps.add_(len(self.rows))
        return self.losses.double().sum() / self.triples

    def _open(self, nodes: Tensor) -> None:
        """Write what the steps of this epoch read; a recorded graph reads it at the same addresses in every epoch."""
        size, n = self.options.batch, nodes.shape[1]
        batches = triton.cdiv(n, size)
        if self.triples != n:
            self.triples, self._replay = n, None
            self.rows = torch.empty(batches, 3, 3 * size, dtype=torch.int64, device=self.device)
            self.rates = self.E.new_empty(batches, 2)
            self.losses = self.E.new_zeros(batches, triton.cdiv(size, TRIPLES))
        whole = torch.full((3, batches * size), self.n, device=self.device)  # a node that does not exist
        whole[:, :n] = nodes.to(self.device)
        self.rows.copy_(in_batches(whole, size))
        steps = self.steps.double() + torch.arange(1, batches + 1, device=self.device)
        self.rates[:, 0] = self.options.rate / (1 - BETA1**steps)
        self.rates[:, 1] = (1 - BETA2**steps).rsqrt()
        self.batch.zero_()

    def _step(self) -> None:
        if self.device.type != "cuda":  # Triton's interpreter
            self._launch()
            return
        if self._replay is None:
            self._replay = recorded(self._launch, [*self.learner.state(), self.batch])
        self._replay()

    def _launch(self) -> None:
        o, K, products, size = self.options, self.options.layers, self.products, sizes(self.dim)
        rows = self.rows.index_select(0, self.batch)[0]
        for k in range(K - 1):
            products.into(self.levels[k], self.levels[k - 1] if k else self.E)
        loops.represent[(3 * o.batch,)](
            rows, *products.edges, self.E, self.levels, self.n, self.F, K=K, **size, **SOME_ROWS
        )
        loops.slopes[(triton.cdiv(o.batch, TRIPLES),)](
            self.batch, rows, self.triples, self.E, self.F, self.losses, self.numbers,
            K=K, SIZE=o.batch, **size, BLOCK=TRIPLES,
        )  # fmt: skip
        G, counts = products.counted(self.F, rows)
        x = G
        for k in range(K):  # Horner: α G + Â(α G + Â(α G + ...)); G is 0 outside the batch's nodes
            out = self.total if k % 2 == 0 else self.spare
            x = products.into(out, x, more=G, counts=None if k else counts)
        words = self.E.numel()
        loops.adam[(triton.cdiv(words, WORDS),)](
            self.batch, self.triples, self.E, self.m, self.v, x, counts, self.rates, self.numbers, words,
            SIZE=o.batch, DIM=self.dim, BLOCK=WORDS,
        )  # fmt: skip
        self.batch.add_(1)
