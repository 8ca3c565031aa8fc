"""A server says "your uploads did not count" of a sum that it opened: all hear it, so all send again.

Nothing is told by that where sums open over whole batches: it is the same company again. In a small federation training
rounds without latents open over any nodes, and then the second sum may be without one node.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.cable.core import Upload
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.node.uploads import compute_upload
from tests.attacks.companies import Chooser, in_one_batch
from tests.attacks.lying_server import TRAIN, Liar, total
from tests.federation.worlds import world

FREE = 17  # the round of FedGRec that comes first after some without latents


def all_again(liar: Chooser, second: list[int]) -> tuple[Upload | None, Upload | None]:
    """A round of everybody, of which all are told that it was lost, and the next one over this company."""
    first = liar.open(liar.everybody, liar.plan(TRAIN, round=FREE), None, liar.everybody)
    return first, liar.open(second, liar.plan(TRAIN, round=FREE + 1), None, second)


def likeness(root: Path, **options: Any) -> float:
    """How similar node 2's upload is to the difference of these rounds, the second of them without node 2."""
    liar = Chooser(in_one_batch(root, 4, **options))
    if options.get("method") != "fedmf":
        liar.warm_up()
    plan = liar.plan(TRAIN, round=FREE)
    with NodeStore(liar.fed.nodes[2]) as store:
        words = compute_upload(store, liar.method, plan, store.first_rows(6), liar.broadcast(plan), 1).words
    own = Upload.from_ring(words, plan.spec(liar.method), 1)
    first, second = all_again(liar, [0, 1, 3])
    difference = np.array(total(first, "items")) - np.array(total(second, "items"))
    return float(np.corrcoef(difference, total(own, "items"))[0, 1])


@pytest.mark.parametrize(("options", "least"), [({"method": "fedmf"}, 0.9), ({"latents_every": 0}, 0.2)])
def test_in_a_small_federation_the_next_round_may_be_without_one_node(
    tmp_path: Path, options: dict[str, Any], least: float
) -> None:
    """This is known, and stands: only what others draw, such as their negatives, hides what a node sends there."""
    assert likeness(tmp_path, **options) > least


@pytest.mark.parametrize("method", ["fedmf", "fcf", "fedgrec"])
def test_over_whole_batches_it_is_the_same_company_again(tmp_path: Path, method: str) -> None:
    liar = Chooser(in_one_batch(tmp_path, 4, {"batches_for_training": 1}, method=method))
    if method == "fedgrec":
        liar.warm_up()
    first, without_one = all_again(liar, [0, 1, 3])
    assert first is not None
    assert without_one is None
    assert liar.refused("only over whole batches")


def test_who_draws_nothing_sends_the_same_again(tmp_path: Path) -> None:
    """So a second sum over the same company tells nothing new."""
    liar = Chooser(in_one_batch(tmp_path, 4, {"batches_for_training": 1}, method="fcf"))
    first, again = all_again(liar, liar.everybody)
    assert total(first, "items") == total(again, "items"), liar.refusals


def test_no_round_is_sent_twice(tmp_path: Path) -> None:
    """Whatever is said of the first time: two sums of one round would differ by who was in one of them alone."""
    liar = Liar(world(tmp_path))
    assert liar.sum([0, 1, 2], TRAIN) is not None
    assert liar.sum([0, 1], TRAIN) is None
    assert liar.refused("has sent its part of stage 'train' of this round")


@pytest.mark.parametrize("until", ["masked", "unmask"])
def test_verdicts_that_all_hear_stop_nobody(tmp_path: Path, until: str) -> None:
    """A server that is killed often loses sums, some of them after they were opened: training goes on."""
    liar = Liar(world(tmp_path))
    for round_ in range(6):
        assert (liar.sum([0, 1, 2], replace(TRAIN, round=round_), until=until) is not None) == (until == "unmask")
    assert liar.sum([0, 1, 2], replace(TRAIN, round=6)) is not None, liar.refusals
