"""ε from below, by one run: canaries that are in the sums or not, and a guesser (Steinke, Nasr, Jagielski 2023).

Each of m canaries is a user of its own that takes part by the toss of a coin. The guesser reads the opened, noisy sums
and says of the r canaries that it is surest of whether they took part. If v guesses are right, every ε under which so
many would be a chance below 5 % is refuted: the largest such ε is a lower bound, which the accountant must exceed.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedgrec.cable.core import Broadcast, Rows, Upload
from fedgrec.cable.noise import spent
from fedgrec.config.options import RunOptions
from fedgrec.methods import budget, spectral
from fedgrec.methods.fedgrec import TRAIN
from fedgrec.runs.sums import Sums

CANARIES, SURE, DELTA = 2000, 0.95, 1e-6


def lower_bound(right: int, guesses: int, canaries: int, delta: float = DELTA) -> float:
    """The largest ε under which so many right guesses have a chance below 5 %: Theorem 5.2, to a hundredth."""

    def chance(epsilon: float) -> float:
        tail = stats.binom.sf(right - 1 - np.arange(guesses + 1), guesses, 1 / (1 + math.exp(-epsilon)))
        gains = (tail[1:] - tail[0]) / np.arange(1, guesses + 1)
        return float(tail[0] + 2 * canaries * delta * gains.max(initial=0))

    low, high = 0.0, 50.0
    if chance(low) > 1 - SURE:
        return 0.0
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) <= 1 - SURE else (low, middle)
    return low


def test_known_bounds() -> None:
    """A hundred right guesses of a hundred, δ = 0: p^100 = .05 is p = .9705, so ε = ln(p/(1 − p)) = 3.49."""
    assert lower_bound(100, 100, 100, delta=0) == pytest.approx(3.49, abs=0.02)
    assert lower_bound(55, 100, 100, delta=0) == 0, "a coin does as well one time in six"
    assert lower_bound(100, 100, 100, delta=1e-3) < lower_bound(100, 100, 100, delta=0)


def one_run(multiplier: float, less: float = 1.0, rounds: int = 3) -> tuple[float, float]:
    """The accountant's ε of these sums, and the lower bound; the added noise has `less` of the planned variance.

    A canary adds the most that a user may to one word, the same in every sum: no user is easier to find.
    """
    method = spectral.make(spectral.Options(dim=8, spare=0), CANARIES // 4, 10**6)
    method = replace(method, noise=budget.Multipliers(multiplier, multiplier))
    spec = method.spec(TRAIN)
    leaf = spec.leaf("items")
    there = np.random.default_rng(1).random(CANARIES) < 0.5
    words = np.zeros((leaf.rows, leaf.width), spec.dtype)
    words.ravel()[np.flatnonzero(there)] = int(leaf.norm)
    sums, seen = Sums(RunOptions(seed=5), 1), np.zeros(CANARIES)

    class Quieter(type(method)):
        def spec(self, stage):
            found = super().spec(stage)
            return replace(found, leaves=tuple(replace(part, noise=part.noise * less) for part in found.leaves))

    quieter = Quieter(**vars(method))
    for round_ in range(rounds):
        broadcast = Broadcast(round_, method.n_items, np.zeros((1, 0, 0)), np.zeros(0, np.int64))
        upload = Upload({"items": Rows(np.arange(leaf.rows), words)}, CANARIES)
        total = sums.noised(upload, quieter, TRAIN, broadcast, CANARIES)
        seen += total.leaves["items"].values.ravel()[:CANARIES] / (rounds * leaf.norm)
    stated = spent([budget._release(leaf, rounds)], DELTA)
    surest = np.argsort(-np.abs(seen - 0.5))
    bounds = []
    for guesses in (100, 500, CANARIES):
        chosen = surest[:guesses]
        right = int(((seen[chosen] > 0.5) == there[chosen]).sum())
        bounds.append(lower_bound(right, guesses, CANARIES))
    return stated, max(bounds)


@pytest.mark.parametrize("multiplier", [1.5, 2.5, 4.0])
def test_the_accountant_says_more_than_one_run_shows(multiplier: float) -> None:
    stated, shown = one_run(multiplier)
    assert shown <= stated
    assert shown >= stated / 8, "a bound that finds nothing would never fail"


@pytest.mark.parametrize("multiplier", [2.5, 4.0])
def test_with_a_quarter_of_the_noise_one_run_refutes_the_accountant(multiplier: float) -> None:
    """A quarter of the standard deviation, so a sixteenth of the variance."""
    stated, shown = one_run(multiplier, less=1 / 16)
    assert shown > stated
