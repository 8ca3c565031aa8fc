"""A folder for one process at a time."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedgrec.federation.common.errors import FederationError

TURN = 30.0  # seconds to wait until a killed process has released the lock


def take(file: IO[Any], path: Path, who: str) -> None:
    """Take the lock on an open file; it ends with the process."""
    end = time.monotonic() + TURN
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise FederationError(f"another process is {who}: it holds {path}; end it, or wait for it") from None
            time.sleep(0.2)


def is_taken(path: Path) -> bool:
    """Whether a process holds the lock on this file. The check holds a shared lock, but only for a moment."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def held(path: Path, who: str) -> Iterator[None]:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        take(file, path, who)
        yield
