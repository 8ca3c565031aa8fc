"""Two degree counts, the second without one person: the difference is a list of that person's items.

This is what a server would find if it could count twice. Nodes refuse that: docs/privacy.md.
"""

from fedgrec.audit.recording import DEGREES, Truth, View, minus, visible
from fedgrec.audit.scores import Finding, NotApplicable
from fedgrec.audit.uploads import told, touched
from fedgrec.core import Floats, Upload

NAME = "if two counts differed by one person"


def guess(first: Upload, second: Upload, view: View) -> Floats:
    """1 for each item that is counted more often the first time.  # [N]"""
    return touched(visible(minus(first, second)).leaves[DEGREES].index, view.n_items)


def audit(view: View, truth: Truth) -> Finding | NotApplicable:
    """For each of some people: a count over everybody, and one without this person."""
    both = truth.counted
    if both is None:
        return NotApplicable(NAME, "the method counts no degrees")
    return told(
        NAME,
        {person: guess(both.sum.total, both.without(person), view) for person in both.uploads},
        truth,
        "If a server could count the users of each item twice, the second time without you, it would name {attack} of "
        "100 of your items; guessing by popularity names {popularity}. Nodes help to open one count.",
    )
