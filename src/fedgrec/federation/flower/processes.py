"""Child processes that end with their parent, even if the parent is killed: the SuperLink, nodes, apps."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fedgrec.federation.common.errors import FederationError

PARENT = "FEDGREC_PARENT"
GRACE = 10.0  # seconds between asking a process to end and killing it
LAST_LINES = 3


class Processes:
    """Children with a log file each; leaving the block ends them all, the last one started first."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a child in its own session, so that Ctrl-C reaches only us and we end the children in order."""
        everything = {**os.environ, **(environment or {}), PARENT: str(os.getpid())}
        with os.fdopen(os.open(self.log(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            self.running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=everything, start_new_session=True
            )

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def check(self) -> None:
        """Raise an error about the first child that has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise FederationError(f"{name} ended with code {process.returncode}: {self.last_words(name)}")

    def last_words(self, name: str) -> str:
        """The last lines of a child's log, and where the rest is."""
        words = self.log(name).read_text(encoding="utf-8", errors="replace").splitlines()
        said = " · ".join(line.strip() for line in words[-LAST_LINES:] if line.strip())
        return f"see {self.log(name)}" + (f" ({said})" if said else "")

    def stop(self, name: str) -> None:
        """End one child, and all processes that it started."""
        process = self.running.pop(name)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill(self, name: str) -> None:
        """Kill one child at once, as a power cut would."""
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in reversed(list(self.running)):
            self.stop(name)


def end_with_parent() -> None:
    """End this child of `Processes` when its parent is gone, even if the parent was killed."""
    if parent := os.environ.get(PARENT):
        _watch(int(parent), lambda: os.kill(os.getpid(), signal.SIGTERM))


def end_with_starter() -> None:
    """End at once when the process that started this one is gone: for processes that may be killed at any time."""
    _watch(os.getppid(), lambda: os._exit(1))


def _watch(parent: int, end: Callable[[], None]) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        end()

    threading.Thread(target=watch, daemon=True).start()
