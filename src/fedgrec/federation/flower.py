"""Flower 1.41 as the network: packets as Flower messages, and the two apps that Flower starts.

A packet travels as one ConfigRecord (what it is, its header as JSON, its blobs as bytes) and, where it has arrays, one
ArrayRecord, which Flower cuts into pieces and sends once to all who get the same.
"""

import json
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_utils import pull_objects

from fedgrec.errors import FedgrecError
from fedgrec.federation.transport import Packet

ACTION = "query"  # the one kind of Flower message that we use; what a packet is stands in the packet
WORDS, ARRAYS, BLOB = "packet", "arrays", "blob."
POLL = 0.2  # seconds between two looks for answers: more often, and looking is all the SuperLink does
PAUSE, LOOKS = "pause", 50  # how long nodes are to wait between two looks, so that all make so many looks a second
PULLERS = 4  # threads that pull answers
SILENT = {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}
AFTERWARDS = 60.0  # seconds that a request stays with Flower beyond its deadline: the clocks of nodes differ


class PacketError(FedgrecError):
    """A Flower message that no part of this package wrote."""


def to_records(packet: Packet, shared: dict[int, Array] | None = None, pause: float = POLL) -> RecordDict:
    """A packet as Flower carries it; `shared` lets packets with the same array share one copy."""
    shared = {} if shared is None else shared
    for array in packet.arrays.values():
        if id(array) not in shared:
            shared[id(array)] = Array(array)
    header = json.dumps(packet.header, separators=(",", ":"))
    words: dict[str, Any] = {"kind": packet.kind, "header": header, PAUSE: pause}
    words |= {BLOB + name: bytes(blob) for name, blob in packet.blobs.items()}
    records = RecordDict({WORDS: ConfigRecord(words)})
    if packet.arrays:
        records[ARRAYS] = ArrayRecord({name: shared[id(array)] for name, array in packet.arrays.items()})
    return records


def from_records(records: RecordDict) -> Packet:
    """The packet in a Flower message; nothing in it is trusted to be there."""
    try:
        words: Any = records[WORDS]
        kind, header = words["kind"], json.loads(words["header"])
        blobs = {name.removeprefix(BLOB): value for name, value in words.items() if name.startswith(BLOB)}
        tables: Any = records.get(ARRAYS) or {}
        arrays = {name: array.numpy() for name, array in tables.items()}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, EOFError) as error:
        raise PacketError(f"a Flower message without a readable packet came in: {error!r}") from None
    plain = isinstance(kind, str) and isinstance(header, dict)
    if not plain or not all(isinstance(blob, bytes) for blob in blobs.values()):
        raise PacketError("a Flower message came in with a packet of the wrong types")
    return Packet(kind, header, blobs, arrays)


def failure(reason: str) -> Packet:
    """What an exchange yields for a node that failed."""
    return Packet("error", {"reason": reason})


def read_answer(message: Message) -> Packet | None:
    """What a node answered; None where Flower only says that the node or its answer cannot be reached."""
    if message.has_error():
        if message.error.code in SILENT:
            return None
        return failure(f"Flower's error {message.error.code}: {message.error.reason}")
    try:
        return from_records(message.content)
    except PacketError as error:
        return failure(str(error))


