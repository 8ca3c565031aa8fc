"""What the models take from PyTorch: Adam with moments that can be kept, products with Â, ranking on a GPU.

Importing this file needs PyTorch; the rest of the package imports it only when a model does.
"""

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.centralized.contract import Ints, Scorer, Tensors
from fedgrec.centralized.graph import Graph
from fedgrec.centralized.options import LightGCNOptions
from fedgrec.devices import place
from fedgrec.errors import missing_extra

try:
    import torch
    from torch import Tensor
except ImportError:
    raise missing_extra("a neural model, or any model on a GPU,", "torch") from None

Product = Callable[[Tensor], Tensor]


def random(seed: int, epoch: int, device: torch.device) -> torch.Generator:
    """Draws on the device, a function of (seed, epoch)."""
    mixed = int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])
    return torch.Generator(device).manual_seed(mixed >> 1)


class Learner:
    """Named parameters and Adam, as tensors that can be kept and put back."""

    def __init__(
        self, start: Mapping[str, NDArray[Any]], rate: float, device: torch.device, weight_decay: float = 0.0
    ) -> None:
        self.parameters = {
            name: torch.nn.Parameter(torch.tensor(value, device=device)) for name, value in start.items()
        }
        self.adam = torch.optim.Adam(self.parameters.values(), lr=rate, weight_decay=weight_decay, fused=True)

    def __getitem__(self, name: str) -> Tensor:
        return self.parameters[name]

    def descend(self, loss: Tensor) -> None:
        """One step of Adam along the gradient that autograd finds."""
        self.adam.zero_grad()
        torch.autograd.backward(loss)
        self.adam.step()

    def tensors(self) -> Tensors:
        return {name: p.detach().cpu().numpy().copy() for name, p in self.parameters.items()}

    def moments(self) -> Tensors:
        kept: Tensors = {"steps": np.array([0])}
        for name, p in self.parameters.items():
            if p in self.adam.state:
                about = self.adam.state[p]
                kept["steps"] = np.array([int(about["step"])])
                kept[f"{name}.m"] = about["exp_avg"].cpu().numpy().copy()
                kept[f"{name}.v"] = about["exp_avg_sq"].cpu().numpy().copy()
        return kept

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        self.adam.state.clear()
        steps = int(tensors["steps"][0]) if "steps" in tensors else 0
        for name, p in self.parameters.items():
            with torch.no_grad():
                p.copy_(torch.from_numpy(np.array(tensors[name])))
            if steps:
                self.adam.state[p] = {
                    "step": torch.tensor(float(steps), device=p.device),
                    "exp_avg": torch.tensor(tensors[f"{name}.m"], device=p.device),
                    "exp_avg_sq": torch.tensor(tensors[f"{name}.v"], device=p.device),
                }


# ---------------------------------------------------------------------------------------------- products


def sparse(graph: Graph, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Â as PyTorch's CSR."""
    matrix = graph.to_scipy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR|invariant)")  # beta, and unchecked: ours are well made
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int32)),  # int32: what MKL and cuSPARSE are fastest with
            torch.from_numpy(matrix.indices.astype(np.int32)),
            torch.from_numpy(matrix.data).to(dtype),
            matrix.shape,
            device=device,
        )


class Operator:
    """x ↦ Â x with a gradient. Autograd alone would transpose Â anew in every step."""

    def __init__(self, graph: Graph, device: torch.device, fused: bool | None = None) -> None:
        there = sparse(graph, device), sparse(graph.transposed, device)
        if fused or (fused is None and device.type == "cuda" and importlib.util.find_spec("triton") is not None):
            from fedgrec.centralized._recorded import multiplier

            self.products: tuple[Product, Product] = multiplier(there[0]), multiplier(there[1])
        else:
            self.products = there[0].matmul, there[1].matmul

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = _Product.apply(x, *self.products)  # type: ignore[no-untyped-call]
        return result


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, product: Product, transposed: Product) -> Tensor:
        ctx.transposed = transposed
        return product(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed(gradients[0]), None, None


# ---------------------------------------------------------------------------------------------- LightGCN


class LightGCNEngine:
    """LightGCN's closed form in plain PyTorch: for GPUs, and the clear twin that tests hold the compiled one to."""

    def __init__(self, graph: Graph, start: NDArray[Any], options: LightGCNOptions, device: str = "cpu") -> None:
        self.options, self.device = options, place(device)
        self.learner = Learner({"embeddings": start}, options.rate, self.device)
        self.A = sparse(graph, self.device, self.learner["embeddings"].dtype)

    def epoch(self, nodes: Ints) -> float:
        there = torch.from_numpy(nodes).to(self.device)  # once: batches then need nothing from the host
        total = torch.zeros((), device=self.device, dtype=torch.float64)
        for batch in torch.split(there, self.options.batch, dim=1):
            total += self.step(batch) * batch.shape[1]
        return float(total / nodes.shape[1])

    def step(self, nodes: Tensor) -> Tensor:
        loss, gradient = self.gradient(nodes)
        self.learner["embeddings"].grad = gradient
        self.learner.adam.step()
        return loss

    @torch.no_grad()
    def gradient(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """L and ∂L/∂E⁰ for the triples `nodes` [3, B] of users, positives and negatives."""
        K, decay, E = self.options.layers, self.options.l2 / nodes.shape[1], self.learner["embeddings"]
        f_u, f_p, f_n = self.final()[nodes]  # [B, d] each
        x = (f_u * (f_n - f_p)).sum(1)
        slope = (torch.sigmoid(x) / len(x))[:, None]
        at_batch = torch.stack([slope * (f_n - f_p), -slope * f_u, slope * f_u])  # ∂L/∂F [3, B, d]
        ego = E[nodes]
        loss = torch.nn.functional.softplus(x).mean() + decay / 2 * ego.square().sum()
        # Horner: α G + Â(α G + Â(α G + ...)). On a GPU index_put_ adds repeated rows in a fixed order.
        G = torch.zeros_like(E).index_put_((nodes,), at_batch / (K + 1), accumulate=True)
        total = G
        for _ in range(K):
            total = torch.addmm(G, self.A, total)
        return loss, total.index_put_((nodes,), decay * ego, accumulate=True)

    @torch.no_grad()
    def final(self) -> Tensor:
        total = level = self.learner["embeddings"].detach()
        for _ in range(self.options.layers):
            level = self.A @ level
            total = total + level
        return total / (self.options.layers + 1)

    def scorer(self, n_users: int) -> Scorer:
        return inner_products(self.final(), n_users)

    def tensors(self) -> Tensors:
        return self.learner.tensors()

    def moments(self) -> Tensors:
        return self.learner.moments()

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        self.learner.load(tensors)


# ----------------------------------------------------------------------------------------------- ranking


def inner_products(final: Tensor, n_users: int) -> Scorer:
    """Scores of representations [M+N, D], users first."""
    users, items = final[:n_users], final[n_users:]

    def score(chosen: Ints) -> Tensor:
        return users[torch.from_numpy(chosen).to(final.device)] @ items.T

    return score
