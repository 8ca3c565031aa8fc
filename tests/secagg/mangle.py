"""Endless malformed messages, and all functions that could receive them, for tests and benchmarks."""

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fedgrec.secagg import SecAggError, Server, Stage
from fedgrec.secagg.messages import HEADER, KINDS, parse
from tests.secagg.rounds import Round, session, twin, vectors_for

RINGS = ((3, 12), (3, 32))
ROUND_ID = b"the same for all"  # so that a splice of two sessions' messages passes the check of the header


def mangled(valid: Sequence[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """`count` messages: random bytes, and valid ones cut, extended, flipped, spliced or with fields overwritten."""
    rng = random.Random(seed)

    def place(data: bytes) -> int:
        return rng.randrange(len(data) + 1)

    def flipped(data: bytes) -> bytes:
        out = bytearray(data)
        for _ in range(rng.randint(1, 8)):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
        return bytes(out)

    def spliced(data: bytes) -> bytes:
        other = rng.choice(valid)
        return data[: place(data)] + other[place(other) :]

    def overwritten(data: bytes) -> bytes:  # lengths and names have four bytes
        number = rng.choice([0, 1, 2, len(data), 2**31 - 1, 2**31, 2**32 - 1, rng.randrange(2**32)])
        at = rng.randrange(HEADER.size, max(HEADER.size, len(data) - 4) + 1)
        return data[:at] + number.to_bytes(4, "big") + data[at + 4 :]

    def repeated(data: bytes) -> bytes:
        start, end = sorted((place(data), place(data)))
        return data[:end] + data[start:end] * rng.randint(1, 3) + data[end:]

    recipes: list[Callable[[bytes], bytes]] = [
        lambda data: rng.randbytes(rng.randrange(300)),
        lambda data: data[: HEADER.size] + rng.randbytes(rng.randrange(300)),
        lambda data: data[:5] + bytes([rng.choice(list(KINDS))]) + data[6:],
        lambda data: data[: place(data)],
        lambda data: data + rng.randbytes(rng.randint(1, 100)),
        flipped,
        spliced,
        overwritten,
        repeated,
    ]
    for _ in range(count):
        yield rng.choice(recipes)(rng.choice(valid))


@dataclass
class Target:
    """Doors for endless messages: each raises SecAggError or nothing, and the party behind it does not change."""

    doors: dict[str, Callable[[bytes], object]] = field(default_factory=lambda: {"parser": parse})
    valid: list[bytes] = field(default_factory=list)  # of every kind, in both directions


def at_server(server: Server) -> Callable[[bytes], object]:
    spare = copy.deepcopy(server)

    def door(data: bytes) -> None:
        nonlocal spare
        spare.receive(0, data)
        spare = copy.deepcopy(server)  # the message was accepted

    return door


def target() -> Target:
    """A client and a server at every stage; one client is lost."""
    found = Target()
    run = Round(session(5, 0, 3, rings=RINGS, round_id=ROUND_ID), vectors_for(5, RINGS))
    while not run.server.done:
        name, client = run.server.stage.value, twin(run.clients[0])
        found.doors[f"server, {name}"] = at_server(run.server)
        found.doors[f"client, {name}"] = lambda data, client=client: twin(client).receive(data)
        found.valid += [message for message in run.inbox.values() if message]
        run.step(silent=[4] if run.server.stage is Stage.MASKED else [])
    found.valid += [message for sent in run.sent.values() for message in sent]
    return found


def knock(at: Target, messages: Iterable[bytes]) -> Counter[str]:
    """Give every message to every door; errors other than SecAggError are not caught."""
    outcomes: Counter[str] = Counter()
    for data in messages:
        for door in at.doors.values():
            try:
                door(data)
                outcomes["taken"] += 1
            except SecAggError as error:
                outcomes[type(error).__name__] += 1
    return outcomes
