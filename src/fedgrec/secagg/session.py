"""What all parties of one secure sum agree on before it begins."""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Self

from fedgrec.secagg import ring
from fedgrec.secagg.errors import BadInput

ROUND_ID_BYTES = 16
VERSION = 5  # of the protocol
MOST_PARTS = 1024  # an evaluation has two parts for each list length


class Stage(Enum):
    """What a party of the sum waits for."""

    KEYS = "keys"
    SHARES = "shares"
    MASKED = "masked vectors"
    CONFIRM = "confirming"
    UNMASK = "unmasking"
    DONE = "nothing: the round is over"


@dataclass(frozen=True)
class Session:
    """One secure sum. The round id must never be used twice."""

    round_id: bytes
    rings: ring.Rings  # of each part of a vector: how many numbers, and the bits of their ring
    users: int  # the most users that the sum may hold: a client's vector may be the sum of many users
    neighbours: int  # k; the complete graph, if it is at least the number of clients less one
    threshold: int  # t, how many holders of a client's shares rebuild its secrets
    least: int = 2  # the fewest clients that may take part; with a sparse graph nearly all, see parameters.py
    least_summed: int = 0  # the fewest vectors in the sum; 0: as many as the threshold

    def __post_init__(self) -> None:
        if len(self.round_id) != ROUND_ID_BYTES:
            raise BadInput(f"a round id has {ROUND_ID_BYTES} bytes, not {len(self.round_id)}")
        if not self.rings or self.users < 1 or not 1 <= self.threshold < 2**31 or not 1 <= self.neighbours < 2**31:
            raise BadInput("a session needs at least one value, one user, one neighbour and a threshold of one")
        if (
            not 2 <= self.least < 2**31
            or not (self.least_summed == 0 or 2 <= self.least_summed < 2**31)
            or len(self.rings) > MOST_PARTS
            or min(values for values, _ in self.rings) < 1
            or self.values >= 2**48
            or self.users >= 2**32
        ):
            raise BadInput("the session's numbers are out of range")
        for _, bits in self.rings:
            ring.container(bits)

    def to_json(self) -> dict[str, Any]:
        """The session as plain values."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return values | {"round_id": self.round_id.hex(), "rings": [list(part) for part in self.rings]}

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """The session in plain values; BadInput if they describe none."""
        kinds = {name: field.type for name, field in cls.__dataclass_fields__.items()}
        kinds |= {"round_id": str, "rings": list}
        if (
            not isinstance(values, Mapping)
            or set(values) != set(kinds)
            or any(type(values[name]) is not kind for name, kind in kinds.items())
            or any(type(part) is not list or [type(n) for n in part] != [int, int] for part in values["rings"])
        ):
            raise BadInput(f"these values describe no session of secure aggregation, version {VERSION}")
        rings = tuple((count, bits) for count, bits in values["rings"])
        try:
            return cls(**{**values, "round_id": bytes.fromhex(values["round_id"]), "rings": rings})
        except (TypeError, ValueError):
            raise BadInput("a session's round id is written as hexadecimal digits") from None

    @property
    def values(self) -> int:
        """Numbers in a vector."""
        return sum(values for values, _ in self.rings)

    @property
    def fewest(self) -> int:
        """The fewest vectors in the sum. A sum of fewer would say more about each."""
        return self.least_summed or self.threshold

    @property
    def parts(self) -> ring.Rings:
        """The parts of a masked vector, with its trailer."""
        return (*self.rings, ring.TRAILER)

    @cached_property
    def digest(self) -> bytes:
        """Binds signatures, keys and ciphertexts to this round and to every parameter of it."""
        numbers = struct.pack(
            ">6Q", len(self.rings), self.users, self.neighbours, self.threshold, self.least, self.least_summed
        )
        rings = b"".join(struct.pack(">QB", *part) for part in self.rings)
        return hashlib.sha256(b"fedgrec secagg %d" % VERSION + self.round_id + numbers + rings).digest()
