"""Decoys in a federation: the life of a click, of which the server knows only what users tell."""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.cable import decoys
from fedgrec.cable.core import Cohort, as_server
from fedgrec.cli import main
from fedgrec.federation.common.arrays import read_arrays
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.packets import Packet, unpack_broadcast
from fedgrec.federation.common.plan import CHANGES
from fedgrec.federation.node import actual_items, changes, decoy_answers
from fedgrec.federation.node.folder import SERVED, open_node
from fedgrec.federation.node.node import handle
from fedgrec.federation.node.person import recommend, users_of
from fedgrec.federation.node.ranking import best, scores
from fedgrec.federation.node.store import NodeStore, Person
from tests.federation.living import Life
from tests.federation.local_transport import Answer, LocalTransport, honest
from tests.federation.worlds import N_ITEMS, World, people, world

SOME: dict[str, Any] = {"dp_epsilon": 2.0, "dp_unit": "interaction"}  # about 4 decoys for each user, among 30 items
USERS = 4  # of a node
Told = dict[tuple[Path, int], list[int]]


def told(fed: World, waiting: bool = True) -> Told:
    """What every user has told; `waiting`: also what no sum holds yet."""
    found: Told = {}
    for path in fed.nodes.values():
        with NodeStore(path) as store:
            for row in store.first_rows(-1):
                counted = sorted(changes._items(store, row))
                found[path, row] = changes.wanted(store, row) if waiting else counted
    return found


def compute_upload(life: Life) -> dict[tuple[int, str], list[tuple[int, int]]]:
    """What every user has as its node knows it: items, and whether the user was asked about each."""
    found = {}
    for index, path in life.world.nodes.items():
        with NodeStore(path) as store:
            for user in store.staying():
                where = "WHERE user = ? AND gone = 0 ORDER BY item"
                found[index, user] = store.rows("own", "item, answered", where, [store.row_of(user)])
    return found


def agrees(life: Life) -> bool:
    """Whether nodes know what people have."""
    here = {who: {item for item, _ in items} for who, items in compute_upload(life).items()}
    return here == {(index, user): items for index, users in life.people.items() for user, items in users.items()}


@pytest.fixture(scope="module")
def lived_once(tmp_path_factory: pytest.TempPathFactory) -> Life:
    """A federation with decoys, after its first season."""
    life = Life(tmp_path_factory.mktemp("decoys"), users=USERS, options=SOME)
    life.train()
    return life


@pytest.fixture
def life(tmp_path: Path, lived_once: Life) -> Life:
    """A copy of that federation."""
    return lived_once.copied(tmp_path)


# ------------------------------------------------------------------------------------------ taken in, read again


def test_users_tell_once_when_they_are_taken_in(tmp_path: Path) -> None:
    life = Life(tmp_path, users=USERS, options=SOME)
    has = {person.id: (sorted(person.items), sorted(person.held_out)) for node in people(3, USERS) for person in node}
    first, lies = told(life.world), 0
    for path in life.world.nodes.values():
        with NodeStore(path) as store:
            for row, user, degree in store.rows("users", "row, id, degree"):
                (held,) = store.held_out([row])
                assert (changes.mine(store, row), held.tolist()) == has[user]
                assert degree == len(first[path, row])
                assert not actual_items.unanswered(store, row)
                lies += first[path, row] != has[user][0]
    assert lies > 6
    life.reread()
    assert told(life.world) == first, "the source is read again, and nobody tells anew"


