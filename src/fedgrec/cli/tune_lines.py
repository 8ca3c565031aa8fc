"""What a person sees while a search goes on."""

from typing import Any

from fedgrec.cli.progress import Bar
from fedgrec.cli.widths import bar, fitted
from fedgrec.tune.study import Tried, Watcher


class Lines(Bar, Watcher):
    """A bar for the trial that goes on, and a line for each that has ended."""

    name = ""

    def trial_started(self, number: int, total: int, values: dict[str, Any]) -> None:
        self.name = f"[{number + 1}/{total}]"

    def started(self, done: int, rounds: int) -> None:
        self.bar = bar(self.name, done, rounds, self.quiet)

    def evaluated(self, line: dict[str, Any]) -> None:
        recall = next(key for key in line if key.startswith("recall@"))
        if self.bar is not None:
            self.bar.set_postfix_str(f"{recall} {line[recall]:.4f}")

    def trial_ended(self, trial: Tried) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None
        values = ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in trial.values.items())
        result = "–" if trial.value is None else f"{trial.value:.4f}"
        self.say(fitted(f"{self.name} {result} {trial.failure or trial.state}: {values}"))
