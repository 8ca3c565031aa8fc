"""The metrics of a federation as a secure sum: what each user's part consists of, and what the server reads out.

leaves   recall@k, ndcg@k for each k   in steps of a power of two, each user's number rounded before it is added
         count                          users that have held-out items; the sums are divided by it

Each node adds its share of noise to every number. Without noise, a server could compare two evaluations over nearly the
same people, and their difference would be one person's numbers.
"""

import math
from collections.abc import Sequence

from fedgrec.cable import noise
from fedgrec.cable.core import Leaf, Upload, UploadSpec, finest_step

NOISY_STEP = 2.0**-14  # coarse enough for noise to be drawn exactly, and far below what the noise hides
HEADROOM = 8  # standard deviations of noise that fit the ring beside the users' numbers
NOISY_BITS = 32  # size of that ring; users' numbers alone would need fewer


def spec(ks: Sequence[int], users: int, deviation: float = 0.0) -> UploadSpec:
    """What is uploaded for at most `users` users, with noise of this standard deviation in each number."""
    names = [f"{name}@{k}" for k in ks for name in ("recall", "ndcg")]
    if not deviation:
        step = finest_step(1.0, users)
        leaves = [Leaf(name, 1, 1, clip=1.0, step=step) for name in names]
        return UploadSpec((*leaves, Leaf("count", 1, 1, clip=1, step=1)), users)
    step = max(NOISY_STEP, finest_step(1.0, users + math.ceil(HEADROOM * deviation), NOISY_BITS))
    return UploadSpec(tuple(Leaf(name, 1, 1, clip=1.0, step=step) for name in (*names, "count")), users, NOISY_BITS)


def deviation(epsilon: float, ks: Sequence[int], evaluations: int) -> float:
    """The standard deviation of noise with which this many evaluations together spend ε; 0: no noise.

    A person who joins or leaves changes each number by at most 1.
    """
    if not epsilon:
        return 0.0
    return math.sqrt(noise.factor_for(epsilon, [release(1.0, ks, evaluations)]))


def release(deviation: float, ks: Sequence[int], times: int) -> noise.Release:
    """So many evaluations with noise of this standard deviation in each number."""
    numbers, unit = 2 * len(ks) + 1, 1 / NOISY_STEP
    return noise.Release((deviation * unit) ** 2, numbers * unit, math.sqrt(numbers) * unit, times)


def result(total: Upload, spec: UploadSpec, deviation: float = 0.0) -> dict[str, float]:
    """The means over users that have held-out items; nothing where there are none.

    `noise` is the standard deviation that the noise gives each mean.
    """
    sums = {leaf.name: float(total.leaves[leaf.name].values[0, 0] * leaf.step) for leaf in spec.leaves}
    count = round(sums.pop("count"))
    if count < 1:
        return {"users": 0}
    means = {name: min(max(value / count, 0.0), 1.0) for name, value in sums.items()}
    return {**means, "users": count, **({"noise": deviation / count} if deviation else {})}
