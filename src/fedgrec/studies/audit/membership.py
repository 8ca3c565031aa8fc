"""Is this item among the person's? Asked of the sums that the person was in, and of the published model alone."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Floats, Ints
from fedgrec.data import Interactions
from fedgrec.studies.audit.recording import OpenedSum, Truth, View, marked, present
from fedgrec.studies.audit.scores import Finding, NotApplicable, finding_items, named

FROM_SUMS = "your items, from the sums you were in"
COLLUDING = "the same, by two thirds of the people"
FROM_MODEL = "your other items, from the model"
STRANGERS = "the same for people who were in no sum"
SURE, UNSURE = 1e-6, 0.2  # how often the claim "somebody in this sum has this item" is wrong
MOST = 500  # people who are looked at
MEMBERSHIP_STREAM = 7


def guess_from_sums(view: View, people: Ints) -> Floats:
    """How likely each item is each person's: log-odds, plus a constant for each person.  # [p, N]

    A person's item is present in every sum that the person is in. An item that the person does not have is present if
    somebody else in the sum has it. Bayes' rule combines both; popularity is the prior.
    """
    sure = [present(seen, view.contents, view.n_items) for seen in view.sums]
    shares = _shares(view, sure)
    scores = np.tile(np.log(shares), (len(people), 1))
    for seen, known in zip(view.sums, sure, strict=True):
        others = 1 - (1 - shares) ** (len(seen.people) - 1)
        there, wrong = (_loud(view, seen, others), UNSURE) if known is None else (known, SURE)
        anyway = others * (1 - wrong) + (1 - others) * wrong  # present because of others, or wrongly
        evidence = np.where(there, np.log((1 - wrong) / anyway), np.log(wrong / (1 - anyway)))
        scores[np.isin(people, seen.people)] += evidence
    return scores


def _loud(view: View, seen: OpenedSum, others: Floats) -> NDArray[np.bool_]:
    """Positives move more than negatives: the items that move most, as many as should be present.  # [N]"""
    rows, steps = seen.total.leaves[view.contents.updates], seen.broadcast.row_steps
    power = np.einsum("rd,rd->r", rows.values, rows.values, dtype=np.float64)
    loudness = np.bincount(rows.index % view.n_items, power, view.n_items).astype(np.float64)
    if steps is not None:
        loudness *= steps.astype(np.float64) ** 2
    return marked(np.argsort(-loudness, kind="stable")[: round(float(others.sum()))], view.n_items)


def _shares(view: View, sure: list[NDArray[np.bool_] | None]) -> Floats:
    """The share of people who have each item: as counted, or from how often it is present; never 0 nor 1.  # [N]"""
    known = [part for part in sure if part is not None]
    if view.degrees is not None:
        shares = view.degrees / view.n_users
    elif known:
        often = (np.sum(known, axis=0) + 0.5) / (len(known) + 1)
        shares = 1 - (1 - often) ** (1 / len(view.sums[-1].people))
    else:
        shares = np.full(view.n_items, 0.5 / view.n_users)
    clipped: Floats = np.clip(shares, 0.5 / view.n_users, 1 - 0.5 / view.n_users)
    return clipped


def halves(data: Interactions, users: Ints) -> tuple[list[Ints], list[Ints]]:
    """People's items in two random halves: the attacker knows the first of them."""
    rng = np.random.Generator(np.random.Philox(key=[len(users), MEMBERSHIP_STREAM]))
    mixed = [rng.permutation(data.of(user)) for user in users.tolist()]
    return [np.sort(part[: len(part) // 2]) for part in mixed], [part[len(part) // 2 :] for part in mixed]


def audit_sums(view: View, truth: Truth, name: str = FROM_SUMS, who: str = "the server") -> Finding:
    people = some(np.unique(np.concatenate([seen.people for seen in view.sums])))
    said = (
        f"Of 100 items that you have, {who} would name {{attack}}, if it names as many as you have; guessing by "
        "popularity names {popularity}."
    )
    items = truth.items(people.tolist())
    return finding_items(name, said, named(guess_from_sums(view, people), items), items, truth.popularity)


def audit_colluding(view: View, truth: Truth) -> Finding | NotApplicable:
    """The same of what two thirds of the people leave of the sums; their noise, which they know, is not taken away."""
    left = tuple(seen for seen in truth.left if len(seen.people))
    if not left:
        return NotApplicable(COLLUDING, "in no sum is anybody but those who work together")
    return audit_sums(replace(view, sums=left), truth, COLLUDING, "the server with two thirds of the people")


def audit_model(view: View, truth: Truth, strangers: bool) -> Finding | NotApplicable:
    name, data = (STRANGERS, truth.outsiders) if strangers else (FROM_MODEL, truth.people)
    users = some(np.flatnonzero(data.user_degrees() > 1))
    if not len(users):
        return NotApplicable(name, "it takes people with two items or more")
    known, hidden = halves(data, users)
    who = "the items of somebody who was in no sum" if strangers else "your items"
    said = (
        f"Whoever knows half of {who} and has the published model would name {{attack}} of 100 of the "
        "others; guessing by popularity names {popularity}."
    )
    recommended = view.model(np.cumsum([0, *map(len, known)]), np.concatenate(known))  # to who has these alone: [p, N]
    return finding_items(name, said, named(recommended, hidden, known), hidden, truth.popularity, known)


def some(users: Ints) -> Ints:
    """At most 500 of these users, at random."""
    rng = np.random.Generator(np.random.Philox(key=[len(users), MEMBERSHIP_STREAM]))
    return np.sort(rng.choice(users, MOST, replace=False)) if len(users) > MOST else users
