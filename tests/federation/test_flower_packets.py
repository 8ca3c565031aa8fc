"""The transport over Flower keeps its deadline whatever Flower does; and the door of the SuperLink."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)
import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, Status
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata as MetadataProto
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest, PushAppMessagesResponse
from flwr.proto.task_pb2 import TaskStatus
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState

from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.transport import Sign, within
from fedgrec.federation.flower import handlers, records, superlink, transport
from fedgrec.federation.flower.server_end import FlowerServer
from fedgrec.federation.flower.superlink import is_here, whole_body
from fedgrec.federation.setup.start import free_port
from tests.attacks.test_power_cuts import in_a_process
from tests.waits import seconds

pytestmark = pytest.mark.usefixtures("a_run")


class Grid:
    """A grid in this process: `plan` gives the answer of each address, and after how many seconds it comes."""

    def __init__(self, plan: dict[int, tuple[float, Any]]) -> None:
        self.plan, self.sent, self.begun = plan, dict[str, Message](), time.monotonic()
        self.asked: list[str] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.begun = time.monotonic()
        names = [f"m{len(self.sent) + i}" for i, _ in enumerate(messages)]
        for name, message in zip(names, messages, strict=True):
            message.metadata.__dict__["_message_id"] = name
            self.sent[name] = message
        return names

    def pull_messages(self, names: Iterable[str]) -> Iterable[Message]:
        self.asked += names
        found = []
        for name in names:
            after, what = self.plan[self.sent[name].metadata.dst_node_id]
            if time.monotonic() - self.begun < after:
                continue
            if isinstance(what, str):  # Flower hands an answer out once, so only the first to ask hangs
                self.plan[self.sent[name].metadata.dst_node_id] = (1e9, None)
                threading.Event().wait(30)
            if isinstance(what, Exception):
                raise what
            content = what if isinstance(what, Error) else records.to_records(what)
            found.append(Message(content, reply_to=self.sent[name]))
        return found

    def answers(self, names: Iterable[str]) -> Iterable[transport.Answer]:
        for message in self.pull_messages(names):
            about = message.metadata
            yield transport.Answer(about.reply_to_message_id, about.src_node_id, records.read_answer(message))


def exchange(plan: dict[int, tuple[float, Any]], seconds: float = 1.0) -> tuple[dict[int, Packet], float, Any]:
    grid = Grid(plan)
    link = transport.FlowerTransport(grid, grid.answers)
    begun = time.monotonic()
    got = dict(link.exchange({address: Packet("q") for address in plan}, within(seconds)))
    return got, time.monotonic() - begun, (grid, link)


def found(*names: str) -> PullMessagesResponse:
    """What a look for work finds."""
    return PullMessagesResponse(messages_list=[MessageProto(metadata=MetadataProto(message_id=name)) for name in names])


def answering(node: int) -> PushMessagesRequest:
    about = MetadataProto(src_node_id=node)
    return PushMessagesRequest(node=NodeProto(node_id=node), messages_list=[MessageProto(metadata=about)])


def test_a_look_for_work_is_a_sign_of_life_and_asks_for_what_got_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower hands a question out once. A node that looks again, and has not answered, has not got it."""
    beats, new, dropped = list[int](), iter([["first"], [], [], ["second"], [], [], [], [], []]), list[str]()
    state = SimpleNamespace(object_store=SimpleNamespace(delete=dropped.append))
    state.acknowledge_node_heartbeat = lambda node, interval: beats.append(node)
    monkeypatch.setattr(handlers, "HOLD", 0.0)
    monkeypatch.setattr(handlers.parts, "hand_out", lambda answer, state: [])
    handed = handlers.Questions(
        lambda request, state, store: found(*next(new)), lambda request, state: PushMessagesResponse()
    )
    node: Any = SimpleNamespace(node=SimpleNamespace(node_id=7))

    def looks(times: int) -> list[list[str]]:
        answers = [handed.pull(request=node, state=state) for _ in range(times)]
        return [[message.metadata.message_id for message in answer.messages_list] for answer in answers]

    assert looks(2) == [["first"], ["first"]]
    handed.push(answering(7), state)
    assert dropped == ["first"]
    assert looks(1) == [[]]
    assert looks(6) == [["second"]] * (1 + handlers.AGAIN) + [[], []], "not for ever"
    assert beats == [7] * 9
    new = iter([["third"], ["fourth"]])
    assert looks(2) == [["third"], ["fourth"]]
    assert dropped == ["first", "third"], "what nobody answers does not stay in memory"


