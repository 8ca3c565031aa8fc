"""Who runs the server shows a node an older roster, another roster, or one that the authority has not signed."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.packets import Packet, as_array, failure
from fedgrec.federation.common.plan import Plan
from fedgrec.federation.common.roster import Membership, write_roster
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.gateway import NodeProcess
from fedgrec.federation.server.folder import open_server
from tests.federation.local_transport import Answer
from tests.federation.rosters import changed, following, give, without
from tests.federation.worlds import world


def test_a_server_that_goes_back_is_refused_and_so_is_a_node_that_goes_back(tmp_path: Path) -> None:
    fed = world(tmp_path, users=3, options={"rounds": 1, "retries": 0})
    old = open_server(fed.server).membership
    give(tmp_path, changed(tmp_path, users=9))
    fed.run()
    assert {open_node(path).membership.number for path in fed.nodes.values()} == {2}
    write_roster(fed.server, old)
    fed.give_rounds(2)
    with pytest.raises(FederationError, match="0 of 2 nodes are there"):
        fed.run()
    assert any(
        "the server's roster is older (1) than the one that node node1 has seen (2)" in n for n in fed.witness.notices
    )
    for path in fed.nodes.values():  # somebody who could write on all machines: the nodes' stores remember
        write_roster(path, old)
    with pytest.raises(FederationError, match="0 of 2 nodes are there"):
        fed.run()
    fed.witness.notices.clear()
    with pytest.raises(FederationError, match="sums in a row"):
        fed.run(silent_about_rosters)
    assert any("node node1 has seen roster 2, and was given another roster 1 (" in n for n in fed.witness.notices)
    assert len(fed.applied("train")) == 1


def silent_about_rosters(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
    """The server does not say which roster it has, and hears that all have the same."""
    header = {name: value for name, value in request.header.items() if name != "roster"}
    reply = answer(replace(request, header=header))
    said = {"roster": request.header["roster"][0]} if reply.kind == "hello" else {}
    return [replace(reply, header=reply.header | said)]


def test_a_node_that_does_not_take_up_the_roster_does_not_spoil_the_sums_of_others(tmp_path: Path) -> None:
    """Its disk is full, or it was told of another node that vanished."""
    fed = world(tmp_path, nodes=4, users=3, options={"rounds": 1, "start_nodes": 3})
    give(tmp_path, changed(tmp_path, 0, users=9))

    def meddle(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        stubborn = address == 3 and request.kind == "roster"
        return [failure("the node failed (DiskError); see its log") if stubborn else answer(request)]

    fed.run(meddle)
    assert fed.applied("train")[-1]["included"] == [0, 1, 2]
    assert any("node node3 did not take up roster 2 (" in notice for notice in fed.witness.notices)


def test_two_rosters_of_one_number_are_named_and_open_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the nodes has one roster and half another; what differs is only the most users of a node."""
    fed = world(tmp_path, nodes=4, users=3, options={"rounds": 1, "retries": 0})
    give(tmp_path, changed(tmp_path, 0, users=9), fed.nodes[0], fed.nodes[1])
    give(tmp_path, changed(tmp_path, 0, users=8), fed.nodes[2], fed.nodes[3], fed.server)
    with pytest.raises(FederationError, match="2 of 4 nodes are there"):
        fed.run()
    assert any("node node0 has seen another roster 2 than the server's" in notice for notice in fed.witness.notices)
    with pytest.raises(FederationError, match="sums in a row"):
        fed.run(silent_about_rosters)
    assert not [line for line in fed.log() if line["applied"]]
    bound = Plan.context
    monkeypatch.setattr(Plan, "context", lambda plan, model, agreed, *told: bound(plan, model, agreed, *told[1:]))
    fed.run(silent_about_rosters)  # mutation: what is not bound into the keys is not noticed
    assert fed.applied("train")


def test_a_roster_from_the_server_is_checked_by_the_node(tmp_path: Path) -> None:
    """Whoever runs the server hands out what the authority has not signed, or what it should not have signed."""
    fed = world(tmp_path, users=3)
    members = changed(tmp_path)
    lies = {
        "it is signed by nobody": replace(following(tmp_path, without(tmp_path, 2)), signature=b"x"),
        "a node has vanished": following(tmp_path, {0: members[0], 1: members[1]}),
        "a node brings more people": following(tmp_path, changed(tmp_path, 1, people=2)),
    }
    process = NodeProcess(fed.nodes[0])
    for lie in lies.values():
        assert process.handle(handed_out(lie)).kind == "error"
        assert open_node(fed.nodes[0]).membership.number == 1
    true = following(tmp_path, changed(tmp_path, 1, users=7))
    assert process.handle(handed_out(true)).kind == "roster"
    assert open_node(fed.nodes[0]).membership == true
    assert process.handle(Packet("roster")).kind == "error"


def handed_out(roster: Membership) -> Packet:
    return Packet("roster", arrays={"roster": as_array(roster.pack())})
