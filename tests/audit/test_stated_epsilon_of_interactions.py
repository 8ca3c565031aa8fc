"""The ε of decoys from below: every item of one user is a canary of its own, in the sums of every method."""

import logging
from dataclasses import fields

import numpy as np
import pytest

from fedgrec.cable import decoys
from fedgrec.cable.core import Floats
from fedgrec.cable.decoys import false_share
from fedgrec.config.configuration import Config
from fedgrec.config.options import METHODS
from fedgrec.data import Dataset, IdMap, Interactions, Split
from fedgrec.methods.contract import make_method
from fedgrec.runs.simulation import Simulation
from tests.audit.bounds import cases, dense, lower_bound, stages

log = logging.getLogger(__name__)
TELLING = [name for name in METHODS if make_method(name).takes_decoys]
FEW = {"dim": 2, "negatives": 1, "max_positives": 16}  # sums hold more of the items that nobody has


def told(name: str, epsilon: float, n_items: int) -> tuple[Floats, Floats]:
    """Scores of the items that one user has, and of those that it has not: each is a canary of its own.

    The attacker knows the others' uploads, so what is left of the sums is this user's alone.
    """
    has = np.random.default_rng(1).random(n_items) < 0.5
    users = np.concatenate([np.zeros(has.sum(), int), np.ones(50, int)])
    items = np.concatenate([np.flatnonzero(has), np.arange(50)])
    ids = {"user_ids": IdMap.range(2, "user"), "item_ids": IdMap.range(n_items, "item")}
    data = Interactions.from_pairs(users, items, **ids)
    known_options = {option.name for option in fields(make_method(name).options)}
    few = {key: value for key, value in FEW.items() if key in known_options}
    chosen = {"method": name, "dp_epsilon": epsilon, "dp_unit": "interaction", "protocol": "paper", "rounds": 1}
    run = Simulation(Config().changed(chosen | few, "test"), Dataset("canaries", Split(data, test=data)))
    seen, everybody = np.zeros(n_items), np.arange(2)
    for level, stage in enumerate(stages(run.method, 1)):
        if stage.combine == "match":
            continue
        broadcast = run.method.broadcast(run.server, stage, level)
        known, _ = run.method.local_update(run.users.take(np.array([1])), stage, broadcast)
        total, pending = run.sums.total(run.method, stage, run.users, broadcast)
        for leaf in run.method.spec(stage).leaves:
            if leaf.rows % n_items == 0:
                left = np.abs(dense(total.leaves[leaf.name], leaf) - dense(known.leaves[leaf.name], leaf)).sum(1)
                seen += (left.reshape(-1, n_items) > 0).sum(0)
        run.server = run.method.apply(run.server, stage, total, level)
        run.method.commit(run.users, everybody, pending)
    return seen[has], seen[~has]


@pytest.mark.parametrize(
    ("name", "epsilon"),
    cases([("spectral", 8.0), ("spectral", 1.0)], [(n, e) for n in TELLING if n != "spectral" for e in (2.0, 8.0)]),
)
def test_sums_of_decoys_show_less_than_the_stated_epsilon_and_not_far_less(name: str, epsilon: float) -> None:
    found = lower_bound(*told(name, epsilon, 400_000), delta=0)
    log.info("%s at %s: %.2f", name, epsilon, found)
    assert 0.8 * epsilon < found <= epsilon


@pytest.mark.parametrize("name", [n if n == "spectral" else pytest.param(n, marks=pytest.mark.slow) for n in TELLING])
def test_a_quarter_of_the_decoys_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoys, "false_share", lambda epsilon: false_share(epsilon) / 4)
    assert lower_bound(*told(name, 8.0, 800_000), delta=0) > 8
