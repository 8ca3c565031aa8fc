"""What a target is, what a person may ask of it, and the comparisons (as in `fedgrec compare`) that it needs."""

import functools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from fedgrec.centralized import model_class
from fedgrec.config.configuration import Config
from fedgrec.errors import ConfigError, nearest
from fedgrec.pages.report.charts import Figure
from fedgrec.pages.tables import Grid
from fedgrec.runs.resolve import EVALUATIONS
from fedgrec.studies.compare.comparison import Comparison
from fedgrec.studies.compare.names import Entry
from fedgrec.studies.compare.plan import Settings
from fedgrec.studies.compare.results import Table
from fedgrec.studies.compare.runs import Run

PROTOCOLS = ("paper", "honest")
PAPER_ROUNDS = 100_000
RHYTHM = 1_000  # rounds between evaluations; fewer where a run would otherwise have less than EVALUATIONS of them
# A quick run shows that everything works; its numbers mean nothing. S is divided, so that a plan's values still differ.
QUICK = {"dim": 16, "negatives": 64, "hidden": 32, "latent": 16, "batch": 8192}
QUICK_ROUNDS, QUICK_EVERY, QUICK_EPOCHS, QUICK_SHARE = 12, 3, 1, 10
QUICK_NOTE = (
    f"Quick: tiny embeddings, {QUICK_ROUNDS} rounds and a tenth of the users in each unless --rounds says otherwise. "
    "These numbers show that everything works, and nothing else."
)

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Shown:
    """The results as shown; `records` and `curves` are the rows of CSV files."""

    grids: Sequence[Grid]
    records: Sequence[Record]
    figures: Sequence[Figure] = ()
    curves: Sequence[Record] = ()


@dataclass(frozen=True)
class Target:
    """A table or figure of the paper: the runs that it needs, and how their results are shown."""

    name: str
    title: str
    show: Callable[[Sequence["Group"]], Shown]
    entries: tuple[Entry, ...] = ()
    data: tuple[str, ...] = ("gowalla", "yelp2018")
    protocols: tuple[str, ...] = PROTOCOLS
    most_seeds: int | None = None
    flags: Mapping[str, int] = field(default_factory=dict)  # rounds and evaluate_every, if not the entries' own
    names: Mapping[str, str] = field(default_factory=dict)  # label → name in this target; runs are shared by label
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scope:
    """What of a target to run, and how long; empty values mean the target's own."""

    data: tuple[str, ...] = ()
    protocols: tuple[str, ...] = PROTOCOLS
    seeds: tuple[int, ...] = ()
    rounds: int = 0
    epochs: int = 0
    quick: bool = False
    only: tuple[str, ...] = ()  # labels
    device: str = "auto"
    reading: str = ""  # a name in readings.toml; empty: the preset `paper` as it is
    only_finished: bool = False  # run nothing, show finished runs


@dataclass(frozen=True)
class Group:
    """The runs of a target on one data set under one protocol."""

    target: Target
    data: str
    protocol: str
    settings: Settings
    folder: str  # of its runs
    compared: Comparison | None = None  # None where nothing is run

    @property
    def comparison(self) -> Comparison:
        assert self.compared is not None
        return self.compared

    @property
    def table(self) -> Table:
        return self.comparison.table

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.comparison.runs if run.finished]


def groups(target: Target, scope: Scope) -> list[Group]:
    notes = (QUICK_NOTE, *target.notes) if scope.quick else target.notes
    if scope.reading:
        notes = (f"Reading {scope.reading}: {reading(scope.reading).what}; all else as in the preset `paper`.", *notes)
    target = replace(target, entries=chosen(target, scope), notes=notes)
    protocols = [protocol for protocol in target.protocols if protocol in scope.protocols] or list(target.protocols)
    data = scope.data or (("demo",) if scope.quick else target.data)
    return [_group(target, scope, name, protocol) for name in data for protocol in protocols]


