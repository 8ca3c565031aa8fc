"""From finished runs to tables and curves: the paper's number, ours, and the difference."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedgrec.data import Dataset
from fedgrec.pages.tables import NOTHING, Grid, number
from fedgrec.studies.compare import results
from fedgrec.studies.compare.results import measured
from fedgrec.studies.compare.rows import Row, public_name
from fedgrec.studies.reproduce.plan import PAPER_ROUNDS, Group, Record, Shown

SHARES = (20, 4, 1)  # a figure's table looks at the metric after 1/20, 1/4 and all of the rounds


def compared(groups: Sequence[Group]) -> Shown:
    """One table for each data set and protocol, in the paper's order; charts with dots for the paper and for us."""
    figures = [results.intervals(_name(group), group.table) for group in groups]
    return Shown([_grid(group) for group in groups], _records(groups), [*filter(None, figures)])


def curves(groups: Sequence[Group]) -> Shown:
    """Learning curves, and a table of each run early, later and at its best."""
    groups = [_unpublished(group) for group in groups]
    drawn = {_name(group): results.curves(group.table, group.comparison.runs) for group in groups}
    figures = [replace(figure, name=name) for name, figure in drawn.items() if figure]
    lines = [line for group in groups for line in _lines(group)]
    return Shown([_grid(group, early=True) for group in groups], _records(groups), figures, lines)


def aggregations(metric: str, plan: Mapping[str, Sequence[str]]) -> Callable[[Sequence[Group]], Shown]:
    """Tables 3 and 4: a row for each way to combine embeddings, a column for each K; `plan` names the runs."""

    def grid(group: Group) -> Grid:
        rows, lines = {row.label: row for row in group.table.rows}, []
        for name, labels in plan.items():
            cells: list[str] = [name]
            for label in labels:
                row = rows.get(label)
                mine, paper = (results.ours(row, metric), results.theirs(row, metric)) if row else (None, None)
                apart = results.difference(row, metric) if row else None
                cells += [number(paper, ".4f"), measured(mine), number(apart, "+.1f", " %")]
            lines.append(cells)
        count = len(next(iter(plan.values())))
        head = ["", *(f"{what}, K = {k + 1}" for k in range(count) for what in ("paper", "ours", "diff"))]
        return Grid(_title(group), head, lines, [note for note in _notes(group) if not note.startswith("Seconds")])

    def show(groups: Sequence[Group]) -> Shown:
        ways = [(f"{name}, K = {k + 1}", labels[k]) for name, labels in plan.items() for k in range(3)]
        figures = []
        for group in groups:
            rows = {row.label: row for row in group.table.rows}
            points = [(name, rows[label]) for name, label in ways if label in rows]
            figures.append(results.intervals(_name(group), group.table, {metric: points}))
        return Shown([grid(group) for group in groups], _records(groups), [*filter(None, figures)])

    return show


# -------------------------------------------------------------------------------------------------- parts


def _unpublished(group: Group) -> Group:
    """Remove published numbers: the paper prints none for figures, and its tables have one S and one τ only."""
    bare = replace(group.table, rows=[replace(row, published=None) for row in group.table.rows])
    return replace(group, compared=replace(group.comparison, table=bare))


def _title(group: Group) -> str:
    return f"{group.table.data}, protocol {group.protocol}"


def _name(group: Group) -> str:
    """The name of a picture's file."""
    return f"{group.table.data}-{group.protocol}".replace("/", "-")


def _records(groups: Sequence[Group]) -> list[Record]:
    return [record for group in groups for record in results.records(group.table)]


def _grid(group: Group, early: bool = False) -> Grid:
    table, notes = group.table, _notes(group)
    grid = results.grid(table, ("kind", "up clear", "up secure", "a turn", "down"))  # `communication` has the bytes
    head, rows = [*grid.head], [[*row] for row in grid.rows]
    if early:
        moments = {row.label: _early(row, group) for row in table.rows}
        head += [f"1/{share}" if share > 1 else "end" for share in SHARES]
        rows = [cells + moments[row.label] for cells, row in zip(rows, table.rows, strict=True)]
        notes.insert(
            1, f"1/20, 1/4, end: Recall@{table.k} on {_judge(group)} items after that share of a run's rounds."
        )
    return Grid(_title(group), head, rows, notes, grid.align)


