"""LightGCN on a GPU: a batch is a graph of launches that is recorded once and replayed.

`_torch.LightGCNEngine` says the same in a few lines, and tests hold this to it.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from fedgrec.centralized import _lightgcn_triton as loops
from fedgrec.centralized._torch import LightGCNEngine, Products, recorded
from fedgrec.centralized.contract import Ints
from fedgrec.centralized.graph import Graph
from fedgrec.centralized.lightgcn import BETA1, BETA2, EPSILON
from fedgrec.centralized.options import LightGCNOptions

ROWS, TRIPLES, WORDS = 16, 32, 1024  # neighbours, triples and words that a program holds at a time


def longest_first(A: Tensor) -> Tensor:
    """The rows in the order in which they are begun, so that none is waited for in the end."""
    return A.crow_indices().diff().sort(descending=True, stable=True).indices


def sizes(dim: int) -> dict[str, int]:
    return {"DIM": dim, "D": max(triton.next_power_of_2(dim), 16), "BLOCK": ROWS, "num_warps": 2}


class FusedProducts(Products):
    """One launch each; of a sum S only the rows that are in it are read."""

    def __init__(self, A: Tensor) -> None:
        super().__init__(A)
        self.order, self.edges = longest_first(A), (A.crow_indices(), A.col_indices(), A.values())

    def full(self, x: Tensor) -> Tensor:
        return self._product(x.contiguous())

    def at(self, x: Tensor, rows: Tensor) -> Tensor:
        out = torch.empty((len(rows), x.shape[1]), dtype=x.dtype, device=x.device)
        loops.product_at[(len(rows),)](rows.contiguous(), *self.edges, x.contiguous(), out, **sizes(x.shape[1]))
        return out

    def of(self, x: Tensor, rows: Tensor) -> Tensor:
        counts = torch.zeros(len(self.A), dtype=torch.int32, device=x.device).index_fill_(0, rows, 1)
        return self._product(self.summed(x, rows), counts)

    def _product(self, x: Tensor, counts: Tensor | None = None) -> Tensor:
        out, some = torch.empty_like(x), counts is not None
        loops.product[(len(x),)](
            self.order, *self.edges, x, x, counts if some else x, out, SOME=some, ADD=False, **sizes(x.shape[1])
        )
        return out


class RecordedEngine(LightGCNEngine):
    """LightGCN's closed form on a GPU, without a word from the host within an epoch."""

    def __init__(self, graph: Graph, start: NDArray[Any], options: LightGCNOptions, device: str = "cuda") -> None:
        super().__init__(graph, start, options, device)
        self.E = self.learner["embeddings"].detach()
        (self.n, self.dim), self.D = self.E.shape, sizes(self.E.shape[1])["D"]
        self.order = longest_first(self.A)
        self.edges = self.A.crow_indices(), self.A.col_indices(), self.A.values()
        self.m, self.v = self.learner.averages.values()
        self.steps = self.learner.steps[0]
        self.G, self.total, self.spare = (torch.zeros_like(self.E) for _ in range(3))
        self.levels = self.E.new_zeros(max(options.layers - 1, 1), *self.E.shape)
        self.F = self.E.new_zeros(3, options.batch, self.D)
        self.sums, self.counts = torch.zeros_like(self.E, dtype=torch.int64), self._count(self.n)
        self.batch = self._count(1)
        # λ, β₁, β₂, rate by the step, 1/√(1 − β₂ᵗ), ε
        self.numbers = self.E.new_tensor([options.l2, BETA1, BETA2, options.rate, 1, EPSILON])
        self.nodes: Any = None
        self._replay: Callable[[], None] | None = None

    def _count(self, n: int) -> Any:
        return torch.zeros(n, dtype=torch.int32, device=self.device)

    def epoch(self, nodes: Ints) -> float:
        batches = triton.cdiv(nodes.shape[1], self.options.batch)
        if self.nodes is None or self.nodes.shape != nodes.shape:  # what a recorded graph reads stays where it is
            self.nodes, self._replay = torch.empty(nodes.shape, dtype=torch.int64, device=self.device), None
            self.losses = self.E.new_zeros(batches, triton.cdiv(self.options.batch, TRIPLES))
        self.nodes.copy_(torch.from_numpy(nodes))
        self.batch.zero_()
        for _ in range(batches):
            self._step()
        return float(self.losses.double().sum() / nodes.shape[1])

    def _step(self) -> None:
        if self.device.type != "cuda":  # the interpreter of the loops
            self._launch()
            return
        if self._replay is None:
            self._replay = recorded(self._launch, [*self.learner.state(), self.batch])
        self._replay()

    def _launch(self) -> None:
        o, K, n, size = self.options, self.options.layers, self.n, sizes(self.dim)
        for k in range(K - 1):
            x = self.levels[k - 1] if k else self.E
            loops.product[(n,)](self.order, *self.edges, x, x, x, self.levels[k], SOME=False, ADD=False, **size)
        many = self.nodes.shape[1]
        loops.represent[(o.batch, 3)](
            self.batch, self.nodes, many, *self.edges, self.E, self.levels, n, self.F, K=K, SIZE=o.batch, **size
        )
        self.sums.zero_()
        self.counts.zero_()
        loops.slopes[(triton.cdiv(o.batch, TRIPLES),)](
            self.batch, self.nodes, many, self.E, self.F, self.sums, self.counts, self.losses, self.numbers,
            K=K, SIZE=o.batch, DIM=self.dim, D=self.D, BLOCK=TRIPLES,
        )  # fmt: skip
        torch.mul(self.sums, 1 / loops.STEPS.value, out=self.G)
        x = self.G
        for k in range(K):  # Horner: α G + Â(α G + Â(α G + ...))
            out = self.total if k % 2 == 0 else self.spare
            some = k == 0  # G is 0 but at the nodes of the batch
            loops.product[(n,)](self.order, *self.edges, x, self.G, self.counts, out, SOME=some, ADD=True, **size)
            x = out
        self.steps.add_(1)
        self.numbers[3].copy_(o.rate / (1 - BETA1 ** self.steps.double()))
        self.numbers[4].copy_((1 - BETA2 ** self.steps.double()).rsqrt())
        words = self.E.numel()
        loops.adam[(triton.cdiv(words, WORDS),)](
            self.batch, many, self.E, self.m, self.v, x, self.counts, self.numbers, words,
            SIZE=o.batch, DIM=self.dim, BLOCK=WORDS,
        )  # fmt: skip
        self.batch.add_(1)
