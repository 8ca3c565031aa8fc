"""Rows of an exact sum: which came from one person alone, and, grouped by direction, which from the same person.

A row with one contributor is that person's update, in the clear.

After one plain step a user's rows are multiples of one vector, its own. So rows that only one user touched lie on as
many lines as there are users. On its line a user's own items move one way, and the items that it drew as negatives move
the other way; there are more negatives. Where scores are cosines, each row lacks its part along the item's own
embedding, which is public: see `LeaningLines`.

To latents a user adds w_ut·(new − old latent) in the rows of its own items, and in no others. So all its rows point in
the direction of one difference, at every level.
"""

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Floats, Ints, Rows
from fedgrec.studies.audit.directions import LEAST, PURE, LeaningLines, Lines, Tally, blind, group
from fedgrec.studies.audit.recording import Contributions, OpenedSum, Truth, View
from fedgrec.studies.audit.scores import Finding, NotApplicable, finding, finding_items

ALONE = "rows that are one person's alone"
NAME = "people isolated by their rows"
NAMED = "items named by the signs of such rows"
TIED = "items tied together by latents"


def contributors(found: Contributions) -> Ints:
    """For each pair (row, person), how many people are in that row."""
    _, place, counts = np.unique(found.rows, return_inverse=True, return_counts=True)
    many: Ints = counts[place]
    return many


def rows_alone(found: Contributions, people: int) -> Ints:
    """How many rows of the sum each person is alone in.  # [n]"""
    return np.bincount(found.places[contributors(found) == 1], minlength=people)


def guess(view: View) -> Ints:
    """A group for each touched row of the last sum, −1 for none."""
    rows, public = updates(view), view.leaning(view.sums[-1].broadcast)
    lines = Lines(rows.values, either_sign=True)
    if public is not None:
        lines = LeaningLines(rows.values, public[rows.index % view.n_items], either_sign=True)
    return group(lines, len(view.sums[-1].people))


def updates(view: View) -> Rows:
    """The last sum's updates of items."""
    return view.sums[-1].total.leaves[view.contents.updates]


def guess_items(view: View, groups: Ints) -> list[Ints]:
    """For each group, the items that its person has."""
    rows = updates(view)
    items, found = rows.index % view.n_items, []
    for one in range(int(groups.max(initial=-1)) + 1):
        members = np.flatnonzero(groups == one)
        if not view.contents.own_items:
            members = members[_fewer(rows.values[members].astype(np.float64))]
        found.append(np.unique(items[members]))
    return found


def _fewer(rows: Floats) -> NDArray[np.bool_]:
    """Rows on one line point two ways: which rows point the way of the minority?  # [r]"""
    forward: NDArray[np.bool_] = rows @ rows[np.argmax((rows * rows).sum(axis=1))] > 0
    return forward if forward.mean() < 0.5 else ~forward


def isolated(groups: Ints, view: View, truth: Truth) -> Floats:
    """1 for each person, of those alone in three rows or more, whom a group isolates: the person has at least 90 % of
    the group's rows, and the group has at least 90 % of the rows in which the person is alone.
    """
    found, people = truth.contributions, len(view.sums[-1].people)
    rows = np.searchsorted(updates(view).index, found.rows)
    owners = Tally.of(groups, rows, found.places, people).owners()
    single = contributors(found) == 1
    own = Tally.of(groups, rows[single], found.places[single], people).rows_of(owners)  # [g]
    alone = rows_alone(found, people)
    caught = np.zeros(people)
    caught[owners[(owners >= 0) & (own >= PURE * alone[owners])]] = 1
    return caught[alone >= LEAST]


def rightly_named(groups: Ints, view: View, truth: Truth) -> Floats:
    """The share of each person's items that are named for its group; where more are named, the share that is right."""
    found, people = truth.contributions, view.sums[-1].people
    rows = np.searchsorted(updates(view).index, found.rows)
    right = np.zeros(len(people))
    owners = Tally.of(groups, rows, found.places, len(people)).owners()
    for owner, guessed in zip(owners.tolist(), guess_items(view, groups), strict=True):
        if owner >= 0:
            mine = truth.people.of(people[owner])
            share = np.isin(guessed, mine).sum() / max(len(guessed), len(mine))
            right[owner] = max(right[owner], share)
    return right


