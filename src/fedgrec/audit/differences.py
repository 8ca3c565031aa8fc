"""Two sums whose people differ by one person: the sums' difference is what this person sent.

This is what a server would find if it could open one round of training twice. Nodes refuse that: docs/privacy.md.
"""

from typing import Any

import numpy as np

from fedgrec.audit import uploads
from fedgrec.audit.recording import ITEMS, Truth, View, minus, visible
from fedgrec.audit.scores import Finding, NotApplicable, named
from fedgrec.core import Upload

NAME = "if two sums differed by one person"


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
    if ITEMS in both.sum.total.leaves:
        updates = np.stack([uploads.guess_by_signs(upload, view, steps) for upload in sent.values()])
        mine = [truth.people.of(person) for person in sent]
        more["from_item_updates_alone"] = float(named(updates, mine).mean())
    return uploads.told(
        NAME,
        {person: uploads.guess(upload, view, steps) for person, upload in sent.items()},
        truth,
        "If a server could open one sum twice, the second time without you, it would name {attack} of 100 of your "
        "items; guessing by popularity names {popularity}. Nodes send their part of a round once.",
        **more,
    )
