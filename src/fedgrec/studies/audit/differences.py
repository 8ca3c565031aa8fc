"""Two sums, or two degree counts, that differ by one person: their difference is what this person sent.

This is what a server would find if it could open one round, or count, twice. Nodes refuse that: docs/security.md.
"""

from typing import Any

import numpy as np

from fedgrec.cable.core import Upload
from fedgrec.studies.audit import uploads
from fedgrec.studies.audit.recording import Truth, View, marked, minus, visible
from fedgrec.studies.audit.scores import Finding, NotApplicable, named

NAME, COUNTS = "if two sums differed by one person", "if two counts differed by one person"


def difference(first: Upload, second: Upload) -> Upload:
    """What the person who is only in the first sum sent."""
    return visible(minus(first, second))


def audit(view: View, truth: Truth) -> Finding | NotApplicable:
    """For each of some people: a sum over everybody, and one without this person."""
    both = truth.trained
    if both is None:
        return NotApplicable(NAME, "the sum that carries the most was not opened")
    sent = {person: difference(both.sum.total, both.without(person)) for person in both.uploads}
    steps = both.sum.broadcast.row_steps
    more: dict[str, Any] = {"round": both.sum.broadcast.round}
    if view.contents.updates in both.sum.total.leaves:
        updates = np.stack([uploads.guess_by_signs(upload, view, steps) for upload in sent.values()])
        mine = [truth.people.of(person) for person in sent]
        more["from_item_updates_alone"] = float(named(updates, mine).mean())
    return uploads.found_items(
        NAME,
        {person: uploads.guess(upload, view, steps) for person, upload in sent.items()},
        truth,
        "If a server could open one sum twice, the second time without you, it would name {attack} of 100 of your "
        "items; guessing by popularity names {popularity}. Nodes send their part of a round once.",
        **more,
    )


def audit_counts(view: View, truth: Truth) -> Finding | NotApplicable:
    """The same of two counts: an item that is counted more often the first time is the person's."""
    both = truth.counted
    if both is None:
        return NotApplicable(COUNTS, "the method counts no degrees")
    sent = {person: difference(both.sum.total, both.without(person)) for person in both.uploads}
    return uploads.found_items(
        COUNTS,
        {
            who: marked(part.leaves[view.contents.counts].index, view.n_items).astype(float)
            for who, part in sent.items()
        },
        truth,
        "If a server could count the users of each item twice, the second time without you, it would name {attack} of "
        "100 of your items; guessing by popularity names {popularity}. Nodes help to open one count.",
    )
