"""Rows of an exact sum, grouped by direction: which rows came from the same person.

After one plain step a user's rows are multiples of one vector, its own. So rows that only one user touched lie on as
many lines as there are users. On its line a user's own items move one way, and the items that it drew as negatives move
the other way; there are more negatives. Where scores are cosines, each row lacks its part along the item's own
embedding, which is public: see `LeaningLines`.
"""

import numpy as np
from numpy.typing import NDArray

from fedgrec.audit.directions import LEAST, PURE, LeaningLines, Lines, Tally, at_random, by_popularity, group
from fedgrec.audit.recording import ITEMS, POSITIVES_ONLY, Truth, View
from fedgrec.audit.scores import Finding, NotApplicable, Successes, finding, named
from fedgrec.audit.single import contributors, rows_alone
from fedgrec.core import Floats, Ints

NAME = "people isolated by their rows"
NAMED = "items named by the signs of such rows"


def guess(view: View) -> Ints:
    """A group for each touched row of the last sum, −1 for none."""
    last, public = view.sums[-1], embeddings(view)
    rows = last.total.leaves[ITEMS]
    lines = Lines(rows.values, either_sign=True)
    if public is not None:
        lines = LeaningLines(rows.values, public[rows.index % view.n_items], either_sign=True)
    return group(lines, len(last.people))


def embeddings(view: View) -> Floats | None:
    """Where scores are cosines: each item's broadcast embedding. Updates are at a right angle to it.  # [N, d]"""
    o, tables = view.options, view.sums[-1].broadcast.tables
    if getattr(o, "similarity", "") != "cosine":
        return None
    first: Floats = tables[0]
    return first if o.combined or o.combine == "concat" else np.tensordot(o.weights(), tables, 1)


def guess_items(view: View, groups: Ints) -> list[Ints]:
    """For each group, the items that its person has."""
    rows = view.sums[-1].total.leaves[ITEMS]
    items, found = rows.index % view.n_items, []
    for one in range(int(groups.max(initial=-1)) + 1):
        members = np.flatnonzero(groups == one)
        if view.method not in POSITIVES_ONLY:
            members = members[_fewer(rows.values[members].astype(np.float64))]
        found.append(np.unique(items[members]))
    return found


def _fewer(rows: Floats) -> NDArray[np.bool_]:
    """Rows on one line point two ways: which rows point the way of the minority?  # [r]"""
    forward: NDArray[np.bool_] = rows @ rows[np.argmax((rows * rows).sum(axis=1))] > 0
    return forward if forward.mean() < 0.5 else ~forward


def isolated(groups: Ints, view: View, truth: Truth) -> Floats:
    """Whether each person who is alone in three rows or more is isolated: 1 or 0.

    A group isolates the one person who has at least 90 % of its rows, if at least 90 % of the rows in which that person
    is alone are in it.
    """
    found, people = truth.contributions, len(view.sums[-1].people)
    rows = np.searchsorted(view.sums[-1].total.leaves[ITEMS].index, found.rows)
    owners = Tally.of(groups, rows, found.places, people).owners()
    single = contributors(found) == 1
    own = Tally.of(groups, rows[single], found.places[single], people).rows_of(owners)  # [g]
    alone = rows_alone(found, people)
    caught = np.zeros(people)
    covered = own >= PURE * alone[owners]
    caught[owners[(owners >= 0) & covered]] = 1
    return caught[alone >= LEAST]


def rightly_named(groups: Ints, view: View, truth: Truth) -> Floats:
    """The share of each person's items that are named for this person's group.

    Where more items are named than the person has: the share of the named items that are right.
    """
    found, people = truth.contributions, view.sums[-1].people
    rows = np.searchsorted(view.sums[-1].total.leaves[ITEMS].index, found.rows)
    right = np.zeros(len(people))
    owners = Tally.of(groups, rows, found.places, len(people)).owners()
    for owner, guessed in zip(owners.tolist(), guess_items(view, groups), strict=True):
        if owner >= 0:
            mine = truth.people.of(people[owner])
            share = np.isin(guessed, mine).sum() / max(len(guessed), len(mine))
            right[owner] = max(right[owner], share)
    return right


def audit(view: View, truth: Truth) -> list[Finding | NotApplicable]:
    """Who is isolated, and which items are named for them."""
    last = view.sums[-1]
    people, items = len(last.people), last.total.leaves[ITEMS].index % view.n_items
    if not (rows_alone(truth.contributions, people) >= LEAST).any():
        why = f"nobody is alone in as many as {LEAST} rows of the sum"
        return [NotApplicable(NAME, f"{why}, so there is nobody to isolate"), NotApplicable(NAMED, why)]
    groups = guess(view)
    guesses = groups, at_random(len(items), people), by_popularity(truth.popularity[items], people)
    who = finding(
        NAME,
        Successes(*(isolated(part, view, truth) for part in guesses)),
        "Of 100 people who are alone in some rows of a sum, the server would put together the rows of {attack}, "
        "without a name; guessing by popularity does so for {popularity}.",
    )
    return [who, _items_named(groups, view, truth)]


def _items_named(groups: Ints, view: View, truth: Truth) -> Finding:
    mine = [truth.people.of(user) for user in view.sums[-1].people.tolist()]
    alike: Floats = np.tile(truth.popularity.astype(np.float64), (len(mine), 1))
    chance: Floats = np.array([len(items) for items in mine]) / view.n_items
    return finding(
        NAMED,
        Successes(rightly_named(groups, view, truth), chance, named(alike, mine)),
        "Of 100 items that a person has, the server would name {attack} from the rows that it put together, without "
        "knowing whose they are; guessing by popularity names {popularity}.",
    )
