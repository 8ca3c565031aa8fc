"""Packets as Flower messages, and back.

A packet travels as one ConfigRecord: its kind, its header as JSON, its blobs as bytes. Arrays travel as raw bytes, one
after the other, and a layout in the ConfigRecord describes them. The bytes of a small answer are in the same
ConfigRecord, because no other message shares them. Other bytes are cut into pieces: each piece is its own ConfigRecord,
which is sent once for all nodes that get the same.

The other side may send anything. We never read Flower's own arrays: their format can name one piece a million times, or
ask for more memory than there is. Any failure to read a message raises a PacketError.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedgrec.errors import FedgrecError
from fedgrec.federation.common.packets import ERROR, UNSAID, Packet, failure
from fedgrec.federation.flower.internals import (
    ErrorCode,
    get_object_head_values_from_object_content,
    inflate_object_from_contents,
)

ACTION = "query"  # the one kind of Flower message that we use; the packet itself says its kind
WORDS, ARRAYS, BLOB, LAYOUT, BYTES, PLACE = "packet", "arrays.", "blob.", "layout", "bytes", "place"
PIECE = 2**22  # bytes of a packet's arrays that travel together
PARTS, PART_KINDS = 2**12, {"Message", "RecordDict", "ConfigRecord"}  # the most parts of a message, and their kinds
POLL = 0.2  # seconds between two looks for answers: more looks would take all of the SuperLink's time
VERSION = "protocol"
ERROR_OF_5 = 1000  # nodes that speak version 5 of the protocol put short answers into errors with this code
SILENT = {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}


class PacketError(FedgrecError):
    """A Flower message that no part of this package wrote."""


Shared = dict[tuple[tuple[str, int], ...], list[ConfigRecord]]  # by names and identities of arrays


def to_records(packet: Packet, shared: Shared | None = None) -> RecordDict:
    """A packet as Flower carries it; `shared` lets packets with the same arrays share one copy."""
    header = json.dumps(packet.header, separators=(",", ":"))
    words: dict[str, Any] = {"kind": packet.kind, "header": header, VERSION: packet.protocol}
    words |= {BLOB + name: bytes(blob) for name, blob in packet.blobs.items()}
    pieces: list[ConfigRecord] = []
    if packet.arrays:
        layout = [[name, array.dtype.str, array.shape] for name, array in packet.arrays.items()]
        words[LAYOUT] = json.dumps(layout, separators=(",", ":"))
        if shared is None and sum(array.nbytes for array in packet.arrays.values()) <= PIECE:
            words[BYTES] = _as_bytes(packet.arrays)  # nobody else sends these arrays
        else:
            shared, which = {} if shared is None else shared, tuple((name, id(a)) for name, a in packet.arrays.items())
            pieces = shared[which] = shared.get(which) or _pieces(_as_bytes(packet.arrays))
    records = RecordDict({WORDS: _written_once(ConfigRecord(words))})
    for place, piece in enumerate(pieces):
        records[f"{ARRAYS}{place}"] = piece
    return records


def _pieces(content: bytes) -> list[ConfigRecord]:
    """Each piece holds its number, so that no two pieces are the same part, and none can be used twice."""
    starts = range(0, max(len(content), 1), PIECE)
    return [
        _written_once(ConfigRecord({PLACE: place, BYTES: content[start : start + PIECE]}))
        for place, start in enumerate(starts)
    ]


def _written_once(record: ConfigRecord) -> ConfigRecord:
    """Cache a record's bytes: Flower needs them for its hash and again to send it, and nobody changes it meanwhile."""
    record.__dict__["deflate"] = cache(record.deflate)
    return record


def _as_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    return b"".join(array.tobytes() for array in arrays.values())


def message_of(name: str, parts: dict[str, bytes]) -> Message:
    """The message that these parts make up; we read only the kinds of parts that we send."""
    try:
        kinds = {get_object_head_values_from_object_content(part)[0] for part in parts.values()}
        message: Any = inflate_object_from_contents(name, parts) if kinds <= PART_KINDS else None
        if not isinstance(message, Message):
            raise ValueError(f"no message of ours, but {', '.join(sorted(kinds))[:99]}")
    except Exception as error:
        raise PacketError(f"a Flower message that cannot be put together came in: {error!r:.300}") from None
    message.metadata.__dict__["_message_id"] = name
    return message


def from_records(records: RecordDict) -> Packet:
    """The packet in a Flower message. The sender is not trusted, so everything in it is checked."""
    packet = words_of(records)
    try:
        return replace(packet, arrays=_arrays(records))
    except Exception as error:  # also MemoryError: the sender chose the numbers
        raise PacketError(f"a Flower message without readable arrays came in: {error!r:.300}") from None


def _arrays(records: RecordDict) -> dict[str, NDArray[Any]]:
    """The arrays of a message; all their bytes must have come with it."""
    words: Any = records[WORDS]
    if LAYOUT not in words:
        return {}
    if BYTES in words:
        content = words[BYTES]
    else:
        pieces: list[Any] = [records[f"{ARRAYS}{place}"] for place in range(len(records) - 1)]
        if [piece[PLACE] for piece in pieces] != list(range(len(pieces))):
            raise ValueError("a piece is not in its place")
        content = b"".join(piece[BYTES] for piece in pieces)
    arrays: dict[str, NDArray[Any]] = {}
    start = 0
    for name, kind, shape in json.loads(words[LAYOUT]):
        if type(name) is not str:
            raise ValueError(f"no name of an array: {name}")
        arrays[name] = _array(content, start, kind, shape)
        start += arrays[name].nbytes
    if start != len(content):
        raise ValueError(f"{len(content)} bytes came for arrays of {start}")
    return arrays


def words_of(records: RecordDict) -> Packet:
    """The packet in a Flower message, without its arrays."""
    try:
        words: Any = records[WORDS]
        kind, header, protocol = words["kind"], json.loads(words["header"]), words.get(VERSION, UNSAID)
        blobs = {name.removeprefix(BLOB): value for name, value in words.items() if name.startswith(BLOB)}
    except Exception as error:
        raise PacketError(f"a Flower message without a readable packet came in: {error!r:.300}") from None
    plain = isinstance(kind, str) and isinstance(header, dict) and type(protocol) is int
    if not plain or not all(isinstance(blob, bytes) for blob in blobs.values()):
        raise PacketError("a Flower message came in with a packet of the wrong types")
    return Packet(kind, header, blobs, protocol=protocol)


def _array(content: bytes, start: int, kind: str, shape: list[int]) -> NDArray[Any]:
    """The array that begins here; ValueError or TypeError if these bytes do not hold it."""
    dtype = np.dtype(str(kind))
    if dtype.kind not in "biuf" or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"no array of numbers: {kind} {shape}")
    count = math.prod(shape)
    if count * dtype.itemsize > len(content) - start:
        raise ValueError(f"{len(content) - start} bytes are no {kind} {shape}")
    array = np.frombuffer(content, dtype, count, start) if count else np.empty(0, dtype)
    return (array if array.flags.aligned else array.copy()).reshape(shape)


def read_answer(message: Message) -> Packet | None:
    """What a node answered; None if Flower only says that the node or its answer cannot be reached."""
    try:
        if not message.has_error():
            return from_records(message.content)
    except PacketError as error:
        return failure(error)
    if message.error.code == ERROR_OF_5:
        return Packet(ERROR, protocol=5)
    if message.error.code in SILENT:
        return None
    return failure(f"Flower's error {message.error.code}: {message.error.reason}")
