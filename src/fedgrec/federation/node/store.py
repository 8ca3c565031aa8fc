"""A node's memory: one SQLite file that stays whole in a crash (WAL) and that only its owner can read.

    meta            key, value (JSON)   `format`; `state`: how a user's arrays are laid out; `node_key`, from which the
                                        node draws who takes part; `announced`: users that the server knows of, and
                                        `announced_row`, the last of them; `left_out`: rows of users whose names other
                                        nodes brought first, `claims`: the operator says that these are free;
                                        `in_sums`: `announced_row` and `left_out` as of the last sum; `last_row`: no row
                                        is given twice; `founded`: the number of the roster with which the federation's
                                        sums began; `season`: the round with which it began, and users then; `round`:
                                        the last one heard of; `refused`; `roster`: number and digest of the newest one
                                        seen; `traces`: whether the file may hold traces of deleted users;
                                        `decoys`: whether users tell with decoys; `told`: the last season they told in
    users           row, id, key (its 64 secret bits), degree, state, pending (both laid out as `state` says; pending
                    is its state once its sum counts); counted (1: its items are in the degrees); pushed: the items and
                    weights under which its latents stand at the server, and pending_pushed, if the sum counts; leaving
                    (1: it is deleted once nothing of it is left at the server)
    interactions    user (a row of users), item, held_out (1: judged by, never trained on), target (a rating, where the
                    method asks for it the item's place in the user's order, or NULL): a counted user's items as they
                    were counted; with decoys what the user told, not what it has
    own             with decoys what the user has: user, item, answered (1: it was asked about), gone (1: taken back)
    changes         user, item, gone (0: it came), target: changes since then, for the next recount (changes.py)
    forgotten       tag: keyed hashes of users who are not taken in again
    sessions        id: every secure sum that this node was ever asked into
    participation   number, session, stage, level, round, users (rows, JSON), model (its digest), batch (of the node, if
                    the sum opens over whole ones; as a line of the history says nodes), opened (1: the node helped to
                    open the sum), verdict: 1 in the sum, 0 not, NULL not yet known
    signed          session, counted: the lists of survivors that the node signed, as a line of the history says them
    opened          stage, level, round, digest (of survivors, plan and model): the sums that this node helped to open
    history         number, line, head: what became of every sum of the federation (common/history.py)

Every row also has a `seal` (common/sqlite_store.py), which is compared when the row is read. One message of the server
is one transaction, and it is on the disk before the answer leaves. Nothing here was ever used to mask anything: the
secrets of a sum stay in the process (current_sum.py).
"""

import json
import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable import decoys
from fedgrec.cable.core import Cohort, Ints, State
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.plan import EVALUATE
from fedgrec.federation.common.sqlite_store import LISTED, Store
from fedgrec.methods.contract import RECOUNT, TRAIN, Method

