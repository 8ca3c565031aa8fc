"""A node that sends any kind of wrong answer: the server names it, drops the answer and goes on."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.errors import FedgrecError
from fedgrec.federation.common import packets
from fedgrec.federation.common.packets import Packet
from tests.federation.local_transport import Answer
from tests.federation.masked_worlds import masked_world
from tests.federation.worlds import EXCHANGES, World, world

LIAR = 3


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


class Evil:
    """Fails whatever is done with it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("evil")


ODD: dict[str, Any] = {
    "no header": lambda p: replace(p, header=None),
    "a list as header": lambda p: replace(p, header=[1, 2]),
    "bytes in a header": lambda p: replace(p, header=p.header | {"x": b"bytes"}),
    "an object in a header": lambda p: replace(p, header=p.header | {"x": object()}),
    "a number that is too long to print": lambda p: replace(p, header=p.header | {"x": 10**5000}),
    "a deep header": lambda p: replace(p, header=p.header | {"x": nested(10**5)}),
    "a deep reason": lambda p: Packet("error", {"reason": nested(900)}),
    "numbers as names": lambda p: replace(p, header={1: 2}, blobs={3: b"x"}, arrays={4: np.zeros(1)}),
    "not a number": lambda p: replace(p, header=p.header | {"index": float("nan")}),
    "no blobs": lambda p: replace(p, blobs=None),
    "a text for bytes": lambda p: replace(p, blobs=dict.fromkeys(p.blobs or ["secagg"], "text"), arrays={}),
    "a number for bytes": lambda p: replace(p, blobs={"secagg": 7, "next": 7, "signature": 7}),
    "nothing for bytes": lambda p: replace(p, blobs={"secagg": None, "next": None, "signature": None}, arrays={}),
    "no arrays": lambda p: replace(p, arrays=None),
    "an array of objects": lambda p: replace(p, arrays={"secagg": np.array([object()]), "tags": np.array([None])}),
    "an array without dimensions": lambda p: replace(p, arrays={"secagg": np.array(3), "tags": np.array(3)}),
    "a list for an array": lambda p: replace(p, arrays={"secagg": [1, 2], "tags": [[1]]}),
    "an array of texts": lambda p: replace(p, arrays={"secagg": np.array(["x"]), "tags": np.array(["x"])}),
    "no kind": lambda p: replace(p, kind=None),
    "another kind": lambda p: replace(p, kind="bundle"),
    "a list for a kind": lambda p: replace(p, kind=[1]),
    "no packet": lambda p: None,
    "an object": lambda p: Evil(),
    "half a letter": lambda p: replace(p, header=p.header | {"reason": "\ud800", "agreement": "\ud800"}),
    "half a letter of history": lambda p: replace(p, header=p.header | {"history": {"lines": ["\ud800"]}}),
    "a history of other things": lambda p: replace(p, header=p.header | {"history": {"lines": [[1], None, 3]}}),
    "no history": lambda p: replace(p, header=p.header | {"history": [1]}),
}  # fmt: skip


def run_until_trained(fed: World, meddler: Any) -> None:
    """Start the server again whenever it stops with one of the expected sentences."""
    for _ in range(5):
        try:
            fed.run(meddler)
            return
        except FedgrecError as stopped:
            if not any(words in str(stopped) for words in ("nodes are there", "sums in a row were lost")):
                raise
    raise AssertionError("the server does not come to an end")


