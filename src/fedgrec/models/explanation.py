"""Why a person is shown an item: the score as a sum over the person's own items.

Where a user's vector is a weighted sum of rows of its items, u = o + Σ_{t∈N_u} p_t, the score of item s is
o·s + Σ_t p_t·s. `Method.explained` has the parts o and p_t.
"""

from typing import NamedTuple

import numpy as np

from fedgrec.cable.core import Cohort, Floats, Ints, ServerState
from fedgrec.methods import noisy
from fedgrec.methods.contract import Method


class Explanation(NamedTuple):
    """score = own + terms.sum()"""

    score: float
    own: float  # what the person's own embedding adds
    items: Ints  # [n] the person's items, the one that adds most first
    terms: Floats  # [n] what each of them adds


def explanation(method: Method, server: ServerState, person: Cohort, item: int) -> Explanation:
    """The parts of an item's score for a cohort of one; `server` is the state that devices rank with (`as_ranked`)."""
    person = noisy.without_closed(person, server.more)
    own, rows = method.explained(server, person)  # [1, D], [n, D]
    D = own.shape[1]
    target = method.represent_items(server)[item].astype(np.float64)
    closed = target[D:].sum()  # the part that ranks a closed item last
    terms, rest = (part @ target[:D] for part in (rows, own))
    order = np.argsort(-terms, kind="stable")
    terms, added = terms[order], float(rest[0] + closed)
    return Explanation(added + float(terms.sum()), added, person.items[order], terms)
