"""Changes on a node: users join, get items, lose items and leave; and when the server's sums follow.

The items of a user who was counted change with the next recount that counts; until then, changes wait in `changes`. (A
sum of few changes would show whose they are, so nodes and server wait until there are enough.) A user who was never
counted may change at once. Latents need not wait: the store knows under which items and weights a user's latents stand
at the server, and the user's next upload takes them out there. A user who leaves is deleted once the degrees and the
latents hold nothing of it; its held-out items go at once, and so does the name of a user who is forgotten.
"""

import hmac
import json
import logging
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from fedgrec.cable.core import Cohort, Floats, Ints
from fedgrec.errors import DiskError, many
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.sqlite_store import LISTED
from fedgrec.federation.node import actual_items
from fedgrec.federation.node.sources import Marks, split
from fedgrec.federation.node.store import NodeStore, Person, having
from fedgrec.methods.change import Edges, Past
from fedgrec.methods.contract import Method

log = logging.getLogger("fedgrec.node")
MOST_LEAVE = 0.5  # a source that lost a larger share of its users counts as damaged


@dataclass(frozen=True)
class Renewal:
    """What a node found when it read its source again."""

    came: int = 0  # users
    changed: int = 0
    left: int = 0
    back: int = 0  # users who were forgotten and are still in the source: they are left out
    empty: int = 0  # new users without an item to train on
    left_out: int = 0  # users whose names other nodes brought first

    def __add__(self, other: "Renewal") -> "Renewal":
        return Renewal(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        back = f"; {self.back} who were forgotten are still in the source, and are left out" if self.back else ""
        empty = f"; {self.empty} have nothing to learn from" if self.empty else ""
        out = f"; {self.left_out} are left out: take them off the nodes that also have them" if self.left_out else ""
        came = many(self.came, "new user")
        return f"{came}, {self.changed} with changed items, {self.left} who left{back}{empty}{out}"


# ------------------------------------------------------------------------------------------- taking changes


def check_source(known: int, found: int) -> None:
    """Refuse a source that lost most users: a file that was cut off must not make everybody leave."""
    if known - found > MOST_LEAVE * known:
        raise FederationError(
            f"{known - found:,} of {known:,} users are not in the source any more: if they are to leave, say so with  "
            f"fedgrec federation refresh NODE --let-go ; else mend the source"
        )


def renew(
    store: NodeStore, method: Method, source: Mapping[str, Marks], share: float, salt: bytes, epsilon: float = 0.0
) -> Renewal:
    """Update the store's users from the source; without marks in it, this share of new items is held out.

    `epsilon` is that of users' decoys: with decoys, the source says what users have, not what they tell.
    """
    found = Renewal()
    with store.transaction():
        actual_items.check(store, epsilon)
        check_quiet(store)
        known = dict(store.rows("users", "id, row"))
        for user, row in known.items():
            found += _renew(store, row, source.get(user, {}), share, method.options.takes_order)
        for user in sorted(source.keys() - known.keys()):
            items, held_out = split(source[user], share, last=method.options.takes_order)
            if store.rows("forgotten", "tag", "WHERE tag = ?", [tag(user, salt)]):
                found += Renewal(back=1)
            elif items:
                store.add_user(method, Person(user, items, held_out, order=[*source[user]]), epsilon)
                found += Renewal(came=1)
            else:
                found += Renewal(empty=1)
    return found + Renewal(left_out=len(store.left_out()))


def check_quiet(store: NodeStore) -> None:
    """Called in the transaction that changes items: until it begins, the node may join a count of them."""
    if store.counting():
        raise FederationError(
            f"{store.path} does not know yet whether the last count of items counts, and changes wait for that: let "
            f"the node hear from its server, then try again"
        )


def _renew(store: NodeStore, row: int, marks: Marks, share: float, in_order: bool) -> Renewal:
    """Update one user who is here; a user without marks leaves."""
    now, held = mine(store, row), dict.fromkeys(_items(store, row, held_out=1), True)
    leaves = store.of("users", "leaving", [row]) == [(1,)]
    items, held_out = split(marks, share, dict.fromkeys(now, False) | held, in_order)
    places = {item: float(place) for place, item in enumerate(marks)} if in_order else {}
    if not items:
        if leaves:
            return Renewal()
        let_go(store, row)
        return Renewal(left=1)
    as_before = sorted(items) == now and held_out == sorted(held) and (not places or [*places] == history(store, row))
    if as_before and not leaves:
        return Renewal()
    store.db.execute("UPDATE users SET leaving = 0 WHERE row = ?", [row])
    if actual_items.are_kept(store):
        actual_items.note(store, row, items)
        if leaves:  # the user is back, with what it told, if that is still counted
            want(store, row, told := _items(store, row))
            actual_items.ask_again(store, row, told)
    else:
        want(store, row, items, places)
    store.db.execute("DELETE FROM interactions WHERE user = ? AND held_out = 1", [row])
    store.db.executemany(
        "INSERT INTO interactions (user, item, held_out, target) VALUES (?, ?, 1, ?)",
        [(row, item, places.get(item)) for item in held_out],
    )
    return Renewal(changed=1)


def mine(store: NodeStore, row: int) -> list[int]:
    """The items that the user has, less those held out; its ranking uses them where their order does not count."""
    return actual_items.items(store, row) if actual_items.are_kept(store) else wanted(store, row)


def history(store: NodeStore, row: int) -> list[int]:
    """All that the user has, first to last. What comes next depends on what came last, held out or not."""
    found = _wanted(store, row) | dict(store.of("interactions", "item, target", [row], "AND held_out = 1"))
    return sorted(found, key=found.__getitem__)


def wanted(store: NodeStore, row: int) -> list[int]:
    """The items that the user trains on once its changes count; with decoys, the items that it tells."""
    return sorted(_wanted(store, row))


def _wanted(store: NodeStore, row: int) -> dict[int, Any]:
    """The same items, each with its rating or its place."""
    found = _targets(store, row)
    for item, gone, target in store.of("changes", "item, gone, target", [row]):
        found[item] = target
        if gone:
            del found[item]
    return found


def _targets(store: NodeStore, row: int) -> dict[int, Any]:
    return dict(store.rows("interactions", "item, target", "WHERE user = ? AND held_out = 0", [row]))


def _items(store: NodeStore, row: int, held_out: int = 0) -> list[int]:
    return store.column("interactions", "item", "WHERE user = ? AND held_out = ?", [row, held_out])


def want(store: NodeStore, row: int, items: Sequence[int], places: Mapping[int, float] | None = None) -> None:
    """Give the user these items from the next recount on, or at once if it was never counted.

    An item at another of the `places` in the user's order than before is a change, too.
    """
    before = _targets(store, row)
    now = {item: (places or before).get(item, before.get(item)) for item in items}
    store.db.execute("DELETE FROM changes WHERE user = ?", [row])
    came = [(row, item, 0, now[item]) for item in sorted(now) if item not in before or now[item] != before[item]]
    gone = [(row, item, 1, None) for item in sorted(before.keys() - now.keys())]
    store.db.executemany("INSERT INTO changes (user, item, gone, target) VALUES (?, ?, ?, ?)", came + gone)
    if store.of("users", "counted", [row]) == [(0,)]:
        _take_over(store, [row])


def let_go(store: NodeStore, row: int, name: str = "") -> None:
    """The user leaves with the next recount and the upload of latents after it. Its held-out items go now."""
    store.db.execute("DELETE FROM interactions WHERE user = ? AND held_out = 1", [row])
    store.db.execute(
        "UPDATE users SET leaving = 1, id = CASE ? WHEN '' THEN id ELSE ? END WHERE row = ?", [name, name, row]
    )
    want(store, row, [])
    actual_items.let_go(store, row, forgotten=bool(name))
    delete_gone(store)


def forget(store: NodeStore, user: str, salt: bytes) -> None:
    """The user leaves and loses its name now. It is not taken in again, although the source may still have it."""
    with store.transaction():
        check_quiet(store)
        let_go(store, store.row_of(user), secrets.token_hex(16))
        store.db.execute("INSERT OR IGNORE INTO forgotten (tag) VALUES (?)", [tag(user, salt)])
        store.put("traces", True)
    scrub_if_due(store)


def tag(user: str, salt: bytes) -> bytes:
    """All that stays of a forgotten user's name."""
    return hmac.digest(salt, b"forgotten" + user.encode(), "sha256")


def scrub(store: NodeStore) -> None:
    """Remove what was deleted from the file and from the log beside it."""
    store.db.execute("VACUUM")
    ((busy, *_),) = store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    store.put("traces", bool(busy))  # busy: another process reads, so the log stays


def scrub_if_due(store: NodeStore) -> None:
    """Scrub, also after a crash before the last scrub. A failure stops no answer: the next message tries again."""
    if store.get("traces"):
        try:
            scrub(store)
        except (DiskError, sqlite3.Error) as trouble:
            log.warning("traces of deleted users are still in %s: %s", store.path, trouble)


# ------------------------------------------------------------------------------------------- when sums count


def counted(store: NodeStore, rows: Sequence[int]) -> None:
    """From now on the degrees hold the items of these users, with their changes."""
    store.db.execute(f"UPDATE users SET counted = 1 WHERE row {LISTED}", [json.dumps(list(rows))])
    _take_over(store, rows)


def _take_over(store: NodeStore, rows: Sequence[int]) -> None:
    """Apply these users' changes to their items."""
    chosen = [json.dumps(list(rows))]
    gone = f"SELECT user, item FROM changes WHERE gone = 1 AND user {LISTED}"
    store.db.execute(f"DELETE FROM interactions WHERE held_out = 0 AND (user, item) IN ({gone})", chosen)
    came = f"SELECT user, item, 0, target FROM changes WHERE gone = 0 AND user {LISTED}"
    store.db.execute(f"INSERT OR REPLACE INTO interactions (user, item, held_out, target) {came}", chosen)
    store.db.execute(f"DELETE FROM changes WHERE user {LISTED}", chosen)
    degree = "SELECT count(*) FROM interactions WHERE held_out = 0 AND user = users.row"
    store.db.execute(f"UPDATE users SET degree = ({degree}) WHERE row {LISTED}", chosen)


def delete_gone(store: NodeStore) -> int:
    """Delete users who leave and have nothing at the server any more; return how many."""
    nothing = "leaving = 1 AND degree = 0 AND (pushed IS NULL OR pushed = x'') AND pending IS NULL"
    gone = store.column("users", "row", f"WHERE {nothing}")
    if gone:
        store.db.execute(f"DELETE FROM users WHERE row {LISTED}", [json.dumps(gone)])
        store.db.execute(f"DELETE FROM own WHERE user {LISTED}", [json.dumps(gone)])
        store.put("traces", True)
    return len(gone)


# ------------------------------------------------------------------------------------------- what users send


def leaving(store: NodeStore, rows: Sequence[int]) -> list[int]:
    """Which of these users leave and are no longer in the degrees: the server has only their latents."""
    return sorted(row for (row,) in store.of("users", "row", rows, "AND leaving = 1 AND degree = 0"))


def changed(store: NodeStore, rows: Sequence[int]) -> list[int]:
    """Which of these users have something to send in a recount."""
    waiting = store.of("changes", "DISTINCT user", rows)
    new = store.of("users", "row", rows, "AND counted = 0 AND degree > 0")
    return sorted(row for (row,) in {*waiting, *new})


def with_changes(store: NodeStore, method: Method, rows: Sequence[int]) -> Cohort:
    """The users with the items that they want; `past` has the items that were counted."""
    now = store.cohort(method, rows)
    fresh = set(store.column("users", "row", "WHERE counted = 0"))
    items = [np.array(wanted(store, row), np.int64) for row in sorted(rows)]
    before = {
        place: now.items[:0] if row in fresh else now.items_of(place)
        for place, row in enumerate(sorted(rows))
        if row in fresh or not np.array_equal(items[place], now.items_of(place))
    }
    return having(now, items, Past(counted=before))


def with_past(store: NodeStore, cohort: Cohort, rows: Sequence[int], weights: Floats) -> Cohort:
    """The users; `past` has the items and weights under which their latents stand, where these differ from now."""
    blobs, past = store.of("users", "pushed", rows, "ORDER BY row"), Past()
    for place, (blob,) in enumerate(blobs):
        if blob is not None:
            edges, mine = unpack_edges(blob, weights.dtype), slice(cohort.indptr[place], cohort.indptr[place + 1])
            if not (np.array_equal(edges.items, cohort.items[mine]) and np.array_equal(edges.weights, weights[mine])):
                past.pushed[place] = edges
    return replace(cohort, past=past)


def unmoved(store: NodeStore, method: Method, rows: Sequence[int]) -> list[int]:
    """Which of these users have no latents at the server, or have them under exactly their present items."""
    found = []
    for row, blob in store.of("users", "row, pushed", rows, "ORDER BY row"):
        cohort = store.cohort(method, [row])
        if blob is None or np.array_equal(unpack_edges(blob, cohort.state.sent.dtype).items, cohort.items):
            found.append(row)
    return found


def pack_edges(cohort: Cohort, weights: Floats) -> list[bytes]:
    """Each user's items, then their weights; empty for a user without items."""
    bounds, items = zip(cohort.indptr, cohort.indptr[1:], strict=False), cohort.items.astype("<i8")
    weights = weights.astype(weights.dtype.newbyteorder("<"))
    return [items[a:b].tobytes() + weights[a:b].tobytes() for a, b in bounds]


def unpack_edges(blob: bytes, dtype: Any) -> Edges:
    n = len(blob) // (8 + np.dtype(dtype).itemsize)
    items: Ints = np.frombuffer(blob[: 8 * n], "<i8")
    return Edges(items, np.frombuffer(blob[8 * n :], np.dtype(dtype).newbyteorder("<")))
