"""The transport over Flower: the server's exchanges as messages that Flower's grid pushes and pulls."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from fedgrec.federation.common.packets import Packet, failure
from fedgrec.federation.common.transport import Left, Sign
from fedgrec.federation.flower import internals, parts
from fedgrec.federation.flower.records import ACTION, POLL, PacketError, Shared, message_of, read_answer, to_records

TOGETHER = 50  # messages announced at a time, after the first: the parts that all share are there by then
PULLERS = 4  # threads that pull answers
AFTERWARDS = 60.0  # seconds that a request stays with Flower beyond its deadline: the clocks of nodes differ
log = logging.getLogger("fedgrec.server")


class Answer(NamedTuple):
    """An answer, its question and its sender: question and sender as the SuperLink says, not as the answer says."""

    question: str
    sender: int
    packet: Packet | None  # None: the SuperLink says that there will be none


Pull = Callable[[list[str]], Iterable[Answer]]


class FlowerTransport:
    """The server's end of a federation over Flower's grid."""

    def __init__(self, grid: Grid, pull: Pull | None = None) -> None:
        self.grid, self.pull = grid, pull or partial(pull_answers, grid)
        self.late: list[str] = []  # messages whose answers are not wanted any more

    def signs(self) -> Mapping[int, Sign]:
        """The nodes that Flower heard from within the last minute: each look for work extends that time."""
        found: Any = self.grid.get_nodes()
        return {node.node_id: Sign(node.last_activated_at, node.online_until) for node in found}

    def exchange(self, requests: Mapping[int, Packet], left: Left) -> Iterator[tuple[int, Packet]]:
        """See `Transport`. Answers that come after an exchange are later taken from Flower and thrown away."""
        shared, lasts = Shared(), left() + AFTERWARDS
        messages = [
            Message(to_records(packet, shared), address, ACTION, ttl=lasts) for address, packet in requests.items()
        ]
        cuts = [0, *range(1, len(messages), TOGETHER), len(messages)]
        groups = [messages[at:to] for at, to in pairwise(cuts) if to > at]
        names = [name for group in groups for name in self.grid.push_messages(group)]
        waiting = {name: address for name, address in zip(names, requests, strict=True) if name}
        late, self.late = self.late, []
        if late:
            threading.Thread(target=self._sweep, args=(late,), daemon=True).start()
        try:
            yield from self._collect(waiting, left)
        finally:  # also if the caller stops early
            self.late += waiting

    def _collect(self, waiting: dict[str, int], left: Left) -> Iterator[tuple[int, Packet]]:
        """Pull in a few threads, each for its own messages: Flower hands out an answer only once.

        A node that dies during its upload keeps Flower waiting for minutes; then only one thread waits with it.
        """
        arrived: queue.SimpleQueue[Answer | Exception] = queue.SimpleQueue()
        shares = [list(waiting)[place::PULLERS] for place in range(PULLERS)]
        pullers: dict[int, threading.Thread] = {}
        looked = dict.fromkeys(range(PULLERS), -POLL)
        while waiting and (rest := left()) > 0:
            now = time.monotonic()
            for place, share in enumerate(shares):
                names = [name for name in share if name in waiting]
                busy = place in pullers and pullers[place].is_alive()
                if names and not busy and now - looked[place] >= POLL:
                    pullers[place] = threading.Thread(target=self._pull, args=(names, arrived), daemon=True)
                    pullers[place].start()
                    looked[place] = now
            try:
                answer = arrived.get(timeout=min(POLL / 4, rest))
            except queue.Empty:
                continue
            if isinstance(answer, Exception):
                raise answer
            address = waiting.get(answer.question)
            silent = answer.sender == internals.SUPERLINK_NODE_ID and answer.packet is None
            if address is None or not (answer.sender == address or silent):
                log.warning("an answer of Flower's node %d to what another was asked is dropped", answer.sender)
                continue
            del waiting[answer.question]
            if answer.packet is not None:
                yield address, answer.packet

    def _sweep(self, names: list[str]) -> None:
        """Remove late answers: Flower keeps megabytes of an answer until somebody asks for it."""
        try:
            came = {answer.question for answer in self.pull(names)}
        except Exception:
            came = set()
        self.late += [name for name in names if name not in came]

    def _pull(self, names: list[str], arrived: "queue.SimpleQueue[Answer | Exception]") -> None:
        try:
            for answer in self.pull(names):
                arrived.put(answer)
        except httpx.TransportError as error:  # the next look may succeed; the deadline ends the looks
            log.warning("the SuperLink could not be asked for answers: %s", error)
        except Exception as error:  # `_collect` raises it again
            arrived.put(error)


def pull_answers(grid: Any, questions: list[str]) -> Iterator[Answer]:
    """The answers that are there. Flower's own `pull_messages` fails for all if it cannot read one."""
    client = internals.private(grid, "_runtime_client")
    found = client.PullMessages(internals.PullAppMessagesRequest(message_ids=questions))
    here = parts.riding(found)
    for about, tree in zip(found.messages_list, found.message_object_trees, strict=True):
        metadata = about.metadata
        try:
            mine = parts.received(client, metadata.run_id, tree, here, grid.node)
            if (name := metadata.message_id) not in here:  # otherwise Flower has dropped it already
                which = {"run_id": metadata.run_id, "message_object_id": name}
                client.ConfirmMessageReceived(internals.ConfirmMessageReceivedRequest(node=grid.node, **which))
            packet = read_answer(message_of(name, mine))
        except internals.ObjectPullError:  # the sender did not finish its upload
            packet = None
        except PacketError as error:
            packet = failure(error)
        yield Answer(metadata.reply_to_message_id, metadata.src_node_id, packet)
