"""A node's end of the network: it uses Flower's interface for nodes, and does not run Flower's apps.

Flower's own SuperNode runs any app that the SuperLink sends. A node that holds people's clicks must not: this one takes
messages from the same interface, answers them with the installed fedgrec, and never runs code that came over the
network. It also starts no process for a message, so an exchange takes a fraction of a second instead of several. It
outlives its server: it waits for a server that is away, and joins again at a server that has forgotten the node.
"""

import contextlib
import logging
import math
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import httpx
from flwr.app import Message, RecordDict

from fedgrec.errors import FedgrecError
from fedgrec.federation.common import packets
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.errors import FederationError, RefusedError
from fedgrec.federation.common.packets import Packet, failure
from fedgrec.federation.flower import parts
from fedgrec.federation.flower.client_app import answer
from fedgrec.federation.flower.clients import clock_trouble, connected, is_distrust, longer, patient, public_bytes
from fedgrec.federation.flower.handlers import HOLD
from fedgrec.federation.flower.internals import (
    HEARTBEAT,
    ActivateNodeRequest,
    DeactivateNodeRequest,
    FleetHttpClient,
    HeartbeatSender,
    Node,
    NodeAuthHttpInterceptor,
    PullMessagesRequest,
    PushMessagesRequest,
    RuntimeVersionHttpInterceptor,
    SendNodeHeartbeatRequest,
    message_from_proto,
    private,
)
from fedgrec.federation.flower.records import message_of, to_records, words_of
from fedgrec.federation.node.contact import Contact
from fedgrec.federation.node.gateway import NodeProcess, node_folders
from fedgrec.federation.node.store import NodeStore

LOST = 5.0  # seconds more than the server lets a look wait, after which the look is lost
LATER = 1.0  # seconds between two looks for work in vain, at least
MUCH_LATER = 15.0  # the most seconds between two calls to a server that is away: much less than its `deadline`
BUSY = 30.0  # seconds for which a call in the middle of a message is worth another try
REFUSED = 5.0  # seconds of refusals after which a node gives up: the server may be about to learn a key
ENDED = "Ask who runs the server; with new keys (fedgrec federation rotate-keys) start the node again"
NUMBER = "flower.id"  # the file with Flower's number of the node
Reply = Callable[[NodeProcess, Message], RecordDict]
Call = TypeVar("Call", bound=Callable[..., Any])
log = logging.getLogger("fedgrec.node")


def again(call: Call) -> Call:
    """Retry a call in the middle of a message while its answer may be wanted: without it the message is lost."""
    return partial(patient(httpx.TransportError, seconds=BUSY).invoke, call)  # type: ignore[return-value]


class Stopped(BaseException):
    """Somebody asked this process to end; not an Exception, so that nobody mistakes it for a failure."""


