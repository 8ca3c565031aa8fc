"""NGCF (Wang et al. 2019), as its authors' program computes it.

N = Â E^k,  E^{k+1} = dropout(ρ(N W1 + b1) + ρ((N ⊙ E^k) W2 + b2)),  ρ the leaky ReLU     [M+N, d]
F = [E⁰, E¹/‖E¹‖, ..., E^K/‖E^K‖], row by row                                             [M+N, (K+1)d]
L = mean of softplus(f_u·f_n − f_u·f_p) + λ/2B Σ ‖f‖² over the rows of the batch
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgrec.centralized.contract import Matrix, Scorer, Tensors, inner_products, to_numpy
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

    def _start(self) -> Tensors:
        rng, d = generator(self.seed, INIT_STREAM), self.options.dim
        users, items = xavier(rng, (self.train.n_users, d)), xavier(rng, (self.train.n_items, d))
        shapes: dict[str, tuple[int, int]] = {}
        for k in range(self.options.layers):
            shapes |= {f"W1.{k}": (d, d), f"b1.{k}": (1, d), f"W2.{k}": (d, d), f"b2.{k}": (1, d)}
        return {"embeddings": np.concatenate([users, items])} | {name: xavier(rng, at) for name, at in shapes.items()}

    def _batches(self) -> Iterator[tuple[tuple["Tensor"], int]]:
        import torch

        nodes = self.triples.draw(self.seed, self.epochs_done, self.train.n_pairs)
        nodes[1:] += self.train.n_users
        for rows in torch.split(torch.from_numpy(nodes).to(self.where), self.options.batch, dim=1):
            yield (rows.flatten(),), rows.shape[1]
        if self.learner.records:  # the GPU is still at these
            self.triples.draw_ahead(self.seed, self.epochs_done + 1, self.train.n_pairs)

    def _step(self, batch: tuple[Any, ...], size: int) -> None:
        self.learner.take(self._launch, batch[0], size == self.options.batch, self.noise)

    def _launch(self, rows: "Tensor") -> None:
        super()._step((rows,), len(rows) // 3)

    def loss(self, rows: "Tensor", noise: "Generator | None") -> "Tensor":
        """L for the nodes `rows` [3B] of B users, of their positives, of their negatives."""
        return bpr(self.levels_at(rows, noise), self.options.l2)

    def levels_at(self, rows: "Tensor", noise: "Generator | None" = None) -> "Tensor":
        """Rows of E⁰ … E^K; the last layer is computed for these alone. [K+1, n, d]"""
        import torch
        from torch.nn.functional import embedding  # adds repeated rows of a gradient in a fixed order

        last = self.options.layers - 1
        levels = self.levels(noise, last)
        found = [embedding(rows, level) for level in levels]
        N = embedding(rows, self.operator(levels[last]))
        return torch.stack([*found, self._layer(last, N, found[last], self._kept(noise, rows))])

    def levels(self, noise: "Generator | None" = None, layers: int | None = None) -> list["Tensor"]:
        """E⁰ … E^K, or fewer; dropout only with `noise`. [M+N, d] each"""
        levels = [self.learner["embeddings"]]
        for k in range(self.options.layers if layers is None else layers):
            levels.append(self._layer(k, self.operator(levels[k]), levels[k], self._kept(noise)))
        return levels

    def _layer(self, k: int, N: "Tensor", E: "Tensor", kept: "Tensor | None") -> "Tensor":
        W1, b1, W2, b2 = (self.learner[f"{name}.{k}"] for name in ("W1", "b1", "W2", "b2"))
        scale = 1 / (1 - self.options.dropout)
        return mixed(N, E, W1, b1, W2, b2, kept, scale, self.options.slope, self.symmetric)

    def _kept(self, noise: "Generator | None", nodes: "Tensor | None" = None) -> "Tensor | None":
        """False where a layer drops a number. It draws for all nodes, so a node drops the same wherever it repeats."""
        import torch

        if noise is None or not self.options.dropout:
            return None
        kept = torch.empty(self.learner["embeddings"].shape, dtype=torch.bool, device=self.where)
        kept.bernoulli_(1 - self.options.dropout, generator=noise)
        return kept if nodes is None else kept[nodes]

    def final(self) -> "Tensor":
        """F without dropout. [M+N, D]"""
        import torch

        with torch.no_grad():
            return joined(self.levels())

    def scorer(self) -> Scorer:
        return inner_products(self.final(), self.train.n_users)

    def embeddings(self) -> tuple[Matrix, Matrix]:
        final = to_numpy(self.final())
        return final[: self.train.n_users], final[self.train.n_users :]


def mixed(
    N: "Tensor", E: "Tensor", W1: "Tensor", b1: "Tensor", W2: "Tensor", b2: "Tensor",
    kept: "Tensor | None", scale: float, slope: float, symmetric: bool,
) -> "Tensor":  # fmt: skip
    """E^{k+1} from N = Â E^k and E^k; kept numbers are multiplied by `scale`."""
    from torch import addmm
    from torch.nn.functional import leaky_relu

    near = N + E if symmetric else N  # the mean's A + I adds E already
    out = leaky_relu(addmm(b1, near, W1), slope) + leaky_relu(addmm(b2, N * E, W2), slope)
    return out if kept is None else out * kept * scale


def bpr(levels: "Tensor", l2: float) -> "Tensor":
    """L of rows [K+1, 3B, d]: of users, of their positives, of their negatives."""
    from torch.nn.functional import softplus

    F = joined(levels).view(3, levels.shape[1] // 3, -1)  # [3, B, D]
    x = (F[0] * (F[2] - F[1])).sum(1)
    loss: Tensor = softplus(x).mean() + l2 / 2 / len(x) * F.square().sum()
    return loss


def joined(levels: "Sequence[Tensor] | Tensor") -> "Tensor":
    """[e⁰, e¹/‖e¹‖, ...]"""
    import torch
    from torch.nn.functional import normalize

    return torch.cat([levels[0], *(normalize(level, dim=-1) for level in levels[1:])], dim=-1)
