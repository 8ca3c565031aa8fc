"""Metrics of a federation: every user ranks all items at home, and only the sum over users leaves.

leaves   recall@k, ndcg@k for each k   in steps of a power of two, each user's number rounded before it is added
         count                          users that have held-out items: what the sums are divided by
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedgrec import metrics
from fedgrec.core import Cohort, Floats, Ints, Leaf, Rows, ServerState, Upload, UploadSpec, finest_step, quantize
from fedgrec.methods.contract import Method

BLOCK = 64  # users ranked at a time


def spec(ks: Sequence[int], users: int) -> UploadSpec:
    """What goes up for at most `users` users."""
    step = finest_step(1.0, users)
    names = [f"{name}@{k}" for k in ks for name in ("recall", "ndcg")]
    leaves = [Leaf(name, 1, 1, clip=1.0, step=step) for name in names]
    return UploadSpec((*leaves, Leaf("count", 1, 1, clip=1, step=1)), users)


def measured(
    method: Method, server: ServerState, cohort: Cohort, held_out: Sequence[Ints], ks: Sequence[int], spec: UploadSpec
) -> Upload:
    """What these users send; `held_out[u]` are the items by which user u judges."""
    judging = np.array([u for u, items in enumerate(held_out) if len(items)], np.int64)
    totals = {leaf.name: np.zeros((1, 1), spec.dtype) for leaf in spec.leaves}
    items = method.represent_items(server).astype(np.float32) if method.inner_product else None
    for start in range(0, len(judging), BLOCK):
        users = judging[start : start + BLOCK]
        for u, row in zip(users.tolist(), scores(method, server, cohort.take(users), items), strict=True):
            hits = np.isin(best(row, cohort.items_of(u), max(ks)), held_out[u])
            for k in ks:
                values = {
                    f"recall@{k}": metrics.recall(hits[:k], len(held_out[u])),
                    f"ndcg@{k}": metrics.ndcg(hits[:k], len(held_out[u])),
                }
                for name, value in values.items():
                    totals[name] += quantize(np.reshape(value, (1, 1)), spec.leaf(name), spec.dtype)[0]
            totals["count"] += 1
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


def result(total: Upload, spec: UploadSpec) -> dict[str, float]:
    """The means over users that have held-out items; nothing where there are none."""
    count = int(total.leaves["count"].values[0, 0])
    if not count:
        return {"users": 0}
    means = {
        leaf.name: float(total.leaves[leaf.name].values[0, 0] * leaf.step / count)
        for leaf in spec.leaves
        if leaf.name != "count"
    }
    return {**means, "users": count}
