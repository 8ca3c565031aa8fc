"""Packets as Flower messages, and back.

A packet travels as one ConfigRecord: what it is, its header as JSON, its blobs as bytes. Flower pushes and pulls every
part of a message by itself, and takes nearly as long over a small one as over a large one: so we make few of them. An
ArrayRecord is several parts for each array, so only large arrays travel in one. Small ones travel as bytes: an answer's
in the same ConfigRecord, since nobody else sends them; a question's in one of their own, which is sent once to all who
get the same. A short answer is one part instead of three, as the text of an Error, which is in the message itself.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray

from fedgrec.errors import FedgrecError
from fedgrec.federation.common.packets import Packet

ACTION = "query"  # the one kind of Flower message that we use; what a packet is stands in the packet
WORDS, ARRAYS, BLOB, ARRAY, LAYOUT = "packet", "arrays", "blob.", "array.", "layout"
SMALL = 2**22  # bytes of a packet's arrays; Flower's pieces are hardly larger
POLL = 0.2  # seconds between two looks for answers: more often, and looking is all the SuperLink does
PAUSE = "pause"  # how long a node is to wait between two looks
SILENT = {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}
UNREADABLE = (AttributeError, KeyError, TypeError, ValueError, RecursionError, EOFError)
ANSWERED, BRIEF = 1000, 2**14  # a code that Flower has not; bytes of the longest short answer


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
