"""Gateways whose users mask for themselves: the same training, and no upload or sum of a gateway leaves it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedgrec.federation.common import packets, plan
from fedgrec.federation.common.bundles import unpack
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node import gateway, node
from fedgrec.federation.node.current_sum import Sums
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.person import users_of
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.node.uploads import taking_part
from fedgrec.federation.server import model_keeper
from fedgrec.federation.server.log import describe
from fedgrec.secagg import client
from fedgrec.secagg.messages import parse
from tests.federation.local_transport import Meddler
from tests.federation.masked_worlds import ALL, USERS, masked_world, to_user
from tests.federation.meddlers import killed_after_writing, silent
from tests.federation.replay import states
from tests.federation.test_server_view import ANSWERS, Uploads, leaks
from tests.federation.worlds import EXCHANGES, World, same_bits, world
from tests.secagg.rounds import in_ring


def plain_world(root: Path, like: World, method: str = "fedgrec") -> World:
    """The same people with the same keys, on gateways that add them up."""
    fed = world(root, method, users=USERS, options={"least_users": 1, "evaluations": 9}, users_per_round=100)
    secret = {}
    for path in like.nodes.values():
        with NodeStore(path) as store:
            secret |= {user: (key, state) for user, key, state in store.db.execute("SELECT id, key, state FROM users")}
    for path in fed.nodes.values():
        with NodeStore(path) as store:
            for user in store.ids():
                store.db.execute("UPDATE users SET key = ?, state = ? WHERE id = ?", [*secret[user], user])
    return fed


def is_the_same(a: World, b: World) -> bool:
    """Every bit of the model and of every user's state."""
    one, other, kept = a.model(), b.model(), []
    tables = ("items", "degrees", "moment1", "moment2")
    pairs = [(getattr(one, name), getattr(other, name)) for name in tables]
    pairs += [(one.more[name], other.more[name]) for name in one.more]
    for fed in (a, b):
        found = {}
        for index, state in states(fed.nodes).items():
            for row, user in enumerate(users_of(fed.nodes[index])):
                found[user] = {name: value[row] for name, value in vars(state).items()}
        kept.append(found)
    pairs += [(kept[0][user][name], kept[1][user][name]) for user in kept[0] for name in kept[0][user]]
    return kept[0].keys() == kept[1].keys() and one.round == other.round and all(same_bits(x, y) for x, y in pairs)


# ------------------------------------------------------------------------------------------------- law 6


@pytest.mark.keep(1)
@pytest.mark.parametrize("method", ["fedgrec", "federank"])
def test_it_is_its_simulation_and_the_same_as_gateways_that_add_up(tmp_path: Path, method: str) -> None:
    fed = masked_world(tmp_path / "masked", method, options={"evaluations": 9})
    plain = plain_world(tmp_path / "plain", fed, method)
    fed.run()
    plain.run()
    assert fed.is_its_simulation()
    assert is_the_same(fed, plain)
    assert not fed.pending()
    assert not fed.witness.notices
    assert fed.witness.joiners == ["node0", "node1", "node2"]
    assert all(line["included"] == ALL for line in fed.log())
    assert fed.witness.metrics[-1]["recall@5"] == plain.witness.metrics[-1]["recall@5"]
    assert f": {len(ALL)} of {len(ALL)} members, {len(ALL)} users, " in describe(fed.log()[0])
    assert f": 3 of 3 nodes, {len(ALL)} users, " in describe(plain.log()[0])


