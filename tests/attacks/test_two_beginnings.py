"""A server lets some nodes see the plan of a first sum, and others only after newcomers are on the roster.

Batches follow from the roster with which the federation began. Nodes that differ in it draw different batches; and if
sums over both kinds were opened, they would tell parts of either.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from fedgrec.federation.common import batches, packets
from fedgrec.federation.common.packets import Packet, as_array
from fedgrec.federation.common.roster import write_roster
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.folder import open_server
from tests.attacks.companies import Chooser
from tests.attacks.lying_server import TRAIN
from tests.federation.rosters import following
from tests.federation.worlds import world

FOUNDERS, NEWCOMERS = range(6), (6, 7)


def test_nodes_that_saw_different_beginnings_open_no_sums_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "FEWEST_NODES", 4)
    options = {"fewest_people": 4, "batches_for_training": 1, "corrupt": 0.0}
    fed = world(tmp_path, "fcf", nodes=8, users=1, options=options, users_per_round=1000)
    lines = open_server(fed.server).membership.members
    early = {n: lines[n] for n in FOUNDERS}
    first = following(tmp_path, early, 1)
    second = following(tmp_path, early | {n: replace(lines[n], joined=2) for n in NEWCOMERS}, 2)
    for n, folder in fed.nodes.items():
        write_roster(folder, second if n in NEWCOMERS else first)
    write_roster(fed.server, first)
    (old,) = batches.batches(first.federation, first.members, 4, 1)
    new = next(b for b in batches.batches(first.federation, second.members, 4, 2) if b & {*NEWCOMERS})
    late = {*NEWCOMERS, *sorted(new & old)[:2]}

    liar = Chooser(fed)
    liar.alone = {*old} - late
    liar.sum(sorted(old), liar.plan(TRAIN, round=0), until="shares", threshold=4)
    liar.lines.clear()
    for n in FOUNDERS:
        answer = liar.ask(n, Packet(packets.NEW_ROSTER, arrays={"roster": as_array(second.pack())}))
        assert answer.kind == packets.NEW_ROSTER
    write_roster(fed.server, second)
    liar.home, liar.alone = open_server(fed.server), {*fed.nodes}
    for n in NEWCOMERS:
        liar.greet(n)
    over_new = liar.sum(sorted(new), liar.plan(TRAIN, round=1), threshold=3)
    over_old = liar.sum(sorted(old), liar.plan(TRAIN, round=2), threshold=4)
    began = {}
    for n, folder in fed.nodes.items():
        with NodeStore(folder) as store:
            began[n] = store.get("founded")
    assert over_new is None or over_old is None, f"sums over {sorted(new)} and {sorted(old)}; who began when: {began}"
