"""Who has held-out items, seen from how an evaluation's sum changes: one person may change it by one person's part."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.cable.noise import Release, spent
from fedgrec.federation.common.plan import EVALUATE, Plan
from fedgrec.federation.node import uploads
from fedgrec.federation.node.folder import NodeFolder, open_node
from fedgrec.federation.node.store import NodeStore
from fedgrec.models import metrics
from tests.federation.worlds import world

AGREED = {"evaluation_epsilon": 8.0, "evaluation_users": 1, "evaluations": 20, "least_users": 2}


@pytest.fixture(autouse=True)
def every_list_is_perfect(monkeypatch: pytest.MonkeyPatch) -> None:
    for metric in ("recall", "ndcg"):
        monkeypatch.setattr(metrics, metric, lambda *_: 1.0)


def worst_epsilon(tmp_path: Path) -> float:
    """What all evaluations spend by the accountant, given how much one person changed what a node sent."""
    home = open_node(world(tmp_path, nodes=3, users=6, options=AGREED).nodes[0])
    with NodeStore(home.path) as store:
        sent = [_sent(home, store)]
        for row in store.first_rows(-1):  # until nobody is left to judge by
            store.db.execute("DELETE FROM interactions WHERE held_out = 1 AND user = ?", [row])
            sent.append(_sent(home, store))
    changed = np.abs(np.diff(sent, axis=0))
    agreed, leaf = home.agreed, _plan(home).spec(home.method(18)).leaves[0]
    worst = Release((agreed.deviation / leaf.step) ** 2, changed.sum(1).max(), np.sqrt(np.square(changed).sum(1).max()))
    return spent([worst._replace(times=agreed.evaluations)])


def _plan(home: NodeFolder) -> Plan:
    return Plan(EVALUATE, 0, 0, 18, 18, topk=home.agreed.topk, least=2, deviation=home.agreed.deviation)


def _sent(home: NodeFolder, store: NodeStore) -> np.ndarray:
    """What the node's users send, without noise, for a model that ranks everything everybody wants first."""
    method = home.method(18)
    broadcast = method.broadcast(method.init(0), method.training(0))
    words = uploads.compute_upload(store, method, _plan(home), store.first_rows(-1), broadcast, home.least_users).words
    return words.astype(np.float64)


def test_evaluations_spend_what_was_agreed_also_where_few_judge(tmp_path: Path) -> None:
    assert 7.5 < worst_epsilon(tmp_path) <= 8.0


def test_mutation_few_are_kept_silent_under_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: one of two people who judge silences the other when it leaves."""
    held_out = uploads._held_out

    def threshold(store: NodeStore, sum_: Plan, *more: Any) -> Any:
        return held_out(store, replace(sum_, deviation=0.0), *more)

    monkeypatch.setattr(uploads, "_held_out", threshold)
    assert worst_epsilon(tmp_path) > 18.0
