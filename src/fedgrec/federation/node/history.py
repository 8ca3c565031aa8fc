"""What a node has heard of sums that are over (common/history.py): it believes the first telling, and no other."""

from collections.abc import Mapping
from typing import Any

from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.history import Line, chained, counted, unpack
from fedgrec.federation.node.store import NodeStore


def end(store: NodeStore) -> tuple[int, str]:
    """How many lines the node has heard, and the head of their chain."""
    return next(iter(store.rows("history", "number, head", "ORDER BY number DESC LIMIT 1")), (0, ""))


def told(store: NodeStore, known: Any) -> dict[str, Any]:
    """What the node tells a server that knows so many lines: if it is an older copy, it learns of the others here."""
    number, head = end(store)
    after = known if type(known) is int and known >= 0 else number
    lines = store.column("history", "line", "WHERE number > ? ORDER BY number", [after])
    return {"number": number, "head": head, "lines": lines}


def hear(store: NodeStore, me: int, message: Any) -> list[int]:
    """Take new lines in: the node's users keep or drop what they sent. Returns users whose items are counted now."""
    if message is None:
        return []
    lines = message.get("lines") if isinstance(message, Mapping) else None
    if not isinstance(lines, list) or type(message.get("after")) is not int:
        raise FederationError("the server told a history of sums that is none")
    found: list[int] = []
    number, head = end(store)
    for place, packed in enumerate(lines, message["after"] + 1):
        line = unpack(packed)
        if place <= number and [packed] == store.column("history", "line", "WHERE number = ?", [place]):
            continue
        if place != number + 1 or not _agrees(store, me, line):
            raise FederationError(
                "the server tells another history of sums than this node knows, or leaves a part of it out: if that is "
                "not a lie, start this node with  --trust-again"
            )
        number, head = place, chained(head, packed)
        store.db.execute("INSERT INTO history (number, line, head) VALUES (?, ?, ?)", [number, packed, head])
        found += store.settle(line.session, me in line.included)
    return found


def _agrees(store: NodeStore, me: int, line: Line) -> bool:
    """Whether the line may be true: the sum counts for all whom this node signed, or for nobody; for a batch or not.

    The server could otherwise make one node send again what it sent in a sum that counts for the others.
    """
    nodes = int(line.counted, 16)
    for batch, verdict in store.rows("participation", "batch, verdict", "WHERE session = ?", [line.session]):
        if nodes & int(batch, 16) not in (0, int(batch, 16)) or verdict not in (None, me in line.included):
            return False  # or the node was told otherwise before, and has acted on it
    signed = store.column("signed", "counted", "WHERE session = ?", [line.session])
    return not signed or line.counted in (*signed, counted([]))


def note_beginning(store: NodeStore, roster: int) -> None:
    """With the node's first sum it learns which roster the federation began with: its batches follow from that."""
    first = store.column("history", "line", "WHERE number = 1")
    if store.get("founded") is None:
        store.put("founded", unpack(first[0]).roster if first else roster)


def forget(store: NodeStore) -> None:
    """The node's operator has looked into it: the node hears the whole history anew."""
    with store.transaction():
        store.db.execute("DELETE FROM history")
