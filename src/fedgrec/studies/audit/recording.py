"""What a server sees of a training, and beside it the truth.

A `View` is all that an attack may read: the opened sums, what was broadcast before each, who took part, the degrees
that were counted, the options, the final model. The `Truth` serves to count how often an attack is right, and attacks
that ask what a server would find if it saw more.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Broadcast, Cohort, Floats, Ints, Pending, Rows, ServerState, Stage, Upload, UploadSpec
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.data.datasets import load_for
from fedgrec.data.split import restrict
from fedgrec.errors import ConfigError
from fedgrec.methods.contract import Contents, Method
from fedgrec.models import fold_in
from fedgrec.runs.recorded_sums import RecordedSum
from fedgrec.runs.simulation import Observer, Simulation
from fedgrec.runs.sums import Sums

OUTSIDERS = 0.1  # the share of people who are in no sum
COLLUDING = 2 / 3  # the share of people who tell each other what they sent
APART = 100  # people, at most, whose uploads are kept
OUTSIDERS_STREAM, APART_STREAM, COLLUDING_STREAM = 4, 9, 11
Published = Callable[[Ints, Ints], Floats]  # a trained model: the items of n people (indptr, items) → scores, [n, N]


@dataclass(frozen=True)
class OpenedSum:
    """One training round, as the server has it."""

    broadcast: Broadcast
    spec: UploadSpec
    total: Upload  # rows of zeros are left out: they look like rows that nobody touched
    people: Ints  # [n] positions of those in the sum


@dataclass(frozen=True)
class View:
    """All that a server has."""

    method: str
    n_users: int
    n_items: int
    sums: tuple[OpenedSum, ...]  # in the order of their rounds
    degrees: Ints | None  # [N] as counted; None: the method counts none
    model: Published
    options: Any  # of the method: the server sets them
    contents: Contents  # what the sums hold
    leaning: Callable[[Broadcast], Floats | None]  # as `Method.leaning` says, of public vectors


@dataclass(frozen=True)
class Contributions:
    """Who is in which row of the last recorded sum: pairs of a row and a place among the people of that sum."""

    rows: Ints  # [c]
    places: Ints  # [c]


@dataclass(frozen=True)
class Apart:
    """One sum, and what some of its people sent to it, which no server that follows the protocol has."""

    sum: OpenedSum
    uploads: Mapping[int, Upload]  # by person


@dataclass(frozen=True)
class Truth:
    """What no server has."""

    people: Interactions  # those who trained
    outsiders: Interactions  # people of the same kind who were in no sum
    contributions: Contributions
    trained: Apart | None = None  # of the recorded sum that carries the most
    left: tuple[OpenedSum, ...] = ()  # the sums without the uploads of people who work together

    @property
    def popularity(self) -> Ints:
        """How many of those who trained have each item.  # [N]"""
        return self.people.degrees()

    def items(self, people: Iterable[int]) -> list[Ints]:
        return [self.people.of(person) for person in people]


