"""Is this click among those that a model was trained on? Asked by an attacker with models of its own.

LiRA (Carlini et al. 2022), leaving one out: many models, each trained on a random half of the clicks in question. For
each click the other models say how its score is spread with it and without it; the likelihood ratio of both is the
answer about the model that was left out. So every person and click is its own comparison, in and out: a guess that
knows nothing, or popularity alone, catches 1 % at 1 % of false alarms. The attacker knows half of everybody's items and
asks the published model about newcomers who have these.
"""

import logging
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedgrec.cable.core import Floats, Ints
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, Split
from fedgrec.runs.simulation import Simulation
from fedgrec.studies.audit.membership import halves
from fedgrec.studies.audit.recording import published
from fedgrec.studies.audit.scores import Estimate, interval
from tests.audit.worlds import dataset, sparse

log = logging.getLogger(__name__)
Inside = NDArray[np.bool_]  # [models, clicks]
MODELS, FALSE_ALARMS = 24, 0.01
METHODS: dict[str, dict[str, Any]] = {
    "spectral": {"dim": 40, "chance": 0.0},
    "two-parts": {"dim": 16, "rounds": 30, "turns": 0},
    "ordered": {},
}


def calibrated(scores: Floats, inside: Inside) -> Floats:
    """The likelihood ratio of "in" to "out" by all models but the asked one.  # [models, clicks]"""
    found = np.zeros_like(scores)
    for asked in range(len(scores)):
        others, was_in = np.delete(scores, asked, 0), np.delete(inside, asked, 0)
        share = [np.where(part, others, np.nan) for part in (was_in, ~was_in)]
        with_it, without = (np.nanmean(part, axis=0) for part in share)
        spread = np.sqrt((np.nanvar(share[0], axis=0) + np.nanvar(share[1], axis=0)) / 2) + 1e-9
        found[asked] = ((scores[asked] - without) ** 2 - (scores[asked] - with_it) ** 2) / (2 * spread**2)
    return found


def caught(scores: Floats, inside: Inside, owner: Ints) -> Estimate:
    """The share of clicks that were in, per person, above all but 1 % of those that were out."""
    sure = scores > np.quantile(scores[~inside], 1 - FALSE_ALARMS)
    hits = np.bincount(owner, (sure & inside).sum(0)) / np.maximum(np.bincount(owner, inside.sum(0)), 1)
    return interval(hits[np.unique(owner)])


def attacked(method: str, seed: int = 0, trained: bool = True, **values: Any) -> dict[str, Estimate]:
    """What is caught at 1 % of false alarms: by likelihood ratios, by the score alone, by popularity."""
    rng, whole = np.random.default_rng(seed), sparse(60, 300, seed).split.train
    known, hidden = halves(whole, np.arange(whole.n_users))
    owner = np.repeat(np.arange(whole.n_users), [len(part) for part in hidden])
    clicks = np.concatenate(hidden)
    sure = [(user, item) for user, items in enumerate(known) for item in items.tolist()]
    inside = rng.random((MODELS, len(clicks))) < 0.5
    scores, popular = np.zeros(inside.shape), np.zeros(inside.shape)
    for at, these in enumerate(inside):
        there = list(zip(owner[these].tolist(), clicks[these].tolist(), strict=True)) if trained else []
        data = dataset(sorted(sure + there), whole.n_users, whole.n_items)
        chosen = {"method": method, "protocol": "paper", "seed": at, "device": "cpu"} | METHODS[method] | values
        run = Simulation(Config().changed(chosen, "test"), Dataset("shadow", Split(data.split.train)))
        run.run()
        told = published(run.method, run.server)(np.cumsum([0, *map(len, known)]), np.concatenate(known))
        scores[at], popular[at] = told[owner, clicks], data.split.train.degrees()[clicks]
    ways = {"calibrated": calibrated(scores, inside), "score": scores, "popularity": popular}
    return {name: caught(part, inside, owner) for name, part in ways.items()}


def said(found: dict[str, Estimate]) -> str:
    return ", ".join(f"{way} {100 * e.value:.1f} % ({100 * e.low:.1f}–{100 * e.high:.1f})" for way, e in found.items())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", METHODS)
def test_few_people_are_found_by_calibrated_scores(method: str, seed: int) -> None:
    """60 people who share few items: the model tells nearly all clicks, by calibration far more than by its score."""
    found = attacked(method, seed)
    log.info("%s: %s", method, said(found))
    assert found["calibrated"].low > 0.8
    assert found["calibrated"].low > found["score"].high > found["score"].low > found["popularity"].high
    assert found["popularity"].low < 3 * FALSE_ALARMS


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_found_where_nothing_was_learned(method: str) -> None:
    """The same clicks, trained in no model."""
    found = attacked(method, trained=False)
    assert found["calibrated"].low < 1.5 * FALSE_ALARMS


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "epsilon"), [("user", 1.0), ("interaction", 1.0), ("interaction", 2.0)])
def test_under_a_promise_no_more_is_found_than_it_allows(unit: str, epsilon: float) -> None:
    """A share of true positives is at most e^ε times that of false ones, and δ."""
    found = attacked("spectral", dp_epsilon=epsilon, dp_unit=unit)["calibrated"]
    log.info("%s, %s: %s", unit, epsilon, found)
    assert found.low <= math.exp(epsilon) * FALSE_ALARMS + 1e-6
