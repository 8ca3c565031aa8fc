"""The systems that train nothing: popularity, and Turbo-CF (Park et al. 2024), a polynomial filter on the item graph.

R̃ = D_U^-α R D_T^(α−1)   [M, N]
P = (R̃ᵀR̃)^∘s             [N, N], every entry raised to s
scores = R (a_1 P + a_2 P² + ...)
"""

from functools import cached_property
from typing import Any

import numpy as np

from fedgrec.centralized.contract import Ints, Matrix, Model, Scorer
from fedgrec.centralized.options import PopularityOptions, TurboCFOptions
from fedgrec.models.ranking import rows_of


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

        P, coefficients = self.item_graph, self.options.coefficients

        def score(users: Ints) -> Matrix:
            r = np.zeros((len(users), self.train.n_items), np.float32)  # R's rows of these users
            indptr, items = rows_of(self.train, users)
            r[np.repeat(np.arange(len(users)), np.diff(indptr)), items] = 1
            total = np.zeros_like(r)
            for a in reversed(coefficients):  # Horner: r (a_1 P + a_2 P²) = (a_1 r + (a_2 r) P) P
                times_sparse(len(r), total + np.float32(a) * r, P.indptr, P.indices, P.data, total)
            return total

        return score
