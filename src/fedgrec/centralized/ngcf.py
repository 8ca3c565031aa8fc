"""NGCF (Wang et al. 2019), as its authors' program computes it.

N = Â E^k,  E^{k+1} = dropout(ρ(N W1 + b1) + ρ((N ⊙ E^k) W2 + b2)),  ρ the leaky ReLU     [M+N, d]
F = [E⁰, E¹/‖E¹‖, ..., E^K/‖E^K‖], row by row                                             [M+N, (K+1)d]
L = mean of softplus(f_u·f_n − f_u·f_p) + λ/2B Σ ‖f‖² over the rows of the batch
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from fedgrec.centralized.contract import Matrix, Scorer, Tensors, to_numpy
from fedgrec.centralized.graph import bipartite
from fedgrec.centralized.neural import NeuralModel, xavier
from fedgrec.centralized.options import NGCFOptions
from fedgrec.centralized.sampling import INIT_STREAM, Triples, generator
from fedgrec.data import Interactions

if TYPE_CHECKING:
    from torch import Generator, Tensor


class NGCF(NeuralModel):
    """A graph network with weights of its own in every layer."""

    name, Options = "ngcf", NGCFOptions

    def __init__(self, options: NGCFOptions, train: Interactions, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(options, train, seed, device)
        from fedgrec.centralized._torch import Operator

        self.triples, self.symmetric = Triples(train), options.adjacency == "symmetric"
        graph = bipartite(train) if self.symmetric else bipartite(train, "mean", self_loops=True)
        self.operator = Operator(graph, self.where)
        self.records = self.where.type == "cuda"  # launching a step takes the host longer than the GPU takes for it
        self._replay: Callable[[], None] | None = None

    def _start(self) -> Tensors:
        rng, d = generator(self.seed, INIT_STREAM), self.options.dim
        shapes = {"users": (self.train.n_users, d), "items": (self.train.n_items, d)}
        for k in range(self.options.layers):
            shapes |= {f"W1.{k}": (d, d), f"b1.{k}": (1, d), f"W2.{k}": (d, d), f"b2.{k}": (1, d)}
        return {name: xavier(rng, shape) for name, shape in shapes.items()}

    def _batches(self) -> Iterator[tuple[tuple["Tensor"], int]]:
        import torch

        nodes = self.triples.draw(self.seed, self.epochs_done, self.train.n_pairs)
        nodes[1:] += self.train.n_users
        for batch in torch.split(torch.from_numpy(nodes).to(self.where), self.options.batch, dim=1):
            yield (batch,), batch.shape[1]

    def _step(self, batch: tuple[Any, ...], size: int) -> None:
        """A full batch replays the recorded step; a shorter one is launched as ever."""
        if not self.records or size < self.options.batch:
            super()._step(batch, size)
            return
        if self._replay is None:
            from fedgrec.centralized._torch import recorded

            self.nodes = batch[0].clone()
            step = partial(super()._step, (self.nodes,), size)
            self._replay = recorded(step, [*self.learner.state(), self.total], self.noise)
        self.nodes.copy_(batch[0])
        self._replay()

    def loss(self, nodes: "Tensor", noise: "Generator | None") -> "Tensor":
        """L for the triples `nodes` [3, B] of users, positives and negatives."""
        from torch.nn.functional import softplus

        F = joined(self.levels_at(nodes.flatten(), noise)).view(*nodes.shape, -1)  # [3, B, D]
        x = (F[0] * (F[2] - F[1])).sum(1)
        loss: Tensor = softplus(x).mean() + self.options.l2 / 2 / nodes.shape[1] * F.square().sum()
        return loss

    def levels_at(self, nodes: "Tensor", noise: "Generator | None" = None) -> list["Tensor"]:
        """Rows of E⁰ … E^K for `nodes` [n]; the last layer is computed for these alone. [n, d] each"""
        from torch.nn.functional import embedding

        last = self.options.layers - 1
        levels = self.levels(noise, last)
        rows = [embedding(nodes, level) for level in levels]  # which sums gradients in a fixed order
        N = self.operator.at(levels[last], nodes)
        return [*rows, self._layer(last, N, rows[last], self._kept(noise, nodes))]

    def levels(self, noise: "Generator | None" = None, layers: int | None = None) -> list["Tensor"]:
        """E⁰ … E^K, or fewer; something is dropped only where `noise` says what. [M+N, d] each"""
        import torch

        levels = [torch.cat([self.learner["users"], self.learner["items"]])]
        for k in range(self.options.layers if layers is None else layers):
            levels.append(self._layer(k, self.operator(levels[k]), levels[k], self._kept(noise)))
        return levels

    def _layer(self, k: int, N: "Tensor", E: "Tensor", kept: "Tensor | None") -> "Tensor":
        """E^{k+1} from N = Â E^k and E^k."""
        from torch import addmm
        from torch.nn.functional import leaky_relu

        W1, b1, W2, b2 = (self.learner[f"{name}.{k}"] for name in ("W1", "b1", "W2", "b2"))
        near = N + E if self.symmetric else N  # A + I has the sum's E in it
        first, second = addmm(b1, near, W1), addmm(b2, N * E, W2)
        out = leaky_relu(first, self.options.slope) + leaky_relu(second, self.options.slope)
        return out if kept is None else out * kept

    def _kept(self, noise: "Generator | None", nodes: "Tensor | slice" = slice(None)) -> "Tensor | None":
        """0 where a layer drops something, else 1/(1 − p). All nodes are drawn for: one has one fate in a batch."""
        import torch

        p, shape = self.options.dropout, (self.train.n_users + self.train.n_items, self.options.dim)
        if noise is None or not p:
            return None
        kept: Tensor = (torch.rand(shape, generator=noise, device=self.where)[nodes] >= p) / (1 - p)
        return kept

    def final(self) -> "Tensor":
        """F without dropout. [M+N, D]"""
        import torch

        with torch.no_grad():
            return joined(self.levels())

    def scorer(self) -> Scorer:
        from fedgrec.centralized._torch import inner_products

        return inner_products(self.final(), self.train.n_users)

    def embeddings(self) -> tuple[Matrix, Matrix]:
        final = to_numpy(self.final())
        return final[: self.train.n_users], final[self.train.n_users :]


def joined(levels: list["Tensor"]) -> "Tensor":
    """[e⁰, e¹/‖e¹‖, ...]"""
    import torch
    from torch.nn.functional import normalize

    return torch.cat([levels[0], *(normalize(level, dim=-1) for level in levels[1:])], dim=-1)
