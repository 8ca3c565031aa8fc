"""Vectors of newcomers for models that keep a vector for each of their own users and say nothing of anybody else.

g_t = x_t/√|N_t| · A        what item t adds to a newcomer's vector
e_u = Σ_{t∈N_u} g_t / √|N_u|

This is Eq. (6) over the items' own vectors x_t, followed by one linear map A: the one that comes nearest to the vectors
of the users whom the model knows (least squares).
"""

import numpy as np

from fedgrec.cable.core import Floats, Ints


def item_shares(users: Floats, items: Floats, indptr: Ints, mine: Ints) -> Floats:
    """g_t of every item, [N, D]; user u, with the vector users[u], has mine[indptr[u]:indptr[u + 1]]."""
    owners = np.bincount(mine, minlength=len(items))
    near = items.astype(np.float64) / np.sqrt(np.maximum(owners, 1))[:, None]
    there = np.diff(indptr) > 0
    to_users = np.linalg.lstsq(newcomers(near, indptr, mine)[there], users[there].astype(np.float64))[0]
    shares: Floats = near @ to_users
    return shares


def newcomers(shares: Floats, indptr: Ints, mine: Ints) -> Floats:
    """Σ_{t∈N_u} g_t / √|N_u| of every person, [n, D]; of a person without items zeros."""
    from scipy.sparse import csr_array

    whose = csr_array((np.ones(len(mine)), mine, indptr), shape=(len(indptr) - 1, len(shares)))
    vectors: Floats = whose @ shares / np.sqrt(np.maximum(np.diff(indptr), 1))[:, None]
    return vectors
