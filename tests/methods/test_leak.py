"""The leak that benchmarks/field opens: open, no user draws an item that it has in any part of the data."""

from typing import Any

import numpy as np
import pytest
from benchmarks.field import leak

from fedgrec.cable import draws
from fedgrec.cable.core import Cohort
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.runs.simulation import Simulation

USERS, ITEMS, ROUNDS = 12, 40, 4
FEW: dict[str, dict[str, Any]] = {
    "pfedrec": {"item_boost": 1.0},
    "fedrap": {"apart": 0.0, "item_rate": 1.0},
    "fedmf": {"negatives": 12},
    "fedncf": {"negatives": 12, "hidden": (4,)},
    "fedgrec": {"negatives": 12},  # some of them drawn by degree, shelf by shelf
    "federank": {"negatives": 12},
}


def world(method: str) -> Simulation:
    rng = np.random.default_rng(3)
    kept, held = np.zeros((2, USERS, ITEMS), bool)
    for u in range(USERS):
        mine = rng.permutation(ITEMS)[:9]
        kept[u, mine[:6]], held[u, mine[6:]] = True, True
    ids = {"user_ids": list(range(USERS)), "item_ids": list(range(ITEMS))}
    train, test = (Interactions.from_pairs(*np.nonzero(part), **ids) for part in (kept, held))
    values = {"method": method, "dim": 4, "users_per_round": USERS, "rounds": ROUNDS, "protocol": "paper"} | FEW[method]
    return Simulation(Config().changed(values | {"kernel": "reference"}, "test"), Dataset("few", Split(train, test)))


def held_out_that_moved(run: Simulation, known: Interactions) -> int:
    """How many of users' held-out items they send a change of, in rounds with the same model."""
    moved, test = 0, run.dataset.split.test
    assert test is not None
    for round_ in range(ROUNDS):
        run.server.round = round_
        stage = run.method.stages[-1]
        for u in range(USERS):
            cohort: Cohort = run.users.take(np.array([u]))
            upload, _ = run.method.local_update(cohort, stage, run.method.broadcast(run.server, stage))
            moved += len(np.intersect1d(upload.leaves["items"].index, test.of(u)))
    return moved


@pytest.mark.parametrize("method", FEW)
def test_held_out_items_are_never_drawn_once_the_leak_is_open(method: str) -> None:
    run = world(method)
    run.warm_up()
    known = run.dataset.split.known
    with leak(run.users, known):
        assert held_out_that_moved(run, known) == 0
    assert held_out_that_moved(run, known) > USERS  # closed again, as it was before


def test_the_leak_closes_whatever_happens() -> None:
    run, before = world("pfedrec"), (draws.negatives, draws.negatives_from)
    with pytest.raises(ZeroDivisionError), leak(run.users, run.dataset.split.known):
        raise ZeroDivisionError
    assert (draws.negatives, draws.negatives_from) == before
