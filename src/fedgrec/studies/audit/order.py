"""What came next? Asked of the published model, by somebody who knows a person's items and not their order."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Floats
from fedgrec.data import Interactions
from fedgrec.studies.audit.membership import some
from fedgrec.studies.audit.recording import Truth, View
from fedgrec.studies.audit.scores import Finding, finding

NEXT = "your next item, from the model"
OF_STRANGERS = "the same for people in no sum"
FEWEST = 3  # items: of two, the other one is the next


def audit(view: View, truth: Truth) -> list[Finding]:
    """Nothing, where the sums do not know any order."""
    parts = (NEXT, truth.people), (OF_STRANGERS, truth.outsiders)
    return [] if truth.people.times is None else [_asked(name, view, truth, data) for name, data in parts]


def _asked(name: str, view: View, truth: Truth, data: Interactions) -> Finding:
    users, in_order = some(np.flatnonzero(data.user_degrees() >= FEWEST)), data.in_order()
    found = np.zeros((3, len(users)))  # by the attack, by chance, by popularity
    for at, user in enumerate(users.tolist()):
        mine, taken = data.of(user), in_order[data.indptr[user] : data.indptr[user + 1]]
        places, n = np.searchsorted(mine, taken), len(mine)
        scores = view.model(np.arange(n + 1), mine)[:, mine]
        found[:, at] = _right(scores, places), 1 / (n - 1), _right(np.tile(truth.popularity[mine], (n, 1)), places)
    said = (
        f"Whoever knows {'the items of somebody who was in no sum' if name == OF_STRANGERS else 'your items'}, but not "
        "their order, and has the published model would name what came next for {attack} of 100 of them; the most "
        "popular other one is right for {popularity}, any other one for {chance}."
    )
    return finding(name, said, *found)


def _right(scores: Floats, places: NDArray[Any]) -> float:
    """After how many of a person's items, but the last, the highest score is that of the next; [n, n] of its items."""
    others = scores.astype(np.float64)
    np.fill_diagonal(others, -np.inf)
    return float((others.argmax(axis=1)[places[:-1]] == places[1:]).mean())
