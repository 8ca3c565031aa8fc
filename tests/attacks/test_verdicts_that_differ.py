"""A server that tells one node that a sum was lost, and all others that it counted: that node alone sends again."""

from pathlib import Path

import pytest

from fedgrec.federation.common.history import line
from fedgrec.federation.common.plan import Plan
from fedgrec.federation.node import history
from fedgrec.federation.node.store import NodeStore
from tests.attacks.companies import Chooser, in_one_batch, touched
from tests.attacks.lying_server import TRAIN

V = 0  # the node that the server is curious about
OTHER = "tells another history of sums than this node knows"


def test_who_is_told_alone_that_a_sweep_was_lost_does_not_send_alone(tmp_path: Path) -> None:
    """The same sweep twice, over everybody: whoever believes that the first one counts has nothing more to send."""
    liar = Chooser(in_one_batch(tmp_path, 4, latents_every=0))
    liar.warm_up()
    first = liar.sweep(liar.everybody, 1, True, [V])
    assert touched(first) == set.union(*map(liar.items_of, liar.everybody)), liar.refusals
    again = liar.sweep(liar.everybody, 2, True)
    assert touched(again) != liar.items_of(V), "the exact items of one node"
    assert again is None


def test_if_histories_were_not_bound_into_the_keys_it_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = Plan.context
    monkeypatch.setattr(Plan, "context", lambda plan, model, *told: bound(plan, model, *told[:2], *told[3:]))
    liar = Chooser(in_one_batch(tmp_path, 4, latents_every=0))
    liar.warm_up()
    liar.sweep(liar.everybody, 1, True, [V])
    assert touched(liar.sweep(liar.everybody, 2, True)) == liar.items_of(V)


def test_who_is_told_alone_that_the_warm_up_was_lost_does_not_send_alone(tmp_path: Path) -> None:
    """The latents of the warm-up, and then a sweep: the model has not changed."""
    liar = Chooser(in_one_batch(tmp_path, 4, latents_every=0))
    liar.warm_up(None, [V])
    alone = liar.sweep(liar.everybody, 1, False)
    assert touched(alone) != liar.items_of(V), "the exact items of one node"
    assert alone is None


def test_who_all_are_told_was_not_in_a_sweep_does_not_send_alone(tmp_path: Path) -> None:
    """All hear the same history, in which the sum of everybody is said to be without one node: all have signed it."""
    liar = Chooser(in_one_batch(tmp_path, 4, latents_every=0))
    liar.warm_up()
    first = liar.sweep(liar.everybody, 1, True, [], [V])
    assert touched(first) == set.union(*map(liar.items_of, liar.everybody)), liar.refusals
    again = liar.sweep(liar.everybody, 2, True)
    assert touched(again) != liar.items_of(V), "the exact items of one node"
    assert again is None
    assert sum(OTHER in reason for reason in liar.refusals) >= len(liar.everybody)


def test_who_begins_another_sum_before_the_verdict_does_not_send_alone(tmp_path: Path) -> None:
    """All hear the same history, but one node has heard of another sum meanwhile."""
    liar = Chooser(in_one_batch(tmp_path, 4, latents_every=0))
    liar.warm_up()
    first = liar.sweep(liar.everybody, 1, True, [], [], [V])
    assert touched(first) == set.union(*map(liar.items_of, liar.everybody)), liar.refusals
    again = liar.sweep(liar.everybody, 4, True)
    assert touched(again) != liar.items_of(V), "the exact items of one node"
    assert again is None
    assert liar.refused(OTHER)


def test_nodes_that_are_told_to_trust_again_do_not_make_another_send_alone(tmp_path: Path) -> None:
    """As above; then the operators of all others give `--trust-again`, and all hear that the sweep was lost."""
    liar = Chooser(in_one_batch(tmp_path, 4, latents_every=0))
    liar.warm_up()
    assert liar.sweep(liar.everybody, 1, True, [], [], [V]) is not None, liar.refusals
    for node in liar.everybody:
        if node != V:
            with NodeStore(liar.fed.nodes[node]) as store:
                history.forget(store)
    liar.lines[-1] = line(liar.sessions[-1], liar.plan(TRAIN, round=1).place, 1, []).pack()
    again = liar.sweep(liar.everybody, 4, True)
    assert touched(again) != liar.items_of(V), "the exact items of one node"


def test_if_lists_that_were_signed_did_not_bind_the_history_it_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_agrees", lambda *_: True)
    liar = Chooser(in_one_batch(tmp_path, 4, latents_every=0))
    liar.warm_up()
    liar.sweep(liar.everybody, 1, True, [], [V])
    assert touched(liar.sweep(liar.everybody, 2, True)) == liar.items_of(V)


def test_all_who_are_told_that_a_sweep_was_lost_send_it_again(tmp_path: Path) -> None:
    """A server that lost a sum says so to all: that stops nobody, and the sum is the same."""
    liar = Chooser(in_one_batch(tmp_path, 4, latents_every=0))
    liar.warm_up()
    first = liar.sweep(liar.everybody, 1, True, liar.everybody)
    again = liar.sweep(liar.everybody, 2, True)
    assert first is not None
    assert again is not None, liar.refusals
    assert (first == again).all()
