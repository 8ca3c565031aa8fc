"""The ε of evaluations from below: a canary judges on a real node, and a lying server opens the sums through masks."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.cable.core import Cohort, Rows, Upload, UploadSpec
from fedgrec.federation.common import evaluation
from fedgrec.federation.node import uploads
from fedgrec.federation.node.store import NodeStore
from fedgrec.models import metrics
from tests.attacks.lying_server import JUDGE, TRAIN, Liar
from tests.audit.bounds import lower_bound
from tests.federation.worlds import world

COPIES, NODES = 40_000, [0, 1, 2]
AGREED = {"evaluations": 3, "least_nodes": 3, "corrupt": 0.0}
log = logging.getLogger(__name__)


class Copies:
    """Each number of an evaluation many times, with noise of its own; in a quarter of them the canary judges.

    Every list is perfect, so that the canary changes each number by the most that a person can.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there, self.canary = np.arange(COPIES) % 4 == 0, -1
        self.spec, self.measured = evaluation.spec, uploads.measured
        monkeypatch.setattr(evaluation, "spec", self.longer)
        monkeypatch.setattr(uploads, "measured", self.repeated)
        for metric in ("recall", "ndcg"):
            monkeypatch.setattr(metrics, metric, lambda *_: 1.0)

    def longer(self, ks: Sequence[int], users: int, deviation: float = 0.0) -> UploadSpec:
        spec = self.spec(ks, users, deviation)
        return replace(spec, leaves=tuple(replace(leaf, rows=COPIES) for leaf in spec.leaves))

    def repeated(self, method: Any, server: Any, cohort: Cohort, held_out: Any, *more: Any) -> Upload:
        without = [items[: 0 if key == self.canary else None] for key, items in zip(cohort.keys, held_out, strict=True)]
        all_, others = (self.measured(method, server, cohort, part, *more).leaves for part in (held_out, without))
        there, rows = self.there[:, None], np.arange(COPIES)
        leaves = {name: Rows(rows, np.where(there, all_[name].values, others[name].values)) for name in all_}
        return Upload(leaves, len(cohort))


def shown(path: Path, epsilon: float, monkeypatch: pytest.MonkeyPatch, multiply: float = 1.0) -> float:
    """The bound that the server shows after all evaluations; the noise may be other than the agreed one."""
    planned = evaluation.deviation
    monkeypatch.setattr(evaluation, "deviation", lambda *agreed: multiply * planned(*agreed))
    copies = Copies(monkeypatch)
    liar = Liar(world(path, options=AGREED | {"evaluation_epsilon": epsilon}))
    with NodeStore(liar.fed.nodes[0]) as store:
        rows = store.first_rows(6)
        judging = [row for row, items in zip(rows, store.held_out(rows), strict=True) if len(items)]
        copies.canary = store.cohort(liar.method, judging[:1]).keys[0]
    scores = np.zeros(COPIES)
    for round_ in range(AGREED["evaluations"]):
        liar.trained(NODES, replace(TRAIN, round=round_))
        judge = replace(JUDGE, round=round_, deviation=liar.home.agreed.deviation)
        total = liar.sum(NODES, judge)
        assert total, liar.refusals
        liar.told_the_truth()
        scores += sum(rows.values[:, 0].astype(float) for rows in total.leaves.values())
    assert liar.sum(NODES, replace(judge, round=round_ + 1)) is None
    return lower_bound(scores[copies.there], scores[~copies.there])


@pytest.mark.parametrize("epsilon", [2.0, 8.0])
def test_evaluations_show_less_than_their_epsilon_and_not_far_less(
    epsilon: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = shown(tmp_path, epsilon, monkeypatch)
    log.info("evaluations at %s: %.2f", epsilon, found)
    assert epsilon / 6 < found <= epsilon


def test_a_quarter_of_the_noise_of_evaluations_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(tmp_path, 4.0, monkeypatch, multiply=1 / 4) > 4
