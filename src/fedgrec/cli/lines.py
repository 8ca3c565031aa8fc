"""What a person sees while a study goes on: a comparison, a search, the paper's tables."""

import shlex
import shutil
import sys
from typing import Any

from fedgrec.cli.progress import Bar
from fedgrec.cli.widths import fitted, shortened
from fedgrec.runs.callbacks import RoundBar
from fedgrec.studies.watcher import Watcher

# What fits 80 columns: which run, how far, how long it will take, how good it is.
BAR = "{desc} {percentage:3.0f}%|{bar}| {remaining} left{postfix}"


class Lines(Bar, Watcher):
    """A bar for the run that goes on, and a line for each that has ended."""

    name = ""

    def run_started(self, number: int, total: int, label: str = "", seed: str = "") -> None:
        place = f"[{number}/{total}]"
        self.name = f"{place} {label}{seed}: " if label else f"{place} "
        self.look = {"desc": f"{place} {shortened(label)}{seed}".rstrip(), "bar_format": BAR, "leave": False}

    def started(self, done: int, rounds: int) -> None:
        """Draw a bar that disappears when it is closed; none without a terminal or without work."""
        self.off = self.quiet or not sys.stderr.isatty()
        RoundBar.started(self, done, rounds)

    def evaluated(self, line: dict[str, Any]) -> None:
        RoundBar.evaluated(self, line)  # the bar alone

    def table(self, grid: Any) -> None:
        from fedgrec.pages.tables import terminal

        print(terminal(grid, shutil.get_terminal_size((80, 24)).columns))

    @staticmethod
    def stopped(words: list[str], kept: str = "everything is") -> int:
        """Say how to go on; the exit code of what was interrupted."""
        print(f"Stopped; {kept} saved. Go on with:\n  {shlex.join(words)}", file=sys.stderr)
        return 130

    def run_ended(self, result: str) -> None:
        self.close()
        self.bar = None
        self.say(fitted(f"{self.name}{result}"))
