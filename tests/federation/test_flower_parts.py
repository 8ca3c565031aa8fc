"""The parts of a message travel in the call that announces the message, as many as there is room for."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)
from flwr.app import Message
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from fedgrec.federation.common.packets import Packet
from fedgrec.federation.flower import internals, parts, records, superlink

pytestmark = pytest.mark.usefixtures("a_run")
NODE = Node(node_id=7)


class SuperLink:
    """Flower's store of parts behind the calls of both ends; it knows how often each is called."""

    def __init__(self) -> None:
        self.store, self.calls, self.announced = InMemoryObjectStore(), list[str](), PullMessagesResponse()

    def store_object(self, run: int, session: str, name: str, content: bytes) -> bool:
        self.store.put(name, content)
        return True

    def get_object(self, run: int, name: str) -> bytes | None:
        return self.store.get(name)

    def PushMessages(self, request: Any) -> Any:  # noqa: N802
        self.calls.append("announced")
        request = PushMessagesRequest.FromString(request.SerializeToString(deterministic=True))  # as it travels
        self.announced.messages_list.extend(request.messages_list)
        self.announced.message_object_trees.extend(request.message_object_trees)
        missing = [name for tree in request.message_object_trees for name in self.store.preregister(1, tree)]
        answer = PushMessagesResponse(objects_to_push=dict.fromkeys(missing))
        parts.keep(request, answer, self)
        return answer

    def PushObject(self, request: Any) -> Any:  # noqa: N802
        self.calls.append("pushed")
        return SimpleNamespace(stored=self.store_object(1, "", request.object_id, request.object_content))

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        self.calls.append("pulled")
        content = self.get_object(1, request.object_id)
        return SimpleNamespace(
            object_found=content is not None, object_available=content != b"", object_content=content
        )

    def looked_for(self) -> list[Message]:
        """All messages, as who looks for them reads them."""
        answer = PullMessagesResponse()
        answer.CopyFrom(self.announced)
        parts.hand_out(answer, self)
        found = PullMessagesResponse.FromString(answer.SerializeToString())
        here, both = parts.riding(found), zip(found.messages_list, found.message_object_trees, strict=True)
        return [
            records.message_of(about.metadata.message_id, parts.received(self, 1, tree, here, NODE))
            for about, tree in both
        ]


def asked(*packets: Packet) -> list[Message]:
    shared = records.Shared()
    return [Message(records.to_records(packet, shared), n, records.ACTION) for n, packet in enumerate(packets, 1)]


def test_messages_and_all_their_parts_take_one_call_each_way() -> None:
    link, table = SuperLink(), np.arange(1000)
    parts.send(
        link, PushMessagesRequest(node=NODE), asked(*(Packet(str(n), {}, {}, {"t": table}) for n in "abc")), NODE
    )
    found = [records.from_records(message.content) for message in link.looked_for()]
    assert link.calls == ["announced"]
    assert [packet.kind for packet in found] == list("abc")
    assert all(np.array_equal(packet.arrays["t"], table) for packet in found)


def test_parts_without_room_travel_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    link, table = SuperLink(), np.arange(1000)
    monkeypatch.setattr(parts, "ROOM", 4000)
    parts.send(link, PushMessagesRequest(node=NODE), asked(Packet("a", {}, {}, {"t": table}), Packet("b")), NODE)
    first, second = (records.from_records(message.content) for message in link.looked_for())
    assert np.array_equal(first.arrays["t"], table)
    assert (first.kind, second.kind) == ("a", "b")
    assert sorted(link.calls) == ["announced", *["pulled"] * 4, "pushed"], "b has room, and of a all but the array"


def test_only_parts_that_were_announced_are_stored() -> None:
    """A node sends along what belongs to no message of its."""
    link = SuperLink()
    (mine,) = asked(Packet("mine"))
    more = internals.get_all_nested_objects(asked(Packet("more"))[0])
    request = parts.load(PushMessagesRequest(node=NODE), {name: part.deflate() for name, part in more.items()})
    parts.send(link, request, [mine], NODE)
    assert not any(name in link.store for name in more)
    assert [records.from_records(message.content).kind for message in link.looked_for()] == ["mine"]


def test_calls_that_pass_flowers_layers_by_are_of_flowers_types() -> None:
    ours = {("POST", path): getattr(internals, kind) for path, (kind, _) in superlink.CALLS.items()}
    assert ours.items() <= PROTOBUF_REQUEST_TYPES.items()
