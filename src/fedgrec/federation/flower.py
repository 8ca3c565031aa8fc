"""Flower 1.41 as the network: packets as Flower messages, and the two apps that Flower starts.

A packet travels as one ConfigRecord: what it is, its header as JSON, its blobs as bytes. Flower pushes and pulls every
part of a message by itself, and takes nearly as long over a small one as over a large one: so we make few of them. An
ArrayRecord is several parts for each array, so only large arrays travel in one. Small ones travel as bytes: an answer's
in the same ConfigRecord, since nobody else sends them; a question's in one of their own, which is sent once to all who
get the same. A short answer is one part instead of three, as the text of an Error, which is in the message itself.
"""

import base64
import json
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from numpy.typing import NDArray

from fedgrec.errors import FedgrecError
from fedgrec.federation.transport import Packet

ACTION = "query"  # the one kind of Flower message that we use; what a packet is stands in the packet
WORDS, ARRAYS, BLOB, ARRAY, LAYOUT = "packet", "arrays", "blob.", "array.", "layout"
SMALL = 2**22  # bytes of a packet's arrays; Flower's pieces are hardly larger
POLL = 0.2  # seconds between two looks for answers: more often, and looking is all the SuperLink does
PAUSE, LOOKS = "pause", 50  # how long nodes are to wait between two looks, so that all make so many looks a second
TOGETHER = 5  # messages announced at a time: nodes ask for parts again and again until the last part has come
PULLERS = 4  # threads that pull answers
SILENT = {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}
UNREADABLE = (AttributeError, KeyError, TypeError, ValueError, RecursionError, EOFError)
ANSWERED, BRIEF = 1000, 2**14  # a code that Flower has not; bytes of the longest short answer
AFTERWARDS = 60.0  # seconds that a request stays with Flower beyond its deadline: the clocks of nodes differ


class PacketError(FedgrecError):
    """A Flower message that no part of this package wrote."""


Shared = dict[tuple[tuple[str, int], ...], ConfigRecord | ArrayRecord]  # by names and identities of arrays


def to_records(packet: Packet, shared: Shared | None = None, pause: float = POLL) -> RecordDict:
    """A packet as Flower carries it; `shared` lets packets with the same arrays share one copy."""
    header = json.dumps(packet.header, separators=(",", ":"))
    words: dict[str, Any] = {"kind": packet.kind, "header": header, PAUSE: pause}
    words |= {BLOB + name: bytes(blob) for name, blob in packet.blobs.items()}
    small = sum(array.nbytes for array in packet.arrays.values()) <= SMALL
    if packet.arrays and small:
        layout = [[name, array.dtype.str, array.shape] for name, array in packet.arrays.items()]
        words[LAYOUT] = json.dumps(layout, separators=(",", ":"))
    alone = small and shared is None  # nobody else sends these arrays
    if alone:
        words |= _as_bytes(packet.arrays)
    records = RecordDict({WORDS: _written_once(ConfigRecord(words))})
    if packet.arrays and not alone:
        shared, which = {} if shared is None else shared, tuple((name, id(a)) for name, a in packet.arrays.items())
        if which not in shared:
            shared[which] = _tables(packet.arrays, small)
        records[ARRAYS] = shared[which]
    return records


def _tables(arrays: Mapping[str, NDArray[Any]], small: bool) -> ConfigRecord | ArrayRecord:
    if small:
        return _written_once(ConfigRecord(_as_bytes(arrays)))
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _written_once(record: ConfigRecord) -> ConfigRecord:
    """Flower writes a record out to name it by its hash, and again to send it; nobody changes ours in between."""
    record.__dict__["deflate"] = cache(record.deflate)
    return record


def _as_bytes(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {ARRAY + name: array.tobytes() for name, array in arrays.items()}


def from_records(records: RecordDict) -> Packet:
    """The packet in a Flower message; nothing in it is trusted to be there."""
    packet = words_of(records)
    try:
        words: Any = records[WORDS]
        tables: Any = records.get(ARRAYS)
        if LAYOUT in words:
            small = tables or words
            arrays = {name: _array(small[ARRAY + name], *how) for name, *how in json.loads(words[LAYOUT])}
        else:
            arrays = {name: array.numpy() for name, array in (tables or {}).items()}
    except UNREADABLE as error:
        raise PacketError(f"a Flower message without readable arrays came in: {error!r}") from None
    return replace(packet, arrays=arrays)


def words_of(records: RecordDict) -> Packet:
    """The same, but for its arrays."""
    try:
        words: Any = records[WORDS]
        kind, header = words["kind"], json.loads(words["header"])
        blobs = {name.removeprefix(BLOB): value for name, value in words.items() if name.startswith(BLOB)}
    except UNREADABLE as error:
        raise PacketError(f"a Flower message without a readable packet came in: {error!r}") from None
    plain = isinstance(kind, str) and isinstance(header, dict)
    if not plain or not all(isinstance(blob, bytes) for blob in blobs.values()):
        raise PacketError("a Flower message came in with a packet of the wrong types")
    return Packet(kind, header, blobs)


def _array(content: bytes, kind: str, shape: list[int]) -> NDArray[Any]:
    """An array that travelled as bytes; a layout that these bytes have not is a ValueError or TypeError."""
    dtype = np.dtype(kind)
    if dtype.kind not in "biuf" or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"no array of numbers: {kind} {shape}")
    return np.frombuffer(content, dtype).reshape(shape)


def failure(reason: str) -> Packet:
    """What an exchange yields for a node that failed."""
    return Packet("error", {"reason": reason})


def in_brief(records: RecordDict) -> RecordDict | Error:
    """A short answer as Flower carries it, others as they are."""
    words: Any = records[WORDS]
    if len(records) > 1 or sum(len(value) for value in words.values() if isinstance(value, (str, bytes))) > BRIEF:
        return records
    return Error(ANSWERED, base64.b64encode(words.deflate()).decode())


def from_brief(text: str | None) -> Packet:
    """And back; nothing in it is trusted to be there."""
    try:
        words = ConfigRecord.inflate(base64.b64decode(text or "", validate=True))
    except Exception as error:  # protobuf has errors of its own
        raise PacketError(f"a Flower message without a readable answer came in: {error!r}") from None
    return from_records(RecordDict({WORDS: words}))


def read_answer(message: Message) -> Packet | None:
    """What a node answered; None where Flower only says that the node or its answer cannot be reached."""
    try:
        if not message.has_error():
            return from_records(message.content)
        if message.error.code == ANSWERED:
            return from_brief(message.error.reason)
    except PacketError as error:
        return failure(str(error))
    if message.error.code in SILENT:
        return None
    return failure(f"Flower's error {message.error.code}: {message.error.reason}")


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
        end, shared = time.monotonic() + seconds, Shared()
        pause = max(POLL, len(requests) / LOOKS)
        messages = [
            Message(to_records(packet, shared, pause), address, ACTION, ttl=seconds + AFTERWARDS)
            for address, packet in requests.items()
        ]
        groups = (messages[at : at + TOGETHER] for at in range(0, len(messages), TOGETHER))
        names = [name for group in groups for name in self.grid.push_messages(group)]
        waiting = {name: address for name, address in zip(names, requests, strict=True) if name}
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
