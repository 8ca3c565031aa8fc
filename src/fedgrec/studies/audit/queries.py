"""A design that this product does not use: users ask for the rows that they need, and for decoys.

Here the server sends all rows to everybody, so nobody asks. In other designs a user asks for its items and for decoys,
which it draws afresh in every round. Its items are in all its queries, and a decoy is in few.
"""

from collections.abc import Sequence

import numpy as np

from fedgrec.cable.core import Floats, Ints
from fedgrec.studies.audit.recording import Truth, View
from fedgrec.studies.audit.scores import Finding
from fedgrec.studies.audit.uploads import found_items

NAME = "if people asked for items, with decoys"
MOST = 200  # people who ask
QUERIES_STREAM = 10


def query(mine: Ints, decoys: int, n_items: int, rng: np.random.Generator) -> Ints:
    """The person's items and fresh decoys, all different."""
    others = np.delete(np.arange(n_items), mine)
    return np.concatenate([mine, rng.choice(others, min(decoys, len(others)), replace=False, shuffle=False)])


def guess(queries: Sequence[Ints], view: View) -> Floats:
    """In how many of one person's queries each item is; popular items win ties.  # [N]"""
    often = np.bincount(np.concatenate(queries), minlength=view.n_items).astype(np.float64)
    return often if view.degrees is None else often + view.degrees / (view.n_users + 1)


def audit(view: View, truth: Truth) -> Finding:
    """Some people ask as often as sums were recorded, each time with as many decoys as the method draws negatives."""
    rng = np.random.Generator(np.random.Philox(key=[view.n_users, QUERIES_STREAM]))
    people = np.sort(rng.choice(view.n_users, min(MOST, view.n_users), replace=False)).tolist()
    decoys, rounds = view.options.negatives, len(view.sums)
    guesses = {}
    for person in people:
        mine = truth.people.of(person)
        guesses[person] = guess([query(mine, decoys, view.n_items, rng) for _ in range(rounds)], view)
    return found_items(
        NAME,
        guesses,
        truth,
        f"Here nobody asks for items. If you asked for yours and for {decoys:,} decoys, drawn afresh in each of "
        f"{rounds:,} rounds, a server would name {{attack}} of 100 of your items; guessing by popularity names "
        "{popularity}.",
        decoys=decoys,
        queries=rounds,
    )
