"""How often an attack is right: shares over people, their intervals, and whether popularity alone does as well.

Intervals are bootstrapped over people. The shown ones have 95 %. An attack counts as better than the guess by
popularity if the 99.9 % interval of the difference, person by person, lies above 0. One that guesses like popularity
for every single person had no evidence: it says nothing, not even that there is nothing to find.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedgrec.cable.core import Floats, Ints

SHOWN, TESTED = 0.95, 0.999
AT_RISK = 0.1  # the share of people for whom an attack finds most
DRAWS = 5_000
BLOCK = 250  # draws at a time
BOOTSTRAP_STREAM, TIES_STREAM = 5, 8


@dataclass(frozen=True)
class Estimate:
    """A share, and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Finding:
    """What one attack found out."""

    name: str  # at most 38 letters: a line of the table
    people: int
    attack: Estimate
    chance: Estimate | None
    popularity: Estimate | None
    better: bool | None  # than popularity
    sentence: str
    more: dict[str, Any] = field(default_factory=dict)
    beyond: Estimate | None = None  # attack minus popularity
    powerless: bool = False
    at_risk: float | None = None  # the mean over the tenth of people for whom it finds most


@dataclass(frozen=True)
class NotApplicable:
    """An attack that cannot be made here, and why."""

    name: str
    because: str


def finding(
    name: str,
    sentence: str,
    attack: Floats,
    chance: Floats | None = None,
    popularity: Floats | None = None,
    weights: Floats | None = None,
    **more: Any,
) -> Finding:
    """The table's line about each person's share of right guesses: of the attack, of a guess that knows nothing, of the
    best guess by popularity alone (None: there is nothing to guess). `weights` are the people's in the mean.

    The sentence may name {attack}, {chance} and {popularity} in %.
    """
    parts = {"attack": attack, "chance": chance, "popularity": popularity}
    found = {key: interval(part, weights) for key, part in parts.items() if part is not None}
    said = sentence.format(**{key: percent(value.value) for key, value in found.items()})
    line = Finding(name, len(attack), found["attack"], found.get("chance"), found.get("popularity"), None, said, more)
    if popularity is None:
        return line
    return replace(
        line,
        better=is_better(attack, popularity, weights),
        beyond=interval(attack - popularity, weights),
        powerless=np.array_equal(attack, popularity),
        at_risk=float(np.sort(attack)[-math.ceil(AT_RISK * len(attack)) :].mean()),
    )


def finding_items(
    name: str,
    sentence: str,
    attack: Floats,
    items: Sequence[Ints],
    popularity: Ints,
    but: Sequence[Ints] | None = None,
    **more: Any,
) -> Finding:
    """The same for an attack that names as many items as each person has; `but` are known, so nobody names them."""
    alike: Floats = np.tile(popularity.astype(np.float64), (len(items), 1))
    left = len(popularity) - (np.array([len(part) for part in but]) if but else 0)
    chance: Floats = np.array([len(part) for part in items]) / left
    return finding(name, sentence, attack, chance, named(alike, items, but), **more)


def percent(share: float) -> str:
    """31, 4.2, 0.3: two digits, and none behind the point where it is large."""
    return f"{100 * share:.0f}" if share >= 0.0995 or share == 0 else f"{100 * share:.1f}"


def is_better(attack: Floats, other: Floats, weights: Floats | None = None) -> bool:
    """Whether the attack is right more often, at 99.9 %."""
    return interval(attack - other, weights, TESTED).low > 0


def interval(values: Floats, weights: Floats | None = None, level: float = SHOWN) -> Estimate:
    """The weighted mean over people, and its interval: the quantiles of the mean over people drawn with repeats."""
    weights = np.ones(len(values)) if weights is None else weights.astype(np.float64)
    parts = weights * values
    rng = np.random.Generator(np.random.Philox(key=[len(values), BOOTSTRAP_STREAM]))
    means = []
    for _ in range(0, DRAWS, BLOCK):
        drawn = rng.integers(0, len(values), (BLOCK, len(values)))
        means.append(parts[drawn].sum(axis=1) / np.maximum(weights[drawn].sum(axis=1), np.finfo(float).tiny))
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(parts.sum() / weights.sum()), float(low), float(high))


def named(scores: Floats, items: Sequence[Ints], but: Sequence[Ints] | None = None) -> Floats:
    """Name the highest scores, none of `but`, as many as each person has items: the share that is right.  # [p]"""
    # chance decides between equal scores
    order = np.random.Generator(np.random.Philox(key=[scores.shape[1], TIES_STREAM])).permutation(scores.shape[1])
    right = np.zeros(len(items))
    for at, mine in enumerate(items):
        row = scores[at].astype(np.float64)
        row[but[at] if but else []] = -np.inf
        best = order[np.argsort(-row[order], kind="stable")[: len(mine)]]
        right[at] = np.isin(best, mine).mean()
    return right
