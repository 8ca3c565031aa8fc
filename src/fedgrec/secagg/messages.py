"""The messages of a secure sum and their binary form.

    magic "FGSA" · version 4 · kind (1 byte) · round id (16 bytes) · fields

Integers are big-endian, lists begin with their length in 4 bytes, vectors are the rest of the message (see ring).
Parsing is total: any bytes give a message or MalformedMessage, and nothing larger than the input is ever allocated.
"""

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from fedgrec.secagg.errors import MalformedMessage
from fedgrec.secagg.session import ROUND_ID_BYTES, VERSION
from fedgrec.secagg.shamir import PRIME, SHARE_BYTES

MAGIC = b"FGSA"
HEADER = struct.Struct(f">4sBB{ROUND_ID_BYTES}s")
KEY_BYTES, SIGNATURE_BYTES = 32, 64


class Reader:
    """Takes fields off the front of bytes; a missing or extra byte is a MalformedMessage."""

    def __init__(self, data: bytes | memoryview, round_id: bytes) -> None:
        self.data, self.round_id = memoryview(data), round_id

    def take(self, size: int) -> memoryview:
        if size > len(self.data):
            raise MalformedMessage(f"the message ends early: {size} bytes were expected, {len(self.data)} are left")
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def count(self, entry_bytes: int) -> int:
        """The length of a list; it is checked against the bytes that are left before anything is allocated."""
        n = self.number()
        if n * entry_bytes > len(self.data):
            raise MalformedMessage(f"a list of {n} entries does not fit the {len(self.data)} bytes left")
        return n

    def numbers(self) -> tuple[int, ...]:
        n = self.count(4)
        return _distinct(struct.unpack(f">{n}I", self.take(4 * n)))

    def rest(self) -> memoryview:
        return self.take(len(self.data))

    def end(self) -> None:
        if self.data:
            raise MalformedMessage(f"{len(self.data)} bytes too many at the end of the message")


def _distinct(numbers: tuple[int, ...]) -> tuple[int, ...]:
    if any(a >= b for a, b in itertools.pairwise(numbers)):
        raise MalformedMessage("a list of clients is not sorted, or names one twice")
    return numbers


def _number(n: int) -> bytes:
    return n.to_bytes(4, "big")


def _numbers(ids: tuple[int, ...]) -> bytes:
    return _number(len(ids)) + struct.pack(f">{len(ids)}I", *ids)


class Form(NamedTuple):
    """How a field is written and read, and how many bytes it takes at least."""

    write: Callable[[Any], bytes]
    read: Callable[[Reader], Any]
    least: int


def _of(size: int) -> Form:
    """So many bytes."""
    return Form(bytes, lambda reader: bytes(reader.take(size)), size)


def _by_client(value: Form) -> Form:
    """A dictionary from clients to values."""

    def write(entries: dict[int, Any]) -> bytes:
        return _number(len(entries)) + b"".join(_number(c) + value.write(v) for c, v in sorted(entries.items()))

    def read(reader: Reader) -> dict[int, Any]:
        entries = [(reader.number(), value.read(reader)) for _ in range(reader.count(4 + value.least))]
        _distinct(tuple(client for client, _ in entries))
        return dict(entries)

    return Form(write, read, 4)


def _read_share(reader: Reader) -> int:
    value = int.from_bytes(reader.take(SHARE_BYTES), "big")
    if value >= PRIME:
        raise MalformedMessage("a share lies outside the field")
    return value


def _read_keys(reader: Reader) -> "tuple[Keys, ...]":
    keys = tuple(Keys.read(reader) for _ in range(reader.count(Keys.SIZE)))
    _distinct(tuple(key.sender for key in keys))
    return keys


