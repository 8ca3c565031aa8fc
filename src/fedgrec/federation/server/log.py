"""The server's log: sentences about what happens, for people. Any number of terminals can follow it."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedgrec.cable.core import size
from fedgrec.errors import FedgrecError, many
from fedgrec.federation.common.lock import take
from fedgrec.federation.common.plan import EVALUATE, called
from fedgrec.federation.server.members import Observer

LOGS, LOG = "logs", "server.log"
TAIL = 2**16  # bytes at the end of the log that are read for its last lines


class Lines(Observer):
    """Writes one line for each event."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def joined(self, name: str, users: int) -> None:
        self.say(f"{name} joined with {many(users, 'user')}")

    def summed(self, line: dict[str, Any]) -> None:
        if line["stage"] != EVALUATE:
            self.say(describe(line))

    def evaluated(self, line: dict[str, Any]) -> None:
        self.say(f"after round {line['round'] + 1:,}: {metrics_of(line)} over {many(line['users'], 'user')}")

    def noticed(self, sentence: str) -> None:
        self.say(f"note: {sentence}")


def metrics_of(line: dict[str, Any]) -> str:
    """The metrics of an evaluation, with the standard deviation of the noise in them."""
    found = ", ".join(f"{key} {value:.4f}" for key, value in line.items() if "@" in key)
    return f"{found} ± {line['noise']:.4f}" if "noise" in line else found


def describe(line: dict[str, Any]) -> str:
    """One line of the participation log, as a person reads it."""
    what = called(line["stage"], line["level"], line["round"])
    if line["applied"] is None:
        return f"{what}: going on with {len(line['nodes'])} {line['unit']}"
    if not line["applied"]:
        return f"{what}: lost, {line['reason']}"
    return (
        f"{what}: {len(line['included'])} of {len(line['nodes'])} {line['unit']}, {many(line['users'], 'user')}, "
        f"{line['seconds']:.1f} s, {size(line['bytes_up'])} up, {size(line['bytes_down'])} down"
    )


def log_of(folder: Path) -> Path:
    """The log; the server that runs holds the lock on it."""
    return folder / LOGS / LOG


def last_lines(folder: Path, number: int) -> list[str]:
    try:
        with log_of(folder).open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - TAIL, 0))
            return log.read().decode("utf-8", "replace").splitlines()[-number:]
    except FileNotFoundError:
        return []


@contextmanager
def writing(folder: Path) -> Iterator[Callable[[str], None]]:
    """The server's log, held by one server at a time."""
    path = log_of(folder)
    path.parent.mkdir(exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as log:
        take(log, path, "the server of this federation")

        def say(line: str) -> None:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(line.split())}\n")
            log.flush()

        try:
            yield say
        except FedgrecError as why:  # for whoever reads nothing but the log
            say(f"ended: {why}")
            raise


class Following:
    """Reads the server's log as it grows."""

    def __init__(self, folder: Path) -> None:
        self.path = log_of(folder)
        self.at = self.path.stat().st_size if self.path.exists() else 0

    def new(self) -> list[str]:
        """Whole lines that were not there before, without their time."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as log:
            log.seek(self.at)
            whole = log.read().rpartition(b"\n")[0]
        self.at += len(whole) + 1 if whole else 0
        return [line.split(" ", 2)[2] for line in whole.decode("utf-8", "replace").splitlines()]
