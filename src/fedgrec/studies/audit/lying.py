"""A server that lies: what it reads if clients check nothing, and that it reads nothing if they check.

Both attacks run against the real clients of a secure sum, in this process.
"""

from dataclasses import replace

import numpy as np

from fedgrec.cable.core import Floats, Upload
from fedgrec.studies.audit.lies import LIES, agreed, with_an_accomplice
from fedgrec.studies.audit.recording import Apart, Truth, View
from fedgrec.studies.audit.scores import Finding, NotApplicable, finding
from fedgrec.studies.audit.uploads import found_items, guess

UNCHECKED = "if a lying server met no checks"
CHECKED = "a lying server that clients check"
READ, LIED_TO = 20, 5  # people whose uploads it tries to read: without checks, with checks


def audit(view: View, truth: Truth) -> list[Finding | NotApplicable]:
    """Without and with the clients' checks."""
    why = "the sum that carries the most was not opened"
    if truth.trained is None:
        return [NotApplicable(UNCHECKED, why), NotApplicable(CHECKED, why)]
    return [_unchecked(truth.trained, view, truth), _checked(truth.trained)]


def read(upload: Upload, seen: Apart) -> Upload | None:
    """One person's upload, read in a session of this person and an accomplice, where neither checks anything."""
    spec = seen.sum.spec
    trusting = replace(agreed(spec.rings, spec.users), least=2, threshold=2, lying_server=False)
    values = with_an_accomplice(trusting, upload.to_ring(spec))
    return None if values is None else Upload.from_ring(values, spec, 1)


def _unchecked(seen: Apart, view: View, truth: Truth) -> Finding | NotApplicable:
    held = {person: read(upload, seen) for person, upload in list(seen.uploads.items())[:READ]}
    steps = seen.sum.broadcast.row_steps
    guesses = {person: guess(upload, view, steps) for person, upload in held.items() if upload is not None}
    if not guesses:
        return NotApplicable(UNCHECKED, "no sum over one person and an accomplice was opened")
    return found_items(
        UNCHECKED,
        guesses,
        truth,
        "If clients checked nothing, a lying server could add you up with accomplices alone, and would name {attack} "
        "of 100 of your items; guessing by popularity names {popularity}.",
        uploads_read=len(guesses),
    )


def attempts(seen: Apart) -> Floats:
    """Every lie to the clients of some people: 1 where the server held the person's vector in the end, else 0.

    Masks do not depend on the length of a vector, so one row of a person's upload stands for all of it.
    """
    leaf = seen.sum.spec.leaves[0]
    _, bits = seen.sum.spec.ring(leaf)
    sent = [upload.leaves[leaf.name] for upload in seen.uploads.values()]
    rows = [rows.values[0] for rows in sent if len(rows.index)]
    successes = []
    for row in rows[:LIED_TO]:
        for lie in LIES:
            held = lie(agreed(((len(row), bits),)), row)
            successes.append(float(held is not None and np.array_equal(held, row)))
    return np.array(successes)


def _checked(seen: Apart) -> Finding | NotApplicable:
    successes = attempts(seen)
    if not len(successes):
        return NotApplicable(CHECKED, "nobody sent anything that a server could be after")
    return finding(
        CHECKED,
        f"A server told {len(successes)} lies to clients that check what they are told, as all do by default. Of 100 "
        "such lies {attack} gave it the vector of one person.",
        successes,
        lies=[lie.__name__ for lie in LIES],
    )