@pytest.mark.keep(2)
@pytest.mark.parametrize(("method", "how"), [("fedgrec", silent), ("federank", killed_after_writing)])
@pytest.mark.parametrize("kind", EXCHANGES)
def test_one_user_is_lost_in_any_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, method: str, how: Meddler
) -> None:
    """The gateway's other users stay; the result is as if a gateway that adds up had left this user out."""
    fed = masked_world(tmp_path / "masked", method, options={"evaluations": 9})
    plain = plain_world(tmp_path / "plain", fed, method)
    fed.run(to_user(kind, 1, how, after=0 if kind == "keys" else 2 if method == "fedgrec" else 1))
    assert fed.is_its_simulation()
    assert not fed.pending()
    without = [line for line in fed.log() if line["included"] != ALL]
    assert all(line["applied"] for line in fed.log())
    missed = 1 if kind in ("keys", "shares", "masked") else 0
    if (kind, how) == ("unmask", killed_after_writing):
        missed = 2  # without keys for the last round, it has not trained on the evaluated model
    assert [line["included"] for line in without] == [[0, 2, 3, 4, 5]] * missed
    (lost,) = users_of(fed.nodes[1])
    places = {(line["stage"], line["level"], line["round"]) for line in without}

    def others(store: NodeStore, sum_: plan.Plan, latents: bool) -> list[int]:
        names = dict(enumerate(store.ids(), 1))
        return [row for row in taking_part(store, sum_, latents) if sum_.place not in places or names[row] != lost]

    def all_others(self: node.Node, place: tuple[str, int, int]) -> list[int]:
        names = dict(enumerate(self.store.ids(), 1))
        return [row for row in self.store.announced() if place not in places or names[row] != lost]

    monkeypatch.setattr(node, "taking_part", others)
    monkeypatch.setattr(node.Node, "_everybody", all_others)
    monkeypatch.setattr(
        model_keeper, "check_users", lambda opened, planned: None
    )  # a real gateway never leaves a user out
    monkeypatch.setattr(type(open_node(fed.nodes[0]).method(6)), "keep_possible", lambda *_: 0)
    plain.run()
    assert is_the_same(fed, plain)


def test_the_law_would_notice_a_user_who_keeps_what_did_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = NodeStore.settle
    monkeypatch.setattr(NodeStore, "settle", lambda self, session, included: settle(self, session, True))
    fed = masked_world(tmp_path)
    fed.run(to_user("masked", 1, killed_after_writing, after=2))
    assert not fed.is_its_simulation()


def test_the_server_draws_users_where_not_all_take_part(tmp_path: Path) -> None:
    fed = masked_world(tmp_path, users_per_round=4)
    fed.run()
    assert fed.is_its_simulation()
    assert [line["users"] for line in fed.applied("train")] == [4, 4]
    assert [line["users"] for line in fed.applied("degrees")] == [6]


def test_the_fewest_nodes_of_a_sum_are_users(tmp_path: Path) -> None:
    """All six users have to be in every sum: if one is lost, the round is lost, and nothing of it was opened."""
    fed = masked_world(tmp_path, options={"least_nodes": 6, "retries": 1})
    fed.run(to_user("masked", 4, silent, after=2))
    assert fed.is_its_simulation()
    assert [line["applied"] for line in fed.log() if line["stage"] == "train"] == [0, 1]


# ------------------------------------------------------------------------------------- the server's view


def masked_vectors(fed: World, uploads: Uploads) -> dict[bytes, dict[int, np.ndarray]]:
    """Session → user → its masked words, out of all that the server received."""
    found: dict[bytes, dict[int, np.ndarray]] = {}
    for _, packet in fed.transport.received:
        for index, part in (unpack(packet) if packet.kind == packets.BUNDLE else {}).items():
            if part.kind == packets.MASKED:
                message = part.arrays["secagg"].tobytes()
                found.setdefault(parse(message).round_id, {})[index] = uploads.unpacked(message)
    return found


def opened(fed: World) -> list[tuple[int, Packet]]:
    """What the server received, taken out of the bundles."""
    return [
        (address, part)
        for address, packet in fed.transport.received
        for part in ([packet] if packet.kind != packets.BUNDLE else unpack(packet).values())
    ]


def of_gateways(fed: World, vectors: list[np.ndarray]) -> list[np.ndarray]:
    """What each gateway would have sent if it added its users up; uploads come gateway by gateway, in order."""
    return [sum(vectors[at : at + USERS]) for at in range(0, len(vectors), USERS)]  # type: ignore[misc]


