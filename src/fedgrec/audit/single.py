"""Rows of a sum with one contributor: such a row is that person's update, in the clear."""

import numpy as np

from fedgrec.audit.recording import Contributions, Truth, View
from fedgrec.audit.scores import Finding, Successes, finding
from fedgrec.core import Floats, Ints

NAME = "rows that are one person's alone"


def contributors(found: Contributions) -> Ints:
    """For each pair (row, person), how many people are in that row."""
    _, place, counts = np.unique(found.rows, return_inverse=True, return_counts=True)
    many: Ints = counts[place]
    return many


def rows_alone(found: Contributions, people: int) -> Ints:
    """How many rows of the sum each person is alone in.  # [n]"""
    return np.bincount(found.places[contributors(found) == 1], minlength=people)


def audit(view: View, truth: Truth) -> Finding:
    """The share of touched rows with one contributor; this is counted, not guessed."""
    found, people = truth.contributions, len(view.sums[-1].people)
    # A row of c people counts 1/c for each: over all people that is the number of touched rows.
    touched: Floats = np.bincount(found.places, 1 / contributors(found), people).astype(np.float64)
    alone = rows_alone(found, people)
    return finding(
        NAME,
        Successes(alone / np.maximum(touched, np.finfo(float).tiny), weights=touched),
        "Of 100 rows of a sum that anybody touched, {attack} are the update of one person alone.",
        rows=len(np.unique(found.rows)),
        rows_alone=int(alone.sum()),
        people_with_such_rows=int((alone > 0).sum()),
    )
