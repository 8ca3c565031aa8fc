"""What a server would find in designs that this product does not use: each lacks one of our rules.

A sum that is opened twice, the second time without one person: the difference is what this person sent. Nodes refuse
that, for counts of degrees, too: docs/security.md.

Rows of latents, and all rows of some methods, belong to the person's own items alone. Other uploads also have rows of
negatives, which the person drew. Nearly all rows lie along one line, the person's own: its items move one way, and
negatives move the other way. There are more negatives, or each moves less. So the side with the longer tail has the
items.
"""

import numpy as np

from fedgrec.cable.core import Floats, Upload
from fedgrec.studies.audit.recording import Truth, View, marked, of_own_items, visible
from fedgrec.studies.audit.scores import Finding, NotApplicable, finding_items, named

SUMS = "if two sums differed by one person"


# ------------------------------------------------------------------------------------------ uploads in the clear


def guess(upload: Upload, view: View, steps: Floats | None) -> Floats:
    """How much each item looks like one of the sender's; `steps` are the public ones of the rows.  # [N]"""
    rows = of_own_items(visible(upload).leaves, view.contents)
    if rows is None:
        return guess_by_signs(upload, view, steps)
    return marked(rows.index % view.n_items, view.n_items).astype(float)


def guess_by_signs(upload: Upload, view: View, steps: Floats | None) -> Floats:
    """The same from the rows of item updates, which include rows of negatives.  # [N]"""
    rows, found = visible(upload).leaves[view.contents.updates], np.zeros(view.n_items)  # without rows of zeros
    items, tables = rows.index % view.n_items, rows.index // view.n_items  # some methods send two rows for an item
    values = rows.values * (1.0 if steps is None else steps[items, None])
    for table in np.unique(tables):
        there = tables == table
        np.add.at(found, items[there], towards_the_few(values[there].astype(np.float64)))
    return found


def towards_the_few(rows: Floats) -> Floats:
    """How far each row goes along the main line, towards the side with the longer tail; at most 1.  # [r]"""
    line = np.linalg.eigh(rows.T @ rows)[1][:, -1]
    along: Floats = rows @ line
    along = along / max(np.abs(along).max(initial=0), np.finfo(float).tiny)
    return along if ((along - along.mean()) ** 3).sum() > 0 else -along


def audit_sums(view: View, truth: Truth) -> Finding | NotApplicable:
    """For each of some people: a sum over everybody, and one without this person."""
    both = truth.trained
    if both is None:
        return NotApplicable(SUMS, "the sum that carries the most was not opened")
    sent, steps = both.uploads, both.sum.broadcast.row_steps  # what the two sums of a person differ by
    guesses = [guess(upload, view, steps) for upload in sent.values()]
    said = (
        "If a server could open one sum twice, the second time without you, it would name {attack} of 100 of your "
        "items; guessing by popularity names {popularity}. Nodes send their part of a round once."
    )
    mine, right = truth.items(sent), named(np.stack(guesses), truth.items(sent))
    return finding_items(SUMS, said, right, mine, truth.popularity, round=both.sum.broadcast.round)
