"""How much noise a method's sums need so that all sums with one user spend ε together, and what was spent so far.

Every leaf of every sum is one release. What one user changes in it is bounded by the leaf's norm, in whole steps, so Δ₂
is the norm, and Δ₁ at most its square (the numbers are whole) and √words times it. The server may choose who takes part
in a round, so drawing users at random saves nothing: what counts is how often a user takes part.
"""

import math
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedgrec.cable.core import Ints, Leaf
from fedgrec.cable.noise import Multipliers, Release, factor_for, spent
from fedgrec.config.options import RunOptions
from fedgrec.errors import ConfigError
from fedgrec.methods.contract import Method, able

TURNS_STREAM = 22  # of the seed, for the order in which users take turns
COUNT_SHARE = 0.1  # of the budget, in units of 1/multiplier², that goes into the counts of items' users


def turns(method: Method, rounds: int) -> int:
    """How often a user takes part at most, if everybody takes turns."""
    return -(-rounds * method.sampled // method.n_users)


def next_in_turn(seed: int, round_: int, n_users: int, count: int) -> Ints:
    """The users of a round, in one order that the seed draws: after R rounds nobody has had more than ⌈R·S/M⌉ turns."""
    order = np.random.Generator(np.random.Philox(key=[seed, TURNS_STREAM])).permutation(n_users)
    return order[(round_ * count + np.arange(count)) % n_users]


def last_round(method: Method, run: RunOptions) -> int:
    """All rounds; under noise, as many as give no user more turns than planned."""
    if not run.noisy:
        return run.rounds
    return min(run.rounds, turns(method, run.dp_rounds) * method.n_users // method.sampled)


def releases(method: Method, rounds: int, most: int | None = None) -> tuple[Release, ...]:
    """The releases of a user who takes part in all stages of the warm-up and in `most` of these training rounds.

    None: in as many as it has turns. Rounds that show more count first.
    """
    left = turns(method, rounds) if most is None else most
    stages = Counter(method.training(round_) for round_ in range(rounds))
    found = Counter(leaf for stage in method.stages[:-1] for leaf in method.spec(stage).leaves)
    for stage in sorted(stages, key=lambda stage: -len(method.spec(stage).leaves)):
        times = min(left, stages[stage])
        left -= times
        for leaf in method.spec(stage).leaves if times else ():
            found[leaf] += times
    return tuple(_release(leaf, times) for leaf, times in found.items())


def _release(leaf: Leaf, times: int) -> Release:
    whole = min(leaf.norm**2, math.sqrt(leaf.rows * leaf.width) * leaf.norm)
    return Release(leaf.noise, whole, leaf.norm, times)


def with_noise(method: Any, epsilon: float, delta: float, rounds: int, most: int | None = None) -> Any:
    """The method, with the noise under which these rounds spend no more than ε. (see `releases` for `most`)"""
    if not method.takes_noise:
        others = able(lambda method: method.takes_noise)
        raise ConfigError(f"{method.name} has no noise: dp_epsilon is there for {others}; choose one, or leave it out")
    plain = replace(method, noise=Multipliers(1.0, 1.0))
    rest = sum(release.times for release in releases(plain, rounds, most)) - 1  # without the count, which comes first
    # In 1/counts² + rest/multiplier² the first part is the counts' share.
    relative = Multipliers(1 / math.sqrt(COUNT_SHARE), math.sqrt(max(rest, 1) / (1 - COUNT_SHARE)))
    scale = _scale(releases(replace(method, noise=relative), rounds, most), epsilon, delta)
    return replace(method, noise=Multipliers(scale * relative.counts, scale * relative.rest))


@lru_cache(64)  # a node makes its method for every message
def _scale(found: tuple[Release, ...], epsilon: float, delta: float) -> float:
    return math.sqrt(factor_for(epsilon, found, delta))


def line(method: Method, delta: float, rounds: int, most: int | None = None) -> dict[str, float]:
    """What a line of metrics says about the budget."""
    return {"dp_epsilon_spent": spent_by(method, delta, rounds, most), "dp_delta": delta}


def spent_by(method: Method, delta: float, rounds: int, most: int | None = None) -> float:
    return spent(releases(method, rounds, most), delta)
