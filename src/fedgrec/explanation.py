"""Why a person is shown an item: the score as a sum over the person's own items.

Where a user's vector is a weighted sum of rows of its items, u = o + Σ_{t∈N_u} p_t, the score of item s is
o·s + Σ_t p_t·s. For FedGRec that is Eq. (6) in Eq. (2), o = α_0 e_u^0 and p_t = w_ut Σ_k α_k e_t^{k−1}. Where cosines
rank, all parts are divided by the length of u.
"""

from typing import NamedTuple

import numpy as np

from fedgrec.core import Cohort, Floats, Ints, ServerState
from fedgrec.errors import FedgrecError
from fedgrec.methods import noisy
from fedgrec.methods.contract import Method
from fedgrec.methods.fedgrec import FedGRecMethod
from fedgrec.methods.spectral import SpectralMethod


class Explanation(NamedTuple):
    """score = own + terms.sum()"""

    score: float
    own: float  # what the person's own embedding adds
    items: Ints  # [n] the person's items, the one that adds most first
    terms: Floats  # [n] what each of them adds


def explanation(method: Method, server: ServerState, person: Cohort, item: int) -> Explanation:
    """The parts of an item's score for a cohort of one; `server` is the state that devices rank with (`as_ranked`)."""
    person = noisy.without_closed(person, server.more)
    own, rows = _parts(method, server, person)  # [1, D], [n, D]
    whole = (own + rows.sum(axis=0)).astype(np.float64)
    length = np.linalg.norm(whole) if getattr(method.options, "ranking", "inner") == "cosine" else 1.0
    target = method.represent_items(server)[item].astype(np.float64)
    closed = target[whole.shape[1] :].sum()  # the part that ranks a closed item last
    terms, rest = (part @ target[: whole.shape[1]] / (length or 1.0) for part in (rows, own))
    order = np.argsort(-terms, kind="stable")
    terms, added = terms[order], float(rest[0] + closed)
    return Explanation(added + float(terms.sum()), added, person.items[order], terms)


def _parts(method: Method, server: ServerState, person: Cohort) -> tuple[Floats, Floats]:
    if isinstance(method, SpectralMethod):
        weights = np.maximum(server.degrees, 1)[person.items] ** -float(method.options.exponent)
        rows = weights[:, None] * method.leading(server)[person.items]
        return np.zeros((1, rows.shape[1])), rows
    if not isinstance(method, FedGRecMethod):
        raise FedgrecError(f"a score of {method.name} is no sum over the person's items: there is nothing to explain")
    o = method.options
    if not (o.layers and o.evaluation_refresh):
        raise FedgrecError(
            "a score is a sum over the person's items only with latent embeddings that are made from them when they "
            "are ranked: train with layers of at least 1 and evaluation_refresh"
        )
    gather, alphas = method.edge_weights(person, server.degrees)[0].astype(np.float64)[:, None], o.weights()
    own = alphas[0] * person.state.embeddings[:, 0].astype(np.float64)
    if o.combined:  # the server's second table is Σ α_k e_t^{k−1}
        return own, gather * server.items[1][person.items]
    levels = [a * gather * level[person.items] for a, level in zip(alphas[1:], server.items, strict=False)]
    if o.combine == "concat":
        return np.hstack([own, *(np.zeros_like(own) for _ in levels)]), np.hstack([np.zeros_like(levels[0]), *levels])
    return own, np.sum(levels, axis=0)
