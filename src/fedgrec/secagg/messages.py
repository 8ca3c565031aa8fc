"""The messages of a secure sum and their binary form.

    magic "FGSA" · version 2 · kind (1 byte) · round id (16 bytes) · fields

Integers are big-endian, lists begin with their length in 4 bytes, vectors are the rest of the message (see ring).
Parsing is total: any bytes give a message or MalformedMessage, and nothing larger than the input is ever allocated.
"""

import itertools
import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from fedgrec.secagg.errors import MalformedMessage
from fedgrec.secagg.session import ROUND_ID_BYTES, VERSION
from fedgrec.secagg.shamir import PRIME, SHARE_BYTES

MAGIC = b"FGSA"
HEADER = struct.Struct(f">4sBB{ROUND_ID_BYTES}s")
KEY_BYTES, SIGNATURE_BYTES = 32, 64
MOST_BYTES = 2**40  # the most bytes of one ciphertext or vector


class Reader:
    """Takes fields off the front of bytes; a missing or extra byte is a MalformedMessage."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data)

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


class Message:
    """A message knows its kind and how to write and read its fields."""

    kind: ClassVar[int]
    round_id: bytes

    def fields(self) -> bytes:
        raise NotImplementedError

    @classmethod
    def read(cls, round_id: bytes, reader: Reader) -> Self:
        raise NotImplementedError

    def pack(self) -> bytes:
        return HEADER.pack(MAGIC, VERSION, self.kind, self.round_id) + self.fields()


@dataclass(frozen=True)
class Keys(Message):
    """Stage 0, client → server: its public keys of this round, signed with its identity."""

    kind = 1
    SIZE: ClassVar[int] = 4 + 2 * KEY_BYTES + SIGNATURE_BYTES
    round_id: bytes
    sender: int
    mask_key: bytes
    cipher_key: bytes
    signature: bytes

    def fields(self) -> bytes:
        return _number(self.sender) + self.mask_key + self.cipher_key + self.signature

    @classmethod
    def read(cls, round_id: bytes, reader: Reader) -> Self:
        sender, sizes = reader.number(), (KEY_BYTES, KEY_BYTES, SIGNATURE_BYTES)
        return cls(round_id, sender, *(bytes(reader.take(size)) for size in sizes))


@dataclass(frozen=True)
class Neighbourhood(Message):
    """Stage 0, server → client: who takes part, and the keys of this client's neighbours."""

    kind = 2
    round_id: bytes
    clients: tuple[int, ...]
    keys: tuple[Keys, ...]

    def fields(self) -> bytes:
        return _numbers(self.clients) + _number(len(self.keys)) + b"".join(keys.fields() for keys in self.keys)

    @classmethod
    def read(cls, round_id: bytes, reader: Reader) -> Self:
        clients, n = reader.numbers(), reader.count(Keys.SIZE)
        keys = tuple(Keys.read(round_id, reader) for _ in range(n))
        _distinct(tuple(key.sender for key in keys))
        return cls(round_id, clients, keys)


@dataclass(frozen=True)
class _Ciphertexts(Message):
    round_id: bytes
    ciphertexts: dict[int, bytes]  # by the client at the other end

    def fields(self) -> bytes:
        entries = (_number(peer) + _number(len(text)) + text for peer, text in sorted(self.ciphertexts.items()))
        return _number(len(self.ciphertexts)) + b"".join(entries)

    @classmethod
    def read(cls, round_id: bytes, reader: Reader) -> Self:
        entries = []
        for _ in range(reader.count(8)):
            peer, size = reader.number(), reader.number()
            entries.append((peer, bytes(reader.take(size))))
        _distinct(tuple(peer for peer, _ in entries))
        return cls(round_id, dict(entries))


class Shares(_Ciphertexts):
    """Stage 1, client → server: its shares, encrypted for each holder."""

    kind = 3


class Delivery(_Ciphertexts):
    """Stage 1, server → client: the shares that others encrypted for it."""

    kind = 4