def _notes(group: Group) -> list[str]:
    notes = [note for note in results.notes(group.table) if not note.startswith("Bytes")]
    return [*notes, *rounds_run(group.table.rows), *group.target.notes]


def rounds_run(rows: Sequence[Row]) -> list[str]:
    """A sentence: how many rounds were run here, and how many in the paper."""
    lengths: dict[int, list[str]] = {}
    for row in rows:
        if row.federated and row.recall:
            lengths.setdefault(row.length, []).append(row.label)
    if not lengths:
        return []
    said = "; ".join(f"{length:,} ({', '.join(labels)})" for length, labels in lengths.items())
    if set(lengths) == {PAPER_ROUNDS}:
        return [f"Rounds run: {PAPER_ROUNDS:,}, as in the paper."]
    return [f"Rounds run: {said}. The paper ran {PAPER_ROUNDS:,}."]


def _judge(group: Group) -> str:
    return "validation" if group.protocol == "honest" else "test"


def _early(row: Row, group: Group) -> list[str]:
    """The mean over seeds at the last evaluation within each share of the rounds."""
    found, key = [], f"recall@{group.table.k}"
    runs = [run for run in group.finished if run.entry.label == row.label]
    for share in SHARES:
        judged = ([line for line in run.metrics() if line["split"] == _judge(group)] for run in runs)
        seen = (
            [line[key] for line in lines if line["round"] * share <= run.length]
            for run, lines in zip(runs, judged, strict=True)
        )
        values = [lines[-1] for lines in seen if lines]
        found.append(number(float(np.mean(values)) if values else None, ".4f") if runs else NOTHING)
    return found


def _lines(group: Group) -> Iterator[dict[str, Any]]:
    """Every evaluation, so that anyone can draw the curves again."""
    for run in group.finished:
        for line in run.metrics():
            metrics = {key: value for key, value in line.items() if "@" in key}
            what = {"data": group.table.data, "protocol": group.protocol, "label": run.entry.label}
            yield what | {"seed": run.seed, "split": line["split"], "round": line["round"], **metrics}


# ------------------------------------------------------------------------------------------------ Table 1


SIZES = ("users", "items", "interactions", "density")
PAPER: dict[str, tuple[float, ...]] = {
    "gowalla": (29_858, 40_981, 1_027_370, 0.00084),
    "yelp2018": (31_831, 40_841, 1_666_869, 0.00128),
    "amazon-book": (52_643, 91_599, 2_984_108, 0.00062),
}
SLIP = (
    "The paper's sizes of yelp2018 are those of an older version: the split of LightGCN, which it says it follows and "
    "all published numbers are about, is the smaller one."
)


def statistics(groups: Sequence[Group]) -> Shown:
    """The paper's number, our number, and their difference in %."""
    rows: list[list[str]] = []
    records: list[dict[str, Any]] = []
    for group in groups:
        dataset = group.settings.load(group.settings.seeds[0])
        name = public_name(dataset) or dataset.name
        for what, theirs, ours in zip(SIZES, PAPER.get(name, [None] * len(SIZES)), measure(dataset), strict=True):
            form = ".5f" if what == "density" else ",d"
            apart = 100 * (ours / theirs - 1) if theirs else None
            said = f"{theirs:{form}}" if theirs is not None else NOTHING
            away = NOTHING if apart is None else f"{round(apart, 1) + 0.0:+.1f} %"
            rows.append([name, what, said, f"{ours:{form}}", away])
            records.append({"data": name, "what": what, "paper": theirs, "ours": ours, "difference_percent": apart})
    notes = ["Interactions are train and test pairs together; density is their share of all pairs."]
    notes += [SLIP] if any(row[0] == "yelp2018" for row in rows) else []
    grid = Grid("Data sets", ["data", "", "paper", "ours", "diff"], rows, notes, align="ll")
    return Shown([grid], records)


def measure(dataset: Dataset) -> tuple[float, ...]:
    """SIZES of all parts of a split together."""
    train = dataset.split.train
    pairs = train.n_pairs + sum(dataset.split.held_out.values())
    return train.n_users, train.n_items, pairs, pairs / (train.n_users * train.n_items)
