"""Sums over companies that the server chooses: added up, they leave one node, although every floor is kept.

Latents telescope: a node sends how they have changed, so a sweep under false degrees and one under the true degrees
cancel for everybody who is in both. All verdicts are true, and tell all nodes in a sum the same.
"""

from pathlib import Path

import numpy as np
import pytest

from fedgrec.federation.common.plan import CHANGES, Plan
from fedgrec.federation.node import changes, rules
from fedgrec.federation.node.store import NodeStore
from tests.attacks.companies import Chooser, in_one_batch, touched
from tests.attacks.lying_server import TRAIN

V, W = 0, 1  # the node that the server is curious about, and another one


def test_the_attacker_knows_its_trade(tmp_path: Path) -> None:
    """Sums of everybody are opened, and cancel: otherwise the refusals below would mean nothing."""
    liar = Chooser(in_one_batch(tmp_path, 4, latents_every=0))
    liar.warm_up()
    false, true = liar.sweep(liar.everybody, 1, True), liar.sweep(liar.everybody, 2, False)
    assert touched(false) == set.union(*map(liar.items_of, liar.everybody)), liar.refusals
    assert touched(false, true) == set(), liar.refusals


def test_without_the_rule_of_batches_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "check_batches", lambda *_: None)
    liar = Chooser(in_one_batch(tmp_path, 4, latents_every=0))
    liar.warm_up()
    assert touched(liar.sweep(liar.everybody, 1, True), liar.sweep([1, 2, 3], 2, False)) == liar.items_of(V)


def test_two_sweeps_whose_companies_differ_by_one_node(tmp_path: Path) -> None:
    liar = Chooser(in_one_batch(tmp_path, 4, latents_every=0))
    liar.warm_up()
    false, true = liar.sweep(liar.everybody, 1, True), liar.sweep([1, 2, 3], 2, False)
    assert touched(false, true) != liar.items_of(V), "the exact items of one node"
    assert false is not None
    assert true is None


def test_a_sweep_after_a_warm_up_that_lacks_one_node(tmp_path: Path) -> None:
    """Nobody's latents change but those of the node that has sent none yet."""
    liar = Chooser(in_one_batch(tmp_path, 4, latents_every=0))
    liar.warm_up([1, 2, 3])
    alone = touched(liar.sweep(liar.everybody, 1, False))
    assert alone != liar.items_of(V), "the exact items of one node"


def test_two_rounds_with_latents_whose_companies_differ_by_one_node(tmp_path: Path) -> None:
    """With tables of zeros nobody's embedding moves, so what the others send cancels in training, too."""
    liar = Chooser(in_one_batch(tmp_path, 4, latents_every=1))
    liar.warm_up()
    false = liar.sweep(liar.everybody, 1, True, moving=False)
    true = liar.sweep([1, 2, 3], 2, False, moving=False)
    assert touched(false, true) != liar.items_of(V), "the exact items of one node"
    assert false is not None
    assert true is None


def test_two_rounds_of_spectral_whose_companies_differ_by_one_node(tmp_path: Path) -> None:
    """The server tells the same table twice."""
    liar = Chooser(in_one_batch(tmp_path, 4, method="spectral"))
    whole = liar.opened(liar.everybody, "items", liar.plan(TRAIN, round=0))
    less = liar.opened([1, 2, 3], "items", liar.plan(TRAIN, round=1))
    assert whole is not None
    assert touched(whole, None if less is None else -less) != liar.items_of(V), "the exact items of one node"
    assert less is None


def test_four_sweeps_of_which_any_two_differ_by_three_nodes_or_more(tmp_path: Path) -> None:
    """A + B − C − D is one node: no rule about pairs of companies is enough."""
    liar = Chooser(in_one_batch(tmp_path, 13, latents_every=0))
    liar.warm_up()
    a, b = {V, 1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}
    c, d = {1, 2, 3, 7, 8, 9}, {4, 5, 6, 10, 11, 12}
    assert min(len(x ^ y) for x in (a, b, c, d) for y in (a, b, c, d) if x is not y) >= 3
    turns = zip((a, b, c, d), (1, 2, 4, 8), (True, True, False, False), strict=True)
    sums = [liar.sweep(company, round_, false) for company, round_, false in turns]
    assert touched(*sums) != liar.items_of(V), "the exact items of one node"
    assert all(part is None for part in sums)


def test_a_sweep_before_and_a_sweep_after_nodes_have_left_tell_of_them_together(tmp_path: Path) -> None:
    """Who is removed is exposed: the others of the batch go on, and cancel. Of two who left with the same roster only
    what they have together is told.
    """
    liar = Chooser(in_one_batch(tmp_path, 6, latents_every=0))
    liar.warm_up()
    false = liar.sweep(liar.everybody, 1, True)
    assert false is not None, liar.refusals
    liar.without(V, W)
    assert liar.sweep([2, 3, 4], 2, False) is None, "not all who are left of the batch"
    true = liar.sweep(liar.everybody, 4, False)
    assert touched(false, true) == liar.items_of(V) | liar.items_of(W)


# --------------------------------------------------------------------------------------- who changed something


def clicked(liar: Chooser, node: int) -> list[int]:
    """A user of this node gets two new items; returns them."""
    with NodeStore(liar.fed.nodes[node]) as store, store.transaction():
        row = store.first_rows(1)[0]
        had = changes.wanted(store, row)
        new = sorted(set(range(liar.home.n_items)) - set(had))[:2]
        changes.want(store, row, had + new)
    liar.greet(node)
    return new


def recount(liar: Chooser, company: list[int], begun: int) -> list[int] | None:
    """The items whose counts change. A season needs only a round's number that is large enough."""
    found = liar.open(company, liar.plan(Plan("recount", 0, begun, 0, 0, begun=begun)))
    return None if found is None else np.flatnonzero(found.leaves["degrees"].values[:, 0]).tolist()


@pytest.mark.keep(1)
@pytest.mark.parametrize("who", range(4))
def test_counts_of_changes_do_not_tell_who_changed_something(tmp_path: Path, who: int) -> None:
    """One count of everybody, and one without each node in turn; then the recount tells what is new."""
    liar = Chooser(in_one_batch(tmp_path, 4, latents_every=0))
    liar.warm_up()
    new = clicked(liar, who)

    def count(company: list[int], level: int) -> int | None:
        found = liar.open(company, liar.plan(Plan(CHANGES, level, 0, 0, 0)))
        return None if found is None else int(found.leaves["changed"].values[0, 0])

    assert count(liar.everybody, 0) == 1, liar.refusals
    without = [count([node for node in liar.everybody if node != v], 1 + v) for v in liar.everybody]
    changed = [node for node, left in enumerate(without) if left == 0]
    assert (changed, recount(liar, liar.everybody, 10)) != ([who], new), "who clicked, and on what"
    assert without == [None] * 4


def test_no_recount_is_left_for_one_node_alone(tmp_path: Path) -> None:
    """All others are recounted without it, so the next recount holds its new items alone."""
    liar = Chooser(in_one_batch(tmp_path, 4, latents_every=0))
    liar.warm_up()
    new = [clicked(liar, node) for node in liar.everybody][V]
    others = recount(liar, [1, 2, 3], 10)
    assert recount(liar, liar.everybody, 20) != new, "the new items of one node"
    assert others is None
