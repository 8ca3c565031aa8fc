"""What a target is, what a person may ask of it, and the comparisons (as in `fedgrec compare`) that it needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedgrec.centralized import model_class
from fedgrec.compare import Comparison, Entry, Settings
from fedgrec.config import options
from fedgrec.errors import ConfigError, nearest
from fedgrec.report.charts import Figure
from fedgrec.reproduce.readings import read, reading
from fedgrec.resolve import EVALUATIONS
from fedgrec.tables import Grid

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
class Asked:
    """What a person asked for; empty values mean the target's own."""

    data: tuple[str, ...] = ()
    protocols: tuple[str, ...] = PROTOCOLS
    seeds: tuple[int, ...] = ()
    rounds: int = 0
    epochs: int = 0
    quick: bool = False
    only: tuple[str, ...] = ()  # labels
    device: str = "auto"
    reading: str = ""  # a name in READINGS; empty: the preset `paper` as it is
    only_finished: bool = False  # run nothing, show finished runs


@dataclass(frozen=True)
class Group:
    """The runs of a target on one data set under one protocol."""

    target: Target
    data: str
    protocol: str
    settings: Settings
    folder: str  # of its runs
    comparison: Comparison | None = None  # None where nothing is run


def groups(target: Target, asked: Asked) -> list[Group]:
    """All comparisons of a target, in order."""
    notes = (QUICK_NOTE, *target.notes) if asked.quick else target.notes
    if asked.reading:
        notes = (f"Reading {asked.reading}: {reading(asked.reading).what}; all else as in the preset `paper`.", *notes)
    target = replace(target, entries=chosen(target, asked), notes=notes)
    protocols = [protocol for protocol in target.protocols if protocol in asked.protocols] or list(target.protocols)
    data = asked.data or (("demo",) if asked.quick else target.data)
    return [_group(target, asked, name, protocol) for name in data for protocol in protocols]


def chosen(target: Target, asked: Asked) -> tuple[Entry, ...]:
    """The entries that were asked for, by their label or by their name in this target."""
    wanted = tuple(entry for entry in target.entries if not asked.only or {*_called(target, entry)} & {*asked.only})
    return read(wanted, asked.reading)


def _called(target: Target, entry: Entry) -> tuple[str, ...]:
    return tuple(dict.fromkeys([entry.label, target.names.get(entry.label, entry.label)]))


def check_labels(targets: Sequence[Target], only: Sequence[str]) -> None:
    known = list(dict.fromkeys(name for t in targets for entry in t.entries for name in _called(t, entry)))
    for label in only:
        if label not in known:
            raise ConfigError(f"--only {label}: no such run here.{nearest(label, known)} Known: {', '.join(known)}")


def seeds(target: Target, asked: Asked) -> tuple[int, ...]:
    return (asked.seeds or tuple(range(2 if asked.quick else 3)))[: target.most_seeds]


def run_count(target: Target, asked: Asked) -> int:
    return len(chosen(target, asked)) * len(seeds(target, asked)) * len(groups(target, asked))


def _group(target: Target, asked: Asked, data: str, protocol: str) -> Group:
    rounds = asked.rounds or (QUICK_ROUNDS if asked.quick else 0)
    length = dict(target.flags)
    if rounds:
        length = {"rounds": rounds, "evaluate_every": QUICK_EVERY if asked.quick else rhythm(rounds)}
    epochs = asked.epochs or (QUICK_EPOCHS if asked.quick else 0)
    entries = [_quick(entry) if asked.quick else entry for entry in target.entries]
    settings = Settings(
        entries,
        seeds(target, asked),
        flags={"data": data, "protocol": protocol, "device": asked.device, **length},
        epochs={"epochs": epochs} if epochs else {},
        device=asked.device,
    )
    # Runs of another length or reading have their own folder.
    parts = [Path(data).stem, protocol, asked.reading, f"{length['rounds']}-rounds" if length else ""]
    parts += [f"{epochs}-epochs" if asked.epochs else "", "quick" if asked.quick else ""]
    return Group(target, data, protocol, settings, "-".join(filter(None, parts)))


def rhythm(rounds: int) -> int:
    """Rounds between evaluations."""
    return min(RHYTHM, -(-rounds // EVALUATIONS))


def _quick(entry: Entry) -> Entry:
    """The same entry, small."""
    if entry.federated:
        defaults: dict[str, Any] = {f.name: f.default for section, f, _ in options(entry.method) if section == "model"}
    else:
        defaults = dict(vars(model_class(entry.method).Options()))
    small: dict[str, Any] = {k: v for k, v in QUICK.items() if isinstance(defaults.get(k), int)}
    if entry.federated:
        users = entry.section.get("users_per_round", defaults["users_per_round"])
        small |= {"users_per_round": users // QUICK_SHARE}
    return replace(entry, section={**entry.section, **small})