def test_a_look_for_work_waits_until_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    there = list[str]()

    def store(request: Any, state: Any, task: Any) -> Any:
        there.append(request.messages_list[0].metadata.message_id)
        return PushAppMessagesResponse()

    def pull(request: Any, state: Any, store: Any) -> Any:
        return found(*([there.pop(0)] if request.node.node_id == 7 and there else []))

    state: Any = SimpleNamespace(acknowledge_node_heartbeat=lambda node, interval: None)
    state.object_store = SimpleNamespace(delete=lambda name: None)
    monkeypatch.setattr(handlers.parts, "hand_out", lambda answer, state: [])
    questions = handlers.Questions(pull, lambda request, state: PushMessagesResponse())

    def ask() -> None:
        about = MetadataProto(message_id="question", dst_node_id=7)
        questions.announced(store, PushAppMessagesRequest(messages_list=[MessageProto(metadata=about)]), state, None)

    def look() -> list[str]:
        answer = questions.pull(request=SimpleNamespace(node=SimpleNamespace(node_id=7)), state=state)
        return [message.metadata.message_id for message in answer.messages_list]

    begun = time.monotonic()
    threading.Timer(0.2, ask).start()
    assert look() == ["question"]
    assert 0.1 < time.monotonic() - begun < handlers.HOLD / 2
    questions.push(answering(7), state)
    for _ in range(2):  # they came while the node was at work
        ask()
    assert look() == ["question"]
    questions.push(answering(7), state)
    assert look() == ["question"]


def test_a_look_for_answers_waits_for_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the server's app asks many times a second as long as nodes train."""
    monkeypatch.setattr(handlers, "REST", seconds(60.0))
    monkeypatch.setattr(handlers.parts, "hand_out", lambda answer, state: [])
    state: Any = SimpleNamespace(acknowledge_node_heartbeat=lambda node, interval: None)
    state.object_store = SimpleNamespace(delete=lambda name: None)
    handed = {7: "another", 8: "mine"}
    questions = handlers.Questions(
        lambda request, state, store: found(handed[request.node.node_id]), lambda request, state: PushMessagesResponse()
    )
    for late, node in ((0.1, 7), (0.4, 8)):
        questions.pull(request=answering(node), state=state)
        threading.Timer(late, questions.push, (answering(node), state)).start()
    request, begun = PullAppMessagesRequest(message_ids=["mine", "a third"]), time.monotonic()
    assert questions.answers(lambda request, state, task: "found", request, None, None) == "found"
    assert 0.3 < time.monotonic() - begun < seconds(30.0)


def test_an_app_that_starts_slowly_is_not_started_again_beside_itself() -> None:
    """Flower takes a claim back after half a minute; on a starved machine an app imports for longer."""
    state: Any = InMemoryLinkState(SimpleNamespace(), None)  # type: ignore[arg-type]
    state.task_store = {7: SimpleNamespace(status=TaskStatus(status=Status.PENDING), starting_at="")}
    claim = handlers.patient_claim(InMemoryLinkState.claim_task)
    assert [bool(claim(state, 7)), claim(state, 7), claim(state, 8)] == [True, None, None]
    left = state.task_token_store[7].active_until - datetime.now(UTC)
    assert left > timedelta(seconds=handlers.STARTING)


def test_signs_of_life_are_what_flower_knows_of_its_nodes() -> None:
    grid: Any = SimpleNamespace(get_nodes=lambda: [NodeInfo(node_id=7, last_activated_at="then", online_until=60.5)])
    assert transport.FlowerTransport(grid, list).signs() == {7: Sign("then", 60.5)}


def test_an_exchange_ends_when_its_time_is_cut_short() -> None:
    """This happens when enough nodes have answered, and one is missing."""
    grid = Grid({1: (0, Packet("a")), 2: (1e9, None)})
    heard = list[int]()
    begun = time.monotonic()
    for address, _ in transport.FlowerTransport(grid, grid.answers).exchange(
        {1: Packet("q"), 2: Packet("q")}, lambda: (0.5 if heard else 60) - (time.monotonic() - begun)
    ):
        heard.append(address)
    assert heard == [1]
    assert time.monotonic() - begun < 30