class FlowerTransport:
    """The server's end of a federation over Flower's grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        # Flower announces a message before its parts are there, and then looks for them after 1, 2, 4, .. seconds.
        sooner = {"initial_backoff": POLL / 4, "backoff_cap": 4 * POLL}
        pull_objects.__kwdefaults__ = {**(pull_objects.__kwdefaults__ or {}), **sooner}
        self.late: list[str] = []  # messages whose answers are not wanted any more

    def addresses(self) -> Sequence[int]:
        """The nodes that Flower heard from within the last minute."""
        return sorted(self.grid.get_node_ids())

    def exchange(self, requests: Mapping[int, Packet], seconds: float) -> Iterator[tuple[int, Packet]]:
        """See `Transport`. What an exchange did not wait for is taken from Flower later, and thrown away."""
        end, shared = time.monotonic() + seconds, dict[int, Array]()
        pause = max(POLL, len(requests) / LOOKS)
        messages = [
            Message(to_records(packet, shared, pause), address, ACTION, ttl=seconds + AFTERWARDS)
            for address, packet in requests.items()
        ]
        sent = zip(self.grid.push_messages(messages), requests, strict=True) if messages else ()
        waiting = {name: address for name, address in sent if name}
        late, self.late = self.late, []
        if late:
            threading.Thread(target=self._sweep, args=(late,), daemon=True).start()
        try:
            yield from self._collect(waiting, end)
        finally:  # also where the caller has heard enough
            self.late += waiting

    def _collect(self, waiting: dict[str, int], end: float) -> Iterator[tuple[int, Packet]]:
        """Pull in a few threads, each for messages of its own: Flower hands an answer out once, to one who asks.

        A node that dies while it uploads keeps Flower waiting for minutes, and then only the thread that asked.
        """
        arrived: queue.SimpleQueue[Message | Exception] = queue.SimpleQueue()
        shares = [list(waiting)[place::PULLERS] for place in range(PULLERS)]
        pullers: dict[int, threading.Thread] = {}
        looked = dict.fromkeys(range(PULLERS), -POLL)
        while waiting and (now := time.monotonic()) < end:
            for place, share in enumerate(shares):
                names = [name for name in share if name in waiting]
                busy = place in pullers and pullers[place].is_alive()
                if names and not busy and now - looked[place] >= POLL:
                    pullers[place] = threading.Thread(target=self._pull, args=(names, arrived), daemon=True)
                    pullers[place].start()
                    looked[place] = now
            try:
                message = arrived.get(timeout=min(POLL / 4, end - now))
            except queue.Empty:
                continue
            if isinstance(message, Exception):
                raise message
            address = waiting.pop(message.metadata.reply_to_message_id, None)
            if address is not None and (packet := read_answer(message)) is not None:
                yield address, packet

    def _sweep(self, names: list[str]) -> None:
        """Flower keeps an answer, megabytes of it, until somebody asks; or says that its time is over."""
        try:
            came = {message.metadata.reply_to_message_id for message in self.grid.pull_messages(names)}
        except Exception:
            came = set()
        self.late += [name for name in names if name not in came]

    def _pull(self, names: list[str], arrived: "queue.SimpleQueue[Message | Exception]") -> None:
        try:
            for message in self.grid.pull_messages(names):
                arrived.put(message)
        except Exception as error:  # raised again where somebody can see it
            arrived.put(error)


def answer(folder: Path, message: Message) -> RecordDict:
    """What the node or gateway in this folder says to a message: the whole client."""
    from fedgrec.federation.gateway import handle

    try:
        return to_records(handle(folder, from_records(message.content)))
    except FedgrecError as error:
        return to_records(failure(str(error)))


client_app = ClientApp()


@client_app.query()
def on_query(message: Message, context: Context) -> Message:
    """Flower's own SuperNode starts a process for every message and ends here."""
    folder = context.node_config.get("folder")
    if not folder:
        return Message(Error(0, "start the SuperNode with  --node-config 'folder=\"...\"'"), reply_to=message)
    return Message(answer(Path(str(folder)), message), reply_to=message)


server_app = ServerApp()


@server_app.main()
def on_start(grid: Grid, context: Context) -> None:
    """Flower's SuperLink starts this once for a run."""
    from fedgrec.federation.coordinator import run
    from fedgrec.federation.processes import end_with_starter
    from fedgrec.federation.watching import Lines, writing

    end_with_starter()  # Flower would take half a minute over it
    folder = Path(str(context.run_config["folder"]))
    with writing(folder) as say:
        run(FlowerTransport(grid), folder, Lines(say))
