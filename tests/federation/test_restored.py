"""A server restored from a backup that lacks a warm-up: nodes that know that it counts do not send it again."""

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.federation.common import packets
from fedgrec.federation.common.errors import Forgotten
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.in_process.transport import Answer, honest
from fedgrec.federation.node import rules
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.store import ServerStore
from tests.attacks.lying_server import DEGREES, PROPAGATE, Liar
from tests.federation.masked_worlds import masked_world
from tests.federation.meddlers import on
from tests.federation.worlds import Killed, World, world

STAGES = 3  # of a warm-up of two layers: degrees, propagate 1, propagate 2


@contextmanager
def killed_after(sums: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server dies when it has stored this many sums, before it tells anybody."""
    real, seen = ServerStore.apply, [0]

    def killed(self: ServerStore, *args: Any) -> None:
        real(self, *args)
        seen[0] += 1
        if seen[0] == sums:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ServerStore, "apply", killed)
        with pytest.raises(Killed):
            yield


def put(there: Path, here: Path) -> None:
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(there, here)


def stored(fed: World) -> list[Any]:
    """All that nodes know of their users and of the sums that the users were in."""
    found: list[Any] = []
    for path in fed.nodes.values():
        with NodeStore(path) as store:
            found += store.db.execute("SELECT id, state, pending FROM users").fetchall()
            found += store.db.execute("SELECT session, verdict FROM participation").fetchall()
    return found


def well(fed: World) -> bool:
    return fed.is_its_simulation() and not fed.pending()


# ------------------------------------------------------------------------------------ what is refused


@pytest.mark.keep(1)
@pytest.mark.parametrize("done", [1, 0, 2])
def test_a_backup_from_before_the_end_of_the_warm_up_is_refused_and_nothing_is_lost_by_trying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """Whatever stages it has; with the newest folder back, it goes on as if nothing had been tried."""
    fed, backup, newest = world(tmp_path, users=2, layers=2), tmp_path / "backup", tmp_path / "newest"
    if done:
        with killed_after(done, monkeypatch):
            fed.run()
    put(fed.server, backup)
    with killed_after(STAGES - done + 1, monkeypatch):
        fed.run()  # it has stored a training round, and nodes wait for the verdict
    put(fed.server, newest)
    put(backup, fed.server)
    before, sums = stored(fed), len(fed.log())
    said = f"has forgotten a warm-up: it has {done} stages, and node node0 knows that {STAGES} counted"
    with pytest.raises(Forgotten, match=f"{said}.*restore a newer backup of the server, or begin a new federation"):
        fed.run()
    assert stored(fed) == before, "nobody was told that a sum is lost which a newer backup has"
    assert len(fed.log()) == sums
    put(newest, fed.server)
    fed.run()
    assert well(fed)
    assert [line["round"] for line in fed.applied("train")] == [0, 1]


def test_with_masks_of_their_own_users_refuse(tmp_path: Path) -> None:
    fed, backup = masked_world(tmp_path), tmp_path / "backup"
    put(fed.server, backup)
    fed.run()
    put(backup, fed.server)
    with pytest.raises(Forgotten, match=r"node node0\.0 knows that 2 counted"):
        fed.run()


def test_one_node_that_has_heard_is_enough(tmp_path: Path) -> None:
    """Its users count the forgotten sum as sent; the users of other nodes would send it again."""
    fed, backup = world(tmp_path, users=3), tmp_path / "backup"
    put(fed.server, backup)
    seen: list[str] = []

    def dies(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        seen.append(request.kind)
        if seen.count("shares") == 4 + 1:  # requests of the second sum, which carry the verdict on the first
            raise Killed
        return honest(address, request, answer)

    with pytest.raises(Killed):
        fed.run(dies)
    heard = {}
    for index, path in fed.nodes.items():
        with NodeStore(path) as store:
            heard[index] = store.counted()
    assert heard == {0: [("degrees", 0)], 1: [], 2: []}
    put(backup, fed.server)
    with pytest.raises(Forgotten, match="it has 0 stages, and node node0 knows that 1 counted"):
        fed.run()


def test_a_node_refuses_by_itself_what_it_has_heard_to_count(tmp_path: Path) -> None:
    """Also if the server does not report its progress."""
    liar = Liar(world(tmp_path))
    assert liar.sum([0, 1, 2], DEGREES) is not None
    for node in (0, 1, 2):
        with NodeStore(liar.fed.nodes[node]) as store:
            store.settle(liar.sessions[-1], True)
    assert liar.sum([0, 1, 2], PROPAGATE) is not None, liar.refusals
    assert liar.sum([0, 1, 2], DEGREES) is None
    assert {answer.kind for answer in liar.answers["shares"].values()} == {packets.FORGOTTEN}
    assert liar.sum([0, 1, 2], PROPAGATE) is not None, "of that the server has said that nobody was in it"


@pytest.mark.parametrize(
    ("counted", "known"),
    [
        ([], 0),
        ([("degrees", 0)], 1),
        ([("propagate", 2), ("degrees", 0)], 3),
        ([("propagate", 1)], 2),
        ([("train", 0)], 3),  # it came later: a node that trains has seen the end of the warm-up
        ([("evaluate", 0)], 3),
    ],
)
def test_what_a_node_knows_of_the_warm_up(tmp_path: Path, counted: list[tuple[str, int]], known: int) -> None:
    home = open_node(world(tmp_path, users=1, layers=2).nodes[0])
    for warm in range(STAGES + 1):
        if warm >= known:
            rules.check_memory(home, home.method(3), counted, warm)
        else:
            with pytest.raises(Forgotten):
                rules.check_memory(home, home.method(3), counted, warm)


# ------------------------------------------------------------------------------------ what is repeated


@pytest.mark.parametrize("kept", [1, 2])
def test_a_stage_that_nobody_has_heard_to_count_is_repeated_also_after_a_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """The server stored the sum, told nobody and lost it: for the nodes it is like any lost sum."""
    fed, backup = world(tmp_path, users=4, options={"rounds": 0}), tmp_path / "backup"
    if kept > 1:
        with killed_after(kept - 1, monkeypatch):
            fed.run()
    put(fed.server, backup)
    with killed_after(1, monkeypatch):
        fed.run()
    first = fed.model()
    put(backup, fed.server)
    fed.run()
    assert well(fed)
    assert fed.model().degrees.sum() > 0
    if kept == 2:
        assert np.array_equal(fed.model().items, first.items)
    assert np.abs(fed.model().items[1]).sum() > 0


def test_without_a_warm_up_there_is_none_to_forget(tmp_path: Path) -> None:
    fed, backup = world(tmp_path, "fcf", users=3), tmp_path / "backup"
    put(fed.server, backup)
    fed.run()
    put(backup, fed.server)
    toml = fed.server / "federation.toml"
    toml.write_text(re.sub(r"^rounds = .*", "rounds = 4", toml.read_text(), flags=re.MULTILINE))
    fed.run()
    assert [line["round"] for line in fed.applied("train")] == [2, 3]


# ----------------------------------------------------------------------------------------- who may say it


def lies(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
    return [Packet(packets.FORGOTTEN, {"reason": "you have\x1b[2J forgotten" + 999 * "!"})]


def test_a_server_that_has_its_warm_up_is_not_stopped_by_a_node_that_says_otherwise(tmp_path: Path) -> None:
    fed = world(tmp_path, users=3)
    fed.run(on("masked", 1, lies, after=2))
    assert fed.model().round == 2
    assert fed.applied("train")[0]["included"] == [0, 2]
    assert any("node1: you have" in notice for notice in fed.witness.notices)


def test_where_a_node_is_missed_its_word_is_printed_as_words(tmp_path: Path) -> None:
    fed = world(tmp_path, users=3)
    with pytest.raises(Forgotten, match=r"^you have \[2J forgotten!") as stop:
        fed.run(on("hello", 1, lies))
    assert len(str(stop.value)) <= packets.MOST
    assert "\x1b" not in str(stop.value)
    fed.run()
    assert well(fed)


def test_one_node_that_says_so_in_the_warm_up_does_not_stop_the_others(tmp_path: Path) -> None:
    fed = world(tmp_path, users=3)
    fed.run(on("confirm", 1, lies, after=1))
    assert fed.model().round == 2
    assert any("node1: you have" in notice for notice in fed.witness.notices)
