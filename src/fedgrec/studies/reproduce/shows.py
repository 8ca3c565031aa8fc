"""From finished runs to tables and curves: the paper's number, ours, and the difference."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedgrec.pages.tables import NOTHING, Grid, number
from fedgrec.studies.compare import pictures, tables
from fedgrec.studies.compare.rows import Row
from fedgrec.studies.compare.tables import measured
from fedgrec.studies.reproduce.plan import PAPER_ROUNDS, Group, Record, Shown

SHARES = (20, 4, 1)  # a figure's table looks at the metric after 1/20, 1/4 and all of the rounds


def compared(groups: Sequence[Group]) -> Shown:
    """One table for each data set and protocol, in the paper's order; charts with dots for the paper and for us."""
    figures = [pictures.results(_name(group), group.table) for group in groups]
    return Shown([_grid(group) for group in groups], _records(groups), [*filter(None, figures)])


def curves(groups: Sequence[Group]) -> Shown:
    """Learning curves, and a table of each run early, later and at its best."""
    groups = [_unpublished(group) for group in groups]
    drawn = {_name(group): pictures.curves(group.table, group.comparison.runs) for group in groups}
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
                ours, paper = (getattr(row, metric), tables.theirs(row, metric)) if row else (None, None)
                apart = tables.difference(row, metric) if row else None
                cells += [number(paper, ".4f"), measured(ours), number(apart, "+.1f", " %")]
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
            figures.append(pictures.results(_name(group), group.table, {metric: points}))
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
    return [record for group in groups for record in tables.records(group.table)]


def _grid(group: Group, early: bool = False) -> Grid:
    table, notes = group.table, _notes(group)
    grid = tables.grid(table, ("kind", "up clear", "up secure", "a turn", "down"))  # `communication` has the bytes
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
    notes = [note for note in tables.notes(group.table) if not note.startswith("Bytes")]
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
        seen = [
            [
                line[key]
                for line in run.metrics()
                if line["split"] == _judge(group) and line["round"] * share <= run.length
            ]
            for run in runs
        ]
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