def test_a_reading_notes_what_users_have_and_nobody_tells(life: Life) -> None:
    before = told(life.world)
    path, (user, items) = life.world.nodes[0], max(life.people[0].items(), key=lambda one: len(one[1]))
    with NodeStore(path) as store:
        row = store.row_of(user)
    answered = min(set(before[path, row]) & items)  # taken back, although it was told
    new = min(set(range(N_ITEMS)) - items - set(before[path, row]))
    life.people[0][user] = items ^ {answered, new}
    life.reread()
    assert told(life.world) == told(life.world, waiting=False) == before
    assert agrees(life)
    assert (new, 0) in compute_upload(life)[0, user]
    assert answered in recommend(path, user, N_ITEMS)[0], "it is nothing but a decoy now"
    assert new not in recommend(path, user, N_ITEMS)[0]
    life.people[0][user] = items
    life.reread()
    assert (answered, 1) in compute_upload(life)[0, user], "it was asked about: a second answer would tell more"
    assert new not in dict(compute_upload(life)[0, user])


# ------------------------------------------------------------------------------------------ once in a season


class Asked:
    """Counts the questions, and lets them be answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.questions: list[list[int]] = []
        self.answer = decoys.next_told_items
        monkeypatch.setattr(decoys, "next_told_items", self)

    def __call__(self, told: Any, new: Any, n_items: int, epsilon: float, draw: Any) -> Any:
        self.questions.append(new.tolist())
        assert epsilon == SOME["dp_epsilon"]
        return self.answer(told, new, n_items, epsilon, draw)


def loses_the_first_count(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
    plan = request.header.get("plan", {})
    if plan.get("stage") == CHANGES and not plan["level"]:
        node(request)
        return []
    return honest(address, request, node)


def test_all_users_tell_once_in_every_season(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also users without clicks, however often changes are counted; a new user has told when it came."""
    asked = Asked(monkeypatch)
    for season in range(2):
        before = told(life.world)
        asked.questions.clear()
        for step in (life.click, life.click, life.join):
            step()
        life.reread()
        assert len(asked.questions) == 1, "of the newcomer"
        clicks = [item for items in compute_upload(life).values() for item, answered in items if not answered]
        asked.questions.clear()
        life.train(loses_the_first_count if not season else honest)
        assert len(asked.questions) == len(compute_upload(life)) == 3 * USERS + 1 + season
        assert sorted(item for new in asked.questions for item in new) == sorted(clicks) != []
        after = told(life.world)
        assert all(set(before[who]) <= set(after[who]) for who in before)
        assert sum(len(after[who]) for who in before) > sum(map(len, before.values()))
        assert after == told(life.world, waiting=False), "the recount has counted it"
        assert all(answered for items in compute_upload(life).values() for _, answered in items)
        assert agrees(life)
        life.holds()
    assert len(life.world.applied("recount")) == 2


def test_a_node_that_missed_the_count_tells_before_the_recount(tmp_path: Path) -> None:
    life = Life(tmp_path, users=USERS, options=SOME)
    home, first = open_node(life.world.nodes[0]), told(life.world)
    with NodeStore(home.path) as store:
        for place in (("train", 0, 3), ("degrees", 0, 0), ("recount", 0, 0)):
            decoy_answers.before_keys(home, store, place)
        assert told(life.world) == first
        with store.transaction():
            decoy_answers.before_keys(home, store, ("recount", 0, 3))
        then = told(life.world)
        assert then != first
        with store.transaction():
            decoy_answers.before_keys(home, store, ("recount", 0, 3))
            store.put("season", (3, 12))
            decoy_answers.before_keys(home, store, ("recount", 0, 3))  # a second attempt at it
        assert told(life.world) == then


def test_what_waits_for_a_verdict_is_not_told_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(tmp_path, users=USERS, options=SOME)
    with NodeStore(life.world.nodes[0]) as store:
        monkeypatch.setattr(store, "counting", lambda: True)
        with pytest.raises(FederationError, match="changes wait"):
            decoy_answers.tell(store, N_ITEMS, 2.0)


