"""Latent updates, grouped by direction: which items belong to the same person.

A user adds w_ut·(new − old latent) to the rows of its own items, and to no others. So all its rows point in the
direction of one difference, at every level.
"""

import numpy as np

from fedgrec.cable.core import Floats, Ints
from fedgrec.studies.audit.directions import Lines, Tally, blind, group
from fedgrec.studies.audit.recording import OpenedSum, Truth, View
from fedgrec.studies.audit.scores import Finding, NotApplicable, finding

NAME = "items tied together by latents"


def rows_of_items(seen: OpenedSum, n_items: int, leaf: str) -> tuple[Ints, Floats]:
    """The items whose latents changed, and their rows of all levels side by side.  # [r], [r, K·d]"""
    rows = seen.total.leaves[leaf]
    levels = seen.spec.leaf(leaf).rows // n_items
    items, place = np.unique(rows.index % n_items, return_inverse=True)
    wide = np.zeros((len(items), levels, rows.values.shape[1]), np.float32)
    wide[place, rows.index // n_items] = rows.values
    return items, wide.reshape(len(items), -1)


def guess(seen: OpenedSum, n_items: int, leaf: str) -> Ints:
    """A group for each item whose latents changed, −1 for none."""
    return group(Lines(rows_of_items(seen, n_items, leaf)[1], either_sign=False), len(seen.people))


def tied(groups: Ints, seen: OpenedSum, view: View, truth: Truth) -> Floats:
    """The share of each person's items that are in a group of this person.

    A group belongs to the one person who has at least 90 % of its items. If a person has several, the largest counts.
    """
    items, people = rows_of_items(seen, view.n_items, view.contents.latents)[0], len(seen.people)
    mine = [truth.people.of(user) for user in seen.people.tolist()]
    places = np.repeat(np.arange(people), [len(part) for part in mine])
    rows = np.searchsorted(items, np.concatenate(mine))
    there = np.isin(np.concatenate(mine), items)
    tally = Tally.of(groups, rows[there], places[there], people)
    owners, most = tally.owners(), np.zeros(people)
    owned = owners >= 0
    np.maximum.at(most, owners[owned], tally.rows_of(owners)[owned])
    shares: Floats = most / np.array([len(part) for part in mine])
    return shares


def audit(view: View, truth: Truth) -> Finding | NotApplicable:
    seen = next((seen for seen in reversed(view.sums) if view.contents.latents in seen.total.leaves), None)
    if seen is None:
        return NotApplicable(NAME, "the method sends no latents: there is no sum of positives alone to group")
    items, people = rows_of_items(seen, view.n_items, view.contents.latents)[0], len(seen.people)
    guesses = guess(seen, view.n_items, view.contents.latents), *blind(truth.popularity[items], people)
    attack, chance, popularity = (tied(groups, seen, view, truth) for groups in guesses)
    return finding(
        NAME,
        "Of 100 items that the people of a sum have, the server would put {attack} together with others of the same "
        "person, without a name; guessing by popularity {popularity}.",
        attack,
        chance,
        popularity,
        weights=truth.people.user_degrees()[seen.people].astype(np.float64),
        round=seen.broadcast.round,
    )
