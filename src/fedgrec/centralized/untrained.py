"""The systems that train nothing: popularity, Turbo-CF (Park et al. 2024), EASE (Steck 2019) and ItemKNN.

Turbo-CF, a polynomial filter on the item graph:
    R̃ = D_U^-α R D_T^(α−1)   [M, N]
    P = (R̃ᵀR̃)^∘s             [N, N], every entry raised to s
    scores = R (a_1 P + a_2 P² + ...)

EASE, least squares for a B that rebuilds everybody's items from their other items:
    P = (RᵀR + λI)^-1        [N, N]
    B_st = −P_st/P_tt, B_tt = 0;  scores = R B

ItemKNN (Sarwar et al. 2001), with the shrunk cosine of items:
    S_st = (RᵀR)_st/(√(|N_s||N_t|) + h), S_tt = 0, and of each column only the k largest;  scores = R S
"""

from functools import cached_property
from typing import Any

import numpy as np

from fedgrec.centralized.contract import Ints, Matrix, Model, Scorer
from fedgrec.centralized.options import EASEOptions, ItemKNNOptions, PopularityOptions, TurboCFOptions
from fedgrec.data import Interactions

BLOCK = 1024  # items whose neighbours are looked for at a time


class Popularity(Model):
    """s_t = |N_t|: everybody gets the most popular items, the floor that every system has to beat."""

    name, Options, trains, devices = "popularity", PopularityOptions, False, ("cpu",)

    def embeddings(self) -> tuple[Matrix, Matrix]:
        degrees = self.train.degrees().astype(np.float32)
        return np.ones((self.train.n_users, 1), np.float32), degrees[:, None]

    def scorer(self) -> Scorer:
        users, items = self.embeddings()
        return lambda chosen: users[chosen] @ items.T


class TurboCF(Model):
    """P is kept sparse: on Gowalla 42 million of its 1,679 million entries are not 0."""

    name, Options, trains, devices = "turbocf", TurboCFOptions, False, ("cpu",)

    @cached_property
    def item_graph(self) -> Any:
        """P."""
        from scipy.sparse import csr_array

        o: TurboCFOptions = self.options
        pairs = self.train
        user_scale = np.maximum(pairs.user_degrees(), 1.0) ** -o.alpha
        item_scale = np.maximum(pairs.degrees(), 1.0) ** (o.alpha - 1)
        values = (user_scale[pairs.users()] * item_scale[pairs.items]).astype(np.float32)
        # int32 throughout, or SciPy gives P indices of eight bytes
        normal = csr_array((values, pairs.items, pairs.indptr.astype(np.int32)), shape=(pairs.n_users, pairs.n_items))
        P = normal.T.tocsr() @ normal
        P.data **= np.float32(o.power)
        return P

    def scorer(self) -> Scorer:
        from fedgrec.centralized._compiled import times_sparse

        P, R, coefficients = self.item_graph, as_matrix(self.train), self.options.coefficients

        def score(users: Ints) -> Matrix:
            r: Matrix = R[users].toarray()
            total = np.zeros_like(r)
            for a in reversed(coefficients):  # Horner: r (a_1 P + a_2 P²) = (a_1 r + (a_2 r) P) P
                times_sparse(len(r), total + np.float32(a) * r, P.indptr, P.indices, P.data, total)
            return total

        return score


class EASE(Model):
    """P is dense: 4 N² bytes, 6.7 GB on Gowalla. It is found in place."""

    name, Options, trains = "ease", EASEOptions, False

    @cached_property
    def inverse(self) -> Any:
        """P: an array, or a tensor on the GPU."""
        R = as_matrix(self.train)
        G = np.zeros((self.train.n_items,) * 2, np.float32)
        (R.T @ R).toarray(out=G)
        G[np.diag_indices_from(G)] += np.float32(self.options.l2)
        if self.device.startswith("cuda"):
            import torch

            return torch.cholesky_inverse(torch.linalg.cholesky(torch.from_numpy(G).to(self.device)))
        from scipy.linalg.lapack import spotrf, spotri

        P = spotri(spotrf(G.T, overwrite_a=True)[0], overwrite_c=True)[0].T  # by columns: G is its own transpose
        for row in range(len(P) - 1):
            P[row, row + 1 :] = P[row + 1 :, row]
        return P

    def scorer(self) -> Scorer:
        P, R = self.inverse, as_matrix(self.train)
        each = P.diagonal()

        def score(users: Ints) -> Any:
            r = R[users]
            if isinstance(P, np.ndarray):
                return r.toarray() - (r @ P) / each  # an own item adds −1 to its own score
            import torch

            dense = torch.from_numpy(r.toarray()).to(P.device)
            return dense - (dense @ P) / each

        return score


class ItemKNN(Model):
    """S is sparse: k entries for an item. Of equal neighbours the lower ids are kept."""

    name, Options, trains, devices = "itemknn", ItemKNNOptions, False, ("cpu",)

    @cached_property
    def neighbours(self) -> Any:
        """S, and its parts for a block of items at a time: RᵀR may be nearly dense."""
        from scipy.sparse import csr_array, vstack

        o: ItemKNNOptions = self.options
        R, roots = as_matrix(self.train).tocsc(), np.sqrt(self.train.degrees())
        found = []
        for lo in range(0, len(roots), BLOCK):
            near = (R[:, lo : lo + BLOCK].T @ R).toarray()  # [block, N]
            own = np.arange(len(near))
            near /= np.maximum(np.outer(roots[lo : lo + BLOCK], roots) + o.shrinkage, 1e-9)
            near[own, lo + own] = 0
            best = np.argsort(-near, axis=1, kind="stable")[:, : o.neighbours]
            kept = np.zeros_like(near)
            np.put_along_axis(kept, best, np.take_along_axis(near, best, axis=1), axis=1)
            found.append(csr_array(kept.astype(np.float32)))
        return vstack(found).T.tocsr()

    def scorer(self) -> Scorer:
        S, R = self.neighbours, as_matrix(self.train)

        def score(users: Ints) -> Matrix:
            scores: Matrix = (R[users] @ S).toarray()
            return scores

        return score


def as_matrix(pairs: Interactions) -> Any:
    """R, sparse."""
    R = pairs.to_scipy()
    R.data[:] = 1  # whatever the ratings
    return R
