"""LightGCN (He et al. 2020) and, as its case K = 0, matrix factorisation with the BPR loss.

    E^{k+1} = Â E^k,  F = α Σ_k E^k = f(Â) E⁰  with α = 1/(K+1)          [M+N, d], users first
    L = mean of softplus(f_u·f_n − f_u·f_p) + λ/2B Σ ‖e⁰‖² over the rows of the batch; or softmax.py in its place

Â is symmetric and F is linear in E⁰, so the gradient needs no tape: ∂L/∂E⁰ = f(Â) ∂L/∂F + λ/B e⁰, the same K products
once more. ∂L/∂F is 0 outside the rows of the batch, and only those rows of F are needed.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.centralized.contract import Ints, Matrix, Model, Scorer, Tensors, inner_products, to_numpy
from fedgrec.centralized.graph import CHUNKS, Graph, bipartite, even_chunks
from fedgrec.centralized.options import BETA1, BETA2, EPSILON, LightGCNOptions, MFOptions
from fedgrec.centralized.sampling import INIT_STREAM, Triples, generator
from fedgrec.centralized.softmax import ranked, softmax
from fedgrec.data import Interactions


class LightGCN(Model):
    """Embeddings of all users and items, which pass along the edges K times."""

    name, Options = "lightgcn", LightGCNOptions

    def __init__(self, options: LightGCNOptions, train: Interactions, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(options, train, seed, device)
        graph = bipartite(train)
        start = generator(seed, INIT_STREAM).normal(0, options.init_std, (len(graph), options.dim)).astype(np.float32)
        self.triples = Triples(train, by_pair=options.loss == "softmax")  # as FedGRec's softmax does
        self.learner = CpuEngine(graph, start, options) if device == "cpu" else self._on_gpu(graph, start)

    def _on_gpu(self, graph: Graph, start: Matrix) -> Any:
        from fedgrec.centralized._torch import LightGCNEngine

        return LightGCNEngine(graph, start, self.options, self.device)

    def _train(self) -> float:
        nodes = self.triples.draw(self.seed, self.epochs_done, self.train.n_pairs)
        nodes[1:] += self.train.n_users
        loss = self.learner.epoch(nodes)
        if self.device != "cpu":
            self.triples.draw_ahead(self.seed, self.epochs_done + 1, self.train.n_pairs)
        return float(loss)  # which a GPU may still have computed until now

    def embeddings(self) -> tuple[Matrix, Matrix]:
        final = ranked(to_numpy(self.learner.final()), self.options)
        return final[: self.train.n_users], final[self.train.n_users :]

    def scorer(self) -> Scorer:
        return inner_products(ranked(self.learner.final(), self.options), self.train.n_users)


class MF(LightGCN):
    """s_ut = e_u·e_t, learned with the BPR loss."""

    name, Options = "mf-bpr", MFOptions


class CpuEngine:
    """Compiled loops on all cores; the bits of a result do not depend on the number of cores."""

    def __init__(self, graph: Graph, start: Matrix, options: LightGCNOptions) -> None:
        from fedgrec.centralized import _compiled

        self.graph, self.options, self.loops = graph, options, _compiled
        self.E, self.m, self.v = start, np.zeros_like(start), np.zeros_like(start)
        self.steps = 0
        self.levels = [np.zeros_like(start) for _ in range(max(options.layers, 1))]  # E^1 … E^{K−1}, and one to spare
        self.slot = np.full(len(graph), -1, np.int32)  # a node's row in the tables of the batch; −1: none

    def epoch(self, nodes: Ints) -> float:
        n, size = nodes.shape[1], self.options.batch
        losses = [self.step(nodes[:, lo : lo + size]) * len(nodes[0, lo : lo + size]) for lo in range(0, n, size)]
        return float(sum(losses) / n)

    def step(self, nodes: Ints) -> float:
        """One step of Adam; the loss before it."""
        rows, places = np.unique(nodes, return_inverse=True)
        loss, G, decay = self._batch_gradient(rows, places)
        self.slot[rows] = np.arange(len(rows))
        gradient = self._pulled_back(rows, G)
        self._adam(gradient, decay)
        self.slot[rows] = -1
        if not self.options.layers:
            gradient[rows] = 0  # the table is all zeros again
        return loss

    def _batch_gradient(self, rows: Ints, places: Ints) -> tuple[float, Matrix, Matrix]:
        """The loss, ∂L/∂F at the batch's rows, and each row's weight in the penalty."""
        ego = self.E[rows]
        F, G = self._final_at(rows, ego), np.zeros_like(ego)
        decay = np.bincount(places.ravel()).astype(np.float32) * np.float32(self.options.l2 / places.shape[1])
        if self.options.loss == "bpr":
            loss = self.loops.bpr(F, places, G)
        else:
            u, p, n = F[places]
            loss, *slopes = softmax(u, p, n, self.options, np)
            for place, slope in zip(places, slopes, strict=True):
                np.add.at(G, place, slope)
        return float(loss) + 0.5 * float(decay @ np.einsum("rd,rd->r", ego, ego)), G, decay

    def _final_at(self, rows: Ints, ego: Matrix) -> Matrix:
        """F at some rows: the last product is computed for these alone."""
        K, x, total = self.options.layers, self.E, ego.copy()
        for k in range(1, K):
            self.loops.product_plus(CHUNKS, self.slot, x, *self._operator, x, self.levels[k - 1])  # plus nothing
            x = self.levels[k - 1]
            total += x[rows]
        if K:
            counts = np.concatenate([[0], np.cumsum(np.diff(self.graph.indptr)[rows])])
            self.loops.product_at(CHUNKS, rows, even_chunks(counts), *self._operator[1:], x, total)
        return total * np.float32(1 / (K + 1))

    def _pulled_back(self, rows: Ints, G: Matrix) -> Matrix:
        """f(Â) G without its α, by Horner: G + Â(G + Â(G + ...))."""
        K, x, spare = self.options.layers, self.levels[0], self.levels[-1]
        if K == 0:
            x[rows] = G
            return x
        self.loops.spread(CHUNKS, self.slot, G, *self._operator, x)
        for _ in range(K - 1):
            self.loops.product_plus(CHUNKS, self.slot, G, *self._operator, x, spare)
            x, spare = spare, x
        return x

    def _adam(self, gradient: Matrix, decay: Matrix) -> None:
        self.steps += 1
        unbias1, unbias2 = 1 - BETA1**self.steps, np.sqrt(1 - BETA2**self.steps)
        numbers = (self.options.rate * unbias2 / unbias1, EPSILON * unbias2, BETA1, BETA2)
        scale = np.float32(1 / (self.options.layers + 1))
        tables = (self.E, self.m, self.v, gradient)
        self.loops.adam(len(self.E), *tables, scale, self.slot, decay, *map(np.float32, numbers))

    @property
    def _operator(self) -> tuple[NDArray[Any], ...]:
        g = self.graph
        return g.chunks, g.indptr, g.indices, g.left, g.right

    def final(self) -> Matrix:
        total, x = self.E.copy(), self.E
        for _ in range(self.options.layers):
            x = self.graph.product(x)
            total += x
        return total * np.float32(1 / (self.options.layers + 1))

    def tensors(self) -> Tensors:
        return {"embeddings": self.E.copy()}

    def moments(self) -> Tensors:
        return {"embeddings.m": self.m.copy(), "embeddings.v": self.v.copy(), "steps": np.array([self.steps])}

    def load(self, tensors: Any) -> None:
        self.E = tensors["embeddings"].copy()
        if "steps" in tensors:
            self.m, self.v = tensors["embeddings.m"].copy(), tensors["embeddings.v"].copy()
            self.steps = int(tensors["steps"][0])