def chosen(target: Target, scope: Scope) -> tuple[Entry, ...]:
    """The entries that were asked for, by their label or by their name in this target."""
    wanted = tuple(entry for entry in target.entries if not scope.only or {*_called(target, entry)} & {*scope.only})
    return read(wanted, scope.reading)


def _called(target: Target, entry: Entry) -> tuple[str, ...]:
    return tuple(dict.fromkeys([entry.label, target.names.get(entry.label, entry.label)]))


def check_labels(targets: Sequence[Target], only: Sequence[str]) -> None:
    known = list(dict.fromkeys(name for t in targets for entry in t.entries for name in _called(t, entry)))
    for label in only:
        if label not in known:
            raise ConfigError(f"--only {label}: no such run here.{nearest(label, known)} Known: {', '.join(known)}")


def seeds(target: Target, scope: Scope) -> tuple[int, ...]:
    return (scope.seeds or tuple(range(2 if scope.quick else 3)))[: target.most_seeds]


def run_count(target: Target, scope: Scope) -> int:
    return len(chosen(target, scope)) * len(seeds(target, scope)) * len(groups(target, scope))


def _group(target: Target, scope: Scope, data: str, protocol: str) -> Group:
    rounds = scope.rounds or (QUICK_ROUNDS if scope.quick else 0)
    length = dict(target.flags)
    if rounds:
        length = {"rounds": rounds, "evaluate_every": QUICK_EVERY if scope.quick else rhythm(rounds)}
    epochs = scope.epochs or (QUICK_EPOCHS if scope.quick else 0)
    entries = [_quick(entry) if scope.quick else entry for entry in target.entries]
    settings = Settings(
        entries,
        seeds(target, scope),
        flags={"data": data, "protocol": protocol, "device": scope.device, **length},
        epochs={"epochs": epochs} if epochs else {},
        device=scope.device,
    )
    # Runs of another length or reading have their own folder.
    parts = [Path(data).stem, protocol, scope.reading, f"{length['rounds']}-rounds" if length else ""]
    parts += [f"{epochs}-epochs" if scope.epochs else "", "quick" if scope.quick else ""]
    return Group(target, data, protocol, settings, "-".join(filter(None, parts)))


def rhythm(rounds: int) -> int:
    """Rounds between evaluations."""
    return min(RHYTHM, -(-rounds // EVALUATIONS))


def _quick(entry: Entry) -> Entry:
    """The same entry, small."""
    defaults = vars(Config().of(entry.method).model if entry.federated else model_class(entry.method).Options())
    small: dict[str, Any] = {k: v for k, v in QUICK.items() if isinstance(defaults.get(k), int)}
    if entry.federated:
        users = entry.section.get("users_per_round", defaults["users_per_round"])
        small |= {"users_per_round": users // QUICK_SHARE}
    return replace(entry, section={**entry.section, **small})


# ---------------------------------------------------------------------------------------------- readings


@dataclass(frozen=True)
class Reading:
    """The change that a reading makes, in words and as options."""

    what: str
    options: dict[str, Any]


@functools.cache
def readings() -> dict[str, Reading]:
    """All of them by name."""
    found = tomllib.loads((resources.files("fedgrec.studies.reproduce") / "readings.toml").read_text("utf-8"))
    return {name: Reading(values.pop("what"), values) for name, values in found.items()}


def reading(name: str) -> Reading:
    known = readings()
    if name not in known:
        raise ConfigError(f"--reading {name}: no such reading.{nearest(name, [*known])} Known: {', '.join(known)}")
    return known[name]


def read(entries: tuple[Entry, ...], name: str) -> tuple[Entry, ...]:
    """The entries that a reading changes, changed; without a reading, all entries as they are."""
    if not name:
        return entries
    options = reading(name).options
    changed = [entry for entry in entries if entry.section.get("preset") == "paper"]
    return tuple(replace(entry, section={**entry.section, **options}) for entry in changed)
