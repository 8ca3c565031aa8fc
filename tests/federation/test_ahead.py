"""Nodes that compute before they are asked: the same bits, never from old inputs, and in time."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node import node
from fedgrec.federation.node.current_sum import Computed, Sum, Sums
from fedgrec.federation.node.store import NodeStore
from tests.federation.local_transport import Answer, Meddler, honest
from tests.federation.meddlers import killed_after_writing, silent
from tests.federation.worlds import World, at_random, same_bits, world


def working_ahead(fed: World, otherwise: Meddler = honest, then: Any = None) -> Meddler:
    """What flower_node does: after each answer the node may compute; `then` happens before the next message."""

    def meddle(address: int, request: Packet, handle: Answer) -> Iterable[Packet]:
        answers = list(otherwise(address, request, handle))
        node.work_ahead(fed.nodes[address], request, fed.sums)
        if then is not None:
            then(address, request)
        return answers

    return meddle


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each computation: whether it was made on request ("asked") or before ("ahead")."""
    log, compute_upload, now = list[str](), node.compute_upload, ["asked"]

    def recorded(*arguments: Any) -> Computed:
        log.append(now[0])
        return compute_upload(*arguments)

    def work_ahead(folder: Path, request: Packet, sums: Sums, work: Any = node.work_ahead) -> None:
        now[0] = "ahead"
        work(folder, request, sums)
        now[0] = "asked"

    monkeypatch.setattr(node, "compute_upload", recorded)
    monkeypatch.setattr(node, "work_ahead", work_ahead)
    return log


@pytest.mark.parametrize("method", ["fedgrec", "fcf"])
def test_all_is_computed_ahead_and_the_federation_is_its_simulation(
    tmp_path: Path, method: str, computed: list[str]
) -> None:
    fed = world(tmp_path, method, options={"evaluate_every": 2})
    fed.run(working_ahead(fed))
    assert set(computed) == {"ahead"}
    assert fed.is_its_simulation()
    assert not fed.pending()
    assert all(line["applied"] for line in fed.log())


@pytest.mark.keep(2)
@pytest.mark.parametrize("how", [silent, killed_after_writing])
@pytest.mark.parametrize("seed", range(2))
def test_whoever_falls_silent_and_whenever_it_is_its_simulation(tmp_path: Path, seed: int, how: Meddler) -> None:
    fed = world(tmp_path, nodes=4, users=3, options={"rounds": 4, "retries": 50})
    fed.run(working_ahead(fed, at_random(0.1, seed, how=how)))
    assert not all(line["included"] == list(range(4)) for line in fed.log())
    assert fed.is_its_simulation()


def spoiled(fed: World) -> Any:
    """The states of one node's users have changed by the time that it is asked."""

    def spoil(address: int, request: Packet) -> None:
        if address == 1 and request.kind == "shares":
            with NodeStore(fed.nodes[1]) as store, store.transaction():
                for row, state in enumerate(store.states(range(1, 7)), 1):
                    other = (np.frombuffer(state[:16], "<f4") + 1).tobytes() + state[16:]
                    store.db.execute("UPDATE users SET state = ? WHERE row = ?", [other, row])

    return spoil


def test_what_was_computed_from_another_state_is_not_sent(tmp_path: Path, computed: list[str]) -> None:
    fed = world(tmp_path, options={"rounds": 1})
    fed.run(working_ahead(fed, then=spoiled(fed)))
    sums = len(fed.log())
    assert (computed.count("ahead"), computed.count("asked")) == (3 * sums, sums)  # one node computes again


def test_a_result_counts_only_for_its_inputs() -> None:
    result = np.arange(3, dtype=np.uint32), None
    sum_ = Sum("a sum", None, ("train", 0, 0), ahead=(("sum", [1, 2]), result))  # type: ignore[arg-type]
    assert sum_.computed(("sum", [1, 2])) is result
    assert sum_.computed(("sum", [1])) is None


def test_the_law_would_notice_a_result_of_another_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: the node sends what it computed for the previous sum, if the lengths agree."""
    kept: dict[int, list[Computed]] = {}

    def before(sum_: Sum, inputs: Any) -> Computed | None:
        if sum_.ahead is None:
            return None
        results = kept.setdefault(sum_.client.me, [])
        results.append(sum_.ahead[1])
        *_, old, new = [results[-1], *results]
        return old if len(old[0]) == len(new[0]) else new

    monkeypatch.setattr(Sum, "computed", before)
    fed = world(tmp_path, options={"rounds": 3})
    fed.run(working_ahead(fed))
    assert not fed.is_its_simulation()


def test_a_refused_or_broken_question_leaves_nothing_behind(tmp_path: Path) -> None:
    fed = world(tmp_path)
    for packet in (Packet("shares"), Packet("shares", {"session": "none"}, {"secagg": b""}), Packet("masked")):
        node.work_ahead(fed.nodes[0], packet, fed.sums)
    assert fed.nodes[0] not in fed.sums


def test_a_node_that_worked_ahead_sends_what_one_that_did_not_would(tmp_path: Path) -> None:
    """The slow twin: computed when asked, from the same folder."""
    fed, seen = world(tmp_path, options={"evaluations": 9}), list[bool]()

    def compare(address: int, request: Packet, handle: Answer) -> Iterable[Packet]:
        answers = list(honest(address, request, handle))
        if request.kind == "shares":
            with NodeStore(fed.nodes[address]) as store:
                home = node.Node(node.open_node(fed.nodes[address]), store, fed.sums)
                sum_ = home._sum(request)
                *_, inputs, compute = home._task(sum_)
                fresh = compute()
            node.work_ahead(fed.nodes[address], request, fed.sums)
            kept = sum_.computed(inputs)
            assert kept is not None
            new, also = (vars(one.state) if one.state else {} for one in (fresh, kept))  # an evaluation changes nobody
            assert new.keys() == also.keys()
            seen.append(same_bits(fresh.words, kept.words) and all(same_bits(new[name], also[name]) for name in new))
        return answers

    fed.run(compare)
    assert seen
    assert all(seen)
