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
MECHANISMS = ("secagg", "pairwise", "lightsecagg")


class Stage(Enum):
    """What a party waits for."""

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
    values: int  # numbers in a vector
    users: int  # the most users that the sum may hold: a client may carry the sum of many
    neighbours: int  # k; at least the number of clients less one: the complete graph
    threshold: int  # t, of the holders of a client's shares
    bits: int = 32
    mechanism: str = "secagg"
    lying_server: bool = True  # clients compare the lists of survivors before they open anything: one exchange more
    least: int = 2  # the fewest clients that may take part; with a sparse graph nearly all, see parameters
    privacy: int = 1  # LightSecAgg's T: how many clients may put together what they hold and learn nothing

    def __post_init__(self) -> None:
        if len(self.round_id) != ROUND_ID_BYTES:
            raise BadInput(f"a round id has {ROUND_ID_BYTES} bytes, not {len(self.round_id)}")
        if self.values < 1 or self.users < 1 or not 1 <= self.threshold < 2**31 or not 1 <= self.neighbours < 2**31:
            raise BadInput("a session needs at least one value, one user, one neighbour and a threshold of one")
        if self.mechanism not in MECHANISMS:
            raise BadInput(f"the mechanism is one of {', '.join(MECHANISMS)}, not {self.mechanism!r}")
        if (
            not 1 <= self.privacy < 2**31
            or not 2 <= self.least < 2**31
            or self.values >= 2**48
            or self.users >= 2 ** min(self.bits, 48)
        ):
            raise BadInput("the session's numbers are out of range")
        ring.dtype(self.bits)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"round_id": self.round_id.hex()}

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """And back; what is no session is refused."""
        kinds = {name: field.type for name, field in cls.__dataclass_fields__.items() if name != "round_id"}
        if (
            not isinstance(values, Mapping)
            or set(values) != {"round_id", *kinds}
            or any(type(values[name]) is not kind for name, kind in kinds.items())
        ):
            raise BadInput("these values describe no session of secure aggregation")
        try:
            return cls(**{**values, "round_id": bytes.fromhex(values["round_id"])})
        except (TypeError, ValueError):
            raise BadInput("a session's round id is written as hexadecimal digits") from None

    @property
    def words(self) -> int:
        """Words of a masked vector."""
        return ring.length(self.values, self.bits)

    @cached_property
    def digest(self) -> bytes:
        """Binds signatures, keys and ciphertexts to this round and to every parameter of it."""
        numbers = struct.pack(
            ">7QBB",
            self.values,
            self.users,
            self.neighbours,
            self.threshold,
            self.bits,
            self.privacy,
            self.least,
            MECHANISMS.index(self.mechanism),
            self.lying_server,
        )
        return hashlib.sha256(b"fedgrec secagg 1" + self.round_id + numbers).digest()