def test_answers_come_as_they_are_ready_and_nobody_waits_for_the_deadline() -> None:
    got, took, _ = exchange({1: (0, Packet("a")), 2: (0.3, Packet("b"))}, 20)
    assert {address: packet.kind for address, packet in got.items()} == {1: "a", 2: "b"}
    assert took < 5


def test_a_late_answer_is_dropped_for_good() -> None:
    got, took, (grid, link) = exchange({1: (0, Packet("a")), 2: (1.0, Packet("late"))}, 0.5)
    assert list(got) == [1]
    assert took < 2
    time.sleep(1)
    assert link.late == ["m1"]
    grid.plan[2] = (0, Packet("late"))  # now it is there
    grid.asked.clear()
    again = list(link.exchange({1: Packet("q")}, within(1)))
    assert [(address, packet.kind) for address, packet in again] == [(1, "a")]
    time.sleep(0.3)
    assert "m1" in grid.asked  # so Flower does not have to keep it
    assert link.late == []


def test_an_upload_that_hangs_holds_up_neither_the_others_nor_the_deadline() -> None:
    got, took, _ = exchange({1: (0, "stuck"), 2: (0.5, Packet("b"))}, 1.0)
    assert took < 3
    assert list(got) == [2]


def test_no_message_is_asked_for_by_two_at_a_time() -> None:
    """Flower gives the first caller the reply and the second one an error: then the reply would be lost."""
    plan = {address: (0.3, Packet("a")) for address in range(1, 41)}
    grid, asking = Grid(plan), set[str]()
    pull = grid.pull_messages

    def slowly(names: Iterable[str]) -> Iterable[Message]:
        assert not asking & set(names), "asked twice at once"
        asking.update(names)
        time.sleep(0.3)
        found = list(pull(names))
        asking.difference_update(names)
        return found

    grid.pull_messages = slowly  # type: ignore[method-assign]
    got = dict(
        transport.FlowerTransport(grid, grid.answers).exchange({address: Packet("q") for address in plan}, within(20))
    )
    assert sorted(got) == sorted(plan)


def test_flowers_own_errors_are_silence_or_an_error_packet() -> None:
    errors = {
        1: (0, Error(ErrorCode.NODE_UNAVAILABLE, "gone")),
        2: (0, Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "gone")),
        3: (0, Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "ZeroDivisionError")),
    }
    got, took, _ = exchange(errors, 20)
    assert list(got) == [3]
    assert got[3].kind == "error"
    assert "ZeroDivisionError" in got[3].header["reason"]
    assert took < 5  # Flower says at once that nobody is there


def test_a_superlink_that_is_gone_is_an_exception_here() -> None:
    with pytest.raises(OSError, match="no superlink"):
        exchange({1: (0, OSError("no superlink"))})


def test_few_messages_are_announced_at_a_time_and_all_are_answered() -> None:
    plan = {address: (0, Packet(f"from {address}")) for address in range(2 * transport.TOGETHER + 3)}
    grid, announced = Grid(plan), list[int]()
    push = grid.push_messages

    def watched(messages: Iterable[Message]) -> Iterable[str]:
        announced.append(len(list(messages)))
        return push(messages)

    grid.push_messages = watched  # type: ignore[method-assign]
    got = dict(
        transport.FlowerTransport(grid, grid.answers).exchange({address: Packet("q") for address in plan}, within(20))
    )
    assert announced == [1, transport.TOGETHER, transport.TOGETHER, 2], "the first brings what all share"
    assert {address: packet.kind for address, packet in got.items()} == {a: p.kind for a, (_, p) in plan.items()}


def test_an_error_of_the_network_is_no_more_than_a_look_in_vain() -> None:
    got, took, (grid, _) = exchange({1: (0, httpx.ReadError("reset")), 2: (0.3, Packet("b"))}, 0.8)
    assert list(got) == [2]
    assert len([name for name in grid.asked if name == "m0"]) > 1
    assert took < 3


def received(*events: dict[str, Any], most: int = 100) -> bytes | None:
    """The body that the door makes of these events."""
    coming = iter(events)

    async def receive() -> Any:
        return next(coming)

    return asyncio.run(whole_body(receive, most))


