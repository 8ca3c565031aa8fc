"""How far a run has come, and which of its rounds (or epochs) counts.

The judge is the validation split under `honest`, the test split under `paper`. A round is better by its first metric,
then by the next one; between equal rounds the later one counts. Only a real improvement resets patience.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fedgrec.cable.core import Traffic
from fedgrec.data import Interactions, Split
from fedgrec.data.files import write_text
from fedgrec.models.ranking import Result

Line = dict[str, Any]  # of metrics.jsonl
METRICS, RESULT = "metrics.jsonl", "result.json"


class Observer:
    """Watches a run, or the runs of a study one after the other; the command line draws a progress bar with it."""

    def run_started(self, number: int, total: int, label: str = "", seed: str = "") -> None: ...
    def run_ended(self, result: str) -> None: ...
    def started(self, done: int, rounds: int) -> None: ...
    def round_done(self, done: int) -> None: ...
    def evaluated(self, line: Line) -> None: ...
    def noticed(self, sentence: str) -> None: ...
    def stop_wanted(self) -> bool:
        return False


def judge(split: Split, protocol: str) -> tuple[str, Interactions] | None:
    """The split that chooses the round, and its name; None where no item was held out for that."""
    name = "validation" if protocol == "honest" else "test"
    held_out: Interactions | None = getattr(split, name)
    return (name, held_out) if held_out is not None and held_out.n_pairs else None


def worth(line: Line, ks: Sequence[int]) -> tuple[float, ...]:
    """What evaluations are compared by: recall of the first list length, then its NDCG, then the next length."""
    return tuple(line[f"{metric}@{k}"] for k in ks for metric in ("recall", "ndcg"))


def best_line(lines: Sequence[Line], ks: Sequence[int]) -> Line:
    """The evaluation that counts."""
    return max(lines, key=lambda line: (worth(line, ks), line["round"]))


@dataclass
class Progress:
    """Where a run stands; with the two states this is all that a checkpoint needs."""

    metrics: list[Line] = field(default_factory=list)
    best: tuple[float, ...] = ()
    best_round: int = -1
    stale: int = 0  # evaluations since the last improvement
    seconds: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)
    clipped: int = 0
    begun: int = 0  # the round in which this season began: what was measured before was measured on other data

    @property
    def season(self) -> list[Line]:
        return [line for line in self.metrics if line["round"] > self.begun] if self.begun else self.metrics

    def line(self, round_: int, split: str, protocol: str, found: Result) -> Line:
        """What every line of metrics.jsonl says."""
        about = {"round": round_, "split": split, "protocol": protocol}
        return {**about, **found.metrics, "users": found.users, "seconds": round(self.seconds, 3)}

    def result(self, round_: int, protocol: str, ks: Sequence[int]) -> Line:
        """The line that counts: under `paper` the best test, under `honest` the one test; without any, this round."""
        lines = [line for line in self.season if line["split"] == "test"]
        return best_line(lines, ks) if lines else {"round": round_, "protocol": protocol, "split": None}

    def write(self, folder: Path) -> None:
        write_text(folder / METRICS, "".join(json.dumps(line) + "\n" for line in self.metrics))

    def judged(self, line: Line, ks: Sequence[int]) -> bool:
        """Add an evaluation; returns whether its round is the one that counts now."""
        self.metrics.append(line)
        found = worth(line, ks)
        self.stale = 0 if found > self.best else self.stale + 1
        if found < self.best:
            return False
        self.best, self.best_round = found, line["round"]
        return True

    def verdict(self, ks: Sequence[int]) -> str:
        """What a person should know about the choice: it means little if recall is 1, or if the last round is best."""
        rounds = [line["round"] for line in self.season if line["split"] == self.metrics[0]["split"]]
        if self.best and self.best[0] >= 1:
            return f"recall@{ks[0]} is 1: lists this long cannot tell rounds apart; a smaller --topk can"
        if len(rounds) > 1 and not self.stale and self.best_round == rounds[-1]:
            return "still rising: the last round was the best one, more rounds may help"
        return ""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "traffic": list(self.traffic)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        values = {**values, "traffic": Traffic(*values.get("traffic", ()))}
        return cls(**{**values, "best": tuple(values["best"])})
