"""What became of every sum, in order: a chain of lines that all nodes hear alike.

A line names a sum and the nodes whose uploads count. The server tells each node the lines that it has not heard yet.
The chain's head is bound into the keys of the next sum (`Plan.context`), so nodes that were told different things share
no masks, and open nothing.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

from fedgrec.federation.common.errors import FederationError

LONGEST = 2**15  # hexadecimal digits: more places than any roster has


@dataclass(frozen=True)
class Line:
    session: str
    stage: str
    level: int
    round: int
    roster: int  # the number of the roster that held
    counted: str  # the nodes whose uploads count: a hexadecimal number that has a bit for each place on the roster

    @property
    def included(self) -> list[int]:
        bits = int(self.counted, 16)
        return [place for place in range(bits.bit_length()) if bits >> place & 1]

    def pack(self) -> str:
        return json.dumps(astuple(self))


def line(session: str, place: tuple[str, int, int], roster: int, included: Iterable[int]) -> Line:
    return Line(session, *place, roster, counted(included))


def counted(nodes: Iterable[int]) -> str:
    return f"{sum(1 << node for node in set(nodes)):x}"


def unpack(packed: Any) -> Line:
    """The line in this text, which is the only text for it."""
    try:
        found = Line(*json.loads(packed))
        if [type(part) for part in astuple(found)] != [str, str, int, int, int, str] or found.pack() != packed:
            raise ValueError
        if len(found.counted) > LONGEST or counted(found.included) != found.counted:
            raise ValueError
    except (TypeError, ValueError):
        raise FederationError("the history of sums has a line that names no sum") from None
    return found


def is_line(packed: Any) -> bool:
    try:
        return bool(unpack(packed))
    except FederationError:
        return False


def chained(head: str, packed: str) -> str:
    """The head of the chain once this line is its last."""
    return hashlib.sha256(f"fedgrec history {head} {packed}".encode()).hexdigest()
