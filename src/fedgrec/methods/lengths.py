"""No item's vector is longer than is usual for so many people: what a liar can do to an item.

A server sees sums alone, so nearly all of a rare item's row may come from one user who sends the largest words that the
rules allow. How long rows usually are says the model itself: those of other items that about as many people have.
Lengths alone are bounded. Where a row points is what the model learns, and within the usual length few lists change.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fedgrec.cable.core import Floats, Ints

NEAR = 101  # items, those with the nearest degrees


def no_longer_than_usual(vectors: Floats, degrees: Ints, share: float) -> Floats:
    """Items' vectors, none longer than this share of its neighbours' are.  # [N, D]"""
    if share == 1 or not len(vectors):
        return vectors
    lengths, order = np.linalg.norm(vectors, axis=1), np.argsort(degrees, kind="stable")
    near = sliding_window_view(np.pad(lengths[order], NEAR // 2, mode="symmetric"), NEAR)
    most, place = np.empty_like(lengths), round(share * (NEAR - 1))
    most[order] = np.partition(near, place, axis=1)[:, place]
    shorter: Floats = vectors * np.divide(most, lengths, out=np.ones_like(lengths), where=lengths > most)[:, None]
    return shorter
