"""What the stores of server and nodes have in common: a private SQLite file in WAL mode, transactions, plain values.

A table with a column `seal` is sealed: triggers of the connection write a digest of each row's other columns there, and
`Store.rows` compares it when it reads. A bit that flipped on the disk, or a page that SQLite finds malformed, raises an
error that names the file. `Store.check` checks a whole store: the server's at its start, a node's when it reads its
source.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Self, cast

from fedgrec.errors import DiskError, system_trouble
from fedgrec.federation.common.errors import FederationError

FORMAT = 5
PATIENCE = 60  # seconds that one process waits for another's transaction
SEAL = "seal"
LISTED = "IN (SELECT value FROM json_each(?))"  # a list of values, as JSON
NOT_DAMAGE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CONSTRAINT}
NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}  # or the disk fails
BARRED = sqlite3.SQLITE_READONLY  # the file, or its folder
ROOM = 2**20  # bytes: with less free space the disk counts as full, whatever SQLite's error says
WRITES = re.compile(r"\s*(?:INSERT(?: OR \w+)? INTO|UPDATE)\s+(\w+)")
SYNCHRONOUS = "FULL"  # a committed transaction is on the disk


def _saying(name: str) -> Any:
    plain = getattr(sqlite3.Cursor, name)

    def method(cursor: "Cursor", *words: Any) -> Any:
        try:
            return plain(cursor, *words)
        except sqlite3.DatabaseError as error:
            if _is_no_damage(error):
                raise
            raise sentence_for(cursor.connection.path, error) from None  # type: ignore[attr-defined]

    return method


class Cursor(sqlite3.Cursor):
    """A cursor that turns SQLite's errors about a damaged file or a full disk into one sentence."""

    execute, executemany, fetchone = _saying("execute"), _saying("executemany"), _saying("fetchone")
    fetchall, __next__ = _saying("fetchall"), _saying("__next__")


class Connection(sqlite3.Connection):
    """A connection that knows its file."""

    path: Path
    sealed: dict[str, tuple[list[str], str]] = {}  # noqa: RUF012 (it is replaced, never changed)
    unwatched: dict[str, tuple[list[str], str]] | None = None  # sealed tables that nothing was written to yet

    def execute(self, *words: Any) -> Cursor:
        self._watch(words[0])
        return cast(Cursor, self.cursor(Cursor).execute(*words))

    def executemany(self, *words: Any) -> Cursor:
        self._watch(words[0])
        return cast(Cursor, self.cursor(Cursor).executemany(*words))

    def _watch(self, statement: str) -> None:
        """Give a table its triggers at its first write: making them costs more than most messages write."""
        if self.unwatched and (found := WRITES.match(statement)) and (about := self.unwatched.pop(found[1], None)):
            _watch_table(self, found[1], *about)


def _is_no_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the error is a wrong call, another process's lock or a rule of the schema. Triggers report seals."""
    code, wrong_call = _code(error), isinstance(error, sqlite3.ProgrammingError)
    return wrong_call or (code & 0xFF in NOT_DAMAGE and code != sqlite3.SQLITE_CONSTRAINT_TRIGGER)


def _code(error: sqlite3.DatabaseError) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT))


def sentence_for(path: Path, error: sqlite3.DatabaseError) -> DiskError | FederationError:
    if _code(error) & 0xFF not in NO_ROOM | {BARRED}:
        return damaged(path, error)
    full = _code(error) & 0xFF == sqlite3.SQLITE_FULL or shutil.disk_usage(path.parent).free < ROOM
    barred = _code(error) & 0xFF == BARRED
    why = system_trouble(errno.ENOSPC if full else errno.EACCES if barred else errno.EIO)
    return DiskError(f"{path} could not be written ({error}): {why}")


def damaged(path: Path, why: object) -> FederationError:
    return FederationError(f"{path} is not a store of a federation, or was damaged ({why}): restore it from a backup")


def connect(path: Path, schema: str) -> Connection:
    """A private SQLite file in WAL mode; a new one gets the schema."""
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    db = _connected(path, str(path))
    _use_wal(db)
    db.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
    db.execute("PRAGMA secure_delete = ON")  # a secret that is deleted is overwritten
    _create_tables(db, schema)
    return db


def connect_to_read(path: Path, schema: str) -> Connection:
    """A read-only store, also while another process writes to it. A missing file reads as a new store.

    SQLite reads beside a writer by a file of its own in the folder. On a full or read-only disk it cannot make one:
    then we read the file as it is, unless a writer has left something in the log beside it.
    """
    if path.exists():
        db = _connected(path, f"{path.absolute().as_uri()}?mode=ro")
        try:
            empty = _empty(db)
        except DiskError:
            db.close()
            log = path.with_name(f"{path.name}-wal")
            if log.exists() and log.stat().st_size:
                raise
            db = _connected(path, f"{path.absolute().as_uri()}?immutable=1")
            empty = _empty(db)
        if not empty:
            return db
        db.close()
    db = _connected(path, ":memory:")
    _create_tables(db, schema)
    return db


def _connected(path: Path, where: str) -> Connection:
    db = sqlite3.connect(
        where, timeout=PATIENCE, isolation_level=None, factory=Connection, uri=where.startswith("file:")
    )
    db.path = path
    db.create_function(SEAL, -1, _seal, deterministic=True)
    return db


