"""FedGNN's graph expansion: who meets whom, what each party sees of it, and what it weighs."""

import dataclasses
import hashlib
import inspect

import numpy as np
import pytest

from fedgrec.cable.core import Cohort
from fedgrec.methods import expansion, fedgnn
from fedgrec.methods.expansion import Offer, Reply
from tests.methods.gnn_worlds import KEY, people, third

# u0 likes t0; u1 likes t0, t1; u2 likes t1, t2.
BOARD = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1]], bool)


def joined(parts: list[Offer]) -> Offer:
    """The users of all parts, one after the other."""
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part.indptr) for part in parts]))])
    return Offer(indptr, np.concatenate([p.hashes for p in parts]), np.concatenate([p.embeddings for p in parts]))


def test_three_users_and_three_items_by_hand() -> None:
    options = fedgnn.Options(dim=1, own=0.5, others=0.5, message_passing="mean", precision="float64")
    method = fedgnn.make(options, 3, 3)
    server, users = method.init(0), people(method, BOARD)
    server.items[0, :, 0], users.state.embeddings[:, 0, 0] = [10, 20, 30], [1, 2, 3]
    users, _ = method.match(users, 0, 0)
    assert users.around is not None
    assert users.around[:, 0].tolist() == [2, 1, 3, 2, 0]  # u0: u1; u1: u0, u2; u2: u1, nobody
    h = [[(10 + 2) / 2], [(10 + 1) / 2, (20 + 3) / 2], [(20 + 2) / 2, 30]]  # without other users: the item alone
    wanted = [0.5 * e + 0.5 * np.mean(heard) for e, heard in zip([1, 2, 3], h, strict=True)]
    assert method.represent_users(server, users)[:, 0] == pytest.approx(wanted)


@pytest.mark.parametrize("neighbours", [1, 3, 50])
def test_a_user_hears_of_others_never_of_itself_and_of_no_more_than_asked(neighbours) -> None:
    Y = np.random.default_rng(0).random((12, 7)) < 0.6
    method = fedgnn.make(fedgnn.Options(dim=12, precision="float64"), 7, 12)
    users = people(method, Y)
    users.state.embeddings[:, 0] = np.eye(12)  # so that a mean shows who is in it
    told, _ = expansion.expand(users, KEY, third(neighbours))
    assert told.around is not None
    for edge, (u, t) in enumerate(np.argwhere(Y)):
        others = np.flatnonzero(told.around[edge])
        count = min(neighbours, Y[:, t].sum() - 1)
        assert len(others) == count
        assert u not in others
        assert Y[others, t].all()
        np.testing.assert_allclose(told.around[edge, others], 1 / max(count, 1))
    again, _ = expansion.expand(users, KEY, third(neighbours, seed=1))
    assert np.array_equal(told.around, again.around) == (neighbours == 50)  # other draws, others heard


def test_everybody_is_heard_equally_often_over_many_draws() -> None:
    method = fedgnn.make(fedgnn.Options(dim=6, precision="float64"), 1, 6)
    users = people(method, np.ones((6, 1), bool))
    users.state.embeddings[:, 0] = np.eye(6)
    heard = sum(expansion.expand(users, KEY, third(2, seed))[0].around for seed in range(600))  # type: ignore[misc]
    chance = heard / 600 * 2  # a mean of two holds each with one half
    assert np.abs(chance - 2 / 5 * (1 - np.eye(6))).max() < 0.08


def test_parts_of_the_replies_are_the_whole(monkeypatch) -> None:
    method = fedgnn.make(fedgnn.Options(dim=3), 30, 40)
    users = people(method, np.random.default_rng(1).random((40, 30)) < 0.4)
    whole, weight = expansion.expand(users, KEY, third(5))
    monkeypatch.setattr(expansion, "ROWS", 7)
    parts, same_weight = expansion.expand(users, KEY, third(5))
    assert np.array_equal(whole.around, parts.around)  # type: ignore[arg-type]
    assert weight == same_weight


def test_a_phone_sends_what_the_simulation_sends_for_it() -> None:
    method = fedgnn.make(fedgnn.Options(dim=3), 9, 5)
    users = people(method, np.random.default_rng(2).random((5, 9)) < 0.5)
    whole, _ = expansion.offer(users, KEY)
    phones = joined([expansion.offer(users.take(np.array([u])), KEY)[0] for u in range(5)])
    for name, value in vars(whole).items():
        assert np.array_equal(value, getattr(phones, name))


