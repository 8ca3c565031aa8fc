"""Whatever fails between server and nodes: training reaches its end, nothing is lost, nothing is counted twice."""

import os
import signal
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgrec.errors import FedgrecError
from fedgrec.federation.common import packets
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node import node
from fedgrec.federation.node.store import NodeStore
from tests.federation.local_transport import Answer
from tests.federation.meddlers import answers_twice, asked_twice, killed_after_writing, on, silent, truncated
from tests.federation.worlds import EXCHANGES, Killed, World, at_random, world

RIDERS = EXCHANGES[1:]
WARM_UP = 2  # sums: degrees and one level


def ended_well(fed: World, rounds: int = 2) -> bool:
    return fed.is_its_simulation() and fed.model().round == rounds and not fed.pending()


def one_of_each_place(fed: World) -> bool:
    """No stage and round is in the model twice."""
    places = [(line["stage"], line["level"], line["round"]) for line in fed.log() if line["applied"]]
    return len(places) == len(set(places))


@pytest.mark.parametrize("how", [answers_twice, asked_twice])
def test_whatever_comes_twice_counts_once(tmp_path: Path, how: Any) -> None:
    fed = world(tmp_path)
    fed.run(at_random(1.0, 0, how=how))
    assert ended_well(fed)
    assert one_of_each_place(fed)
    assert all(line["included"] == [0, 1, 2] for line in fed.log())


@pytest.mark.keep(1)
@pytest.mark.parametrize("kind", ["masked", "shares", "confirm", "unmask"])
def test_half_an_answer_is_none(tmp_path: Path, kind: str) -> None:
    fed = world(tmp_path)
    fed.run(on(kind, 2, truncated, after=WARM_UP))
    assert ended_well(fed)
    assert any("node2" in notice for notice in fed.witness.notices)