def test_neither_a_users_upload_nor_a_gateways_sum_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads, fed = Uploads(monkeypatch), masked_world(tmp_path)
    fed.run()
    assert len(uploads.vectors) == len(ALL) * len(fed.log())
    everything = uploads.vectors + of_gateways(fed, uploads.vectors)
    assert leaks(everything, opened(fed)) == []
    assert leaks(everything, fed.transport.received) == []
    masked = masked_vectors(fed, uploads)
    assert [sorted(users) for users in masked.values()] == [ALL] * len(fed.log()), "one masked vector for every user"
    for (name, words), at in zip(masked.items(), range(0, len(uploads.vectors), len(ALL)), strict=True):
        for first in range(0, len(ALL), USERS):  # sums that the server may compute itself
            together = in_ring(sum(words[index] for index in range(first, first + USERS)), uploads.rings[name])
            bare = sum(uploads.vectors[at + index] for index in range(first, first + USERS))
            assert np.count_nonzero(together == bare) <= max(0.2 * len(bare), 1)  # one word in 256 is, by chance


def test_a_gateway_says_whom_it_hosts_and_no_more_than_its_users_say(tmp_path: Path) -> None:
    fed = masked_world(tmp_path)
    fed.run(to_user("masked", 1, killed_after_writing, after=2))
    for _, packet in fed.transport.received:
        if packet.kind == packets.WHO:
            assert (packet.header.keys(), packet.blobs, packet.arrays) == ({"members"}, {}, {})
        else:
            assert (packet.kind, packet.header.keys()) == (packets.BUNDLE, {"parts"})
            parts = unpack(packet).values()
            assert len(packet.blobs) == sum(len(part.blobs) for part in parts), "nothing beside its users' packets"
            assert len(packet.arrays) == sum(len(part.arrays) for part in parts)
    for _, part in opened(fed):
        if part.kind != packets.WHO:
            header, blobs, arrays = ANSWERS[part.kind]
            assert (part.header.keys() - header, part.blobs.keys() - blobs, part.arrays.keys() - arrays) == (set(),) * 3


def test_users_without_masks_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation."""
    monkeypatch.setattr(client, "mask_parts", lambda words, masks, threads: None)
    uploads, fed = Uploads(monkeypatch), masked_world(tmp_path, options={"retries": 0})
    with pytest.raises(Exception, match="noise"):
        fed.run()
    assert leaks(uploads.vectors, opened(fed))


def test_a_gateway_that_adds_up_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: the gateway also sends the sum of its users' uploads."""
    uploads, fed = Uploads(monkeypatch), masked_world(tmp_path, options={"rounds": 1})

    answer = gateway.Gateway.answer

    def talkative(self: gateway.Gateway, request: Packet, sums: Sums) -> Packet:
        reply = answer(self, request, sums)
        total = sum(uploads.vectors[-USERS:])
        return replace(reply, blobs={**reply.blobs, "sum": total.tobytes()}) if uploads.vectors else reply  # type: ignore[union-attr]

    monkeypatch.setattr(gateway.Gateway, "answer", talkative)
    fed.run()
    assert leaks(of_gateways(fed, uploads.vectors), fed.transport.received)


def test_users_of_one_gateway_have_keys_and_masks_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads, fed = Uploads(monkeypatch), masked_world(tmp_path, options={"rounds": 1})
    fed.run()
    homes = [open_node(path) for path in fed.nodes.values()]
    assert len({home.identity.private_bytes_raw() for home in homes}) == len(ALL)
    assert len({member.key for member in homes[0].roster.values()}) == len(ALL)
    assert all(home.identity.public_key().public_bytes_raw() == home.roster[home.index].key for home in homes)
    masked = masked_vectors(fed, uploads)
    for (name, words), at in zip(masked.items(), range(0, len(uploads.vectors), len(ALL)), strict=True):
        plain = [uploads.vectors[at + index].astype(np.uint64) for index in ALL]
        masks = [in_ring(words[index] - plain[index], uploads.rings[name]) for index in ALL]
        assert len({mask.tobytes() for mask in masks}) == len(ALL)
        # One word in 256 of an 8-bit ring has the mask 0 by chance; the shortest upload has three words.
        assert all(np.count_nonzero(mask) >= 0.9 * len(mask) - 1 for mask in masks)