def test_odd_answers_of_all_kinds_do_not_end_the_server(tmp_path: Path) -> None:
    """One node of four answers oddly, each time in another way and in another exchange."""
    fed = world(tmp_path, nodes=4, users=1, options={"rounds": 26, "start_nodes": 3, "retries": 99})
    turns, ways = itertools.count(1), iter(ODD.values())

    def odd(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        reply = answer(request)
        return [next(ways, Packet)(reply) if address == LIAR and next(turns) % 3 == 0 else reply]

    run_until_trained(fed, odd)
    assert fed.model().round == 26
    assert next(ways, None) is None, "all ways were tried"
    assert len({notice for notice in fed.witness.notices if "node3" in notice or "node at 3" in notice}) > 5


def test_odd_introductions_of_all_kinds_do_not_end_the_server(tmp_path: Path) -> None:
    """One node of four introduces itself oddly, each time in another way; now and then there is a round to train."""
    fed = world(tmp_path, nodes=4, users=1, options={"rounds": 0, "start_nodes": 3})
    tried = set()
    for number, way in enumerate(ODD.values()):

        def odd(address: int, request: Packet, answer: Answer, way: Any = way) -> Iterable[Packet]:
            if address != LIAR or request.kind != "hello":
                return [answer(request)]
            tried.add(way)
            return [way(answer(request))]

        fed.give_rounds(number // 4)
        run_until_trained(fed, odd)
        assert fed.model().round == number // 4
    assert tried == {*ODD.values()}


@pytest.mark.slow
@pytest.mark.parametrize("what", ODD)
def test_one_odd_answer_does_not_end_the_server(tmp_path: Path, what: str) -> None:
    """One node of four answers oddly in each kind of exchange; earlier the server ended with a traceback."""
    fed = world(tmp_path, nodes=4, users=3, options={"rounds": 5, "start_nodes": 3, "retries": 9})
    turns = [0]

    def odd(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        reply = answer(request)
        if address != LIAR:
            return [reply]
        turns[0] += 1
        if turns[0] % 5 == 0:
            return [ODD[what](reply)]
        return [reply]

    run_until_trained(fed, odd)
    assert fed.model().round == 5
    silent = ("another kind", "not a number")  # they may pass without a note
    if what not in (*silent, "half a letter", "half a letter of history", "no history"):
        assert any("node3" in notice or "node at 3" in notice for notice in fed.witness.notices), fed.witness.notices


@pytest.mark.slow
@pytest.mark.parametrize("what", ODD)
def test_one_odd_introduction_does_not_end_the_server(tmp_path: Path, what: str) -> None:
    """One node of four introduces itself oddly, before and after each restart."""
    fed = world(tmp_path, nodes=4, users=3, options={"rounds": 1, "start_nodes": 3})

    def odd(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        reply = answer(request)
        return [ODD[what](reply) if address == LIAR and request.kind == "hello" else reply]

    run_until_trained(fed, odd)
    assert fed.model().round == 1


@pytest.mark.slow
@pytest.mark.parametrize("what", ODD)
def test_one_odd_answer_in_a_bundle_costs_its_gateway_only(tmp_path: Path, what: str) -> None:
    """One gateway of three answers oddly, both about whom it hosts and in bundles of its users' answers."""
    fed = masked_world(tmp_path, options={"rounds": 1, "start_nodes": 4, "retries": 9})
    turns = [0]

    def odd(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        reply = answer(request)
        turns[0] += address == 2
        return [ODD[what](reply) if address == 2 and (request.kind == "who" or turns[0] % 3 == 0) else reply]

    run_until_trained(fed, odd)
    assert fed.model().round == 1


PARTS: list[Any] = [
    None,
    3,
    [[]],
    [[4, "keys", {}, [], {}]] * 2,
    [["4", "keys", {}, ["x"], {}]],
    [[4, "keys", [], [], {}]],
    [[4, "keys", {}, [[]], {}]],
    [[4, "keys", {}, [], {"secagg": []}]],
    [[4, "unmask", {"reason": {}}, [], {}]],
    [[10**400, "keys", {}, [], {}]],
]


def test_bundles_with_odd_parts_cost_their_gateway_only(tmp_path: Path) -> None:
    """One gateway of three packs its bundles so that they cannot be taken apart, each in another way."""
    fed, spoilt = masked_world(tmp_path, options={"rounds": 0, "start_nodes": 4, "retries": 9}), set()
    for number, parts in enumerate(PARTS):

        def odd(
            address: int, request: Packet, answer: Answer, way: tuple[int, Any] = (number, parts)
        ) -> Iterable[Packet]:
            if address != 2 or request.kind != "bundle":
                return [answer(request)]
            spoilt.add(way[0])
            return [replace(answer(request), header={"parts": way[1]})]

        fed.give_rounds(number // 4)
        run_until_trained(fed, odd)
        assert fed.model().round == number // 4
    assert spoilt == {*range(len(PARTS))}


def test_answers_of_other_times_and_kinds_are_dropped(tmp_path: Path) -> None:
    """One node of four answers every request with old answers, several at once."""
    fed = world(tmp_path, nodes=4, users=1, options={"rounds": 4, "start_nodes": 3, "retries": 9})
    old: list[Packet] = []

    def odd(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        reply = answer(request)
        if address != LIAR:
            return [reply]
        old.append(reply)
        return [replace(past, kind=request.kind) for past in old[-12:-1:3]] or [reply]

    run_until_trained(fed, odd)
    assert fed.model().round == 4


def test_a_key_that_nobody_can_agree_on_costs_one_sum(tmp_path: Path) -> None:
    """One node of four signs a public key of small order, with which no other node can make a mask."""
    from fedgrec.federation.node.folder import open_node
    from fedgrec.secagg.keys import signed_part
    from fedgrec.secagg.messages import Keys
    from fedgrec.secagg.session import Session

    fed = world(tmp_path, nodes=4, users=1, options={"rounds": 2, "start_nodes": 3, "retries": 9})
    identity, left = open_node(fed.nodes[LIAR]).identity, [2]

    def odd(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        announced = request.header.get("next") or request.header
        reply, values = answer(request), announced.get("session")
        if address != LIAR or not isinstance(values, dict) or not left[0]:
            return [reply]
        left[0] -= 1
        session = Session.from_json(values)
        bad = bytes(32)
        signature = identity.sign(signed_part(session, LIAR, bad, bad))
        name = packets.NEXT if request.header.get("next") else packets.SECAGG
        return [replace(reply, blobs=reply.blobs | {name: Keys(session.round_id, LIAR, bad, bad, signature).pack()})]

    run_until_trained(fed, odd)
    assert fed.model().round == 2
    assert EXCHANGES
