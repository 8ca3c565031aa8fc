"""The messages between server and nodes: a packet, the kinds of packets, and the content of some of them.

Every message names the version of the protocol that its sender speaks. A release that changes what a message holds or
means adds one to `PROTOCOL`. Two sides with the same number work together, whatever their releases. Two sides with
different numbers exchange only the sentence (`disagreement`) that says which of them to upgrade.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable import core
from fedgrec.cable.core import Broadcast, printable
from fedgrec.federation.common.errors import FederationError

# The exchanges of a sum, by the packet's kind. The keys of the next sum ride on the answer to "unmask".
KEYS, SHARES, MASKED, CONFIRM, UNMASK = "keys", "shares", "masked", "confirm", "unmask"
HELLO, REFUSED, FINISH, ERROR = "hello", "refused", "finish", "error"
NEW_ITEMS, NEW_ROSTER = "catalogue", "roster"  # newer ones, signed by the authority
WHO, BUNDLE = "who", "bundle"  # of gateways whose users mask for themselves (bundles.py)
SECAGG, NEXT = "secagg", "next"  # names of blobs: the messages of secure aggregation for this sum and for the next one
HISTORY = "history"  # in a header: sums that are over, which the other side may not have heard of (history.py)
TAKEN = "taken"  # a blob of a greeting: the tags of users whose names other nodes brought first
TURN = "turn"  # in a greeting: larger than that of the server from which this one took over
AS_BEFORE = "as_before"  # in a header: the model is the one that came down with the previous sum
COMMITTED = "committed."  # prefix of these names: a node's commitment to its part of a sum that is taken once
PROTOCOL, UNSAID = 6, 1  # the version that this release speaks; the version of releases whose messages name none
MOST = 300  # characters of a text, or entries of a list, that one side stores or prints for the other


@dataclass(frozen=True)
class Packet:
    """One message, either way: what it is, a few plain values, bytes, and arrays too large for either."""

    kind: str
    header: dict[str, Any] = field(default_factory=dict)  # what JSON can hold
    blobs: dict[str, bytes] = field(default_factory=dict)  # messages of secure aggregation, signatures
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)  # tables, masked vectors
    protocol: int = PROTOCOL


def failure(why: object) -> Packet:
    """What an exchange yields for a node that failed."""
    return Packet(ERROR, {"reason": str(why)})


def disagreement(protocol: int, theirs: str, ours: str) -> str:
    """Why two sides do not work together, and what to do; "" where they do."""
    if protocol == PROTOCOL:
        return ""
    old = theirs if protocol < PROTOCOL else ours
    return (
        f"the {theirs} speaks version {protocol} of the protocol and the {ours} version {PROTOCOL}: upgrade fedgrec on "
        f"the {old}"
    )


def hello_part(federation: str, nonce: bytes, index: int, agreement: str, tags: NDArray[np.uint8]) -> bytes:
    """What a node signs when it joins: that it is here now, with these users and this configuration."""
    about = [federation, nonce.hex(), index, agreement, hashlib.sha256(tags.tobytes()).hexdigest()]
    return b"fedgrec federation hello" + json.dumps(about).encode()


# The largest number of a model: products of two, and sums of these, are still finite.
LARGEST = 2.0**40


def pack_broadcast(broadcast: Broadcast) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What travels down, as a header and arrays."""
    names = ("round", "n_items", "level", "kind")
    header = {name: getattr(broadcast, name) for name in names} | {"precision": broadcast.tables.dtype.name}
    more: dict[str, NDArray[Any]] = {}
    for name, value in broadcast.more.items():
        if value.ndim > 1:  # a table like the others
            more |= {f"{part}.{name}": array for part, array in packed(value, broadcast.kind).items()}
        elif name != STEPS:
            more[f"more.{name}"] = value
    if broadcast.row_steps is not None:  # powers of two
        more[STEPS] = (np.frexp(broadcast.row_steps)[1] - 1).astype(np.int8)
    degrees = broadcast.degrees.astype(np.int32)
    return header, {**packed(broadcast.tables, broadcast.kind), "degrees": degrees, **more}


