"""The product with Â for autograd, by PyTorch or, on a GPU, by the loops in Triton."""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedgrec.centralized._torch import Products, sparse
from fedgrec.centralized.graph import Graph

Product = Callable[[Tensor], Tensor]


class Operator:
    """x ↦ Â x, or some of its rows, with a gradient. Autograd alone would transpose Â anew in every step."""

    def __init__(self, graph: Graph, device: torch.device, fused: bool | None = None) -> None:
        products = Products
        if fused or (fused is None and device.type == "cuda" and importlib.util.find_spec("triton") is not None):
            from fedgrec.centralized._recorded import FusedProducts

            products = FusedProducts
        self.there, self.back = products(sparse(graph, device)), products(sparse(graph.transposed, device))

    def __call__(self, x: Tensor) -> Tensor:
        return self._linear(x, self.there.full, self.back.full)

    def at(self, x: Tensor, rows: Tensor) -> Tensor:
        """Rows of Â x"""
        return self._linear(x, partial(self.there.at, rows=rows), partial(self.back.of, rows=rows))

    def rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """Rows of x"""
        return self._linear(x, lambda x: x[rows[0]], partial(self.back.summed, rows=rows))

    @staticmethod
    def _linear(x: Tensor, there: Product, back: Product) -> Tensor:
        result: Tensor = _Product.apply(x, there, back)  # type: ignore[no-untyped-call]
        return result


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, product: Product, transposed: Product) -> Tensor:
        ctx.transposed = transposed
        return product(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed(gradients[0]), None, None