def test_users_come_go_and_come_back(life: Life) -> None:
    """A user who is back before the recount tells the same as before; of other leavers, nothing is left.

    Laws 6 and 11 hold, with new items and withdrawn ones.
    """
    path, (user, items) = life.world.nodes[1], min(life.people[1].items())
    with NodeStore(path) as store:
        row = store.row_of(user)
    before = told(life.world)[path, row]
    del life.people[1][user]
    life.reread()
    assert told(life.world)[path, row] == []
    life.people[1][user] = items
    life.reread()
    assert told(life.world)[path, row] == before
    assert {item for item, answered in compute_upload(life)[1, user] if answered} == items

    gone = {}
    for index in (1, 2):
        home, leaver = open_node(life.world.nodes[index]), max(life.people[index])
        with NodeStore(home.path) as store:
            gone[index] = store.row_of(leaver)
            if index == 1:
                changes.forget(store, leaver, home.user_salt)
                assert not store.rows("own", "item", "WHERE user = ?", [gone[index]])
        del life.people[index][leaver]
    for step in (life.click, life.join, life.item, life.withdraw):
        step()
    life.reread()
    life.train()
    life.reread()
    assert agrees(life)
    life.holds()
    for index, left in gone.items():
        with NodeStore(life.world.nodes[index]) as store:
            assert left not in store.first_rows(-1)
            for table in ("own", "interactions", "changes"):
                assert not store.rows(table, "item", "WHERE user = ?", [left])


def test_who_has_told_nothing_breaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tell nothing, in the first season and in the second; one of them leaves."""
    tell = decoys.next_told_items

    def some_are_silent(before: Any, new: Any, *more: Any) -> Any:
        return before if not len(before) and len(new) % 2 == 0 else tell(before, new, *more)

    monkeypatch.setattr(decoys, "next_told_items", some_are_silent)
    life = Life(tmp_path, users=USERS, options=SOME)
    assert sum(not items for items in told(life.world).values()) > 3
    life.train()
    life.holds()
    del life.people[0][next(user for user in life.people[0] if not _told_of(life, 0, user))]
    life.reread()
    life.train()
    life.holds()
    index, user = next((i, u) for i, users in life.people.items() for u in users if not _told_of(life, i, u))
    assert len(recommend(life.world.nodes[index], user, 5)[0]) == 5


def _told_of(life: Life, index: int, user: str) -> list[int]:
    with NodeStore(life.world.nodes[index]) as store:
        return changes.wanted(store, store.row_of(user))


# --------------------------------------------------------------------------------------------- ranking at home


@pytest.mark.keep(1)
@pytest.mark.parametrize("per_user_masks", [False, True])
def test_people_are_ranked_with_what_they_have(tmp_path: Path, per_user_masks: bool) -> None:
    """Everything is recommended except what they have and what is held out; decoys may be. The metrics agree."""
    users = 2 if per_user_masks else 6
    fed = world(tmp_path, users=users, options=SOME | {"evaluations": 9}, per_user_masks=per_user_masks)
    fed.run()
    has = {person.id: person for node in people(3, users) for person in node}
    recalls, offered = [], 0
    for path in fed.nodes.values():
        home = open_node(path)
        for user in users_of(path):
            items = np.array(sorted(has[user].items))
            with NodeStore(path) as store:
                method, row = home.method(3 * users), store.row_of(user)
                cohort = store.cohort(method, [row])
                offered += len(set(changes.wanted(store, row)) - {*has[user].items, *has[user].held_out})
            cohort = replace(cohort, indptr=np.array([0, len(items)]), items=items)
            arrays, about = read_arrays(home.shared / SERVED)
            expected = scores(method, as_server(unpack_broadcast(about, arrays)), cohort)[0]
            order, values = recommend(path, user, N_ITEMS)
            assert sorted([*order.tolist(), *has[user].items, *has[user].held_out]) == list(range(N_ITEMS))
            np.testing.assert_array_equal(values, expected[order])
            if has[user].held_out:
                recalls.append(_recall(method, fed, cohort, has[user].held_out))
    assert offered > 0
    assert fed.witness.metrics[-1]["recall@5"] == pytest.approx(np.mean(recalls), abs=1e-6)
    assert fed.is_its_simulation()


def _recall(method: Any, fed: World, cohort: Cohort, held_out: Any) -> float:
    found = best(scores(method, method.as_ranked(fed.judged_model()), cohort)[0], cohort.items, 5)
    return float(np.isin(found, held_out).sum()) / len(held_out)


# ------------------------------------------------------------------------------------------ what the server sees


def test_the_server_sees_nothing_but_what_users_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If users have other items and tell the same, not a bit of the model or of any user's state changes."""

    def fixed_answers(before: Any, new: Any, n_items: int, epsilon: float, draw: Any) -> Any:
        return np.union1d(before, (before + 1) % n_items if len(before) else np.arange(3))

    monkeypatch.setattr(decoys, "next_told_items", fixed_answers)
    seen = []
    life = Life(tmp_path / "a", users=USERS, options=SOME)
    for path in life.world.nodes.values():
        with NodeStore(path) as store, store.transaction():
            assert store.node_key
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for place in ("a", "b"):
        nodes = {index: tmp_path / place / path.name for index, path in life.world.nodes.items()}
        life.world = World(tmp_path / place / "server", nodes, LocalTransport(nodes))
        life.season = 1
        for users in life.people.values():
            for user, items in users.items():
                users[user] = items if place == "a" else {N_ITEMS - 1 - item for item in items}
        life.reread()
        life.train()
        life.train()
        assert agrees(life)
        model = life.world.model()
        states = [state for path in nodes.values() for state in _states(path)]
        seen.append([model.items.tobytes(), model.degrees.tobytes(), model.moment2.tobytes(), *states])
    assert len(life.world.applied("recount")) == 1
    assert seen[0] == seen[1]


