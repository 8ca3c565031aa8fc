"""One person's upload in the clear: which items are that person's.

Rows of latents, and all rows of some methods, belong to the person's own items alone. Other uploads also have rows of
negatives, which the person drew. Nearly all rows lie along one line, the person's own: its items move one way, and
negatives move the other way. There are more negatives, or each moves less. So the side with the longer tail has the
items.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgrec.cable.core import Floats, Upload
from fedgrec.studies.audit.recording import Truth, View, marked, of_own_items, visible
from fedgrec.studies.audit.scores import Finding, finding_items, named


def guess(upload: Upload, view: View, steps: Floats | None) -> Floats:
    """How much each item looks like one of the sender's; `steps` are the public ones of the rows.  # [N]"""
    rows = of_own_items(visible(upload).leaves, view.contents)
    return (
        guess_by_signs(upload, view, steps)
        if rows is None
        else marked(rows.index % view.n_items, view.n_items).astype(float)
    )


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


def found_items(name: str, guesses: Mapping[int, Floats], truth: Truth, sentence: str, **more: Any) -> Finding:
    """The table's line about guesses by person; as many items are named as the person has."""
    mine = [truth.people.of(person) for person in guesses]
    return finding_items(name, named(np.stack([*guesses.values()]), mine), mine, truth.popularity, sentence, **more)
