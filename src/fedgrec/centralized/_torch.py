"""What the models use of PyTorch: Adam with moments that can be saved, products with Â, ranking on a GPU.

Importing this file needs PyTorch; the rest of the package imports it only when a model does.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.centralized.contract import Ints, Scorer, Tensors
from fedgrec.centralized.graph import Graph
from fedgrec.centralized.options import LightGCNOptions
from fedgrec.centralized.softmax import ranked, softmax
from fedgrec.devices import place
from fedgrec.errors import RunError, missing_extra

try:
    import torch
    from torch import Tensor
except ImportError:
    raise missing_extra("a neural model, or any model on a GPU,", "torch") from None


def reseeded(noise: torch.Generator, seed: int, epoch: int) -> torch.Generator:
    """Draws that are a function of (seed, epoch)."""
    mixed = int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])
    return noise.manual_seed(mixed >> 1)


class Learner:
    """Named parameters and Adam, as tensors to save and load; they never move, so recorded steps find them."""

    def __init__(
        self, start: Mapping[str, NDArray[Any]], rate: float, device: torch.device, weight_decay: float = 0.0
    ) -> None:
        self.parameters = {
            name: torch.nn.Parameter(torch.tensor(value, device=device)) for name, value in start.items()
        }
        on_gpu = device.type == "cuda"
        self.adam = torch.optim.Adam(
            self.parameters.values(), lr=rate, weight_decay=weight_decay, fused=True, capturable=on_gpu
        )
        self.averages: dict[str, Tensor] = {}
        self.steps: list[Tensor] = []
        for name, p in self.parameters.items():  # made now: a recorded step and a later load share these tensors
            m, v = torch.zeros_like(p), torch.zeros_like(p)
            steps = torch.zeros((), dtype=torch.float32, device=device)
            self.adam.state[p] = {"step": steps, "exp_avg": m, "exp_avg_sq": v}
            self.averages |= {f"{name}.m": m, f"{name}.v": v}
            self.steps.append(steps)

    def __getitem__(self, name: str) -> Tensor:
        return self.parameters[name]

    def descend(self, loss: Tensor) -> None:
        """One step of Adam along the gradient that autograd finds."""
        self.adam.zero_grad()
        torch.autograd.backward(loss)
        self.adam.step()

    def state(self) -> list[Tensor]:
        """All that a step changes."""
        return [*self.parameters.values(), *self.averages.values(), *self.steps]

    def tensors(self) -> Tensors:
        return {name: p.detach().cpu().numpy().copy() for name, p in self.parameters.items()}

    def moments(self) -> Tensors:
        kept: Tensors = {name: average.cpu().numpy().copy() for name, average in self.averages.items()}
        return {"steps": np.array([int(self.steps[0])]), **kept}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Without moments Adam begins anew."""
        if missing := self.parameters.keys() - tensors.keys():
            raise RunError(
                f"{', '.join(sorted(missing))}: not in this model, which another version wrote; train it anew"
            )
        for name, p in self.parameters.items():
            p.copy_(torch.from_numpy(np.array(tensors[name])))
        for name, average in self.averages.items():
            average.copy_(torch.from_numpy(np.array(tensors[name]))) if name in tensors else average.zero_()
        for steps in self.steps:
            steps.fill_(int(tensors["steps"][0]) if "steps" in tensors else 0)


# --------------------------------------------------------------------------------------------- recording


def recorded(
    step: Callable[[], None], state: Sequence[Tensor], noise: torch.Generator | None = None
) -> Callable[[], None]:
    """`step` as a graph of launches, to be replayed. What it reads and writes must keep its address.

    A step changes `state` and `noise` and nothing else that lasts; the recording leaves both as they were.
    """
    before, drawn = [tensor.detach().clone() for tensor in state], noise.get_state() if noise else None
    replay = capture(step, noise)
    with torch.no_grad():
        for tensor, old in zip(state, before, strict=True):
            tensor.copy_(old)
    if noise and drawn is not None:
        noise.set_state(drawn)
    return replay


def capture(step: Callable[[], None], noise: torch.Generator | None) -> Callable[[], None]:
    """Take one step, which compiles and allocates for all later ones, then record another."""
    graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # autograd remembers the stream, so both steps must use the recorded one
        step()
    if noise:
        graph.register_generator_state(noise)
    with torch.cuda.graph(graph, stream=aside):
        step()
    return graph.replay