NUMBER, NUMBERS = Form(_number, Reader.number, 4), Form(_numbers, Reader.numbers, 4)
KEY, SIGNATURE, REST = _of(KEY_BYTES), _of(SIGNATURE_BYTES), Form(bytes, Reader.rest, 0)
TEXT = Form(lambda text: _number(len(text)) + text, lambda reader: bytes(reader.take(reader.number())), 4)
SHARE = Form(lambda value: int(value).to_bytes(SHARE_BYTES, "big"), _read_share, SHARE_BYTES)
KEYS = Form(lambda keys: _number(len(keys)) + b"".join(key.fields() for key in keys), _read_keys, 4)


@dataclass(frozen=True)
class Message:
    """A message knows its kind, and the forms of its fields behind the round id."""

    kind: ClassVar[int]
    forms: ClassVar[tuple[Form, ...]]
    round_id: bytes

    def fields(self) -> bytes:
        _, *values = vars(self).values()
        return b"".join(form.write(value) for form, value in zip(self.forms, values, strict=True))

    @classmethod
    def read(cls, reader: Reader) -> Self:
        return cls(reader.round_id, *(form.read(reader) for form in cls.forms))

    def pack(self) -> bytes:
        return HEADER.pack(MAGIC, VERSION, self.kind, self.round_id) + self.fields()


@dataclass(frozen=True)
class Keys(Message):
    """Stage 0, client → server: its public keys of this round, signed with its identity."""

    kind, forms = 1, (NUMBER, KEY, KEY, SIGNATURE)
    SIZE: ClassVar[int] = sum(form.least for form in forms)
    sender: int
    mask_key: bytes
    cipher_key: bytes
    signature: bytes


@dataclass(frozen=True)
class Neighbourhood(Message):
    """Stage 0, server → client: who takes part, and the keys of this client's neighbours."""

    kind, forms = 2, (NUMBERS, KEYS)
    clients: tuple[int, ...]
    keys: tuple[Keys, ...]


@dataclass(frozen=True)
class Shares(Message):
    """Stage 1, client → server: its shares, encrypted for each holder."""

    kind, forms = 3, (_by_client(TEXT),)
    ciphertexts: dict[int, bytes]  # by the client at the other end


class Delivery(Shares):
    """Stage 1, server → client: the shares that others encrypted for it."""

    kind = 4


@dataclass(frozen=True)
class Masked(Message):
    """Stage 2, client → server: its vector under all its masks."""

    kind, forms = 5, (REST,)
    vector: bytes | memoryview  # packed


@dataclass(frozen=True)
class Survivors(Message):
    """Stage 2, server → client: clients whose vectors are in the sum, and the others that shared secrets."""

    kind, forms = 6, (NUMBERS, NUMBERS)
    alive: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True)
class Confirm(Message):
    """Stage 3, client → server: its signature under the lists of survivors that it was given."""

    kind, forms = 9, (SIGNATURE,)
    signature: bytes


@dataclass(frozen=True)
class Confirmations(Message):
    """Stage 3, server → client: the signatures of its neighbours, who must have been given the same lists."""

    kind, forms = 10, (_by_client(SIGNATURE),)
    signatures: dict[int, bytes]


@dataclass(frozen=True)
class Reveal(Message):
    """Stage 4, client → server: its shares of the survivors' seeds and of the dropped clients' mask keys."""

    kind, forms = 7, (_by_client(SHARE), _by_client(SHARE))
    seeds: dict[int, int]
    mask_keys: dict[int, int]


MESSAGES = (Keys, Neighbourhood, Shares, Delivery, Masked, Survivors, Reveal, Confirm, Confirmations)
KINDS: dict[int, type[Message]] = {message.kind: message for message in MESSAGES}


def parse(data: bytes) -> Message:
    """Any bytes → the message that they hold, or MalformedMessage."""
    if len(data) < HEADER.size:
        raise MalformedMessage(f"{len(data)} bytes are too few for a message")
    magic, version, kind, round_id = HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise MalformedMessage(f"this is no message of secure aggregation, version {VERSION}")
    if kind not in KINDS:
        raise MalformedMessage(f"there is no message of kind {kind}")
    reader = Reader(memoryview(data)[HEADER.size :], round_id)
    message = KINDS[kind].read(reader)
    reader.end()
    return message