def _create_tables(db: Connection, schema: str) -> None:
    """Give an empty file the schema."""
    if _empty(db):
        with _transaction(db):
            if _empty(db):  # still: another process may have been faster
                for statement in schema.split(";"):
                    db.execute(statement)
                db.sealed = sealed_tables(schema)
                db.unwatched = dict(db.sealed)
                db.execute("INSERT INTO meta (key, value) VALUES ('format', ?)", [json.dumps(FORMAT)])


# --------------------------------------------------------------------------------------------------- seals


def _seal(*values: Any) -> bytes:
    return hashlib.blake2b(repr(values).encode(), digest_size=8).digest()


@cache  # a store is opened for every message
def sealed_tables(schema: str) -> dict[str, tuple[list[str], str]]:
    """The sealed tables: their other columns, and the condition that finds a trigger's row."""
    found, tables = {}, "sqlite_master AS tables JOIN pragma_table_info(tables.name) AS columns"
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(schema)
        about = db.execute(f"SELECT tables.name, columns.name, columns.pk FROM {tables} WHERE tables.type = 'table'")
        whole = about.fetchall()
    for table, columns in groupby(whole, itemgetter(0)):
        keys = {name: bool(is_key) for _, name, is_key in columns}
        if keys.pop(SEAL, None) is not None:
            same = " AND ".join(f"{name} = NEW.{name}" for name in keys if keys[name]) or "rowid = NEW.rowid"
            found[table] = list(keys), same
    return found


def _seal_of(table: str, columns: list[str], row: str = "") -> str:
    return f"{SEAL}('{table}', {', '.join(row + column for column in columns)})"


def _watch_table(db: Connection, table: str, columns: list[str], same: str) -> None:
    """From here on this connection seals what it writes; it never seals again a row whose old seal is wrong."""
    right, wrong = _seal_of(table, columns), f"RAISE(ABORT, 'a row of {table} has changed')"
    again = f"UPDATE {table} SET {SEAL} = {right} WHERE {same}"
    for statement in (
        f"seal_new_{table} AFTER INSERT ON main.{table} BEGIN {again}; END",
        f"seal_old_{table} BEFORE UPDATE OF {', '.join(columns)} ON main.{table} "
        f"WHEN OLD.{SEAL} IS NOT {_seal_of(table, columns, 'OLD.')} BEGIN SELECT {wrong}; END",
        f"seal_{table} AFTER UPDATE OF {', '.join(columns)} ON main.{table} BEGIN {again}; END",
    ):
        db.execute(f"CREATE TEMP TRIGGER IF NOT EXISTS {statement}")


# ------------------------------------------------------------------------------------------------- opening


def _use_wal(db: sqlite3.Connection) -> None:
    """Turn WAL on. If two processes do so at once, SQLite does not wait: one of them fails, and tries again."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)


def _empty(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master").fetchone() is None


@contextmanager
def _transaction(db: Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:  # SQLite itself may have ended it, on a full disk
            db.execute("ROLLBACK")
        db.unwatched = dict(db.sealed)  # triggers that were made in it are gone, too
        raise
    db.execute("COMMIT")


class Store:
    """What both stores have: a database, transactions, and a few plain values."""

    def __init__(self, path: Path, schema: str, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        try:
            self.db = (connect_to_read if read_only else connect)(path, schema)
            try:
                self._open(schema)
            except BaseException:
                self.close()
                raise
        except sqlite3.DatabaseError as error:
            if _is_no_damage(error):
                raise
            raise damaged(path, error) from None

    def _open(self, schema: str) -> None:
        found = self.db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        if (found := found and json.loads(found[0])) != FORMAT:
            raise FederationError(
                f"{self.path} has format {found}, and this version reads format {FORMAT}: use the fedgrec that wrote "
                f"it, or begin a new federation"
            )
        self._sealed = self.db.sealed = sealed_tables(schema)
        self.db.unwatched = dict(self._sealed)

    def check(self) -> None:
        """Check every page and every row. Each later read checks its rows again."""
        (found,) = self.db.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise damaged(self.path, found)
        for table, (columns, _) in self._sealed.items():
            if self.db.execute(f"SELECT 1 FROM {table} WHERE {SEAL} IS NOT {_seal_of(table, columns)}").fetchone():
                raise damaged(self.path, f"a row of {table} has changed")

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def transaction(self) -> Any:
        """Everything in the block is written, or nothing is."""
        return _transaction(self.db)

    def rows(self, table: str, columns: str, rest: str = "", values: Sequence[Any] = ()) -> list[Any]:
        """These columns of the rows that the rest of the query finds; each row is compared with its seal."""
        whole = f"{SEAL} IS {_seal_of(table, self._sealed[table][0])}" if table in self._sealed else "1"
        found = self.db.execute(f"SELECT {columns}, {whole} FROM {table} {rest}", values).fetchall()
        if not all(row[-1] for row in found):
            raise damaged(self.path, f"a row of {table} has changed")
        return [row[:-1] for row in found]

    def column(self, table: str, column: str, rest: str = "", values: Sequence[Any] = ()) -> list[Any]:
        """The same of one column."""
        return [value for (value,) in self.rows(table, column, rest, values)]

    def get(self, key: str, default: Any = None) -> Any:
        found = self.rows("meta", "value", "WHERE key = ?", [key])
        return json.loads(found[0][0]) if found else default

    def put(self, key: str, value: Any) -> None:
        self.db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", [key, json.dumps(value)])
