"""The metrics of a federation as a secure sum: what each user's part consists of, and what the server reads out.

leaves   recall@k, ndcg@k for each k   in steps of a power of two, each user's number rounded before it is added
         count                          users that have held-out items: what the sums are divided by
"""

from collections.abc import Sequence

from fedgrec.core import Leaf, Upload, UploadSpec, finest_step


def spec(ks: Sequence[int], users: int) -> UploadSpec:
    """What goes up for at most `users` users."""
    step = finest_step(1.0, users)
    names = [f"{name}@{k}" for k in ks for name in ("recall", "ndcg")]
    leaves = [Leaf(name, 1, 1, clip=1.0, step=step) for name in names]
    return UploadSpec((*leaves, Leaf("count", 1, 1, clip=1, step=1)), users)


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
