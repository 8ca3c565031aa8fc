"""A server says "your upload did not count" of a sum that it opened, and asks again without one node."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedgrec.cable.core import Upload
from fedgrec.federation.node.rules import MOST_DOUBTS
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.node.uploads import compute_upload
from tests.attacks.lying_server import TRAIN, Liar, total
from tests.federation.worlds import world

EVERYBODY = replace(TRAIN, users=18, take=1, of=1)


def likeness(liar: Liar, leaf: str) -> float:
    """How similar node 2's upload is to the difference of two successive rounds, the second without node 2."""
    first, second = liar.sum([0, 1, 2], EVERYBODY), liar.sum([0, 1], replace(EVERYBODY, round=6))
    with NodeStore(liar.fed.nodes[2]) as store:
        model = liar.broadcast(EVERYBODY)
        words, *_ = compute_upload(store, liar.method, EVERYBODY, store.first_rows(6), model, 1)
    own = Upload.from_ring(words, EVERYBODY.spec(liar.method), 6)
    difference = np.array(total(first, leaf)) - np.array(total(second, leaf))
    return float(np.corrcoef(difference, total(own, leaf))[0, 1])


@pytest.mark.parametrize(("method", "leaf", "before"), [("fcf", "items", 1.0), ("fedgrec", "latents", 0.9)])
def test_what_is_sent_after_a_false_verdict_tells_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, leaf: str, before: float
) -> None:
    """After that, half of the users send zeros, and only their node knows which."""
    slow = {"users_per_round": 18} | ({"user_rate": 0.01} if method == "fedgrec" else {})
    after = [likeness(Liar(world(tmp_path / f"{n}", method, **slow)), leaf) for n in range(4)]
    monkeypatch.setattr(NodeStore, "doubted", lambda store: False)
    assert likeness(Liar(world(tmp_path / "before", method, **slow)), leaf) >= before - 1e-9
    assert np.mean(after) < before - 0.1


def test_a_node_stops_after_three(tmp_path: Path) -> None:
    """Each false verdict on a sum that the node helped to open gives the server one more nearly equal sum."""
    liar = Liar(world(tmp_path, options={"evaluations": 9}))
    opened = [liar.sum([0, 1, 2], replace(TRAIN, round=round_)) is not None for round_ in range(6)]
    assert opened == [True] * MOST_DOUBTS + [False] * 3
    assert liar.refused("--trust-again")
    liar.told_the_truth()  # as the node's operator does with --trust-again
    assert liar.sum([0, 1, 2], replace(TRAIN, round=6)) is not None


def test_sums_that_were_never_opened_are_nobodys_fault(tmp_path: Path) -> None:
    """Too few nodes were left, so the server's verdict is true."""
    liar = Liar(world(tmp_path, options={"evaluations": 9}))
    for round_ in range(6):
        assert liar.sum([0, 1, 2], replace(TRAIN, round=round_), until="masked") is None
    assert liar.sum([0, 1, 2], replace(TRAIN, round=6)) is not None


def test_an_old_doubt_is_forgotten(tmp_path: Path) -> None:
    """A server that is killed after it opened a sum and before it stored it says so truly: old doubts do not count."""
    liar = Liar(world(tmp_path, options={"evaluations": 9}))
    for round_ in range(2):
        assert liar.sum([0, 1, 2], replace(TRAIN, round=round_)) is not None
    liar.sum([0, 1, 2], replace(TRAIN, round=2), until="masked")  # tells the verdicts on earlier sums
    with NodeStore(liar.fed.nodes[0]) as store:
        assert store.false_verdicts() == 2
        for n in range(100):
            place = "train", 0, 10 + n
            store.take_part(f"sum {n}", place, [1], None, b"")
            store.keep_opened(f"sum {n}", place, b"")
            store.settle(f"sum {n}", included=True)
        assert store.false_verdicts() == 0


@pytest.mark.parametrize("between", [0, 100])
def test_sums_that_nobody_opens_make_no_false_verdict_good(tmp_path: Path, between: int) -> None:
    """A hundred filled the window of doubts, so that lies had no end; one let all users send again."""
    liar, opened = Liar(world(tmp_path)), 0
    for round_ in range(0, 500, 100):
        opened += liar.sum([0, 1, 2], replace(TRAIN, round=round_)) is not None
        liar.sum([0, 1, 2], replace(TRAIN, round=round_ + 99), until="masked")  # tells the verdict
        with NodeStore(liar.fed.nodes[0]) as store:
            assert store.doubted() or opened == MOST_DOUBTS
            for n in range(between):
                store.take_part(f"{round_ + n}", ("train", 1, round_ + n), [1], None, b"")
                store.settle(f"{round_ + n}", included=False)
    assert opened == MOST_DOUBTS
