"""The exact ranking in its simplest form: all scores at once, one stable sort."""

import numpy as np

from fedgrec.models.ranking import Ids, Indptr, Matrix, checked


def top_k_reference(users: Matrix, items: Matrix, k: int, seen_indptr: Indptr, seen_items: Ids) -> tuple[Ids, Matrix]:
    """`top_k` in its simplest form: all scores at once, one stable sort."""
    seen_indptr, seen_items = checked(users, items, k, seen_indptr, seen_items)
    n, N = len(users), len(items)
    scores = np.full((n, N + k), -np.inf, dtype=np.float32)  # k empty places behind the last item
    scores[:, :N] = users @ items.T
    scores[np.repeat(np.arange(n), np.diff(seen_indptr)), seen_items] = -np.inf
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :k].astype(np.int32)
    top = np.take_along_axis(scores, ids, axis=1)
    ids[np.isneginf(top)] = -1
    return ids, top
