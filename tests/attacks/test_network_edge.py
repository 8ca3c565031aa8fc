"""Attacks on the network's edge by strangers, other accounts of the server's machine, nodes and hostile servers."""

import asyncio
import base64
import contextlib
import datetime
import http.client
import io
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)
import httpx
from cryptography.hazmat.primitives.serialization import Encoding
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata as MetadataProto
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from fedgrec.federation.common import certificates
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.transport import within
from fedgrec.federation.flower import (
    children,
    clients,
    connections,
    handlers,
    internals,
    parts,
    records,
    superlink,
    transport,
)
from fedgrec.federation.flower.client_app import answer
from fedgrec.federation.node.gateway import NodeProcess
from fedgrec.federation.setup.start import free_port

SECRET, BODY = "a secret of this start", 1000


# A server without credentials: connections and bodies


class Edge(NamedTuple):
    """The SuperLink's HTTP server with its door, and behind it an app that answers with a body's length."""

    port: int
    ca: bytes
    listener: connections.Listener
    key: Any  # of the one node that is enrolled
    bodies: list[int]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import flwr.superlink.routers.fleet.node_auth  # noqa: F401 (it takes seconds, and the door has it when it opens)

    folder = tmp_path_factory.mktemp("tls")
    authority, ca = certificates.authority("test")
    key, certificate = certificates.server_certificate((authority, ca), ["127.0.0.1"])
    (folder / "ca").write_bytes(ca.public_bytes(Encoding.PEM))
    (folder / "key").write_bytes(certificates.pem(key))
    (folder / "pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    return folder


@pytest.fixture
def edge(files: Path) -> Iterator[Edge]:
    port, key, bodies = free_port(), certificates.new_key(), list[int]()
    enrolled = public_key_to_bytes(key.public_key())
    known = SimpleNamespace(
        get_node_id_by_public_key=lambda public: 7 if public == enrolled else None,
        get_node_info=lambda node_ids: [SimpleNamespace(name="node-7")],
    )
    factory = SimpleNamespace(state=lambda: known)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        bodies.append(len((await receive())["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"in"})

    listener = connections.Listener("127.0.0.1", port)
    door = superlink.Door(app, SECRET, BODY, listener)
    door.has_begun = True

    async def framework(scope: Any, receive: Any, send: Any) -> None:
        scope["app"] = SimpleNamespace(state=SimpleNamespace(linkstate_factory=factory))
        await door(scope, receive, send)

    server = superlink.http_server(
        framework, lifespan="off", log_config=None, ssl_keyfile=str(files / "key"), ssl_certfile=str(files / "pem")
    )
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield Edge(port, (files / "ca").read_bytes(), listener, key, bodies)
    server.should_exit = True
    thread.join()


def signature(key: Any, late: float = 0.0) -> dict[str, str]:
    """The headers by which Flower's nodes prove who they are."""
    at = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=late)).isoformat()
    signed, public = sign_message(key, at.encode()), public_key_to_bytes(key.public_key())
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

    words = {FLEET_HTTP_PUBLIC_KEY_HEADER: public, FLEET_HTTP_SIGNATURE_HEADER: signed}
    return {name: base64.b64encode(value).decode() for name, value in words.items()} | {TIMESTAMP_HEADER: at}


def reached(edge: Edge) -> ssl.SSLSocket:
    """A stranger's connection, after its handshake."""
    raw = socket.create_connection(("127.0.0.1", edge.port), 5)
    return clients.tls(edge.ca).wrap_socket(raw, server_hostname="127.0.0.1")


def begun(edge: Edge, path: str, headers: dict[str, str]) -> ssl.SSLSocket:
    """A request whose body has not begun."""
    lines = [f"POST {path} HTTP/1.1", "host: x", *(f"{name}: {value}" for name, value in headers.items())]
    connection = reached(edge)
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    return connection


def status(connection: ssl.SSLSocket) -> int:
    response = http.client.HTTPResponse(connection)
    response.begin()
    response.read()
    response.close()
    return response.status


def ends(connection: socket.socket, seconds: float) -> bool:
    """Whether the server ends this connection in time."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


HUGE = [{"content-length": str(2 * 2**30)}, {"transfer-encoding": "chunked"}]


@pytest.mark.keep(3)
@pytest.mark.parametrize("length", HUGE, ids=["with a length", "in chunks"])
@pytest.mark.parametrize("path", ["/v1/fleet/push-object", "/v1/control/start-run", "/v1/runtime/push-object"])
def test_a_strangers_body_is_refused_before_a_byte_of_it_came(edge: Edge, path: str, length: dict[str, str]) -> None:
    """A stranger sends 2 GB: the headers alone are answered, and the connection is closed."""
    with begun(edge, path, length) as connection:
        assert status(connection) in (401, 404)
        assert ends(connection, 5)
    assert edge.bodies == []


@pytest.mark.parametrize("length", HUGE, ids=["with a length", "in chunks"])
def test_a_nodes_body_is_bounded(edge: Edge, length: dict[str, str]) -> None:
    """An enrolled node sends more than a node ever needs to send."""
    with begun(edge, "/v1/fleet/push-object", signature(edge.key) | length) as connection:
        chunk = b"400\r\n" + bytes(1024) + b"\r\n"
        with contextlib.suppress(OSError):
            connection.sendall(chunk if "transfer-encoding" in length else b"")
        assert status(connection) == 413
        assert ends(connection, 5)
    assert edge.bodies == []


def test_a_signature_is_checked_before_the_body_is_read(edge: Edge) -> None:
    """A stranger signs with its own key, or repeats what a node signed long ago."""
    post = httpx.Client(verify=clients.tls(edge.ca), base_url=f"https://127.0.0.1:{edge.port}")
    with post:
        path, other = "/v1/fleet/push-object", certificates.new_key()
        wrong = signature(edge.key) | {"flwr-public-key": "no base64!"}
        for headers in ({}, signature(other), signature(edge.key, late=3600), signature(edge.key, late=-60), wrong):
            assert post.post(path, headers=headers, content=b"x").status_code == 401 or headers is wrong
        assert post.post(path, headers=signature(edge.key), content=bytes(BODY)).text == "in"
        assert post.post(path, content=bytes(7)).text == "in", "Flower asks again; the door knows this connection"
    with httpx.Client(verify=clients.tls(edge.ca)) as again:
        assert again.post(f"https://127.0.0.1:{edge.port}{path}", content=b"x").status_code == 401


def test_half_open_connections_give_way_to_newer_ones(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger begins handshakes and finishes none: the oldest ones end, a node's stays, and a new node gets in."""
    monkeypatch.setattr(connections, "OF_ONE_ADDRESS", 20)
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(begun(edge, "/v1/fleet/x", signature(edge.key) | {"content-length": "0"}))
        assert status(mine) == 200
        strangers = [stack.enter_context(socket.create_connection(("127.0.0.1", edge.port))) for _ in range(60)]
        for stranger in strangers:
            stranger.sendall(b"\x16")
        assert sum(ends(stranger, 1) for stranger in strangers[:40]) == 40
        assert not ends(strangers[-1], 0.1)
        other = stack.enter_context(begun(edge, "/v1/fleet/x", signature(edge.key) | {"content-length": "0"}))
        assert status(other) == 200
        mine.sendall(b"POST /v1/fleet/x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        assert status(mine) == 200
        assert len(edge.listener.strangers) <= 20


def test_a_silent_stranger_is_the_kernels(edge: Edge) -> None:
    """A stranger opens connections and sends nothing: they stay in the kernel, and the server does not see them."""
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.create_connection(("127.0.0.1", edge.port)))
        time.sleep(0.3)
        assert len(edge.listener.strangers) == 0


@pytest.mark.parametrize("handshake", [False, True], ids=["in its handshake", "in its headers"])
def test_a_slow_stranger_is_sent_away(edge: Edge, monkeypatch: pytest.MonkeyPatch, handshake: bool) -> None:
    """A stranger sends a byte a second."""
    monkeypatch.setattr(connections, "PATIENCE", 0.5)
    with reached(edge) if handshake else socket.create_connection(("127.0.0.1", edge.port)) as connection:
        connection.sendall(b"POST /v1/fleet/x HT" if handshake else b"\x16\x03\x01\x02")
        assert ends(connection, 5)


def test_endless_headers_are_not_kept(edge: Edge) -> None:
    """A stranger sends headers without end."""
    with reached(edge) as connection:
        connection.settimeout(5)
        with contextlib.suppress(OSError):
            connection.sendall(b"POST /v1/fleet/x HTTP/1.1\r\n" + b"a: " + bytes([97]) * 2**20)
        with contextlib.suppress(OSError):
            assert status(connection) == 400
        assert ends(connection, 5)


def test_a_caller_cannot_choose_his_address(edge: Edge) -> None:
    """A stranger claims another address in a proxy's header."""
    with begun(edge, "/v1/control/list-runs", {"x-forwarded-for": "127.0.0.1", "content-length": "0"}) as connection:
        assert status(connection) == 404


def test_tls_below_1_3_is_refused(edge: Edge) -> None:
    """An attacker on the network asks for TLS 1.2: neither our server nor our clients accept it."""
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.load_verify_locations(cadata=edge.ca.decode())
    with socket.create_connection(("127.0.0.1", edge.port), 5) as raw, pytest.raises(ssl.SSLError):
        old.wrap_socket(raw, server_hostname="127.0.0.1")
    with reached(edge) as connection:
        assert connection.version() == "TLSv1.3"
    assert clients.tls(edge.ca).minimum_version == ssl.TLSVersion.TLSv1_3


# Other accounts of the server's machine


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/health", ""])
def test_control_asks_for_the_secret_of_this_start(path: str) -> None:
    """Another account of the server's machine starts a run: without the secret only the nodes' paths answer."""
    said: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        said.append(200)

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(event: Any) -> None:
        said.extend([event["status"]] if "status" in event else [])

    listener: Any = SimpleNamespace(is_trusted=lambda caller: True, trust=lambda caller: None)
    door = superlink.Door(app, SECRET, BODY, listener)
    for client, shown in (("127.0.0.1", ""), ("127.0.0.1", "guess"), ("203.0.113.7", SECRET), ("127.0.0.1", SECRET)):
        headers = [(superlink.HEADER.encode(), shown.encode())] if shown else []
        scope = {"type": "http", "path": path, "headers": headers, "client": (client, 1), "server": ("192.0.2.1", 2)}
        asyncio.run(door(scope, receive, send))
    assert said == [404, 404, 404, 200]


def test_no_token_is_among_the_arguments_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another account reads the list of processes, where Flower writes the token of a run."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(children.subprocess, "Popen", lambda words, env: seen.update(words=words, env=env))
    children.started(["flwr-serverapp", "--runtime-api-address", "x", "--token", "t0ken", "--parent-pid", "1"])
    assert "t0ken" not in " ".join(seen["words"])
    assert seen["words"][-5:] == ["flwr-serverapp", "--runtime-api-address", "x", "--parent-pid", "1"]
    assert seen["env"][children.TOKEN] == "t0ken"


# An enrolled node's answers, and a hostile server's questions


def npy(shape: Any) -> bytes:
    head = repr({"descr": "<f8", "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3))
    return file.getvalue()


WORDS = {"kind": "masked", "header": "{}", "layout": '[["t","<f8",[3]]]'}
ARRAYS = {
    "an npz": npz(),
    "a broken zip": b"PK\x03\x04broken",
    "10^13 values": npy((10**13,)),
    "2^70 values": npy((2**70,)),
    "a header without end": npy(()).replace(b"()", b"(" * 5000),
}


def layout(*lines: Any) -> RecordDict:
    return RecordDict({"packet": ConfigRecord({**WORDS, "layout": json.dumps(lines), "bytes": bytes(24)})})


def pieces(*places: int) -> RecordDict:
    found = RecordDict({"packet": ConfigRecord(dict(WORDS))})
    for name, place in enumerate(places):
        found[f"arrays.{name}"] = ConfigRecord({"place": place, "bytes": bytes(24 // len(places))})
    return found


HOSTILE: dict[str, RecordDict] = {
    **{
        name: RecordDict(
            {
                "packet": ConfigRecord(dict(WORDS)),
                "arrays.0": ArrayRecord({"t": Array("float64", (3,), "numpy.ndarray", data)}),
            }
        )
        for name, data in ARRAYS.items()
    },
    "10^13 raw values": layout(["t", "<f8", [10**13]]),
    "2^70 raw values": layout(["t", "<f8", [2**70]]),
    "nothing, 2^70 times": layout(["t", "<f8", [0, 2**70]]),
    "a hundred dimensions": layout(["t", "<f8", [3, *[1] * 100]]),
    "objects": layout(["t", "|O", [3]]),
    "a large type": layout(["t", "(1000000000,)<f8", [3]]),
    "one piece twice": pieces(0, 0),
    "pieces out of order": pieces(1, 0),
    "a deep header": RecordDict({"packet": ConfigRecord({**WORDS, "header": "[" * 10**6})}),
    "a number without end": RecordDict({"packet": ConfigRecord({**WORDS, "header": "9" * 10**6})}),
    "no packet": RecordDict({"other": ConfigRecord({"kind": "x"})}),
    "nothing": RecordDict(),
}


class Runtime:
    """A SuperLink in this process, to which nodes have sent these replies; each as (metadata, message, parts)."""

    def __init__(self, *replies: tuple[Message, Message]) -> None:
        self._runtime_client, self.run, self.node = self, SimpleNamespace(run_id=1), None
        self.parts: dict[str, bytes] = {}
        self.found = PullAppMessagesResponse()
        for outside, inside in replies:
            name = inside.object_id
            outside.metadata.__dict__["_message_id"] = name
            self.found.messages_list.append(message_to_proto(remove_content_from_message(outside)))
            self.found.message_object_trees.append(get_object_tree(inside))
            self.parts |= {part: thing.deflate() for part, thing in get_all_nested_objects(inside).items()}

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        return self.found

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        content = self.parts[request.object_id]
        return SimpleNamespace(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        pass


def asked(node: int, name: str) -> Message:
    question = Message(records.to_records(Packet("q")), node, records.ACTION)
    question.metadata.__dict__["_message_id"] = name
    return question


@pytest.mark.usefixtures("a_run")
@pytest.mark.parametrize("name", HOSTILE)
def test_one_answer_does_not_end_the_server(name: str) -> None:
    """An enrolled node's answer cannot be read: the node counts as failed, and the others' answers are read."""
    bad, good = (
        Message(HOSTILE[name], reply_to=asked(1, "a")),
        Message(records.to_records(Packet("fine")), reply_to=asked(2, "b")),
    )
    grid: Any = Runtime((bad, bad), (good, good))
    first, second = transport.pull_answers(grid, ["a", "b"])
    assert (first.question, first.sender, first.packet.kind) == ("a", 1, "error")
    assert len(first.packet.header["reason"]) < 500
    assert (second.question, second.packet.kind) == ("b", "fine")


@pytest.mark.usefixtures("a_run")
@pytest.mark.parametrize("broken", [b"", b"no head", b"Message  5\x00short", b"Array  2\x00{}", b"Message  0\x00"])
def test_parts_that_are_no_message_are_a_failure(broken: bytes) -> None:
    """An enrolled node uploads parts that are not what they say they are."""
    bad = Message(records.to_records(Packet("x")), reply_to=asked(1, "a"))
    grid: Any = Runtime((bad, bad))
    grid.parts[bad.object_id] = broken
    (found,) = transport.pull_answers(grid, ["a"])
    assert found.packet.kind == "error"


@pytest.mark.usefixtures("a_run")
def test_a_message_of_too_many_parts_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """An enrolled node announces an answer of a million parts."""
    monkeypatch.setattr(parts, "PARTS", 5)
    many = RecordDict({str(i): ConfigRecord({"i": i}) for i in range(9)})
    bad = Message(many, reply_to=asked(1, "a"))
    (found,) = transport.pull_answers(Runtime((bad, bad)), ["a"])
    assert "parts" in found.packet.header["reason"]


@pytest.mark.usefixtures("a_run")
@pytest.mark.parametrize("name", HOSTILE)
def test_one_question_does_not_end_a_node(name: str, tmp_path: Path) -> None:
    """A hostile server asks something that cannot be read: the node says so, and goes on."""
    said: Any = answer(NodeProcess(tmp_path), Message(HOSTILE[name], reply_to=asked(1, "a")))["packet"]
    assert said["kind"] == "error"
    with pytest.raises(records.PacketError):
        records.message_of("x", {"x": ArrayRecord({"t": Array(np.zeros(3))}).deflate()})


def test_a_servers_answer_is_neither_endless_nor_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile server sends a node more than it can hold, plain or compressed."""
    monkeypatch.setattr(clients, "MOST", 1000)

    def says(headers: dict[str, str], length: int) -> httpx.Response:
        response = httpx.Response(200, headers=headers, stream=httpx.ByteStream(bytes(length)))
        network = httpx.MockTransport(lambda request: response)
        with httpx.Client(transport=network, event_hooks=clients.BOUNDED) as client:
            return client.get("https://x")

    assert says({}, 1000).content == bytes(1000)
    with pytest.raises(httpx.RemoteProtocolError, match="more than 1000"):
        says({}, 1001)
    with pytest.raises(httpx.RemoteProtocolError, match="packed"):
        says({"content-encoding": "gzip"}, 10)


# Whose answer it is


@pytest.mark.parametrize("path", ["/v1/fleet/push-messages", "/v1/fleet/pull-messages"])
def test_every_call_is_signed_by_the_node_that_it_is_about(
    edge: Edge, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An enrolled node, once it is in, calls as another node or leaves the signature out."""
    taken: list[int] = []

    def take(request: Any, state: Any) -> PushMessagesResponse:
        taken.append(request.node.node_id)
        return PushMessagesResponse()

    for handler in ("push_messages", "pull_messages"):
        monkeypatch.setattr(f"{internals.HANDLERS}.{handler}", take)
    monkeypatch.setattr("flwr.supercore.error.http.log", lambda *_: None)
    host, called = ("127.0.0.1", edge.port), list[int]()
    with contextlib.closing(http.client.HTTPSConnection(*host, context=clients.tls(edge.ca))) as connection:
        for node, headers in ((7, signature(edge.key)), (8, signature(edge.key)), (7, {})):
            body = PushMessagesRequest(node=NodeProto(node_id=node)).SerializeToString()
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            response.read()
            called.append(response.status)
    assert (called, taken) == ([200, 401, 401], [7])


def test_the_superlink_takes_a_nodes_own_answers_alone() -> None:
    """An enrolled node pushes an answer that names another node as its sender: Flower itself would accept it."""
    from fastapi import HTTPException

    taken: list[Any] = []

    def take(request: Any, state: Any) -> PushMessagesResponse:
        taken.append(request)
        return PushMessagesResponse()

    def push(*senders: int) -> None:
        named = [MessageProto(metadata=MetadataProto(src_node_id=sender)) for sender in senders]
        request = PushMessagesRequest(node=NodeProto(node_id=7), messages_list=named)
        handlers.Questions(lambda **_: None, take).push(request=request, state=None)

    push(7)
    for senders in ((8,), (7, 8)):
        with pytest.raises(HTTPException):
            push(*senders)
    assert len(taken) == 1


@pytest.mark.usefixtures("a_run")
def test_an_answer_is_its_senders_whatever_it_says_inside() -> None:
    """An enrolled node's answer contains another node's answer to another question."""
    own, forged = asked(1, "a"), asked(2, "b")
    lie = records.to_records(Packet("a lie"))
    grid: Any = Runtime((Message(lie, reply_to=own), Message(lie, reply_to=forged)))
    (found,) = transport.pull_answers(grid, ["a", "b"])
    assert (found.question, found.sender) == ("a", 1)


@pytest.mark.usefixtures("a_run")
def test_an_answer_to_what_another_node_was_asked_is_dropped() -> None:
    """The SuperLink passes a node's answer to another node's question: the server still waits for the other node."""
    came = [[transport.Answer("m2", sender, Packet(str(sender)))] for sender in (11, SUPERLINK_NODE_ID, 12)]
    names = {11: "m1", 12: "m2"}
    grid: Any = SimpleNamespace(push_messages=lambda messages: [names[m.metadata.dst_node_id] for m in messages])

    def pull(names: list[str]) -> list[transport.Answer]:
        return came.pop(0) if "m2" in names and came else []

    link = transport.FlowerTransport(grid, pull)
    got = dict(link.exchange({11: Packet("q"), 12: Packet("q")}, within(1.0)))
    assert {address: packet.kind for address, packet in got.items()} == {12: "12"}


# The network between the server's own parts


def test_an_error_of_the_network_ends_no_part_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger blocks the SuperLink's door, so that its own parts cannot connect for a while: they try again."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    invoker, tries = children.patience(), list[int]()

    def call() -> str:
        tries.append(1)
        if len(tries) < 9:
            raise httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol")
        return "in"

    assert invoker.invoke(call) == "in"
    with pytest.raises(httpx.ConnectError):
        invoker.invoke(lambda: (_ for _ in ()).throw(httpx.ConnectError("CERTIFICATE_VERIFY_FAILED")))
