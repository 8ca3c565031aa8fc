"""What the models use of PyTorch: Adam with moments that can be saved, products with Â, ranking on a GPU.

Importing this file needs PyTorch; the rest of the package imports it only when a model does.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.centralized.contract import Ints, Tensors
from fedgrec.centralized.graph import Graph
from fedgrec.centralized.options import LightGCNOptions
from fedgrec.centralized.softmax import softmax
from fedgrec.errors import RunError, missing_extra
from fedgrec.kernels.devices import place

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
    """Named parameters and Adam, as tensors to save and load; they never move, so recorded steps find them.

    A GPU records steps: launching one takes the host longer than the GPU takes for it.
    """

    def __init__(
        self, start: Mapping[str, NDArray[Any]], rate: float, device: torch.device, weight_decay: float = 0.0
    ) -> None:
        self.parameters = {
            name: torch.nn.Parameter(torch.tensor(value, device=device)) for name, value in start.items()
        }
        self.records = device.type == "cuda"
        self.adam = torch.optim.Adam(
            self.parameters.values(), lr=rate, weight_decay=weight_decay, fused=True, capturable=self.records
        )
        self.total = torch.zeros((), device=device, dtype=torch.float64)  # of an epoch's losses
        self._replay: Callable[[], None] | None = None
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

    def take(
        self, step: Callable[[Tensor], None], batch: Tensor, is_full: bool, noise: torch.Generator | None = None
    ) -> None:
        """A full batch replays the recorded step; a shorter one is launched step by step."""
        if not (self.records and is_full):
            step(batch)
            return
        if self._replay is None:
            self.batch = batch.clone()
            self._replay = recorded(partial(step, self.batch), self.state(), noise)
        self.batch.copy_(batch)
        self._replay()

    def state(self) -> list[Tensor]:
        """All that a step changes."""
        return [*self.parameters.values(), *self.averages.values(), *self.steps, self.total]

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


class Operator:
    """x ↦ Â x with a gradient. Autograd alone would transpose Â anew in every step."""

    def __init__(self, graph: Graph, device: torch.device) -> None:
        self.there, self.back = sparse(graph, device), sparse(graph.transposed, device)

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = _Product.apply(x, self.there, self.back)  # type: ignore[no-untyped-call]
        return result


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, A: Tensor, transposed: Tensor) -> Tensor:
        ctx.transposed = transposed
        return A @ x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed @ gradients[0], None, None


# ---------------------------------------------------------------------------------------------- LightGCN


def bpr(u: Tensor, p: Tensor, n: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean of softplus(f_u·f_n − f_u·f_p), and its gradients for the rows, [B, d] each."""
    x = (u * (n - p)).sum(1)
    slope = (torch.sigmoid(x) / len(x))[:, None]
    return torch.nn.functional.softplus(x).mean(), slope * (n - p), -slope * u, slope * u


class LightGCNEngine(Learner):
    """LightGCN's closed form in PyTorch: for GPUs, and for tests, which compare the compiled one with it."""

    def __init__(self, graph: Graph, start: NDArray[Any], options: LightGCNOptions, device: str = "cpu") -> None:
        self.options, self.device = options, place(device)
        super().__init__({"embeddings": start}, options.rate, self.device)
        self.A = sparse(graph, self.device, self["embeddings"].dtype)
        self.records &= options.loss == "bpr"  # softmax asks the host for indices

    def epoch(self, nodes: Ints) -> Tensor:
        there = torch.from_numpy(nodes).to(self.device)  # once: batches then need nothing from the host
        self.total.zero_()
        for batch in torch.split(there, self.options.batch, dim=1):
            self.take(self._add, batch, batch.shape[1] == self.options.batch)
        return self.total.div(nodes.shape[1])

    def _add(self, nodes: Tensor) -> None:
        self.total += self.step(nodes) * nodes.shape[1]

    def step(self, nodes: Tensor) -> Tensor:
        loss, self["embeddings"].grad = self.gradient(nodes)
        self.adam.step()
        return loss

    @torch.no_grad()
    def gradient(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """L and ∂L/∂E⁰ for the triples `nodes` [3, B] of users, positives and negatives."""
        K, decay, E = self.options.layers, self.options.l2 / nodes.shape[1], self["embeddings"]
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
        total = level = self["embeddings"].detach()
        for _ in range(self.options.layers):
            level = self.A @ level
            total = total + level
        return total / (self.options.layers + 1)