# ---------------------------------------------------------------------------------------------- products


def sparse(graph: Graph, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Â as PyTorch's CSR."""
    matrix = graph.to_scipy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR|invariant)")  # CSR is beta, and our matrices are valid
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int32)),  # int32: what MKL and cuSPARSE are fastest with
            torch.from_numpy(matrix.indices.astype(np.int32)),
            torch.from_numpy(matrix.data).to(dtype),
            matrix.shape,
            device=device,
        )


def with_order(nodes: Tensor) -> Tensor:
    """`rows` for Products: nodes [..., m], the sorted nodes, and the place of each before sorting. [..., 3, m]"""
    return torch.stack([nodes, *nodes.sort(stable=True)], -2)


def in_batches(triples: Tensor, size: int) -> Tensor:
    """`rows` of every batch of the triples [3, n], n a multiple of `size`, all sorted at once. [n/size, 3, 3·size]"""
    return with_order(triples.view(3, triples.shape[1] // size, size).transpose(0, 1).flatten(1))


class Products:
    """Products with a sparse matrix A [n, n]. `rows` [3, m] come from `with_order` and may repeat."""

    def __init__(self, A: Tensor) -> None:
        self.A = A

    def full(self, x: Tensor) -> Tensor:
        """A x"""
        return self.A @ x

    def at(self, x: Tensor, rows: Tensor) -> Tensor:
        """Rows of A x. [m, d]"""
        return self.full(x)[rows[0]]

    def of(self, x: Tensor, rows: Tensor) -> Tensor:
        """A S, where S is the sum of x [m, d] at `rows`, and 0 elsewhere. [n, d]"""
        return self.full(self.summed(x, rows))

    def summed(self, x: Tensor, rows: Tensor) -> Tensor:
        """S, added up in a fixed order, as in the gradient of `embedding`. [n, d]"""
        S: Tensor = torch.ops.aten.embedding_dense_backward(x, rows[0], len(self.A), -1, False)
        return S


# ---------------------------------------------------------------------------------------------- LightGCN


def bpr(u: Tensor, p: Tensor, n: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean of softplus(f_u·f_n − f_u·f_p), and its gradients for the rows, [B, d] each."""
    x = (u * (n - p)).sum(1)
    slope = (torch.sigmoid(x) / len(x))[:, None]
    return torch.nn.functional.softplus(x).mean(), slope * (n - p), -slope * u, slope * u


class LightGCNEngine:
    """LightGCN's closed form in plain PyTorch: for GPUs, and for tests, which compare the compiled one with it."""

    def __init__(self, graph: Graph, start: NDArray[Any], options: LightGCNOptions, device: str = "cpu") -> None:
        self.options, self.device = options, place(device)
        self.learner = Learner({"embeddings": start}, options.rate, self.device)
        self.A = sparse(graph, self.device, self.learner["embeddings"].dtype)

    def epoch(self, nodes: Ints) -> Tensor:
        there = torch.from_numpy(nodes).to(self.device)  # once: batches then need nothing from the host
        total = torch.zeros((), device=self.device, dtype=torch.float64)
        for batch in torch.split(there, self.options.batch, dim=1):
            total += self.step(batch) * batch.shape[1]
        return total.div_(nodes.shape[1])

    def step(self, nodes: Tensor) -> Tensor:
        loss, gradient = self.gradient(nodes)
        self.learner["embeddings"].grad = gradient
        self.learner.adam.step()
        return loss

    @torch.no_grad()
    def gradient(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """L and ∂L/∂E⁰ for the triples `nodes` [3, B] of users, positives and negatives."""
        K, decay, E = self.options.layers, self.options.l2 / nodes.shape[1], self.learner["embeddings"]
        u, p, n = self.final()[nodes]
        loss, *slopes = (bpr if self.options.loss == "bpr" else softmax)(u, p, n, self.options, torch)
        at_batch, ego = torch.stack(slopes), E[nodes]  # ∂L/∂F [3, B, d]
        loss = loss + decay / 2 * ego.square().sum()
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
        return inner_products(ranked(self.final(), self.options, torch), n_users)

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