STORE = "node.sqlite"
SCHEMA = """
CREATE TABLE own (user INTEGER NOT NULL, item INTEGER NOT NULL, answered INTEGER NOT NULL, gone INTEGER NOT NULL,
                  seal BLOB, PRIMARY KEY (user, item)) WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL, seal BLOB) WITHOUT ROWID;
CREATE TABLE users (row INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, key BLOB NOT NULL, degree INTEGER NOT NULL,
                    state BLOB NOT NULL, pending BLOB, counted INTEGER NOT NULL DEFAULT 0, pushed BLOB,
                    pending_pushed BLOB, leaving INTEGER NOT NULL DEFAULT 0, seal BLOB);
CREATE TABLE interactions (user INTEGER NOT NULL, item INTEGER NOT NULL, held_out INTEGER NOT NULL, target REAL,
                           seal BLOB, PRIMARY KEY (user, held_out, item)) WITHOUT ROWID;
CREATE TABLE changes (user INTEGER NOT NULL, item INTEGER NOT NULL, gone INTEGER NOT NULL, target REAL, seal BLOB,
                      PRIMARY KEY (user, item)) WITHOUT ROWID;
CREATE TABLE forgotten (tag BLOB PRIMARY KEY, seal BLOB) WITHOUT ROWID;
CREATE TABLE sessions (id TEXT PRIMARY KEY, seal BLOB) WITHOUT ROWID;
CREATE TABLE participation (number INTEGER PRIMARY KEY, session TEXT UNIQUE NOT NULL, stage TEXT NOT NULL,
                            level INTEGER NOT NULL, round INTEGER NOT NULL, users TEXT NOT NULL, model BLOB NOT NULL,
                            batch TEXT NOT NULL,
                            opened INTEGER NOT NULL, verdict INTEGER, seal BLOB);
CREATE TABLE opened (stage TEXT, level INTEGER, round INTEGER, digest BLOB NOT NULL, seal BLOB,
                     PRIMARY KEY (stage, level, round)) WITHOUT ROWID;
CREATE TABLE signed (session TEXT PRIMARY KEY, counted TEXT NOT NULL, seal BLOB) WITHOUT ROWID;
CREATE TABLE history (number INTEGER PRIMARY KEY, line TEXT NOT NULL, head TEXT NOT NULL, seal BLOB);
CREATE INDEX places ON participation (stage, level, round);
CREATE INDEX undecided ON participation (session) WHERE verdict IS NULL;
CREATE INDEX leavers ON users (row) WHERE leaving = 1;
"""
COUNTS = ("degrees", "recount")  # stages whose sums put users' items into the degrees
WARM_UP = ("degrees", "propagate")
EVALUATIONS_SPENT, TRAININGS_SPENT = "evaluations_spent", "trainings_spent"  # in `meta` of a restored copy
HERE = "WHERE stage = ? AND level = ? AND round = ?"


class Person(NamedTuple):
    """A user as it comes to a node."""

    id: str
    items: Sequence[int]
    held_out: Sequence[int] = ()
    targets: Sequence[float] | None = None  # ratings of `items`
    order: Sequence[int] = ()  # all that the user has, first to last; empty: `items`, then `held_out`


