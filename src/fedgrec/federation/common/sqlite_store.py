"""What the stores of server and nodes have in common: a private SQLite file in WAL mode, transactions, plain values."""

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from fedgrec.federation.common.errors import FederationError

FORMAT = 1
PATIENCE = 60  # seconds that one process waits for another's transaction
NO_STORE = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR}  # the last: it has no such table
SYNCHRONOUS = "FULL"  # a transaction that is over is on the disk


def connect(path: Path, schema: str) -> sqlite3.Connection:
    """A private SQLite file in WAL mode; a new one gets the schema."""
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    db = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    _use_wal(db)
    db.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
    db.execute("PRAGMA secure_delete = ON")  # a secret that is deleted is overwritten
    if _empty(db):
        with _transaction(db):
            if _empty(db):  # still: another process may have been faster
                for statement in schema.split(";"):
                    db.execute(statement)
                db.execute("INSERT INTO meta VALUES ('format', ?)", [json.dumps(FORMAT)])
    return db


def _use_wal(db: sqlite3.Connection) -> None:
    """Where two processes turn it on at once SQLite does not wait as it does elsewhere: one of them fails."""
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
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


class Store:
    """What both stores have: a database, transactions, and a few plain values."""

    def __init__(self, path: Path, schema: str) -> None:
        try:
            self.path, self.db = path, connect(path, schema)
            found = self.get("format")
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", None) not in NO_STORE:
                raise
            raise FederationError(
                f"{path} is not a store of a federation ({error}): restore it from a backup"
            ) from None
        if found != FORMAT:
            self.close()
            raise FederationError(f"{path} has format {found}, and this version reads format {FORMAT}")

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def transaction(self) -> Any:
        """All that is written in it is written, or nothing is."""
        return _transaction(self.db)

    def get(self, key: str, default: Any = None) -> Any:
        found = self.db.execute("SELECT value FROM meta WHERE key = ?", [key]).fetchone()
        return json.loads(found[0]) if found else default

    def put(self, key: str, value: Any) -> None:
        self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [key, json.dumps(value)])
