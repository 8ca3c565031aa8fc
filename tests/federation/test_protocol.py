"""Server and nodes of neighbouring releases work together, or both say why not; old folders still work."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from fedgrec.federation.common import packets
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.packets import PROTOCOL, UNSAID, Packet
from fedgrec.federation.node.store import NodeStore
from tests.federation.local_transport import Answer, Meddler
from tests.federation.masked_worlds import masked_world
from tests.federation.worlds import world

OTHERS = [UNSAID, PROTOCOL + 1]


def node_of(protocol: int, kinds: Iterable[str] = ("hello", "who")) -> Meddler:
    """Node 1 is of another release: it gets only messages that it can read, and its answers name its own version."""

    def meddle(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        answer = node(request)
        return [replace(answer, protocol=protocol) if address == 1 and request.kind in kinds else answer]

    return meddle


def server_of(protocol: int) -> Meddler:
    """Node 1 sees a server of another release."""
    return lambda address, request, node: [node(replace(request, protocol=protocol) if address == 1 else request)]


@pytest.mark.parametrize("protocol", OTHERS)
def test_a_node_of_another_release_is_refused_and_both_sides_say_what_to_upgrade(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, protocol: int
) -> None:
    fed = world(tmp_path, users=3, options={"start_nodes": 2, "rounds": 1})
    fed.run(node_of(protocol))
    old = "node" if protocol < PROTOCOL else "server"
    said = f"node speaks version {protocol} of the protocol and the server version {PROTOCOL}: "
    said += f"upgrade fedgrec on the {old}"
    assert [notice for notice in fed.witness.notices if said in notice], fed.witness.notices
    assert fed.witness.joiners == ["node0", "node2"]
    assert f"the server refused this node: the node at 1 did not introduce itself: the {said}" in caplog.text
    with NodeStore(fed.nodes[1]) as store:
        assert said in store.get("refused"), "also where the log is gone"
    assert all(line["included"] == [0, 2] for line in fed.applied("train")), "the others go on"


@pytest.mark.parametrize("protocol", OTHERS)
def test_a_server_of_another_release_hears_why_a_node_refuses_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, protocol: int
) -> None:
    fed = world(tmp_path, users=3, options={"start_nodes": 2, "rounds": 1})
    fed.run(server_of(protocol))
    old = "server" if protocol < PROTOCOL else "node"
    said = f"the server speaks version {protocol} of the protocol and the node version {PROTOCOL}: "
    said += f"upgrade fedgrec on the {old}"
    assert [notice for notice in fed.witness.notices if said in notice], fed.witness.notices
    assert (said, logging.ERROR) in {(line.message, line.levelno) for line in caplog.records}
    with NodeStore(fed.nodes[1]) as store:
        assert not store.participation()


def test_a_node_that_changes_its_release_in_the_middle_misses_the_sum(tmp_path: Path) -> None:
    fed = world(tmp_path, users=3, options={"rounds": 1})
    fed.run(node_of(PROTOCOL + 1, ("masked",)))
    assert any(
        notice.startswith(f"node node1: the node speaks version {PROTOCOL + 1}") for notice in fed.witness.notices
    )


@pytest.mark.parametrize("meddler", [node_of(UNSAID), server_of(UNSAID)])
def test_a_gateway_of_another_release_is_named(tmp_path: Path, meddler: Meddler) -> None:
    fed = masked_world(tmp_path)
    with pytest.raises(FederationError, match="nodes are there after 0 s"):
        fed.run(meddler)
    assert any("the node at 1 does not say whom it hosts" in notice for notice in fed.witness.notices)
    assert any("speaks version 1 of the protocol" in notice for notice in fed.witness.notices)


def test_over_the_network_every_message_says_its_version_and_one_that_does_not_is_of_version_1() -> None:
    pytest.importorskip("flwr", exc_type=ImportError)
    from flwr.app import ConfigRecord

    from fedgrec.federation.flower import records

    sent = records.to_records(Packet("hello"))
    assert records.from_records(sent).protocol == PROTOCOL
    words = {name: value for name, value in sent[records.WORDS].items() if name != records.VERSION}
    sent[records.WORDS] = ConfigRecord(words)
    assert records.from_records(sent).protocol == UNSAID
    sent[records.WORDS] = ConfigRecord({**words, records.VERSION: "two"})
    with pytest.raises(records.PacketError):
        records.from_records(sent)
    assert packets.checked(Packet("x", protocol="two")).kind == packets.ERROR  # type: ignore[arg-type]