def _states(path: Path) -> list[bytes]:
    with NodeStore(path) as store:
        return store.states(store.first_rows(-1))


# ----------------------------------------------------------------------------------------------------- refusals


def test_ratings_are_refused(tmp_path: Path) -> None:
    fed = world(tmp_path, options=SOME)
    with NodeStore(fed.nodes[0]) as store, pytest.raises(FederationError, match="has ratings, and decoys have none"):
        store.add_users(open_node(fed.nodes[0]).method(1), [Person("x", [1], targets=[4.0])], 2.0)


@pytest.mark.parametrize(("before", "after", "how"), [(2.0, 0.0, "with"), (0.0, 2.0, "without")])
def test_decoys_are_agreed_upon_before_the_first_user_comes(
    tmp_path: Path, before: float, after: float, how: str
) -> None:
    """Otherwise users who told the truth would seem to be hidden. A node refuses to read its source, and every sum."""
    fed = world(tmp_path, options={"dp_epsilon": before, "dp_unit": "interaction"})
    home, sentence = open_node(fed.nodes[0]), f"taken in {how} decoys"
    toml = home.path / "agreement.toml"
    toml.write_text(toml.read_text().replace(f"dp_epsilon = {before}", f"dp_epsilon = {after}"))
    with NodeStore(home.path) as store, pytest.raises(FederationError, match=sentence):
        changes.renew(store, home.method(1), {"0/0": {1: False}}, 0.0, home.user_salt, after)
    with NodeStore(home.path) as store, pytest.raises(FederationError, match=sentence):
        decoy_answers.before_keys(home, store, ("degrees", 0, 0))
    fed.witness.notices.clear()
    with pytest.raises(FederationError):  # the agreement is not the server's any more
        fed.run()
    assert handle(home.path, Packet("keys"), {}).kind == "error"


def test_init_sets_it(tmp_path: Path) -> None:
    (tmp_path / "items.txt").write_text("tea\ncoffee\nmilk\n")
    words = [
        "--catalogue",
        tmp_path / "items.txt",
        "--host",
        "fed.example",
        "--set",
        "dp_epsilon=9",
        "--set",
        "dp_unit=interaction",
    ]
    assert main([str(word) for word in ("federation", "init", "--out", tmp_path / "fed", *words)]) == 0
    assert open_node(tmp_path / "fed" / "node-0").agreed.decoys_epsilon == 9