def serve(
    folder: Path,
    superlink: str,
    certificate: Path,
    key: Any,
    reply: Reply = answer,
    *,
    contact: Contact | None = None,  # for those who watch the node
) -> None:
    """Answer the SuperLink's messages until SIGTERM or SIGINT."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with contextlib.suppress(Stopped):
        link, process = Link(folder, superlink, certificate, key, contact), NodeProcess(folder)
        try:
            while True:
                link.enter()
                _work(link, partial(reply, process), process.work_ahead)
        finally:
            link.leave()
    log.info("stopped")


class Link:
    """A node's connection to a SuperLink; every request is signed."""

    def __init__(
        self, folder: Path, superlink: str, certificate: Path, key: Any, contact: Contact | None = None
    ) -> None:
        self.contact = contact or Contact()
        self.folder, self.remembered = folder, folder / NUMBER
        self.superlink, self.certificate = superlink, certificate
        self.public = public_bytes(key.public_key())
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        proofs = [version, NodeAuthHttpInterceptor(key, key.public_key())]
        self.client = connected(FleetHttpClient, superlink, certificate.read_bytes(), proofs)
        self.looks = connected(FleetHttpClient, superlink, certificate.read_bytes(), proofs, answer=HOLD + LOST)
        self.looking = False
        for client in (self.client, self.looks):
            private(client, "_client").event_hooks["response"].append(self.contact.count)
        self.node = Node()
        self.heart = HeartbeatSender(self._beat)

    def enter(self) -> None:
        """Join the server. Wait for one that is away; raise an error if it refuses us or is not ours."""
        refused, told, pauses, pause = 0.0, False, longer(LATER, MUCH_LATER), LATER
        while True:
            try:
                self._enter()
                return
            except httpx.HTTPStatusError as refusal:
                pause, is_starting = LATER, refusal.response.is_server_error
                refused = 0.0 if is_starting else refused or time.monotonic()
                if refused and time.monotonic() - refused > REFUSED:
                    raise self._refusal(refusal.response) from None
            except httpx.TransportError as error:
                refused, pause, self.contact.connected = 0.0, next(pauses), False
                if is_distrust(error):
                    raise FederationError(f"the server at {self.superlink} {self._distrust(str(error))}") from None
                if not told:
                    log.info("no server at %s yet: waiting", self.superlink)
                told = True
            time.sleep(pause)

    def _refusal(self, answer: httpx.Response) -> FederationError:
        """Why the server refuses this node: the clock here is wrong, or the node was removed or has other keys."""
        who = f"the server at {self.superlink} refuses this node"
        if trouble := clock_trouble(answer):
            return FederationError(f"{who}: {trouble}")
        with NodeStore(node_folders(self.folder)[0]) as store:
            told = f" (the server's last word: {why})" if (why := store.get("refused")) else ""
        return RefusedError(f"{who}: it has not the node's key: the node was removed or has new keys{told}. {ENDED}")

    def _distrust(self, error: str) -> str:
        """What is wrong with the server's certificate, and what to do; a wrong date may mean a wrong clock here."""
        if "not yet valid" in error or "expired" in error:
            return f"has a certificate that is not valid now ({error}): it must be renewed, or the clock here is wrong"
        return f"is not the one that {self.certificate} vouches for ({error}): ask who runs it, or for a fresh ca.crt"

    def _enter(self) -> None:
        if self.remembered.exists():  # Flower still lists a killed node, which would have to wait for a minute
            with contextlib.suppress(httpx.HTTPStatusError, ValueError):
                self.client.DeactivateNode(DeactivateNodeRequest(node_id=int(self.remembered.read_text())))
        request = ActivateNodeRequest(public_key=self.public, heartbeat_interval=HEARTBEAT)
        self.node = Node(node_id=self.client.ActivateNode(request).node_id)
        with contextlib.suppress(FedgrecError):  # a full disk ends no node: it only waits longer after a kill
            write_private(self.remembered, str(self.node.node_id).encode())
        if not self.heart.is_running:
            self.heart.start()
        self.contact.hear()
        log.info("connected to %s as Flower's node %d", self.superlink, self.node.node_id)

    def _beat(self) -> bool:
        if self.looking:  # which is a sign of life too
            return True
        try:
            request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT)
            return bool(self.client.SendNodeHeartbeat(request).success)
        except (httpx.HTTPError, RuntimeError):
            return False

    def leave(self) -> None:
        """Sign off, so that the server does not wait for us."""
        if self.heart.is_running:
            self.heart.stop()
        if self.node.node_id:
            with contextlib.suppress(httpx.HTTPError):
                self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))

    def receive(self) -> Message | None:
        """The next message with all its parts, or None."""
        self.looking = True
        try:
            found = self.looks.PullMessages(PullMessagesRequest(node=self.node))
        finally:
            self.looking = False
        self.contact.hear()
        if not found.messages_list:
            return None
        about, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
        here = parts.riding(found)
        contents = parts.received(self.client, about.metadata.run_id, tree, here, self.node, again, max_time=BUSY)
        return message_of(about.metadata.message_id, contents)

    def send(self, reply: Message) -> None:
        times = [0.0]  # the server must not learn how long an answer took
        request = PushMessagesRequest(node=self.node, clientapp_runtime_list=times)
        parts.send(self.client, request, [reply], self.node, again)


def _work(link: Link, reply: Callable[[Message], RecordDict], meanwhile: Callable[[Packet], None]) -> None:
    """Answer messages; returns when the SuperLink does not know us any more."""
    pauses = longer(LATER, MUCH_LATER)
    unsent: tuple[Message, Message] | None = None  # a question, and the answer for which there has been no way yet
    while True:
        try:
            looked = time.monotonic()
            if unsent is None and (message := link.receive()) is not None:
                unsent = message, _as_reply(message, _content(message, reply))
            if unsent is not None:
                message, found = unsent
                link.send(found)
                unsent = None
                log.info("answered %s after %.2f s", message.metadata.message_id[:8], time.monotonic() - looked)
                words = words_of(message.content)
                link.contact.note_answer(words)
                if words.kind == packets.REFUSED and words.header.get("final"):
                    raise RefusedError(f"{link.contact.trouble}. {ENDED}")
                meanwhile(words)  # the next message will not have come yet
                looked = -math.inf  # look for the next one at once
            pauses = longer(LATER, MUCH_LATER)
        except httpx.HTTPStatusError as error:
            unsent = None
            if error.response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.SERVICE_UNAVAILABLE):
                log.warning("the server does not know this node any more: introducing it again")
                return
            log.warning("the server has no use for an answer: %s", error)  # for example the run is over
        except httpx.TransportError as error:
            link.contact.connected = False
            log.warning("the server is away: %s", error)
            time.sleep(next(pauses))
        except RefusedError:
            raise
        except Exception:  # one message that fails must not end the node: the server sees it as silent
            unsent = None
            link.contact.failed += 1
            log.exception("a message could not be answered")
        time.sleep(max(looked + LATER - time.monotonic(), 0.0))  # usually the server has let us wait for longer


def _content(message: Message, reply: Callable[[Message], RecordDict]) -> RecordDict:
    try:
        return reply(message)
    except Exception as error:  # a bug of ours: the server learns that it failed, not why
        log.exception("the message could not be handled")
        return to_records(failure(f"the node could not handle the message ({type(error).__name__}); see its log"))


def _as_reply(message: Message, content: RecordDict) -> Message:
    """A reply with the times of its question, which are the server's: our clock may be wrong."""
    reply = Message(content, reply_to=message)
    reply.metadata.created_at, reply.metadata.ttl = message.metadata.created_at, message.metadata.ttl
    return reply