def audit_alone(view: View, truth: Truth) -> Finding:
    """The share of touched rows with one contributor; this is counted, not guessed."""
    found, people = truth.contributions, len(view.sums[-1].people)
    # A row of c people counts 1/c for each: over all people that is the number of touched rows.
    touched: Floats = np.bincount(found.places, 1 / contributors(found), people).astype(np.float64)
    alone = rows_alone(found, people)
    return finding(
        ALONE,
        "Of 100 rows of a sum that anybody touched, {attack} are the update of one person alone.",
        alone / np.maximum(touched, np.finfo(float).tiny),
        weights=touched,
        rows=len(np.unique(found.rows)),
        rows_alone=int(alone.sum()),
        people_with_such_rows=int((alone > 0).sum()),
    )


def audit(view: View, truth: Truth) -> list[Finding | NotApplicable]:
    """Who is isolated, and which items are named for them."""
    people, items = len(view.sums[-1].people), updates(view).index % view.n_items
    if not (rows_alone(truth.contributions, people) >= LEAST).any():
        why = f"nobody is alone in as many as {LEAST} rows of the sum"
        return [NotApplicable(NAME, f"{why}, so there is nobody to isolate"), NotApplicable(NAMED, why)]
    groups = guess(view)
    guesses = groups, *blind(truth.popularity[items], people)
    who = (
        "Of 100 people who are alone in some rows of a sum, the server would put together the rows of {attack}, "
        "without a name; guessing by popularity does so for {popularity}."
    )
    what = (
        "Of 100 items that a person has, the server would name {attack} from the rows that it put together, without "
        "knowing whose they are; guessing by popularity names {popularity}."
    )
    right, mine = rightly_named(groups, view, truth), truth.items(view.sums[-1].people.tolist())
    return [
        finding(NAME, who, *(isolated(part, view, truth) for part in guesses)),
        finding_items(NAMED, what, right, mine, truth.popularity),
    ]


# ------------------------------------------------------------------------------------------------------- latents


def rows_of_items(seen: OpenedSum, n_items: int, leaf: str) -> tuple[Ints, Floats]:
    """The items whose latents changed, and their rows of all levels side by side.  # [r], [r, K·d]"""
    rows = seen.total.leaves[leaf]
    levels = seen.spec.leaf(leaf).rows // n_items
    items, place = np.unique(rows.index % n_items, return_inverse=True)
    wide = np.zeros((len(items), levels, rows.values.shape[1]), np.float32)
    wide[place, rows.index // n_items] = rows.values
    return items, wide.reshape(len(items), -1)


def guess_by_latents(seen: OpenedSum, n_items: int, leaf: str) -> Ints:
    """A group for each item whose latents changed, −1 for none."""
    return group(Lines(rows_of_items(seen, n_items, leaf)[1], either_sign=False), len(seen.people))


def tied(groups: Ints, seen: OpenedSum, view: View, truth: Truth) -> Floats:
    """The share of each person's items in the largest group in which at least 90 % of the items are this person's."""
    items, people = rows_of_items(seen, view.n_items, view.contents.latents)[0], len(seen.people)
    mine = truth.items(seen.people.tolist())
    many, flat = np.array([len(part) for part in mine]), np.concatenate(mine)
    there = np.isin(flat, items)
    tally = Tally.of(groups, np.searchsorted(items, flat)[there], np.repeat(np.arange(people), many)[there], people)
    owners, most = tally.owners(), np.zeros(people)
    owned = owners >= 0
    np.maximum.at(most, owners[owned], tally.rows_of(owners)[owned])
    shares: Floats = most / many
    return shares


def audit_latents(view: View, truth: Truth) -> Finding | NotApplicable:
    """Which items belong to the same person."""
    leaf = view.contents.latents
    seen = next((seen for seen in reversed(view.sums) if leaf in seen.total.leaves), None)
    if seen is None:
        return NotApplicable(TIED, "the method sends no latents: there is no sum of positives alone to group")
    items, people = rows_of_items(seen, view.n_items, leaf)[0], len(seen.people)
    guesses = guess_by_latents(seen, view.n_items, leaf), *blind(truth.popularity[items], people)
    attack, chance, popularity = (tied(groups, seen, view, truth) for groups in guesses)
    said = (
        "Of 100 items that the people of a sum have, the server would put {attack} together with others of the same "
        "person, without a name; guessing by popularity {popularity}."
    )
    weights = truth.people.user_degrees()[seen.people].astype(np.float64)
    return finding(TIED, said, attack, chance, popularity, weights, round=seen.broadcast.round)