class Recorder(Sums):
    """Adds up as `inner` does, and writes down the sums of some training rounds."""

    def __init__(self, inner: Sums, keys: NDArray[np.uint64], rounds: Iterable[int]) -> None:
        super().__init__(inner.options, inner.threads)
        self.inner, self.rounds = inner, frozenset(rounds)
        self.order = np.argsort(keys)
        self.keys = keys[self.order]
        self.seen: list[OpenedSum] = []
        rng = np.random.Generator(np.random.Philox(key=[len(keys), COLLUDING_STREAM]))
        self.colluding = rng.permutation(len(keys)) < round(COLLUDING * len(keys))  # [M]
        self.left: list[OpenedSum] = []
        self.contributions = Contributions(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self.trained: Apart | None = None

    def total(
        self, method: Method, stage: Stage, cohort: Cohort, broadcast: Broadcast, arrived: Ints | None = None
    ) -> tuple[Upload, Pending]:
        total, pending = self.inner.total(method, stage, cohort, broadcast, arrived)
        present = cohort if arrived is None else cohort.take(arrived)
        if method.trains(stage) and broadcast.round in self.rounds:
            people = self.order[np.searchsorted(self.keys, present.keys)]
            before = replace(broadcast, tables=broadcast.tables.copy(), degrees=broadcast.degrees.copy())
            self._write_down(method, stage, present, OpenedSum(before, method.spec(stage), visible(total), people))
        return total, pending

    def _write_down(self, method: Method, stage: Stage, present: Cohort, seen: OpenedSum) -> None:
        """Keep a training round's sum; for one round also who is in which row, and for one some users' uploads."""
        self.seen.append(seen)
        gone = self.colluding[seen.people]
        own, _ = method.local_update(present.take(np.flatnonzero(gone)), stage, seen.broadcast)
        self.left.append(replace(seen, total=visible(minus(seen.total, own)), people=seen.people[~gone]))
        if seen.broadcast.round == max(self.rounds):
            self.contributions = contributions(method, stage, present, seen.broadcast)
        if seen.broadcast.round == fullest(method, self.rounds):
            self.trained = apart(method, stage, present, seen)


def of_own_items(leaves: Mapping[str, Rows], contents: Contents) -> Rows | None:
    """The rows of an upload or a sum that people send of their own items alone; None: it has none."""
    return leaves.get(contents.latents, leaves.get(contents.updates) if contents.own_items else None)


def present(seen: OpenedSum | RecordedSum, contents: Contents, n_items: int) -> NDArray[np.bool_] | None:
    """Which items somebody in the sum has, if it has rows of people's own items alone; else None.  # [N]"""
    rows = of_own_items(seen.total.leaves, contents)
    return None if rows is None else marked(rows.index % seen.broadcast.n_items, n_items)


def marked(items: Ints, n_items: int) -> NDArray[np.bool_]:
    """Whether each item is one of these.  # [N]"""
    found = np.zeros(n_items, bool)
    found[items] = True
    return found


def minus(one: Upload, other: Upload) -> Upload:
    """An upload minus another."""
    negative = {name: Rows(rows.index, -rows.values) for name, rows in other.leaves.items()}
    return one + Upload(negative, -other.users)


def visible(total: Upload) -> Upload:
    """An opened sum without its rows of zeros."""
    return Upload({name: _touched(rows) for name, rows in total.leaves.items()}, total.users)


def _touched(rows: Rows) -> Rows:
    there = rows.values.any(axis=1)
    return Rows(rows.index[there], rows.values[there])


def contributions(method: Method, stage: Stage, cohort: Cohort, broadcast: Broadcast) -> Contributions:
    """Which rows of the item updates each user of the cohort is in."""
    rows = []
    for place in range(len(cohort)):
        upload, _ = method.local_update(cohort.take(np.array([place])), stage, broadcast)
        rows.append(_touched(upload.leaves[method.contents.updates]).index)
    places = np.repeat(np.arange(len(cohort)), [len(part) for part in rows])
    return Contributions(np.concatenate(rows), places)


def apart(method: Method, stage: Stage, cohort: Cohort, seen: OpenedSum) -> Apart:
    """What some of the cohort sent, each by itself."""
    rng = np.random.Generator(np.random.Philox(key=[len(cohort), APART_STREAM]))
    places = np.sort(rng.choice(len(cohort), min(APART, len(cohort)), replace=False))
    uploads = {}
    for place in places.tolist():
        upload, _ = method.local_update(cohort.take(np.array([place])), stage, seen.broadcast)
        uploads[int(seen.people[place])] = visible(upload)
    return Apart(seen, uploads)


def record(
    config: Config, dataset: Dataset | None = None, sums: int = 10, observer: Observer | None = None
) -> tuple[View, Truth]:
    """Train on nine people in ten; write down the last `sums` sums, and if none has latents, the last one that has."""
    config = config.changed({"split": "all", "checkpoint_every": 0}, "the audit")
    whole = dataset or load_for(config)
    inside = _insiders(whole.split.train, config.run.seed)
    every_item = np.ones(whole.split.train.n_items, bool)
    people, outsiders = (restrict(whole.split.train, part, every_item) for part in (inside, ~inside))
    simulation = Simulation(config, replace(whole, split=Split(people)), observer=observer)
    if not simulation.method.contents.updates:
        raise ConfigError(f"{config.method} does not say what its sums hold (Method.contents): they cannot be audited")
    rounds = worth_recording(simulation.method, simulation.config.run.rounds, sums)
    recorder = simulation.sums = Recorder(simulation.sums, simulation.users.keys, rounds)
    if simulation.engine:
        simulation.engine.leave = rounds[0]
    simulation.run()
    if not simulation.finished:  # the observer wanted to stop
        raise KeyboardInterrupt
    method, server, seen = simulation.method, simulation.server, tuple(recorder.seen)
    sent = {leaf.name for stage in method.stages for leaf in method.spec(stage).leaves}
    degrees = server.degrees if method.contents.counts in sent else None
    about = published(method, server), method.options, method.contents, method.leaning
    view = View(simulation.config.method, people.n_users, people.n_items, seen, degrees, *about)
    return view, Truth(people, outsiders, recorder.contributions, recorder.trained, tuple(recorder.left))


def published(method: Method, server: ServerState) -> Published:
    """What the trained model recommends to people of whom it knows items alone, in no order."""
    if method.knows_strangers:
        return lambda indptr, items: method.scores(server, replace(method.strangers(indptr, items), order=None))
    return nearest(method.represent_items(server) if method.inner_product else np.concatenate(list(server.items), 1))


def nearest(table: Floats) -> Published:
    """A model that knows nobody but its own users: items near to the mean of a person's items."""
    return lambda indptr, items: fold_in.newcomers(table, indptr, items) @ table.T


def worth_recording(method: Method, rounds: int, sums: int) -> list[int]:
    """The last rounds that carry item updates; and, of all rounds up to there, the fullest one."""
    with_items = [round_ for round_ in range(rounds) if method.contents.updates in carried(method, round_)]
    if not with_items:
        raise ConfigError(f"in {rounds} rounds users of {method.name} train nothing: an audit needs more rounds")
    return sorted({*with_items[-sums:], fullest(method, range(with_items[-1] + 1))})


def fullest(method: Method, rounds: Iterable[int]) -> int:
    """The last of these rounds that carries latents; if none does, the last that carries the most leaves."""
    latents = method.contents.latents
    return max(rounds, key=lambda round_: (latents in (names := carried(method, round_)), len(names), round_))


def carried(method: Method, round_: int) -> set[str]:
    """The names of what a training round sends."""
    return {leaf.name for leaf in method.spec(method.training(round_)).leaves}


def _insiders(data: Interactions, seed: int) -> NDArray[np.bool_]:
    """Who trains, [M]: all but a tenth of those who have items."""
    rng = np.random.Generator(np.random.Philox(key=[seed, OUTSIDERS_STREAM]))
    there = np.flatnonzero(data.user_degrees())
    inside = data.user_degrees() > 0
    inside[rng.choice(there, int(OUTSIDERS * len(there)), replace=False)] = False
    return inside
