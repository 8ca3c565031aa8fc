"""What server and nodes agree on before a sum: which stage of the method it is, and how many users may be in it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.core import Broadcast, Stage, UploadSpec
from fedgrec.federation import evaluation
from fedgrec.federation.folder import FederationError
from fedgrec.federation.transport import Packet
from fedgrec.methods.contract import Method

EVALUATE = "evaluate"
# The exchanges of a sum, by the packet's kind. The keys of the next sum ride on the answer to "unmask".
KEYS, SHARES, MASKED, CONFIRM, UNMASK = "keys", "shares", "masked", "confirm", "unmask"
HELLO, REFUSED, FINISH, ERROR = "hello", "refused", "finish", "error"
FORGOTTEN = "forgotten"  # an answer to whatever was asked: the server has lost what cannot be repeated
WHO, BUNDLE = "who", "bundle"  # of gateways whose users mask for themselves (bundling.py)
MOST = 300  # of what one side may have the other remember or print at a time
SECAGG, NEXT = "secagg", "next"  # names of blobs: the message of secure aggregation, and of the sum after this one


@dataclass(frozen=True)
class Plan:
    """One sum."""

    stage: str  # of the method, or "evaluate"
    level: int
    round: int
    n_users: int  # users at the start: frozen, since it sizes the integers
    users: int  # the most that this sum may hold
    take: int = 1  # of a node's n users max(least, n·take // of) take part, or all
    of: int = 1
    topk: tuple[int, ...] = ()  # what is evaluated
    least: int = 1

    @property
    def place(self) -> tuple[str, int, int]:
        """The name under which both sides remember it."""
        return self.stage, self.level, self.round

    def count(self, users: int) -> int:
        """How many of a node's users take part."""
        return min(users, max(self.least, users * self.take // self.of))

    def stage_of(self, method: Method) -> Stage:
        """What the method does in it; an evaluation hands out what training does."""
        if self.stage == EVALUATE:
            return method.stages[-1]
        for stage in method.stages:
            if stage.name == self.stage:
                return stage
        raise FederationError(f"{method.name} has no stage {self.stage!r}")

    def spec(self, method: Method) -> UploadSpec:
        """The leaves of the sum."""
        if self.stage == EVALUATE:
            return evaluation.spec(self.topk, self.users)
        return method.spec(self.stage_of(method))

    def context(self, broadcast: Broadcast) -> bytes:
        """What masks are bound to: nodes that were told different plans or models share no keys."""
        arrays = pack_broadcast(broadcast)[1]
        shapes = [[name, array.dtype.str, list(array.shape)] for name, array in sorted(arrays.items())]
        return hashlib.sha256(json.dumps([asdict(self), shapes]).encode() + broadcast.fingerprint()).digest()

    @staticmethod
    def read(values: Mapping[str, Any]) -> "Plan":
        """A plan out of a packet's header."""
        try:
            plan = Plan(**{**values, "topk": tuple(values["topk"])})
            numbers = (plan.level, plan.round, plan.n_users, plan.users, plan.take, plan.of, plan.least, *plan.topk)
            if not isinstance(plan.stage, str) or any(type(n) is not int or n < 0 for n in numbers) or not plan.of:
                raise ValueError
        except (TypeError, KeyError, ValueError):
            raise FederationError("the server sent something that is no plan of a sum") from None
        return plan


def hello_part(federation: str, nonce: bytes, index: int, agreement: str, tags: NDArray[np.uint8]) -> bytes:
    """What a node signs when it joins: that it is here now, with these users and this configuration."""
    about = [federation, nonce.hex(), index, agreement, hashlib.sha256(tags.tobytes()).hexdigest()]
    return b"fedgrec federation hello" + json.dumps(about).encode()


def pack_broadcast(broadcast: Broadcast) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What travels down, as a header and arrays."""
    header = {"round": broadcast.round, "n_items": broadcast.n_items, "level": broadcast.level}
    more = {f"more.{name}": value for name, value in broadcast.more.items()}
    return header, {"tables": broadcast.tables, "degrees": broadcast.degrees, **more}


def unpack_broadcast(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Broadcast:
    more = {name.removeprefix("more."): value for name, value in arrays.items() if name.startswith("more.")}
    try:
        round_, n_items, level = (int(header[name]) for name in ("round", "n_items", "level"))
        return Broadcast(round_, n_items, arrays["tables"], arrays["degrees"], None, level, more)
    except (KeyError, TypeError, ValueError):
        raise FederationError("the server sent no model where one belongs") from None


def plain(words: Any) -> str:
    """What the other side wants to be printed or remembered: not too long, and nothing that a terminal obeys."""
    return "".join(letter if letter.isprintable() else " " for letter in str(words)[:MOST])


def size(packet: Packet) -> int:
    """Bytes of a packet, without what the network adds."""
    blobs, arrays = sum(len(b) for b in packet.blobs.values()), sum(int(a.nbytes) for a in packet.arrays.values())
    return len(packet.kind) + len(json.dumps(packet.header)) + blobs + arrays


def as_array(message: bytes) -> NDArray[np.uint8]:
    """A long message as the network likes it."""
    return np.frombuffer(message, np.uint8)