def piece(body: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_an_upload_reaches_flower_in_one_piece() -> None:
    gone = {"type": "http.disconnect"}
    assert received(piece(b"a", True), piece(b"", True), piece(b"bc", False)) == b"abc"
    assert received({"type": "http.request"}) == b""
    assert received(piece(b"a", True), gone) is None, "half an upload is none"


def test_nodes_wait_until_the_server_knows_their_keys_and_one_that_is_refused_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known, trusted = (
        [("node-2", 0.1), None, ("node-1", -3600.4), ("node-1", -3600.4)],  # the first has an old number of Flower's
        SimpleNamespace(trust=lambda _: None, is_trusted=lambda _: False),
    )
    monkeypatch.setattr(superlink, "refused_node", lambda _: known.pop(0))

    async def flower(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    door: Any = superlink.Door(flower, "s3cret", 100, trusted, signed=lambda _: False)  # type: ignore[arg-type]

    def asked(path: str) -> int:
        heads, events = [(superlink.HEADER.encode(), b"s3cret")], list[Any]()
        scope = {"type": "http", "path": path, "headers": heads, "client": ("127.0.0.1", 1), "server": ("::", 2)}

        async def receive() -> Any:
            return piece(b"", False)

        async def send(event: Any) -> None:
            events.append(event)

        asyncio.run(door(scope, receive, send))
        return int(events[0]["status"])

    nodes = superlink.NODES + "activate-node"
    assert [asked(path) for path in (nodes, superlink.BEGIN, *[nodes] * 4)] == [503, 200, *[401] * 4]
    assert not known
    assert [record.getMessage()[:57] for record in caplog.records] == [
        "note: node node-1 is refused: its clock is 3600 s behind "
    ]


@pytest.mark.parametrize(
    ("client", "here"),
    [
        ("203.0.113.7", False),
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", True),
        ("", False),
        ("unix", False),
    ],
)
def test_which_callers_are_on_this_machine(client: str, here: bool) -> None:
    assert is_here(client, "192.0.2.1") == here


def test_a_superlink_that_dies_while_it_is_asked_is_found_at_the_next_look() -> None:
    """Its process exists when the server checks, and is gone when the server asks it."""
    server: Any = object.__new__(FlowerServer)
    looks: list[None] = []

    def check() -> None:
        if looks:
            raise FederationError("superlink ended with code -9")
        looks.append(None)

    def gone(request: object) -> None:
        raise httpx.ConnectError("refused")

    server.run, server.processes = 1, SimpleNamespace(check=check)
    server.client = SimpleNamespace(ListRuns=gone)
    assert server.ended() is None
    with pytest.raises(FederationError, match="superlink ended with code -9"):
        server.ended()


def test_the_superlink_that_we_start_has_the_door() -> None:
    """In a process of its own, which it changes for good."""
    import flwr.superlink.cli.flower_superlink  # noqa: F401 (the child should not have to import it)
    from flwr.superlink.main import _get_middleware

    def start() -> str:
        os.environ.update({superlink.SECRET: "s3cret", superlink.BODY: "1000", superlink.LOG: os.devnull})
        sys.argv = ["superlink", "--host", "127.0.0.1", "--port", str(free_port())]
        sys.modules["flwr.superlink.cli.flower_superlink"].flower_superlink = lambda: None  # type: ignore[attr-defined]
        superlink.main()
        door = _get_middleware()[0]
        assert (door.cls, door.kwargs["secret"]) == (superlink.Door, "s3cret")
        return f"telemetry {os.environ['FLWR_TELEMETRY_ENABLED']}, mask {os.umask(0):o}"

    assert in_a_process(start) == (0, "telemetry 0, mask 77")


def test_the_client_path_adds_little_to_flowers_own_and_nothing_heavy() -> None:
    """Flower's SuperNode starts a process for each message, and each process pays for its imports."""
    code = """
import sys
import flwr.supernode.runtime.run_clientapp
flowers = set(sys.modules)
import fedgrec.federation.flower.client_app, fedgrec.methods.fedgrec
ours = {name.split(".")[0] for name in set(sys.modules) - flowers}
print(*sorted(name for name in ours - sys.stdlib_module_names if not name.startswith("_")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cryptography", "fedgrec", "numpy"]
