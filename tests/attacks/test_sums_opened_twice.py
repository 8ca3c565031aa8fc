"""A sum that is taken once, such as the degree count, is opened for two companies: they differ by only a few nodes."""

from pathlib import Path

import pytest

from fedgrec.cable.core import Upload
from fedgrec.federation.node import rules
from fedgrec.federation.node.store import NodeStore
from fedgrec.secagg.parameters import choose
from tests.attacks.companies import in_one_batch
from tests.attacks.lying_server import DEGREES, Liar, counts, total
from tests.federation.worlds import world


def two_counts(liar: Liar) -> tuple[Upload | None, Upload | None]:
    """All seven opened by four, then five opened by the three others: each node helps once."""
    first = liar.sum(range(7), DEGREES, openers=[0, 1, 2, 3])
    return first, liar.sum([0, 3, 4, 5, 6], DEGREES, openers=[4, 5, 6], threshold=3)


def test_without_the_rule_of_batches_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "check_batches", lambda *_: None)
    liar = Liar(in_one_batch(tmp_path, 7, {"corrupt": 0.0}))
    first, second = two_counts(liar)
    difference = [a - b for a, b in zip(total(first, "degrees"), total(second, "degrees"), strict=True)]
    assert difference == counts(liar, [1, 2]), "two nodes' degree counts, exactly"


def test_all_seven_opened_by_four_then_five_opened_by_three_others(tmp_path: Path) -> None:
    liar = Liar(in_one_batch(tmp_path, 7, {"corrupt": 0.0}))
    first, second = two_counts(liar)
    assert first is not None, liar.refusals
    assert second is None
    assert liar.refused("only over whole batches")


def test_nobody_helps_twice(tmp_path: Path) -> None:
    """Where each node is a batch of its own, the second count has to be opened by others."""
    liar = Liar(world(tmp_path, nodes=7, users=2, options={"least_nodes": 5, "corrupt": 0.0}))
    assert liar.sum(range(7), DEGREES, openers=[0, 1, 2, 3]) is not None, liar.refusals
    assert liar.sum([0, 3, 4, 5, 6], DEGREES, openers=[3, 4, 5], threshold=3) is None
    assert liar.refused("has helped to open stage 'degrees'")


def test_what_a_node_reveals_is_on_its_disk_before_it_answers(tmp_path: Path) -> None:
    """A node that is killed right after its answer still knows which company it helped."""
    liar = Liar(world(tmp_path, options={"evaluations": 9}))
    liar.sum([0, 1, 2], DEGREES)
    for path in liar.fed.nodes.values():
        with NodeStore(path) as store:
            assert store.opened(DEGREES.place) is not None


@pytest.mark.parametrize("n", [4, 7, 20, 64, 65, 200, 400, 401, 2000])
@pytest.mark.parametrize("corrupt", [0.0, 0.05, 0.1])
def test_more_than_half_of_the_honest_nodes_help_to_open_a_sum(n: int, corrupt: float) -> None:
    """R openers of n clients give each of them t of k holders. Honest ones help once, so sums of one stage and round
    cannot hold every honest node twice: whatever is combined, a batch stays that is in one of them alone.
    """
    p = choose(n, corrupt, 0.1)
    holders = p.neighbours if p.neighbours < n - 1 else n
    openers = -(-p.threshold * n // holders)
    assert 2 * (openers - p.corrupt) > n - p.corrupt
