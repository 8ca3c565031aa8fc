"""A server restored from a backup that lacks a warm-up: nodes that know that it counts do not send it again."""

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.store import ServerStore
from tests.federation.local_transport import Answer, honest
from tests.federation.masked_worlds import masked_world
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
    said = f"has forgotten the sum of stage '{'propagate' if done else 'degrees'}'"
    with pytest.raises(
        FederationError, match=f"{said}.*restore a newer backup of the server, or begin a new federation"
    ):
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
    with pytest.raises(FederationError, match="forgotten the sum of stage 'degrees'"):
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
            heard[index] = len(store.rows("history", "number"))
    assert heard == {0: 1, 1: 0, 2: 0}
    put(backup, fed.server)
    with pytest.raises(FederationError, match="forgotten the sum of stage 'degrees'"):
        fed.run()


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