class NodeStore(Store):
    def __init__(self, folder: Path, read_only: bool = False) -> None:
        super().__init__(folder / STORE, SCHEMA, read_only)

    @property
    def node_key(self) -> int:
        """The key of the node's random draws; the operating system makes it once."""
        key = self.get("node_key")
        if key is None:
            key = secrets.randbits(64)
            self.put("node_key", key)
        return int(key)

    # ----------------------------------------------------------------------------------------------- users

    def add_users(self, method: Method, people: Iterable[Person], epsilon: float = 0.0) -> int:
        """Take these users in; they start with nothing sent. Returns how many there are now."""
        with self.transaction():
            for person in people:
                self.add_user(method, person, epsilon)
        return self.count()

    def add_user(self, method: Method, person: Person, epsilon: float = 0.0) -> None:
        """Take one user in; `epsilon` is that of its decoys, 0: it tells what it has."""
        order = (person.order or [*person.items, *person.held_out]) if method.options.takes_order else ()
        places = {item: float(place) for place, item in enumerate(order)}
        given = dict(zip(person.items, person.targets or map(places.get, person.items), strict=True))
        items, held_out = sorted(given), sorted(set(person.held_out) - given.keys())
        everything = items + held_out
        if not items or min(everything) < 0 or max(everything) >= method.n_items:
            raise FederationError(
                f"user {person.id!r} needs at least one item, each from 0 to {method.n_items - 1:,}: see the catalogue"
            )
        key, told = secrets.randbits(64), items
        if epsilon:
            if person.targets is not None:
                raise FederationError(f"user {person.id!r} has ratings, and decoys have none: leave them out")
            new, draw = np.array(items), decoys.fresh_source()
            told = decoys.next_told_items(new[:0], new, method.n_items, epsilon, draw).tolist()
            self.put("decoys", True)
        start = method.init_users(np.array([key], np.uint64), np.array([0, len(told)]), np.array(told, int)).state
        layout = [[name, dtype.str, list(shape)] for name, dtype, shape in _layout(start)]
        if self.get("state", layout) != layout:
            raise FederationError(f"{self.path} holds users of another method or of other sizes: make a new node")
        self.put("state", layout)
        row = 1 + max(self.get("last_row", 0), *self.db.execute("SELECT coalesce(max(row), 0) FROM users").fetchone())
        self.put("last_row", row)
        try:
            self.db.execute(
                "INSERT INTO users (row, id, key, degree, state) VALUES (?, ?, ?, ?, ?)",
                [row, person.id, key.to_bytes(8, "little"), len(told), pack(start)[0]],
            )
        except sqlite3.IntegrityError:
            raise FederationError(f"user {person.id!r} is on this node already") from None
        lines = [(row, item, 0, given.get(item)) for item in told]
        lines += [(row, item, 1, places.get(item)) for item in held_out]
        self.db.executemany("INSERT INTO interactions (user, item, held_out, target) VALUES (?, ?, ?, ?)", lines)
        if epsilon:
            own = [(row, item) for item in items]
            self.db.executemany("INSERT INTO own (user, item, answered, gone) VALUES (?, ?, 1, 0)", own)

    def of(self, table: str, columns: str, rows: Sequence[int], more: str = "") -> list[Any]:
        """These columns of what these users have in a table."""
        user = "row" if table == "users" else "user"
        return self.rows(table, columns, f"WHERE {user} {LISTED} {more}", [json.dumps(list(rows))])

    def count(self) -> int:
        return int(self.db.execute("SELECT count(*) FROM users").fetchone()[0])

    def ids(self, most: int | None = None) -> list[str]:
        """The users' ids, in the order of their rows."""
        return self.column("users", "id", "ORDER BY row LIMIT ?", [-1 if most is None else most])

    def staying(self) -> list[str]:
        """The ids of users who do not leave."""
        return self.column("users", "id", "WHERE leaving = 0")

    def row_of(self, user: str) -> int:
        for row in self.column("users", "row", "WHERE id = ?", [user]):
            return int(row)
        raise FederationError(f"there is no user {user!r} on this node")

    def first_rows(self, count: int) -> list[int]:
        return [row for (row,) in self.db.execute("SELECT row FROM users ORDER BY row LIMIT ?", [count])]

    def announce(self, left_out: Sequence[int] = ()) -> None:
        """Note that the server is told of all users who are here now, but for those who are left out."""
        self.put("left_out", list(left_out))
        self.put("announced_row", max(self.first_rows(-1), default=0))
        self.put("announced", len(self.announced()))

    def announced(self) -> list[int]:
        """The announced users who are still here."""
        rows = self.db.execute("SELECT row FROM users WHERE row <= ? ORDER BY row", [self.get("announced_row", 0)])
        out = set(self.get("left_out", []))
        return [row for (row,) in rows if row not in out]

    def left_out(self) -> list[str]:
        """The ids of users who take no part, because other nodes brought their names first."""
        return [user for (user,) in self.of("users", "id", self.get("left_out", []))]

    def counted_rows(self) -> list[int]:
        """Users whose items are in the degrees."""
        return self.column("users", "row", "WHERE counted = 1 ORDER BY row")

    def cohort(self, method: Method, rows: Sequence[int]) -> Cohort:
        """These users with their state, in the order of their rows."""
        people = self.of("users", "key, degree, state", rows, "ORDER BY row")
        pairs = self.of("interactions", "item, target", rows, "AND held_out = 0 ORDER BY user, item")
        keys = np.frombuffer(b"".join(key for key, _, _ in people), "<u8")
        indptr = np.concatenate([[0], np.cumsum([degree for _, degree, _ in people])]).astype(np.int64)
        known = bool(pairs) and all(target is not None for _, target in pairs)
        targets, ordered = np.array([target for _, target in pairs]) if known else None, method.options.takes_order
        items = np.array([item for item, _ in pairs], np.int64)
        cohort = method.init_users(keys, indptr, items, None if ordered else targets)
        if ordered and targets is not None:
            cohort = cohort.ordered_by(targets)
        return cohort.with_state(unpack(method.State, self.get("state"), [state for _, _, state in people]))

    def ids_and_items(self, rows: Sequence[int]) -> list[Any]:
        """These users' ids, and the items that they train on."""
        pairs = self.of("interactions", "user, item", rows, "AND held_out = 0 ORDER BY user, item")
        return [self.of("users", "row, id", rows, "ORDER BY row"), pairs]

    def states(self, rows: Sequence[int]) -> list[bytes]:
        return [state for (state,) in self.of("users", "state", rows, "ORDER BY row")]

    def held_out(self, rows: Sequence[int]) -> list[Ints]:
        """Each user's held-out items."""
        found: dict[int, list[int]] = {row: [] for row in sorted(rows)}
        for row, item in self.of("interactions", "user, item", rows, "AND held_out = 1"):
            found[row].append(item)
        return [np.array(items, np.int64) for items in found.values()]

    # --------------------------------------------------------------------------------- pending, then commit

    def take_part(
        self,
        session: str,
        place: tuple[str, int, int],
        rows: Sequence[int],
        new: State | None,
        model: bytes,
        pushed: Sequence[bytes] | None = None,
        batch: str = "0",
    ) -> None:
        """Note that these users are in the upload of a sum; their new state is pending until the sum counts.

        `pushed`: the items and weights under which their latents will stand, if they send any.
        """
        self.put("in_sums", (self.get("announced_row", 0), self.get("left_out", [])))
        columns = "session, stage, level, round, users, model, batch, opened"
        about = [session, *place, json.dumps(rows), model, batch]
        self.db.execute(f"INSERT INTO participation ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, 0)", about)
        for column, values in (("pending", None if new is None else pack(new)), ("pending_pushed", pushed)):
            if values is not None:
                pairs = zip(values, sorted(rows), strict=True)
                self.db.executemany(f"UPDATE users SET {column} = ? WHERE row = ?", pairs)

    def took_part(self, place: tuple[str, int, int]) -> list[int] | None:
        """The users in this node's last upload for a stage and round; None if there was none."""
        found = self.column("participation", "users", f"{HERE} ORDER BY number DESC LIMIT 1", place)
        return json.loads(found[0]) if found else None

    def trained_on(self, place: tuple[str, int, int]) -> bytes | None:
        """The digest of the model that came with this stage and round."""
        return next(iter(self.column("participation", "model", HERE, place)), None)

    def times(self, stage: str) -> int:
        """How many sums of this stage this node has taken part in; a restored copy counts all of them as spent."""
        spent = EVALUATIONS_SPENT if stage == EVALUATE else TRAININGS_SPENT
        return len(self.rows("participation", "number", "WHERE stage = ?", [stage])) + int(self.get(spent, 0))

    def trained_since_recount(self, now: int) -> int:
        """How many training rounds this node was in since its last recount before this round."""
        last = max(
            self.column("participation", "round", "WHERE stage = ? AND round < ?", [RECOUNT.name, now]), default=0
        )
        return len(self.column("participation", "round", "WHERE stage = ? AND round >= ?", [TRAIN.name, last]))

    def waiting(self) -> list[str]:
        """Sessions whose verdict is not known yet."""
        return self.column("participation", "session", "WHERE verdict IS NULL")

    def settle(self, session: str, included: bool) -> list[int]:
        """Users who were in the sum take over their pending state; otherwise they drop it.

        Returns the users whose items are in the degrees from now on.
        """
        counted: list[int] = []
        kept = "state = coalesce(pending, state), pushed = coalesce(pending_pushed, pushed), " if included else ""
        undecided = "WHERE session = ? AND verdict IS NULL"
        for users, stage in self.rows("participation", "users, stage", undecided, [session]):
            self.db.execute(f"UPDATE users SET {kept}pending = NULL, pending_pushed = NULL WHERE row {LISTED}", [users])
            self.db.execute("UPDATE participation SET verdict = ? WHERE session = ?", [int(included), session])
            counted += json.loads(users) if included and stage in COUNTS else []
        return counted

    def counting(self) -> bool:
        """Whether the node does not know yet if users' items are in the degrees: until it does, items must not change.

        A sum of the warm-up may have been opened in part. Then it is repeated with the same items until it counts.
        """
        if self.rows("participation", "number", "WHERE verdict IS NULL AND stage IN (?, ?)", COUNTS):
            return True
        once = self.rows("participation", "stage, level, opened, verdict", "WHERE stage IN (?, ?)", WARM_UP)
        opened = {(stage, level) for stage, level, opened, verdict in once if opened and not verdict}
        return bool(opened - {(stage, level) for stage, level, _, verdict in once if verdict})

    def in_sums(self) -> set[int]:
        """Users who were announced for any sum: whether they were drawn for it is not told to the server."""
        last, left_out = self.get("in_sums", (0, []))
        return {row for row in self.first_rows(-1) if row <= last}.difference(left_out)

    def was_in_sums(self) -> bool:
        """Whether the node ever was in any sum."""
        return self.get("in_sums") is not None

    def participation(self) -> dict[str, list[int]]:
        """Which users, by their rows, took part in which session."""
        return {session: json.loads(users) for session, users in self.rows("participation", "session, users")}

    # ---------------------------------------------------------------------------------- sessions of secure sums

    def begin_session(self, name: str) -> bool:
        """Whether this node was never asked into this sum before."""
        return self.db.execute("INSERT OR IGNORE INTO sessions (id) VALUES (?)", [name]).rowcount == 1

    def opened(self, place: tuple[str, int, int]) -> bytes | None:
        """The digest of the one sum of this stage and round that this node helped to open."""
        return next(iter(self.column("opened", "digest", HERE, place)), None)

    def keep_opened(self, session: str, place: tuple[str, int, int], digest: bytes) -> None:
        """Note that this node is about to help to open the sum, and that its own part is in the sum of this session."""
        self.db.execute("UPDATE participation SET opened = 1 WHERE session = ?", [session])
        self.db.execute(
            "INSERT OR REPLACE INTO opened (stage, level, round, digest) VALUES (?, ?, ?, ?)", [*place, digest]
        )


