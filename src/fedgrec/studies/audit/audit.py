"""All attacks on one training: a table for the terminal, and JSON."""

from dataclasses import dataclass

from fedgrec.config.configuration import Config
from fedgrec.data import Dataset
from fedgrec.errors import ConfigError
from fedgrec.pages.tables import NOTHING, Grid, terminal
from fedgrec.runs.simulation import Observer
from fedgrec.studies.audit import clusters, lies, membership, weaker_designs
from fedgrec.studies.audit.recording import Truth, View, record
from fedgrec.studies.audit.scores import Estimate, Finding, NotApplicable, percent

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

    def table(self, width: int = 80) -> str:
        """Lines that fit the terminal: a table, then what each line means."""
        head = ["what a server finds, in %", "found", "chance", "popular", "better?"]
        notes = [
            f"{n}. {line.sentence if isinstance(line, Finding) else f'Does not apply, because {line.because}.'}"
            for n, line in enumerate(self.lines, 1)
        ]
        return terminal(Grid("", head, [_row(line) for line in self.lines], notes), width).rstrip("\n")


def _row(line: Line) -> list[str]:
    if isinstance(line, NotApplicable):
        return [line.name, "does not apply", "", "", ""]
    better = {True: "yes", False: "no", None: NOTHING}[line.better]
    found = f"{percent(line.attack.value)} ({percent(line.attack.low)}–{percent(line.attack.high)})"
    return [line.name, found, _value(line.chance), _value(line.popularity), better]


def _value(estimate: Estimate | None) -> str:
    return NOTHING if estimate is None else percent(estimate.value)


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
        clusters.audit_alone(view, truth),
        *clusters.audit(view, truth),
        clusters.audit_latents(view, truth),
        membership.audit_sums(view, truth),
        membership.audit_model(view, truth, strangers=False),
        membership.audit_model(view, truth, strangers=True),
        weaker_designs.audit_sums(view, truth),
        weaker_designs.audit_counts(view, truth),
        weaker_designs.audit_queries(view, truth),
        *lies.audit(view, truth),
    )
    return Audit(view.method, view.n_users, view.n_items, len(view.sums), len(view.sums[-1].people), lines)
