"""What a stranger would try on a federation that lives: changes at the wrong moment, kills between two writes."""

import sqlite3
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.network import NodeNetwork, write_network
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.in_process.transport import Answer, honest
from fedgrec.federation.node import changes, refresh
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore
from tests.federation.living import Life


def stage_of(life: Life) -> str:
    """Of the sum that goes on."""
    with sqlite3.connect(life.world.server / "server.sqlite") as store:
        found = store.execute("SELECT stage FROM sums WHERE applied IS NULL ORDER BY number DESC").fetchone()
    return str(found[0]) if found else ""


# ------------------------------------------------------------------------------------- changes while a count goes on


def attempts(life: Life) -> int:
    """At a recount, so far."""
    return sum(line["stage"] == "recount" for line in life.world.log())


def test_a_new_user_who_leaves_between_two_attempts_at_a_recount(tmp_path: Path) -> None:
    """The last attempt is of those who are there: a node that cannot compute its part must not take it for counted."""
    life = Life(tmp_path)
    life.train()
    life.click()
    life.people[1]["guest"] = {1, 2, 3}
    life.reread()

    def meddle(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        """Two attempts are lost after everybody has sent; the guest leaves once the first one's verdict is known."""
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros were sent, so that nobody learns of the failure: the changes still wait."""
    life = Life(tmp_path)
    life.train()
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
    """While a node answers, whoever reads the source stands at the door; the message may have been of a recount."""
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
            time.sleep(0.5)  # it has looked, and waits
            in_recount(store)
        reader.join()
        assert len(said) == 1
        assert "changes wait for that" in said[0]
        assert not store.rows("changes", "user")


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


def test_a_source_that_is_gone_for_a_moment_ends_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(tmp_path)
    home = life.world.nodes[0]
    path = write_source(home, life.people[0])
    watcher = refresh.Watcher(home)
    watcher.load()
    exists = Path.exists
    with monkeypatch.context() as patch:  # the file goes between two questions
        patch.setattr(Path, "exists", lambda at, **_: True if at == path else exists(at))
        path.unlink()
        assert watcher.look() is None
    write_source(home, life.people[0] | {"guest": {1, 2}})
    found = watcher.look()
    assert found is not None
    assert found.came == 1


def test_those_who_left_before_do_not_make_a_source_look_damaged(tmp_path: Path) -> None:
    """Three of six leave and wait for a recount; that one of the others leaves is nothing unusual."""
    life = Life(tmp_path)
    life.train()
    home, users = life.world.nodes[0], sorted(life.people[0])
    for gone in (3, 4):
        write_source(home, {user: life.people[0][user] for user in users[gone:]})
        assert refresh.refresh(home).left == (3 if gone == 3 else 1)