def having(cohort: Cohort, items: Sequence[Ints], past: Any = None) -> Cohort:
    """The users of a cohort with these items instead of their own, in no order."""
    indptr = np.concatenate([[0], np.cumsum([len(part) for part in items])]).astype(np.int64)
    everything = np.concatenate([np.zeros(0, np.int64), *items])
    return replace(cohort, indptr=indptr, items=everything, targets=None, past=past, order=None)


def _layout(state: State) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
    parts = ((f.name, getattr(state, f.name)) for f in fields(state))
    return [(name, part.dtype.newbyteorder("<"), part.shape[1:]) for name, part in parts]


def pack(state: State) -> list[bytes]:
    """Each user's arrays, one after the other."""
    layout = _layout(state)
    rows = np.zeros(len(getattr(state, layout[0][0])), layout)
    for name, _, _ in layout:
        rows[name] = getattr(state, name)
    return [row.tobytes() for row in rows]


def unpack(kind: type[Any], layout: Sequence[Any], users: Sequence[bytes]) -> Any:
    """Users' arrays back, as the method's state."""
    rows: NDArray[Any] = np.frombuffer(b"".join(users), [(name, dtype, tuple(shape)) for name, dtype, shape in layout])
    return kind(*(rows[f.name].copy() for f in fields(kind)))
