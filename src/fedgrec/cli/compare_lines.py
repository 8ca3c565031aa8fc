"""What a person sees while a comparison goes on."""

from typing import Any

from fedgrec.cli.progress import Bar
from fedgrec.cli.widths import bar, fitted, shortened
from fedgrec.compare.comparison import Watcher
from fedgrec.compare.runs import Run


class Lines(Bar, Watcher):
    """A bar for the run that goes on, and a line for each that has ended."""

    name, short, before = "", "", False

    def run_started(self, run: Run, number: int, total: int) -> None:
        self.name, self.before = f"[{number}/{total}] {run.entry.label}, seed {run.seed}", run.finished
        self.short = f"[{number}/{total}] {shortened(run.entry.label)}, seed {run.seed}"

    def started(self, done: int, rounds: int) -> None:
        self.bar = bar(self.short, done, rounds, self.quiet)

    def evaluated(self, line: dict[str, Any]) -> None:
        recall = next(key for key in line if key.startswith("recall@"))
        if self.bar is not None:
            self.bar.set_postfix_str(f"{recall} {line[recall]:.4f}")

    def run_ended(self, run: Run, why: str) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None
        if why or not run.finished:
            self.say(fitted(f"{self.name}: {why or 'not finished'}"))
            return
        result = run.result()
        found = ", ".join(f"{key} {result[key]:.4f}" for key in result if key.startswith(("recall@", "ndcg@")))
        self.say(fitted(f"{self.name}: {found}{' (finished before)' if self.before else ''}"))
