"""Log lines as JSON objects, one a line, for programs that collect logs."""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

NOTE = "note: "  # how the server's log begins a line that an operator should read


class JsonLines(logging.Formatter):
    """time, level, logger, message, and the sender as `node` or `server`; an error also has its traceback."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__()
        self.who = {kind: name}

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self.who,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def handler(kind: str, name: str, to: TextIO | None = None) -> logging.Handler:
    made = logging.StreamHandler(to)
    made.setFormatter(JsonLines(kind, name))
    return made


def sayer(log: logging.Logger) -> Callable[[str], None]:
    """A function that sends lines of the server's log to this logger."""

    def say(line: str) -> None:
        log.log(logging.WARNING if line.startswith(NOTE) else logging.INFO, "%s", line.removeprefix(NOTE))

    return say