@dataclass(frozen=True)
class Masked(Message):
    """Stage 2, client → server: its vector under all its masks."""

    kind = 5
    round_id: bytes
    vector: bytes | memoryview  # packed

    def fields(self) -> bytes:
        return bytes(self.vector)

    @classmethod
    def read(cls, round_id: bytes, reader: Reader) -> Self:
        return cls(round_id, reader.rest())


@dataclass(frozen=True)
class Survivors(Message):
    """Stage 2, server → client: clients whose vectors are in the sum, and clients lost after they shared secrets."""

    kind = 6
    round_id: bytes
    alive: tuple[int, ...]
    dropped: tuple[int, ...]

    def fields(self) -> bytes:
        return _numbers(self.alive) + _numbers(self.dropped)

    @classmethod
    def read(cls, round_id: bytes, reader: Reader) -> Self:
        return cls(round_id, reader.numbers(), reader.numbers())


@dataclass(frozen=True)
class Confirm(Message):
    """Stage 3, client → server: its signature under the lists of survivors that it was given."""

    kind = 9
    round_id: bytes
    signature: bytes

    def fields(self) -> bytes:
        return self.signature

    @classmethod
    def read(cls, round_id: bytes, reader: Reader) -> Self:
        return cls(round_id, bytes(reader.take(SIGNATURE_BYTES)))


@dataclass(frozen=True)
class Confirmations(Message):
    """Stage 3, server → client: the signatures of its neighbours, who must have been given the same lists."""

    kind = 10
    round_id: bytes
    signatures: dict[int, bytes]

    def fields(self) -> bytes:
        entries = (_number(signer) + signature for signer, signature in sorted(self.signatures.items()))
        return _number(len(self.signatures)) + b"".join(entries)

    @classmethod
    def read(cls, round_id: bytes, reader: Reader) -> Self:
        n = reader.count(4 + SIGNATURE_BYTES)
        entries = [(reader.number(), bytes(reader.take(SIGNATURE_BYTES))) for _ in range(n)]
        _distinct(tuple(signer for signer, _ in entries))
        return cls(round_id, dict(entries))


@dataclass(frozen=True)
class Reveal(Message):
    """Stage 4, client → server: its shares of the survivors' seeds and of the dropped clients' mask keys."""

    kind = 7
    round_id: bytes
    seeds: dict[int, int]
    mask_keys: dict[int, int]

    def fields(self) -> bytes:
        return b"".join(
            _number(len(shares))
            + b"".join(_number(owner) + value.to_bytes(SHARE_BYTES, "big") for owner, value in sorted(shares.items()))
            for shares in (self.seeds, self.mask_keys)
        )

    @classmethod
    def read(cls, round_id: bytes, reader: Reader) -> Self:
        return cls(round_id, cls._shares(reader), cls._shares(reader))

    @staticmethod
    def _shares(reader: Reader) -> dict[int, int]:
        n = reader.count(4 + SHARE_BYTES)
        entries = [(reader.number(), int.from_bytes(reader.take(SHARE_BYTES), "big")) for _ in range(n)]
        _distinct(tuple(owner for owner, _ in entries))
        if any(value >= PRIME for _, value in entries):
            raise MalformedMessage("a share lies outside the field")
        return dict(entries)


@dataclass(frozen=True)
class Coded(Masked):
    """Stage 4 of LightSecAgg, client → server: the sum of the survivors' coded masks that it holds."""

    kind = 8


KINDS: dict[int, type[Message]] = {
    message.kind: message
    for message in (
        Keys,
        Neighbourhood,
        Shares,
        Delivery,
        Masked,
        Survivors,
        Reveal,
        Coded,
        Confirm,
        Confirmations,
    )
}


def parse(data: bytes) -> Message:
    """Any bytes → the message that they hold, or MalformedMessage."""
    if len(data) < HEADER.size:
        raise MalformedMessage(f"{len(data)} bytes are too few for a message")
    magic, version, kind, round_id = HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise MalformedMessage(f"this is no message of secure aggregation, version {VERSION}")
    if kind not in KINDS:
        raise MalformedMessage(f"there is no message of kind {kind}")
    reader = Reader(memoryview(data)[HEADER.size :])
    message = KINDS[kind].read(round_id, reader)
    reader.end()
    return message
