"""What a stranger would try on a federation that lives: changes at the wrong moment, kills between two writes."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.federation.common.packets import Packet
from fedgrec.federation.in_process.transport import Answer, honest
from fedgrec.federation.node import changes
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