def unpack_broadcast(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Broadcast:
    more = {name.removeprefix("more."): value for name, value in arrays.items() if name.startswith("more.")}
    try:
        round_, n_items, level = (int(header[name]) for name in ("round", "n_items", "level"))
        kind, precision = str(header["kind"]), np.dtype({"float32": "f4", "float64": "f8"}[header["precision"]])
        tables, degrees = unpacked(arrays, kind), arrays["degrees"]
        if degrees.dtype != np.int32 or tables.dtype.kind != "f":
            raise ValueError("degrees are whole numbers of 32 bits, embeddings are not")
        if STEPS in arrays:
            exponents = arrays[STEPS].astype(np.int8, casting="safe").astype(np.int32)
            more[STEPS] = np.ldexp(np.ones(exponents.shape, precision), exponents)
        for name in [name.removeprefix("tables.") for name in arrays if name.startswith("tables.")]:
            parts = {part: arrays[f"{part}.{name}"] for part in ("tables", "exponents") if f"{part}.{name}" in arrays}
            more[name] = unpacked(parts, kind).astype(precision, copy=False)
        tables = tables.astype(precision, copy=False)
        return Broadcast(round_, n_items, tables, degrees.astype(np.int64), level, more, kind)
    except (KeyError, TypeError, ValueError):
        raise FederationError("the server sent no model where one belongs") from None


STEPS = "steps"


def packed(tables: NDArray[Any], kind: str) -> dict[str, NDArray[Any]]:
    """Tables that `core.travelling` has rounded for this kind, in the few bytes that the kind needs."""
    if kind == "bfloat16":
        return {"tables": (tables.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)}
    if kind in core.LEVELS:
        exponents = core.row_exponents(tables, core.LEVELS[kind])
        whole = np.ldexp(tables, -exponents).astype(np.int8)
        return {"tables": halved(whole) if kind == "int4" else whole, "exponents": exponents[..., 0].astype(np.int8)}
    return {"tables": tables}


def unpacked(arrays: Mapping[str, NDArray[Any]], kind: str) -> NDArray[Any]:
    """The same tables back, number by number."""
    tables = arrays["tables"]
    if kind == "bfloat16":
        if tables.dtype != np.uint16:
            raise ValueError("numbers of 16 bits are sent as such")
        return (tables.astype(np.uint32) << 16).view(np.float32)
    if kind in core.LEVELS:
        if tables.dtype != (np.uint8 if kind == "int4" else np.int8) or arrays["exponents"].dtype != np.int8:
            raise ValueError("numbers of 8 bits are sent as such, and pairs of 4 bits as one of 8")
        tables = doubled(tables) if kind == "int4" else tables
        return np.ldexp(tables.astype(np.float32), arrays["exponents"][..., None].astype(np.int32))
    return tables


def halved(whole: NDArray[Any]) -> NDArray[np.uint8]:
    """Numbers from −7 to 7, two in a byte; where their number is odd, half of the last byte is zero."""
    nibbles = (whole + 8).astype(np.uint8)
    pairs = nibbles[..., ::2].copy()
    pairs[..., : nibbles.shape[-1] // 2] |= nibbles[..., 1::2] << 4
    return pairs


def doubled(pairs: NDArray[np.uint8]) -> NDArray[np.int8]:
    """The inverse of `halved`."""
    nibbles = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], -1)
    nibbles = nibbles if nibbles[..., -1:].any() else nibbles[..., :-1]
    return nibbles.astype(np.int8) - np.int8(8)


def checked(answer: Any) -> Packet:
    """An answer from outside: a packet whose parts have the right types, or else a packet with an error."""
    try:
        header: Any = json.loads(json.dumps(answer.header))
        parts = [*answer.blobs.items(), *answer.arrays.items()]
        arrays = [array for array in answer.arrays.values() if type(array) is np.ndarray and array.dtype.kind in "biuf"]
        if (
            type(header) is not dict
            or not all(type(word) is str for word in (answer.kind, *(name for name, _ in parts)))
            or not all(type(blob) is bytes for blob in answer.blobs.values())
            or len(arrays) < len(answer.arrays)
            or type(answer.protocol) is not int
        ):
            raise TypeError("its parts are of other types")
        if why := disagreement(answer.protocol, "node", "server"):
            return failure(why)
        return Packet(answer.kind, header, dict(answer.blobs), dict(answer.arrays))
    except Exception as error:  # anything may be in it
        return failure(f"it answered with what is no packet ({type(error).__name__})")


def plain(words: Any) -> str:
    """The other side's text, safe to print or store: not too long, and without control codes for a terminal."""
    return printable(str(words)[:MOST])


def size(packet: Packet) -> int:
    """Bytes of a packet, without what the network adds."""
    blobs, arrays = sum(len(b) for b in packet.blobs.values()), sum(int(a.nbytes) for a in packet.arrays.values())
    return len(packet.kind) + len(json.dumps(packet.header)) + blobs + arrays


def as_array(message: bytes) -> NDArray[np.uint8]:
    """A long message as an array, which is how a packet carries large parts."""
    return np.frombuffer(message, np.uint8)