@pytest.mark.keep(1)
@pytest.mark.parametrize("kind", ["confirm", "shares", "masked", "unmask"])
def test_half_a_request_is_refused(tmp_path: Path, kind: str) -> None:
    def halved(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        return [answer(replace(request, blobs={"secagg": request.blobs["secagg"][:-7]}))]

    fed = world(tmp_path)
    fed.run(on(kind, 2, halved, after=WARM_UP))
    assert ended_well(fed)
    assert any("MalformedMessage" in notice for notice in fed.witness.notices)


@pytest.mark.keep(1)
@pytest.mark.parametrize("kind", ["unmask", "shares", "masked", "confirm"])
def test_an_old_answer_is_refused(tmp_path: Path, kind: str) -> None:
    """The answer of the previous sum, in the place of the present one."""
    old: list[Packet] = []

    def replayed(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        old.append(answer(request))
        return [old[-2]] if len(old) > 1 else [old[-1]]

    fed = world(tmp_path)
    fed.run(on(kind, 0, replayed, times=2, after=WARM_UP))
    assert ended_well(fed)
    assert any("another round" in notice for notice in fed.witness.notices)


@pytest.mark.keep(1)
@pytest.mark.parametrize("kind", RIDERS)
def test_an_old_request_is_not_answered(tmp_path: Path, kind: str) -> None:
    """A request that was answered is sent again, after the sum and in the middle of the next one."""
    kept: list[tuple[Packet, Packet]] = []
    again: list[Packet] = []

    def replay(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        if address == 1 and kept:
            again.append(answer(kept[0][0]))
        reply = answer(request)
        if address == 1 and request.kind == kind and not kept:
            kept.append((request, reply))
        return [reply]

    fed = world(tmp_path)
    fed.run(replay)
    assert ended_well(fed)
    assert again
    assert {packet.kind for packet in again} == {packets.ERROR}


def test_a_node_that_never_answers_does_not_hold_up_the_others(tmp_path: Path) -> None:
    fed = world(tmp_path, nodes=4, options={"start_nodes": 3, "rounds": 3})
    asked: list[str] = []

    def deaf(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        if address == 3:
            asked.append(request.kind)
            return []
        return [answer(request)]

    fed.run(deaf)
    assert ended_well(fed, 3)
    assert fed.witness.joiners == ["node0", "node1", "node2"]
    assert asked.count("hello") < 5, "a silent node is asked less and less"


def test_a_node_killed_while_it_writes_has_written_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in every exchange: the transaction is cut off after the work; the table may be on the disk already."""
    fed, left, real = world(tmp_path, options={"rounds": 4}), list(RIDERS), NodeStore.transaction

    @contextmanager
    def torn_off(store: NodeStore) -> Iterator[None]:
        with real(store):
            yield
            raise Killed

    def dies(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        if address != 1 or len(fed.log()) != WARM_UP + len(RIDERS) - len(left) + 1 or request.kind not in left[:1]:
            return [answer(request)]
        left.pop(0)
        with monkeypatch.context() as patch:
            patch.setattr(NodeStore, "transaction", torn_off)
            with pytest.raises(Killed):
                answer(request)
        fed.sums.pop(fed.nodes[address], None)
        return []

    fed.run(dies)
    assert not left
    assert ended_well(fed, 4)


def killed_9(fed: World, node_: int, request: Packet, when: str) -> int:
    """Kill a process of its own, with all that the node knows, before or after its commit; return how it ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads may hold locks: this child takes none
        child = os.fork()
    if not child:
        if when == "before":

            @contextmanager
            def never_committed(store: NodeStore) -> Iterator[None]:
                store.db.execute("BEGIN IMMEDIATE")
                yield
                os.kill(os.getpid(), signal.SIGKILL)

            NodeStore.transaction = never_committed  # type: ignore[method-assign]
        node.handle(fed.nodes[node_], request, fed.sums)
        os.kill(os.getpid(), signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_9_on_either_side_of_the_write(tmp_path: Path, when: str) -> None:
    """In a process of its own, in every exchange: the next process finds what is on the disk."""
    fed = world(tmp_path, options={"rounds": 6})
    turns = iter(RIDERS)
    want, codes = [next(turns)], list[int]()

    def killed(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        if address != 1 or not want or request.kind != want[0] or len(fed.log()) % 2:
            return [answer(request)]
        want[:] = [kind for kind in [next(turns, None)] if kind]
        codes.append(killed_9(fed, 1, request, when))
        fed.sums.pop(fed.nodes[1], None)
        return []

    fed.run(killed)
    assert codes == [-signal.SIGKILL] * 4
    assert ended_well(fed, 6)
    assert one_of_each_place(fed)


def test_all_nodes_die_at_once(tmp_path: Path) -> None:
    """Training stops with a reason; started again it goes on."""
    fed = world(tmp_path, options={"retries": 1})

    def dead(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        return killed_after_writing(address, request, answer) if len(fed.log()) > 2 else [answer(request)]

    with pytest.raises(FedgrecError, match=r"sums in a row were lost.*goes on"):
        fed.run(dead)
    assert fed.is_its_simulation()
    fed.run()
    assert ended_well(fed)


def test_unknown_key_is_refused(tmp_path: Path) -> None:
    """A node that has another key than the roster says; the others train without it."""
    fed = world(tmp_path, options={"start_nodes": 2})
    write_private(fed.nodes[1] / "identity.key", Ed25519PrivateKey.generate().private_bytes_raw().hex().encode())
    fed.run()
    assert ended_well(fed)
    assert fed.witness.joiners == ["node0", "node2"]
    assert any("has not the key of node1" in notice for notice in fed.witness.notices)
    with NodeStore(fed.nodes[1]) as store:
        assert "has not the key" in store.get("refused")


@pytest.mark.parametrize("change", ["nonce", "index", "tags"])
def test_a_hello_cannot_be_used_again_or_changed(tmp_path: Path, change: str) -> None:
    fed = world(tmp_path, options={"start_nodes": 2, "rounds": 1})
    before = node.handle(fed.nodes[1], Packet("hello", {"federation": hello(fed)}, {"nonce": bytes(32)}), fed.sums)
    assert before.kind == "hello"

    def meddle(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        reply = answer(request)
        if change == "nonce":
            return [before]
        if change == "index":
            return [replace(reply, header=reply.header | {"index": 0})]
        return [replace(reply, arrays={"tags": reply.arrays["tags"][1:]})]

    fed.run(on("hello", 1, meddle))
    assert fed.witness.joiners == ["node0", "node2"]


def hello(fed: World) -> str:
    from fedgrec.federation.server.folder import open_server

    return open_server(fed.server).federation


def test_a_node_answers_its_own_federation_only(tmp_path: Path) -> None:
    fed = world(tmp_path)
    for packet in (
        Packet("hello", {"federation": "another"}, {"nonce": bytes(32)}),
        Packet("hello", {"federation": hello(fed)}, {"nonce": b"short"}),
        Packet("dance"),
        Packet("masked", {"session": "00" * 16}, {"secagg": b""}),
        Packet("keys", {"session": {}}),
        Packet("finish"),
    ):
        answer = node.handle(fed.nodes[0], packet, fed.sums)
        assert answer.kind == "error"
        assert answer.header["reason"]


def test_too_few_nodes_is_a_sentence(tmp_path: Path) -> None:
    fed = world(tmp_path)
    fed.transport.away = {1, 2}
    with pytest.raises(FedgrecError, match="1 of 3 nodes are there after 0 s"):
        fed.run()
    assert not fed.log()


def test_a_silent_majority_in_one_round_costs_that_round_only(tmp_path: Path) -> None:
    fed = world(tmp_path)
    first, second = on("masked", 0, silent, after=WARM_UP), on("masked", 1, silent, after=WARM_UP)

    def both(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        return (first if address == 0 else second)(address, request, answer)

    fed.run(both)
    assert ended_well(fed)
    assert [line["round"] for line in fed.applied("train")] == [1]
