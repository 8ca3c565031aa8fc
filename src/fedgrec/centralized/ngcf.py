"""NGCF (Wang et al. 2019), as its authors' program computes it.

N = Â E^k,  E^{k+1} = dropout(ρ(N W1 + b1) + ρ((N ⊙ E^k) W2 + b2)),  ρ the leaky ReLU     [M+N, d]
F = [E⁰, E¹/‖E¹‖, ..., E^K/‖E^K‖], row by row                                             [M+N, (K+1)d]
L = mean of softplus(f_u·f_n − f_u·f_p) + λ/2B Σ ‖f‖² over the rows of the batch
"""

import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

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
        self.mixed: Callable[..., Tensor] = mixed
        if self.where.type == "cuda" and importlib.util.find_spec("triton") is not None:
            from fedgrec.centralized._ngcf_triton import Mixed

            self.mixed = Mixed.apply

    def _start(self) -> Tensors:
        rng, d = generator(self.seed, INIT_STREAM), self.options.dim
        shapes = {"users": (self.train.n_users, d), "items": (self.train.n_items, d)}
        for k in range(self.options.layers):
            shapes |= {f"W1.{k}": (d, d), f"b1.{k}": (1, d), f"W2.{k}": (d, d), f"b2.{k}": (1, d)}
        return {name: xavier(rng, shape) for name, shape in shapes.items()}

    def _losses(self, noise: "Generator") -> Iterator[tuple["Tensor", int]]:
        import torch

        nodes = self.triples.draw(self.seed, self.epochs_done, self.train.n_pairs)
        nodes[1:] += self.train.n_users
        for batch in torch.split(torch.from_numpy(nodes).to(self.where), self.options.batch, dim=1):
            yield self.loss(batch, noise), batch.shape[1]

    def loss(self, nodes: "Tensor", noise: "Generator | None") -> "Tensor":
        """L for the triples `nodes` [3, B] of users, positives and negatives."""
        from torch.nn.functional import embedding, softplus

        # Only the batch's rows are normalised and joined. `embedding` sums their gradients in a fixed order.
        F = joined([embedding(nodes, level) for level in self.levels(noise)])  # [3, B, D]
        x = (F[0] * (F[2] - F[1])).sum(1)
        loss: Tensor = softplus(x).mean() + self.options.l2 / 2 / nodes.shape[1] * F.square().sum()
        return loss

    def levels(self, noise: "Generator | None" = None) -> list["Tensor"]:
        """E⁰ … E^K; something is dropped only where `noise` says what. [M+N, d] each"""
        import torch

        w, p, kept = self.learner, self.options.dropout, None
        E = torch.cat([w["users"], w["items"]])
        levels = [E]
        for k in range(self.options.layers):
            if noise is not None and p:
                kept = (torch.rand(E.shape, generator=noise, device=self.where) >= p) / (1 - p)
            weights = (w[f"{name}.{k}"] for name in ("W1", "b1", "W2", "b2"))
            E = self.mixed(self.operator(E), E, *weights, kept, self.options.slope, self.symmetric)
            levels.append(E)
        return levels

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


def mixed(
    N: "Tensor", E: "Tensor", W1: "Tensor", b1: "Tensor", W2: "Tensor", b2: "Tensor", kept: "Tensor | None",
    slope: float, symmetric: bool,
) -> "Tensor":  # fmt: skip
    """E^{k+1} from N = Â E^k and E^k; `kept` is 0 where something is dropped, else 1/(1 − p)."""
    from torch.nn.functional import leaky_relu

    near = N + E if symmetric else N  # A + I has the sum's E in it
    E = leaky_relu(near @ W1 + b1, slope) + leaky_relu((N * E) @ W2 + b2, slope)
    return E if kept is None else E * kept


def joined(levels: list["Tensor"]) -> "Tensor":
    """[e⁰, e¹/‖e¹‖, ...]"""
    import torch
    from torch.nn.functional import normalize

    return torch.cat([levels[0], *(normalize(level, dim=-1) for level in levels[1:])], dim=-1)
