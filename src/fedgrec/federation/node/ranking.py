"""How a node ranks all items for its users: to recommend, and to measure how well held-out items rank."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Cohort, Floats, Ints, Rows, ServerState, Upload, UploadSpec, quantize
from fedgrec.methods.contract import Method
from fedgrec.models import metrics

BLOCK = 64  # users ranked at a time


def measured(
    method: Method,
    server: ServerState,
    cohort: Cohort,
    held_out: Sequence[Ints],
    ks: Sequence[int],
    spec: UploadSpec,
    withdrawn: Sequence[int] = (),
) -> Upload:
    """What these users send; `held_out[u]` are the items by which user u judges. Withdrawn items are not ranked."""
    server = method.as_ranked(server)
    judging = np.array([u for u, items in enumerate(held_out) if len(items)], np.int64)
    totals = {leaf.name: np.zeros((1, 1), spec.dtype) for leaf in spec.leaves}
    items = method.represent_items(server).astype(np.float32) if method.inner_product else None
    for start in range(0, len(judging), BLOCK):
        users = judging[start : start + BLOCK]
        for u, row in zip(users.tolist(), scores(method, server, cohort.take(users), items), strict=True):
            row[list(withdrawn)] = -np.inf
            hits = np.isin(best(row, cohort.items_of(u), max(ks)), held_out[u])
            values = {"count": np.ones(1)}  # in the steps of its leaf, like the others
            for k in ks:
                values[f"recall@{k}"] = metrics.recall(hits[:k], len(held_out[u]))
                values[f"ndcg@{k}"] = metrics.ndcg(hits[:k], len(held_out[u]))
            for name, value in values.items():
                totals[name] += quantize(np.reshape(value, (1, 1)), spec.leaf(name), spec.dtype)[0]
    return Upload({name: Rows(np.zeros(1, np.int64), value) for name, value in totals.items()}, len(cohort))


def scores(method: Method, server: ServerState, cohort: Cohort, items: Floats | None = None) -> Floats:
    """Every item's score for every user of the cohort, [n, N]; `items` saves making them again."""
    if not method.inner_product:
        return method.scores(server, cohort).astype(np.float32)
    items = method.represent_items(server).astype(np.float32) if items is None else items
    return method.represent_users(server, cohort).astype(np.float32) @ items.T


def best(scores: Floats, seen: Ints, k: int) -> NDArray[np.int64]:
    """The k best items that are not among the seen, best first, ties to the lower id; −1 in places left empty."""
    scores = scores.copy()
    scores[seen] = -np.inf
    k_th = np.partition(scores, -k)[-k] if k <= len(scores) else -np.inf
    candidates = np.flatnonzero((scores >= k_th) & (scores > -np.inf))
    order = candidates[np.argsort(-scores[candidates], kind="stable")][:k]
    return np.concatenate([order, np.full(k - len(order), -1)])
