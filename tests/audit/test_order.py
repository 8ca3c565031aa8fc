"""A model of what follows what tells which of a person's items came next; without order there is nothing to tell."""

from dataclasses import replace

import numpy as np
import pytest

from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, IdMap, Interactions, Split
from fedgrec.studies.audit.audit import attacked
from fedgrec.studies.audit.order import NEXT, OF_STRANGERS, audit
from fedgrec.studies.audit.recording import record
from tests.methods.test_ordered import N, walks

PEOPLE = walks(300)


def walking(times: np.ndarray | None) -> Dataset:
    users, items = np.repeat(np.arange(len(PEOPLE)), [len(mine) for mine in PEOPLE]), np.concatenate(PEOPLE)
    ids = {"user_ids": IdMap.range(len(PEOPLE), "user"), "item_ids": IdMap.range(N, "item")}
    return Dataset("walks", Split(Interactions.from_pairs(users, items, times=times, **ids)))


OPTIONS = Config().of("ordered").changed({"dim": 6, "spare": 2}, "test")
IN_ORDER = np.arange(sum(map(len, PEOPLE)), dtype=float)


def test_what_came_next_is_told_by_the_model_alone() -> None:
    found = {line.name: line for line in attacked(*record(OPTIONS, walking(IN_ORDER))).lines}
    for name in (NEXT, OF_STRANGERS):
        assert found[name].attack.value > 0.4
        assert found[name].popularity.value < 0.3
        assert found[name].chance.value == pytest.approx(0.2, abs=0.05)
    assert found[NEXT].better


def test_an_order_by_chance_tells_nothing_and_without_order_nothing_is_asked() -> None:
    view, truth = record(OPTIONS, walking(np.random.default_rng(0).permutation(IN_ORDER)))
    assert audit(view, truth)[0].attack.value < 0.3
    assert audit(view, replace(truth, people=replace(truth.people, times=None))) == []
    assert audit(*record(OPTIONS.of("spectral"), walking(None))) == []


def test_the_next_one_by_hand() -> None:
    """One person took items 2, 0, 1: after 2 the model names 0, which is right, and after 0 it names 2.

    All are as popular, so that guess is the lower number: 0, then 1.
    """
    view, truth = record(OPTIONS, walking(IN_ORDER))
    scores = np.array([[9, 1, 2, 0], [0, 9, 0, 0], [5, 4, 9, 9], [0, 0, 0, 0.0]])
    ids = {"user_ids": IdMap.range(1, "user"), "item_ids": IdMap.range(4, "item")}
    one = Interactions.from_pairs([0, 0, 0], [2, 0, 1], times=[5.0, 6.0, 7.0], **ids)
    told = replace(view, model=lambda indptr, items: scores[items])
    (found, _) = audit(told, replace(truth, people=one, outsiders=one))
    assert (found.attack.value, found.chance.value, found.popularity.value) == (0.5, 0.5, 1.0)  # type: ignore[union-attr]
