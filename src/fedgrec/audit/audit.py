"""All attacks on one training: a table for the terminal, and JSON."""

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from fedgrec.audit import clusters, counts, differences, latents, lying, membership, queries, single
from fedgrec.audit.recording import Truth, View, record
from fedgrec.audit.scores import Estimate, Finding, NotApplicable, percent
from fedgrec.config import Config
from fedgrec.data import Dataset
from fedgrec.errors import ConfigError
from fedgrec.simulation import Observer

Line = Finding | NotApplicable


@dataclass(frozen=True)
class Audit:
    """What a server would find out."""

    method: str
    users: int
    items: int
    sums: int
    cohort: int  # people of the last sum
    lines: tuple[Line, ...]

    def to_json(self) -> dict[str, Any]:
        """Shares and intervals, attack by attack."""
        return asdict(self)

    def table(self, width: int = 80) -> str:
        """Lines that fit the terminal: a table, then what each line means."""
        head = f"{'what a server finds, in %':<38} {'found':>15} {'chance':>7} {'popular':>8}  better?"
        lines = [head, "─" * len(head), *(_row(line) for line in self.lines), ""]
        for number, line in enumerate(self.lines, 1):
            text = line.sentence if isinstance(line, Finding) else f"Does not apply, because {line.because}."
            lines += textwrap.wrap(f"{number}. {text}", width, subsequent_indent="   ", break_long_words=False)
        return "\n".join(lines)


def _row(line: Line) -> str:
    if isinstance(line, NotApplicable):
        return f"{line.name:<38} {'does not apply':>15}"
    better = {True: "yes", False: "no", None: "–"}[line.better]
    found = f"{percent(line.attack.value)} ({percent(line.attack.low)}–{percent(line.attack.high)})"
    return f"{line.name:<38} {found:>15} {_value(line.chance):>7} {_value(line.popularity):>8}  {better:>7}"


def _value(estimate: Estimate | None) -> str:
    return "–" if estimate is None else percent(estimate.value)


def audit(config: Config, dataset: Dataset | None = None, sums: int = 10, observer: Observer | None = None) -> Audit:
    """Train, write down what the server sees, and attack it."""
    if sums < 1:
        raise ConfigError(f"an audit of {sums} sums has nothing to look at: ask for at least 1")
    return attacked(*record(config, dataset, sums, observer))


def attacked(view: View, truth: Truth) -> Audit:
    """Every attack on what was recorded."""
    if not view.sums:
        raise ConfigError("no sum was opened: lower dropout, or train for more rounds")
    lines: tuple[Line, ...] = (
        single.audit(view, truth),
        *clusters.audit(view, truth),
        latents.audit(view, truth),
        membership.audit_sums(view, truth),
        membership.audit_model(view, truth, strangers=False),
        membership.audit_model(view, truth, strangers=True),
        differences.audit(view, truth),
        counts.audit(view, truth),
        queries.audit(view, truth),
        *lying.audit(view, truth),
    )
    return Audit(view.method, view.n_users, view.n_items, len(view.sums), len(view.sums[-1].people), lines)
