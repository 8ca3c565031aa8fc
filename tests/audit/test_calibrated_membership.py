"""Shadow models recognise clicks that a model learned, none where it learned nothing, and no more than ε allows."""

import logging
import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from fedgrec.config.configuration import Config
from fedgrec.data import Split
from fedgrec.studies.audit import shadows
from fedgrec.studies.audit.membership import halves
from fedgrec.studies.audit.recording import Contributions, Truth
from fedgrec.studies.audit.scores import Finding, NotApplicable
from tests.audit.worlds import sparse

FALSE_ALARMS = shadows.FALSE_ALARMS
log = logging.getLogger(__name__)
METHODS: dict[str, dict[str, Any]] = {
    "spectral": {"dim": 40, "chance": 0.0},
    "two-parts": {"dim": 16, "rounds": 30, "turns": 0},
    "ordered": {},
    "fedgrec": {"dim": 16, "rounds": 40, "users_per_round": 60, "negatives": 64, "kernel": "cpu"},
}


def people(seed: int = 0) -> Truth:
    """60 people who share few of 300 items, in an order."""
    data = sparse(60, 300, seed).split.train
    times = np.random.default_rng(seed).random(data.n_pairs)
    nothing = np.zeros(0, np.int64)
    return Truth(replace(data, times=times), data, Contributions(nothing, nothing))


def config(method: str, **values: Any) -> Config:
    return Config().changed({"method": method, "protocol": "paper", "device": "cpu"} | METHODS[method] | values, "test")


@cache
def attacked(method: str, seed: int = 0, pairs: int = 8, **values: Any) -> Finding:
    found = shadows.audit(config(method, **values), people(seed), pairs)
    assert isinstance(found, Finding)
    log.info("%s, seed %d, %s: %s", method, seed, values, found.sentence)
    return found


@pytest.mark.parametrize("method", METHODS)
def test_what_a_model_learned_of_few_people_is_recognised(method: str) -> None:
    found = attacked(method)
    assert found.attack.low > 0.5
    assert found.better
    assert found.popularity is not None
    assert found.popularity.low < 3 * FALSE_ALARMS
    assert found.more["by_popularity"]["rarest"].low > 0.5


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_recognised_where_nothing_was_learned(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: every model is trained on the half that the attacker knows, and on no click in question."""
    truth = people()
    known = np.concatenate([*map(np.isin, map(truth.people.of, range(60)), halves(truth.people, np.arange(60))[0])])
    monkeypatch.setattr(shadows, "Split", lambda data: Split(truth.people.select(known)))
    found = shadows.audit(config(method), truth, 8)
    assert isinstance(found, Finding)
    assert not found.better
    assert found.attack.low <= 1.5 * FALSE_ALARMS


@pytest.mark.parametrize("method", ["spectral", "ordered"])
def test_the_score_alone_tells_less(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: nothing is compared with other models."""
    monkeypatch.setattr(shadows, "calibrated", lambda seen: seen)
    found = shadows.audit(config(method), people(), 8)
    assert isinstance(found, Finding)
    assert found.attack.high < attacked(method).attack.low


@pytest.mark.parametrize(("unit", "epsilon"), [("user", 1.0), ("interaction", 1.0), ("interaction", 2.0)])
def test_under_a_promise_no_more_is_found_than_it_allows(unit: str, epsilon: float) -> None:
    """A share of true positives is at most e^ε times that of false ones, and δ."""
    assert attacked("spectral", dp_epsilon=epsilon, dp_unit=unit).attack.low <= math.exp(epsilon) * FALSE_ALARMS + 1e-6


def test_the_likelihood_ratio_by_hand() -> None:
    """With the click 4 and 6, without it 0 and 2: means 5 and 1, variances 2 and 2, and one click has no other spread.

    The asked pair's scores are 5 and 3: (16 − 0)/4 = 4, and (4 − 4)/4 = 0.
    """
    seen = np.array([[5.0, 3], [4, 0], [6, 2]])[..., None]
    assert shadows.calibrated(seen)[0, :, 0] == pytest.approx([4, 0])


def test_the_share_that_is_recognised_by_hand() -> None:
    """One pair, four clicks of two people: the second and the third score higher than all that are out."""
    seen = np.array([[[1.0, 7, 8, 3], [4, 5, 2, 6]]])
    assert shadows.recognised(seen, np.array([3, 3, 9, 9])).tolist() == [0.5, 0.5]


def test_few_models_do_not_suffice() -> None:
    assert isinstance(shadows.audit(config("spectral"), people(), 2), NotApplicable)
