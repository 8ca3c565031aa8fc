"""The federated field's protocol: each user's last item among 99 that the user never had, and what that lets leak.

closed     negatives are all that is not among the user's training items: what this product always does
open       as published programs draw them: never the user's validation and test items

With the leak open, of a user's 100 candidates only the test item is sure never to have been pushed down. It is opened
here alone, by replacing the draws of the readable kernels while a run trains.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np

from fedgrec.cable import draws
from fedgrec.cable.core import Cohort, Ints
from fedgrec.data import Interactions


@contextmanager
def leak(users: Cohort, known: Interactions) -> Iterator[None]:
    """Within this block these users draw no negative that is `known`: what they have in any part of the data."""
    had = {int(key): known.of(u).astype(np.int64) for u, key in enumerate(users.keys)}
    one, shelved = draws.negatives, draws.negatives_from

    def negatives(key: int, round_: int, count: int, positives: Ints, n_items: int, step: int = 0) -> Ints:
        """A shelf of items has a numbering of its own, and `negatives_from` has seen to it."""
        return one(key, round_, count, had[key] if n_items == known.n_items else positives, n_items, step)

    def negatives_from(key: int, round_: int, shelves: draws.Shelves, positives: Ints) -> Ints:
        return shelved(key, round_, shelves, had[key])

    with mock.patch.multiple(draws, negatives=negatives, negatives_from=negatives_from):
        yield