# ------------------------------------------------------------------------------------- what each party sees


def test_these_are_all_the_fields_that_travel() -> None:
    """Adding one is a privacy decision: whoever changes this list says why."""
    assert [f.name for f in dataclasses.fields(Offer)] == ["indptr", "hashes", "embeddings"]
    assert [f.name for f in dataclasses.fields(Reply)] == ["counts", "embeddings"]


def test_the_third_party_holds_the_offer_and_what_follows_from_it() -> None:
    method = fedgnn.make(fedgnn.Options(dim=3), 9, 5)
    party = third(4)
    expansion.expand(people(method, np.random.default_rng(2).random((5, 9)) < 0.5), KEY, party)
    assert set(vars(party)) == {"neighbours", "rng", "offer", "owner", "circle", "place", "first", "size"}


def test_the_server_has_no_part_in_it() -> None:
    assert "server" not in inspect.signature(fedgnn.FedGNN.match).parameters
    method = fedgnn.make(fedgnn.Options(dim=3), 9, 5)
    assert method.spec(fedgnn.EXPAND).leaves == ()


def named(offer: Offer, n_items: int) -> float:
    """The share of hashes that the third party opens by trying every item of the catalogue."""
    book = set()
    for item in range(n_items):
        for raw in (item.to_bytes(4, "little"), item.to_bytes(8, "little"), str(item).encode()):
            book |= {raw.ljust(16, b"\0"), hashlib.sha256(raw).digest()[:16], hashlib.blake2b(raw).digest()[:16]}
            book.add(hashlib.blake2b(raw, digest_size=16).digest())
    return float(np.mean([row.tobytes() in book for row in offer.hashes]))


def ascending(offer: Offer, users: Cohort) -> float:
    """Of two hashes that a user sends one after the other, how often the second is the larger item."""
    items = {row.tobytes(): t for row, t in zip(expansion.keyed_hashes(users.items, KEY), users.items, strict=True)}
    sent = np.array([items[row.tobytes()] for row in offer.hashes])
    inside = np.diff(users.owner) == 0
    return float((np.diff(sent)[inside] > 0).mean())


def many() -> Cohort:
    return people(fedgnn.make(fedgnn.Options(dim=3), 40, 20), np.random.default_rng(3).random((20, 40)) < 0.4)


def test_the_third_party_cannot_name_an_item_nor_put_two_in_order() -> None:
    users = many()
    offer, _ = expansion.offer(users, KEY)
    assert named(offer, 40) == 0
    assert 0.4 < ascending(offer, users) < 0.6


def test_another_key_gives_other_hashes_and_the_same_matches() -> None:
    users = many()
    a, b = expansion.offer(users, KEY)[0], expansion.offer(users, b"another")[0]
    assert not set(map(bytes, a.hashes)) & set(map(bytes, b.hashes))
    one, other = (expansion.expand(users, key, third(40))[0].around for key in (KEY, b"another"))
    np.testing.assert_allclose(one, other, atol=1e-7)  # type: ignore[arg-type]


def ids(items, key):
    return np.stack([items.astype(np.uint64), np.zeros(len(items), np.uint64)], axis=1)


def without_key(items, key, right=expansion.keyed_hashes):
    return right(items, b"")


@pytest.mark.parametrize("leak", [ids, without_key])
def test_sending_ids_or_hashes_without_a_key_is_found(monkeypatch, leak) -> None:
    monkeypatch.setattr(expansion, "keyed_hashes", leak)
    assert named(expansion.offer(many(), KEY)[0], 40) == 1


def test_sending_hashes_in_the_order_of_the_items_is_found() -> None:
    users = many()
    offer = Offer(users.indptr, expansion.keyed_hashes(users.items, KEY), users.state.embeddings[:, 0])
    assert ascending(offer, users) == 1


# ------------------------------------------------------------------------------------------ what it weighs


def test_bytes_of_an_expansion_by_hand() -> None:
    method = fedgnn.make(fedgnn.Options(dim=5, neighbours=10), 3, 3)
    _, traffic = method.match(people(method, BOARD), 0, 0)
    up = 5 * 16 + 3 * 5 * 4  # five hashes, three embeddings
    down = 5 * 4 + 4 * 5 * 4  # how many for each hash, and four embeddings
    assert traffic == (up, down, up, down)
    assert method.traffic(fedgnn.EXPAND, np.array([1, 2, 2]))[:2] == (up, 5 * 4 + 5 * 10 * 5 * 4)  # at most
