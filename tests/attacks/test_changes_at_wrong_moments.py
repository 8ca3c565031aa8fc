"""Attacks on a federation that lives: changes at the wrong moment, kills between two writes."""

import sqlite3
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.errors import ConfigError, DiskError
from fedgrec.federation.common import catalogue
from fedgrec.federation.common.arrays import read_arrays
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.network import NodeNetwork, write_network
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.sqlite_store import LISTED
from fedgrec.federation.node import changes, refresh
from fedgrec.federation.node.folder import SERVED, open_node
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.store import ServerStore
from fedgrec.federation.setup import start
from tests.federation.living import Life
from tests.federation.local_transport import Answer, honest
from tests.federation.worlds import Killed


def stage_of(life: Life) -> str:
    """The stage of the sum that goes on."""
    with sqlite3.connect(life.world.server / "server.sqlite") as store:
        found = store.execute("SELECT stage FROM sums WHERE applied IS NULL ORDER BY number DESC").fetchone()
    return str(found[0]) if found else ""


# ------------------------------------------------------------------------------------- changes while a count goes on


def attempts(life: Life) -> int:
    """Attempts at a recount so far."""
    return sum(line["stage"] == "recount" for line in life.world.log())


def test_a_new_user_who_leaves_between_two_attempts_at_a_recount(life: Life) -> None:
    """The last attempt holds the users who are there: a node that cannot compute its part must not count it."""
    life.click()
    life.people[1]["guest"] = {1, 2, 3}
    life.reread()

    def meddle(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        """Two attempts are lost after all nodes have sent; the guest leaves once the verdict on the first is known."""
        recount = stage_of(life) == "recount"
        if recount and request.kind == "confirm" and attempts(life) < 3:
            return []
        answer = list(honest(address, request, node))
        if recount and (request.kind, address) == ("keys", 1) and "guest" in life.people[1] and attempts(life) == 2:
            del life.people[1]["guest"]
            life._reread([1])
        return answer

    life.train(meddle)
    assert attempts(life) == 3
    assert len(life.world.applied("recount")) == 1
    assert life.world.applied("recount")[0]["included"] == [0, 1, 2]
    life.holds()
    life.click()
    life.reread()
    life.train()
    life.holds()


def test_a_user_who_leaves_between_two_attempts_at_the_first_count(tmp_path: Path) -> None:
    life = Life(tmp_path)
    guest = sorted(life.people[1])[0]

    def counts() -> int:
        return sum(line["stage"] == "degrees" for line in life.world.log())

    def meddle(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        first = stage_of(life) == "degrees"
        if first and request.kind == "confirm" and counts() < 3:
            return []
        answer = list(honest(address, request, node))
        if first and (request.kind, address) == ("keys", 1) and guest in life.people[1] and counts() == 2:
            del life.people[1][guest]
            life._reread([1])
        return answer

    life.train(meddle)
    assert life.world.applied("degrees")[0]["included"] == [0, 1, 2]
    life.holds()


def test_a_node_that_could_not_compute_its_part_of_a_recount_does_not_take_it_for_counted(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node sent zeros, so that nobody learns of the failure: the changes still wait."""
    before = life.world.model().degrees
    life.people[1][sorted(life.people[1])[0]] ^= {0, 1, 2}
    life.reread()

    real = changes.with_changes

    def fail(store: NodeStore, *more: Any) -> Any:
        if store.path.parent == life.world.nodes[1]:
            raise MemoryError
        return real(store, *more)

    with monkeypatch.context() as broken:
        broken.setattr(changes, "with_changes", fail)
        life.train()
    assert len(life.world.applied("recount")) == 1
    np.testing.assert_array_equal(life.world.model().degrees, before)
    life.train()
    life.holds()
    assert (life.world.model().degrees != before).sum() == 3


def in_recount(store: NodeStore) -> None:
    """The node takes part in a recount whose verdict it does not know."""
    store.take_part("s", ("recount", 0, 3), store.first_rows(-1), None, b"")


@pytest.mark.parametrize("how", ["renew", "forget"])
def test_changes_that_wait_for_a_message_see_the_count_that_it_began(tmp_path: Path, how: str) -> None:
    """While a node answers, the reader of the source waits; the message may have begun a recount."""
    life = Life(tmp_path)
    home, user = open_node(life.world.nodes[0]), sorted(life.people[0])[0]
    said: list[str] = []

    def change() -> None:
        with NodeStore(home.path) as mine:
            try:
                if how == "renew":
                    changes.renew(mine, home.method(1), {user: {1: False}}, 0.0, home.user_salt)
                else:
                    changes.forget(mine, user, home.user_salt)
            except FederationError as refusal:
                said.append(str(refusal))

    with NodeStore(home.path) as store:
        with store.transaction():
            reader = threading.Thread(target=change)
            reader.start()
            time.sleep(0.5)  # the reader has checked, and waits
            in_recount(store)
        reader.join()
        assert len(said) == 1
        assert "changes wait for that" in said[0]
        assert not store.rows("changes", "user")


def test_a_lost_count_of_changes_does_not_put_the_recount_off(life: Life) -> None:
    life.click()
    life.reread()

    def meddle(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        counts = sum(line["stage"] == "changes" for line in life.world.log())
        lost = request.kind == "confirm" and stage_of(life) == "changes" and counts == 1
        return [] if lost else honest(address, request, node)

    life.train(meddle)
    life.holds()
    assert [line["applied"] for line in life.world.log() if line["stage"] == "changes"] == [0, 1]
    assert len(life.world.applied("recount")) == 1


# ------------------------------------------------------------------------------------------------- sources


def write_source(home: Path, people: dict[str, set[int]]) -> Path:
    lines = [f"{user},item {item}\n" for user, items in sorted(people.items()) for item in sorted(items)]
    (home / "people.csv").write_text("user,item\n" + "".join(lines))
    write_network(home, NodeNetwork("127.0.0.1:1", source="people.csv", held_out=0.0, refresh=0.01))
    return home / "people.csv"


def test_a_source_that_could_not_be_read_at_the_start_is_read_later(tmp_path: Path) -> None:
    """The node was killed in a recount, and its source changed before it was started again."""
    life = Life(tmp_path)
    home = life.world.nodes[0]
    write_source(home, life.people[0] | {"guest": {1, 2}})
    with NodeStore(home) as store:
        in_recount(store)
    watcher = refresh.Watcher(home)
    assert watcher.load() == 6
    assert watcher.look() is None
    with NodeStore(home) as store:
        store.settle("s", False)
    found = watcher.look()
    assert found is not None
    assert found.came == 1
    assert watcher.look() is None


def test_a_source_that_changes_while_it_is_read_at_the_start_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path)
    home, real = life.world.nodes[0], refresh.refresh
    write_source(home, life.people[0])

    def slow(folder: Path) -> Any:
        found = real(folder)
        write_source(home, life.people[0] | {"guest": {1, 2}})
        return found

    with monkeypatch.context() as patch:
        patch.setattr(refresh, "refresh", slow)
        watcher = refresh.Watcher(home)
        assert watcher.load() == 6
    found = watcher.look()
    assert found is not None
    assert found.came == 1


def test_a_source_that_was_written_anew_and_says_the_same_has_not_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life(tmp_path)
    home = life.world.nodes[0]
    write_source(home, life.people[0])
    watcher = refresh.Watcher(home)
    watcher.load()
    caplog.set_level("INFO", "fedgrec.node")
    for people in (life.people[0], life.people[0] | {"guest": {1, 2}}):
        write_source(home, people)
        watcher.look()
    said = [record.getMessage() for record in caplog.records if "has changed" in record.getMessage()]
    assert said == ["the source has changed: 1 new user, 0 with changed items, 0 who left"]


def test_a_source_that_is_gone_for_a_moment_ends_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(tmp_path)
    home = life.world.nodes[0]
    path = write_source(home, life.people[0])
    watcher = refresh.Watcher(home)
    watcher.load()
    exists = Path.exists
    with monkeypatch.context() as patch:  # the file disappears between two checks
        patch.setattr(Path, "exists", lambda at, **_: True if at == path else exists(at))
        path.unlink()
        assert watcher.look() is None
    write_source(home, life.people[0] | {"guest": {1, 2}})
    found = watcher.look()
    assert found is not None
    assert found.came == 1


def test_those_who_left_before_do_not_make_a_source_look_damaged(life: Life) -> None:
    """Three of six users leave and wait for a recount; one more who leaves does not make the source damaged."""
    home, users = life.world.nodes[0], sorted(life.people[0])
    for gone in (3, 4):
        write_source(home, {user: life.people[0][user] for user in users[gone:]})
        assert refresh.refresh(home).left == (3 if gone == 3 else 1)


# ------------------------------------------------------------------------------------------ published models


def serve_what_is_published(life: Life) -> bool:
    """Whether all nodes recommend with the server's newest model."""
    newest = max(life.world.server.glob("published-*.bin"), key=lambda path: path.stat().st_mtime_ns)
    arrays, _ = read_arrays(newest)
    served = [read_arrays(path / SERVED)[0] for path in life.world.nodes.values()]
    return all(np.array_equal(arrays[name], mine[name]) for mine in served for name in arrays)


def test_a_season_that_is_given_more_rounds_is_published_again(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.world.run()
    assert serve_what_is_published(life)
    life.give(rounds=6)
    life.world.run()
    assert serve_what_is_published(life)


def test_a_node_that_comes_back_at_the_end_hears_what_became_of_its_last_sum(tmp_path: Path) -> None:
    """It has the model already, but still waits for a verdict."""
    life = Life(tmp_path)
    life.train()
    with NodeStore(life.world.nodes[2]) as store, store.transaction():  # as if the verdict had not come
        session, users = store.rows("participation", "session, users", "ORDER BY number DESC LIMIT 1")[0]
        store.db.execute("UPDATE participation SET verdict = NULL WHERE session = ?", [session])
        store.db.execute("DELETE FROM history WHERE line LIKE ?", [f'%"{session}"%'])
        store.db.execute(f"UPDATE users SET pending = state, pending_pushed = pushed WHERE row {LISTED}", [users])
    assert life.world.pending()
    life.world.run()
    assert not life.world.pending()
    life.holds()


# --------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("rounds", 1, "no second season could begin"),
        ("later_rounds", 1, "raise it"),
        ("look", 0.01, "fewer than 1,000 counts of changes"),
        ("rest", -1, "rest cannot be -1"),
        ("rest", "nan", "rest cannot be nan"),
        ("look", -0.5, "look cannot be -0.5"),
        ("seasons", -1, "seasons cannot be -1"),
        ("enough", -1, "enough cannot be -1"),
        ("models", 0, "models cannot be 0"),
    ],
)
def test_absurd_options_are_one_sentence_before_anything_starts(
    tmp_path: Path, option: str, value: object, sentence: str
) -> None:
    life = Life(tmp_path, options={"seasons": 0, "rest": 60.0})
    life.give(**{option: value})
    with pytest.raises(ConfigError, match=sentence):
        start.serve(life.world.server, print)
    with pytest.raises(ConfigError, match=sentence):
        life.world.run()


# ----------------------------------------------------------------------------------------- killed between two writes


def test_a_server_killed_right_after_a_recount_knows_that_it_counted(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.click()
    life.reread()
    apply = ServerStore.apply

    def killed(store: ServerStore, *more: Any) -> None:
        apply(store, *more)
        if store.sums()[-1]["stage"] == "recount":
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ServerStore, "apply", killed)
        with pytest.raises(Killed):
            life.train()
    life.train()
    life.holds()
    assert len(life.world.applied("recount")) == 1
    assert not [notice for notice in life.world.witness.notices if "changes wait" in notice]


def traces(home: Path, found: list[bytes]) -> list[str]:
    return [path.name for path in home.rglob("*") if path.is_file() and any(t in path.read_bytes() for t in found)]


def test_a_node_killed_before_it_scrubs_leaves_no_traces_in_the_end(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, on which nothing can be scrubbed, does not keep the node from answering."""
    index, user = 1, sorted(life.people[1])[2]
    home = open_node(life.world.nodes[index])
    with NodeStore(home.path) as store:
        ((key, state),) = store.rows("users", "key, state", "WHERE id = ?", [user])
        changes.forget(store, user, home.user_salt)
    del life.people[index][user]

    def fails(store: NodeStore) -> None:
        raise DiskError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(changes, "scrub", fails)
        life.train()
    life.holds()
    with NodeStore(home.path) as store:
        assert store.get("traces")
    life.train()
    with NodeStore(home.path) as store:
        assert not store.get("traces")
    assert not traces(home.path, [user.encode(), key, state[:64]])


# ------------------------------------------------------------------------------------------- users on two nodes


def test_a_user_may_move_from_one_node_to_another(life: Life) -> None:
    """The federation does not leave out the user's new node meanwhile."""
    user = sorted(life.people[0])[0]
    life.people[1][user] = life.people[0].pop(user)
    for _ in range(3):
        life.reread()
        life.train()
    life.holds()
    assert life.world.applied("train")[-1]["included"] == [0, 1, 2]
    lost = [line["round"] for line in life.world.applied("train") if line["included"] != [0, 1, 2]]
    assert not lost


@pytest.mark.keep(1)
@pytest.mark.parametrize("stages", [2, 0, 1])
def test_users_who_come_and_leave_in_the_warm_up_do_not_keep_it_from_its_end(tmp_path: Path, stages: int) -> None:
    """The server is killed after this many sums, and most nodes have other users when it is back."""
    life = Life(tmp_path, layers=2)

    def killed(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        if sum(bool(line["applied"]) for line in life.world.log()) == stages and request.kind == "masked":
            raise Killed
        return honest(address, request, node)

    with pytest.raises(Killed):
        life.train(killed)
    for index in (0, 1):
        del life.people[index][sorted(life.people[index])[0]]
    if stages:  # otherwise the integers are too small for them
        for index in life.people:
            life.people[index] |= {f"guest {index}": {1, 2}, f"friend {index}": {2, 3}}
    for index in life.people:
        with NodeStore(life.world.nodes[index]) as store:  # what the killed server would have said after its start
            for session in store.waiting():
                changes.counted(store, store.settle(session, False))
        life._reread([index])
    life.train()
    life.holds()
    life.train()
    life.holds()
    assert life.world.applied("train")[0]["included"] == [0, 1, 2]


def test_who_missed_the_first_count_and_changes_between_two_levels(tmp_path: Path) -> None:
    """Its items change at once, but its latents of the first level still stand at its old items."""
    life = Life(tmp_path, latents_every=100, layers=2)

    def meddle(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        if sum(bool(line["applied"]) for line in life.world.log()) == 2:
            raise Killed
        missed = address == 1 and request.kind == "masked" and stage_of(life) == "degrees"
        return [] if missed else honest(address, request, node)

    with pytest.raises(Killed):
        life.train(meddle)
    assert [line["included"] for line in life.world.applied("degrees")] == [[0, 2]]
    assert [line["included"] for line in life.world.applied("propagate")] == [[0, 1, 2]]
    with NodeStore(life.world.nodes[1]) as store:  # as the server would say in its next message
        for session in store.waiting():
            changes.counted(store, store.settle(session, True))
    for user in life.people[1]:
        life.people[1][user] ^= {0, 1, 2}
    life._reread([1])
    for _ in range(2):
        life.train()
        life.holds()


def test_clicks_do_not_keep_a_sum_that_was_opened_in_part_from_being_opened_again(tmp_path: Path) -> None:
    """Counted users keep their items until a recount, so that the sum is the same; otherwise it would never open."""
    life = Life(tmp_path)

    def meddle(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        if request.kind == "unmask" and stage_of(life) == "propagate" and address == 2:
            raise Killed
        return honest(address, request, node)

    with pytest.raises(Killed):
        life.train(meddle)
    life.click()
    for index in life.people:
        life.people[index][sorted(life.people[index])[0]] ^= {0, 1, 2}
    life.reread()
    life.train()
    life.reread()
    life.train()
    life.holds()


@pytest.mark.keep(2)
@pytest.mark.parametrize("writes", range(1, 7))
def test_a_kill_between_two_writes_of_a_new_catalogue(life: Life, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """The server writes three files, then each node does: one that was killed in between writes them again."""
    life.item()
    left, write = [writes], catalogue.write_private

    def killed(path: Path, content: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(catalogue, "write_private", killed)
        with pytest.raises(Killed):
            life.train()
    life.train()
    life.reread()
    life.train()
    life.holds()
    assert {open_node(path).n_items for path in life.world.nodes.values()} == {31}
    assert life.world.model().degrees[30] > 0
