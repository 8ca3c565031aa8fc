"""Many users behind one connection: one message for all of them, and a user who fails harms nobody else."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.federation.common import packets
from fedgrec.federation.common.bundles import pack, unpack
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node import gateway, node
from fedgrec.federation.node.current_sum import Sums
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.person import users_of
from fedgrec.federation.node.store import NodeStore, Person
from tests.federation.local_transport import Answer
from tests.federation.masked_worlds import ALL, masked_world, to_user
from tests.federation.meddlers import truncated
from tests.federation.worlds import EXCHANGES, Killed

# ------------------------------------------------------------------------------------------- one bundle


def test_one_exchange_for_a_gateway_and_one_model_in_it(tmp_path: Path) -> None:
    """A sum takes as many messages, and as many copies of the model, with two users behind a gateway as with one."""
    counts, models = [], []
    for users in (1, 2):
        fed = masked_world(tmp_path / str(users), users=users, options={"evaluations": 9})
        sent: list[Packet] = []
        fed.run(lambda address, request, answer, sent=sent: sent.append(request) or [answer(request)])
        kinds = [next(iter(unpack(p).values())).kind if p.kind == packets.BUNDLE else p.kind for p in sent]
        counts.append({kind: kinds.count(kind) for kind in kinds})
        shares = [p for p, kind in zip(sent, kinds, strict=True) if kind == packets.SHARES]
        models.append({(len(unpack(p)), len(p.arrays)) for p in shares})
    sums = 3 * 5  # gateways, and degrees, propagate, train, train, evaluate
    assert counts[0] == counts[1] == {"who": 3, "hello": 3, "finish": 3} | dict.fromkeys(EXCHANGES, sums) | {"keys": 6}
    # Tables and degrees, once; in training also the scale of each row, and after the fine rounds the steps of each;
    # nothing if the nodes have the model already.
    assert models == [{(n, 0), (n, 2), (n, 3), (n, 4)} for n in (1, 2)]


def test_bytes_are_counted_as_they_travel(tmp_path: Path) -> None:
    fed, down, up = masked_world(tmp_path), dict[int, int](), dict[int, int]()

    def weigh(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        number, reply = len(fed.log()), answer(request)
        down[number] = down.get(number, 0) + packets.size(request)
        up[number] = up.get(number, 0) + packets.size(reply)
        return [reply]

    fed.run(weigh)
    assert [(line["bytes_down"], line["bytes_up"]) for line in fed.log()[1:-1]] == [
        (down[number], up[number]) for number in range(2, len(fed.log()))
    ]


def test_a_bundle_comes_out_as_it_went_in() -> None:
    table, own = np.arange(4.0), np.arange(3)
    parts = {
        3: Packet("a", {"x": 1}, {"secagg": b"one"}, {"tables": table}),
        1: Packet("b", {}, {"secagg": b"two", "next": b""}, {"tables": table, "own": own}),
        2: Packet("c"),
    }
    bundle = pack(parts)
    assert len(bundle.arrays) == 2
    back = unpack(bundle)
    assert back.keys() == parts.keys()
    for index, part in parts.items():
        assert (back[index].kind, back[index].header, back[index].blobs) == (part.kind, part.header, part.blobs)
        assert {n: a.tolist() for n, a in back[index].arrays.items()} == {n: a.tolist() for n, a in part.arrays.items()}


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"parts": 7},
        {"parts": [[1, "a", {}]]},
        {"parts": [["1", "a", {}, [], {}]]},
        {"parts": [[True, "a", {}, [], {}]]},
        {"parts": [[1, "a", {}, [], {}], [1, "a", {}, [], {}]]},
        {"parts": [[1, "a", [], [], {}]]},
        {"parts": [[1, "a", {}, ["not there"], {}]]},
        {"parts": [[1, "a", {}, [], {"tables": "9"}]]},
        {"parts": [[1, "a", {}, [[]], {}]]},
    ],
)
def test_what_is_no_bundle_is_one_sentence(tmp_path: Path, header: dict[str, Any]) -> None:
    with pytest.raises(gateway.FederationError, match="cannot be taken apart"):
        unpack(Packet(packets.BUNDLE, header))


# --------------------------------------------------------------------------------------------- failures


@pytest.mark.keep(1)
@pytest.mark.parametrize("kind", EXCHANGES[2:])
def test_a_gateway_killed_in_the_middle_of_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """One of its users has stored its step, the other has not; the gateway comes back, and all go on."""
    fed, deaths = masked_world(tmp_path, options={"rounds": 3}), [0]
    real = node.handle

    def dies(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        parts = unpack(request) if request.kind == packets.BUNDLE else {}
        if address != 1 or {part.kind for part in parts.values()} != {kind} or len(fed.log()) != 3 or deaths[0]:
            return [answer(request)]
        handled: list[Path] = []

        def once(folder: Path, part: Packet, sums: Sums) -> Packet:
            if handled:
                deaths[0] += 1
                raise Killed
            handled.append(folder)
            return real(folder, part, sums)

        with monkeypatch.context() as patch:
            patch.setattr(node, "handle", once)
            with pytest.raises(Killed):
                answer(request)
        return []

    fed.run(dies)
    assert deaths == [1]
    assert fed.is_its_simulation()
    assert not fed.pending()
    assert fed.model().round == 3
    assert fed.applied("train")[-1]["included"] == ALL
    assert all(line["applied"] for line in fed.log()), "four of six were enough"


@pytest.mark.keep(1)
@pytest.mark.parametrize("what", ["fails", "garbage", "half of a user's answer"])
def test_a_failure_harms_nobody_else(tmp_path: Path, what: str) -> None:
    fed = masked_world(tmp_path, options={"rounds": 1})

    def broken(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        if address == 2 and request.kind == packets.BUNDLE and unpack(request)[4].kind == packets.MASKED:
            answer(request)
            return [
                Packet(packets.ERROR, {"reason": "no"}) if what == "fails" else Packet(packets.BUNDLE, {"parts": [1]})
            ]
        return [answer(request)]

    fed.run(to_user("masked", 4, truncated, times=100) if what.startswith("half") else broken)
    assert fed.is_its_simulation()
    lost = {4} if what.startswith("half") else {4, 5}
    assert {frozenset(ALL) - set(line["included"]) for line in fed.log()} == {frozenset(lost)}
    names = [open_node(fed.nodes[index]).name for index in sorted(lost)]
    assert all(any(name in notice for notice in fed.witness.notices) for name in names)


def test_a_gateway_speaks_for_its_own_users_alone(tmp_path: Path) -> None:
    """A gateway claims to host a user of another gateway, and answers in the user's place."""
    fed = masked_world(tmp_path, options={"rounds": 1})

    def thief(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        reply = answer(request)
        if address != 0:
            return [reply]
        if request.kind == packets.WHO:
            return [replace(reply, header={"members": [*reply.header["members"], 5, 99, "x", [], None]})]
        parts = unpack(reply)
        return [pack(parts | {5: replace(next(iter(parts.values())))} | {index: parts[index] for index in parts})]

    fed.run(thief)
    assert fed.is_its_simulation()
    assert all(line["included"] == ALL for line in fed.log())
    assert any("has not the key" in notice or "did not introduce" in notice for notice in fed.witness.notices)


@pytest.mark.keep(1)
@pytest.mark.parametrize("first", [0, 1])
def test_users_of_one_gateway_who_are_sent_different_models_do_not_mix_them(tmp_path: Path, first: int) -> None:
    """They share a model file: a user who finds another model in it than its keys are bound to stays out."""
    fed, changed = masked_world(tmp_path), [0]

    def two_models(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        parts = unpack(request) if request.kind == packets.BUNDLE else {}
        if first in parts and parts[first].kind == packets.SHARES and len(fed.log()) == 3:
            changed[0] += 1
            other = parts[first].arrays | {"tables": parts[first].arrays["tables"] ^ np.int8(1)}
            request = pack(parts | {first: replace(parts[first], arrays=other)})
        return [answer(request)]

    fed.run(two_models)
    assert changed == [1]
    assert fed.is_its_simulation()
    assert not fed.pending()
    assert any("not that of the sum" in notice for notice in fed.witness.notices)


def test_a_user_of_two_gateways_is_refused(tmp_path: Path) -> None:
    fed = masked_world(tmp_path, options={"start_nodes": 5, "rounds": 1})
    (name,), (other,) = users_of(fed.nodes[0]), users_of(fed.nodes[4])
    with NodeStore(fed.nodes[4]) as store:
        store.db.execute("UPDATE users SET id = ? WHERE id = ?", [name, other])
    fed.run()
    assert fed.is_its_simulation()
    assert fed.log()[0]["included"] == [0, 1, 2, 3, 5], "its neighbour on the gateway is let in"
    assert any("node2.4 brings 1 user that node node0.0 brought first" in notice for notice in fed.witness.notices)


def test_a_gateways_user_is_one_user(tmp_path: Path) -> None:
    fed = masked_world(tmp_path, options={"start_nodes": 5, "rounds": 1})
    with NodeStore(fed.nodes[2]) as store:
        store.add_users(open_node(fed.nodes[2]).method(1), [Person("more", [1, 2, 3])])
    fed.run()
    assert fed.log()[0]["included"] == [0, 1, 3, 4, 5]
    assert any("node1.2 is one user of node1, and brings 2" in notice for notice in fed.witness.notices)
