"""Rows of an exact sum, grouped by direction: which rows came from the same person.

After one plain step a user's rows are multiples of one vector, its own. So rows that only one user touched lie on as
many lines as there are users.
"""

import numpy as np

from fedgrec.audit.directions import LEAST, PURE, Tally, at_random, by_popularity, group
from fedgrec.audit.recording import ITEMS, Truth, View
from fedgrec.audit.scores import Finding, NotApplicable, Successes, finding
from fedgrec.audit.single import contributors, rows_alone
from fedgrec.core import Floats, Ints

NAME = "people isolated by their rows"


def guess(view: View) -> Ints:
    """A group for each touched row of the last sum, −1 for none."""
    last = view.sums[-1]
    return group(last.total.leaves[ITEMS].values, len(last.people), either_sign=True)


def isolated(groups: Ints, view: View, truth: Truth) -> Floats:
    """Whether each person who is alone in three rows or more is isolated: 1 or 0.

    A group isolates the one person who has at least 90 % of its rows, if at least 90 % of the rows in which that person
    is alone are in it.
    """
    found, people = truth.contributions, len(view.sums[-1].people)
    rows = np.searchsorted(view.sums[-1].total.leaves[ITEMS].index, found.rows)
    owners = Tally.of(groups, rows, found.places, people).owners()
    single = contributors(found) == 1
    own = Tally.of(groups, rows[single], found.places[single], people).shared  # [g, n]
    alone = rows_alone(found, people)
    caught = np.zeros(people)
    covered = own[np.arange(len(owners)), owners] >= PURE * alone[owners]
    caught[owners[(owners >= 0) & covered]] = 1
    return caught[alone >= LEAST]


def audit(view: View, truth: Truth) -> Finding | NotApplicable:
    last = view.sums[-1]
    people, items = len(last.people), last.total.leaves[ITEMS].index % view.n_items
    if not (rows_alone(truth.contributions, people) >= LEAST).any():
        return NotApplicable(
            NAME, f"nobody is alone in as many as {LEAST} rows of the sum, so there is nobody to isolate"
        )
    guesses = guess(view), at_random(len(items), people), by_popularity(truth.popularity[items], people)
    return finding(
        NAME,
        Successes(*(isolated(groups, view, truth) for groups in guesses)),
        "Of 100 people who are alone in some rows of a sum, the server would put together the rows of {attack}, "
        "without a name; guessing by popularity does so for {popularity}.",
    )
