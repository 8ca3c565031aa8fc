"""The results of a comparison: a table with its notes, records for a CSV file, charts, and a page."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedgrec.cable.core import size
from fedgrec.pages.report import page
from fedgrec.pages.report.charts import Figure, Mark, Series, dots, legend, plot, style
from fedgrec.pages.tables import NOTHING, USERS, Cell, Grid, html, number
from fedgrec.studies.compare.rows import Estimate, Row
from fedgrec.studies.compare.runs import Run

TITLES = {"recall": "Recall", "ndcg": "NDCG"}
BYTES = "bytes_up_secure"


@dataclass(frozen=True)
class Table:
    data: str
    protocol: str
    k: int
    rows: Sequence[Row]
    users: int = 1
    metrics: Sequence[str] = ()  # beside recall and NDCG


@dataclass(frozen=True)
class Column:
    title: str
    text: Callable[[Row], str]
    side: str = "r"


def grid(table: Table, without: Container[str] = ()) -> Grid:
    """The table but the columns with these titles."""
    shown = [column for column in columns(table) if column.title not in without]
    rows = [[column.text(row) for column in shown] for row in table.rows]
    sides = "".join(column.side for column in shown)
    return Grid("", [column.title for column in shown], rows, notes(table), sides)


def columns(table: Table) -> list[Column]:
    """The columns to show; a column that is empty in every row is left out."""
    at, rows = f"@{table.k}", table.rows
    found = [Column("method", lambda row: row.label, "l"), Column("kind", lambda row: row.kind, "l")]
    for name in (*TITLES, *table.metrics):
        found += _metric_columns(f"{TITLES.get(name, name)}{at}", name, rows)
    found.append(Column("chosen", chosen, "l"))
    if any(row.up is not None for row in rows):
        found += [
            Column("up clear", lambda row: amount(row.up)),
            Column("up secure", lambda row: amount(row.up_secure)),
            Column("a turn", lambda row: amount(each_turn(row, row.up_secure))),
            Column("down", lambda row: amount(row.down)),
            Column("a turn", lambda row: amount(each_turn(row, row.down))),
        ]
    found.append(Column("seconds", lambda row: number(row.seconds, ",.1f")))
    found.append(Column("seeds", lambda row: Cell(str(len(row.seeds)), len(row.seeds))))
    if any(row.note for row in rows):
        found.append(Column("note", lambda row: row.note, "l"))
    return found


def _metric_columns(title: str, name: str, rows: Sequence[Row]) -> list[Column]:
    found = [Column(title, lambda row: measured(ours(row, name)), "l")]
    if any(theirs(row, name) is not None for row in rows):
        found.append(Column("published", lambda row: number(theirs(row, name), ".4f")))
        found.append(Column("diff", lambda row: number(difference(row, name), "+.1f", " %")))
    return found


# -------------------------------------------------------------------------------------------------- cells


def ours(row: Row, name: str) -> Estimate | None:
    return getattr(row, name) if name in TITLES else row.more.get(name)


def theirs(row: Row, name: str) -> float | None:
    return getattr(row.published, name, None)


def difference(row: Row, name: str) -> float | None:
    """How much higher our value is than the published one, in %."""
    mine, published = ours(row, name), theirs(row, name)
    return 100 * (mine.mean / published - 1) if mine and published else None


def measured(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell(NOTHING)
    half = "" if estimate.half is None else f" ± {estimate.half:.4f}{USERS if estimate.over == 'users' else ''}"
    return Cell(f"{estimate.mean:.4f}{half}", estimate.mean)


def amount(value: float | None) -> Cell:
    return Cell(NOTHING if value is None else size(value), value)


def each_turn(row: Row, value: float | None) -> float | None:
    return value / row.turns if value is not None and row.turns else None


def chosen(row: Row) -> Cell:
    """'round 360–400/400': the earliest and the latest round that a seed chose."""
    if not row.chosen or not row.length:
        return Cell(NOTHING)
    low, high = min(row.chosen), max(row.chosen)
    return Cell(f"{row.unit} {low:,}{f'–{high:,}' if high > low else ''}/{row.length:,}", low)


def notes(table: Table) -> list[str]:
    """Sentences that a reader needs to understand the numbers."""
    rows = [row for row in table.rows if row.recall]
    said = {
        "honest": f"{table.data}, protocol honest: the round was chosen on a validation split held out of train, and "
        "test items chose nothing.",
        "paper": f"{table.data}, protocol paper: the best round on test, as published numbers are, which flatters.",
    }[table.protocol]
    found = [said]
    counts = sorted({row.recall.n for row in rows if row.recall and row.recall.over == "seeds"})
    if counts:
        found.append(f"±: 95 % interval over {' or '.join(map(str, counts))} seeds (Student's t).")
    if any(row.recall and row.recall.over == "users" and row.recall.half is not None for row in rows):
        found.append(f"{USERS}: one seed; ± is the 95 % interval over its users and says nothing about other seeds.")
    sources = sorted({row.published.source for row in rows if row.published})
    if sources:
        found.append(f"published: {'; '.join(sources)}; the best round on test. diff: ours from theirs.")
    if any(row.up is not None for row in rows):
        found.append(
            "Bytes: of an average user over the whole run, warm-up included, sent in the clear, sent as secure sums, "
            "received; and the last two over the user's turns in training."
        )
    if rows:
        found.append("Seconds are those of the whole run, evaluations included, on the machine it ran on.")
    return found


# ------------------------------------------------------------------------------------------------ records


def records(table: Table) -> list[dict[str, Any]]:
    """Each row as one flat dict, unrounded; bytes and seconds as plain numbers."""
    return [_record(table, row) for row in table.rows]


def _record(table: Table, row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {"data": table.data, "label": row.label, "method": row.method, "kind": row.kind}
    found |= {"protocol": row.protocol, "seeds": " ".join(map(str, row.seeds))}
    for name in (*TITLES, *table.metrics):
        key, mine = f"{name}@{table.k}", ours(row, name)
        found |= {key: mine and mine.mean, f"{key}_half_width": mine and mine.half}
        if name in TITLES:
            found |= {f"{key}_published": theirs(row, name), f"{key}_difference_percent": difference(row, name)}
    found |= {"interval_over": row.recall and row.recall.over, "source": row.published and row.published.source}
    rounds = " ".join(map(str, row.chosen)) if row.length else ""
    found |= {"chosen": rounds, "unit": row.unit, "length": row.length or None}
    found |= {"bytes_up_per_user": row.up, "bytes_up_secure_per_user": row.up_secure}
    found |= {"bytes_down_per_user": row.down, "turns": row.turns}
    return found | {"seconds": row.seconds, "note": row.note}


# ------------------------------------------------------------------------------------------------- charts


class Kind(NamedTuple):
    """What the x axis of a panel shows."""

    federated: bool
    label: str
    bytes: bool = False


KINDS = (Kind(True, "round"), Kind(True, "MB a user sent as secure sums", True), Kind(False, "epoch"))


def curves(table: Table, runs: Sequence[Run]) -> Figure | None:
    """Recall and NDCG over rounds, over bytes and over epochs; None where no method was trained."""
    split = "validation" if table.protocol == "honest" else "test"
    found = {row.label: [run for run in runs if run.entry.label == row.label and run.finished] for row in table.rows}
    found = {label: mine for label, mine in found.items() if mine}
    trained = {mine[0].entry.federated for mine in found.values() if mine[0].length}
    kinds = [kind for kind in KINDS if kind.federated in trained]
    if not kinds:
        return None
    looks = {label: style(i) for i, label in enumerate(found)}
    read = {
        label: [{line["round"]: line for line in run.metrics() if line["split"] == split} for run in mine]
        for label, mine in found.items()
    }
    panels = []
    for kind in kinds:
        for metric, name in TITLES.items():
            key = f"{metric}@{table.k}"
            lines = [
                _line(Series(label, [], looks[label]), mine[0], read[label], key, kind, table.users)
                for label, mine in found.items()
            ]
            title = f"{name}@{table.k}, {'federated' if kind.federated else 'centralized'}"
            panels.append(plot(title, kind.label, [line for line in lines if line]))
    caption = (
        f"On {split} items of {table.data}: the mean over seeds, and from the lowest to the highest seed. What is not "
        "trained is a thin level line; what was judged once is a point. Rounds and epochs are not the same "
        "amount of work."
    )
    return Figure("curves", panels, caption, legend({label: (look, "") for label, look in looks.items()}))


def _line(start: Series, run: Run, seeds: Sequence[dict[int, Any]], key: str, kind: Kind, users: int) -> Series | None:
    """A method's line in a panel, or None if it does not belong there; `seeds` are its evaluations by round."""
    rounds = sorted(set.intersection(*(set(seed) for seed in seeds)))  # patience may end seeds at different rounds
    values = np.array([[seed[r][key] for r in rounds] for seed in seeds])  # [seeds, rounds]
    if not values.size or (run.length and run.entry.federated != kind.federated):
        return None
    if not run.length:
        return replace(start, level=float(values.mean()))
    at = [seeds[0][r][BYTES] / users / 1e6 for r in rounds] if kind.bytes else rounds
    band = list(zip(values.min(axis=0).tolist(), values.max(axis=0).tolist(), strict=True)) if len(seeds) > 1 else []
    return replace(start, points=list(zip(at, values.mean(axis=0).tolist(), strict=True)), band=band)


def intervals(name: str, table: Table, panels: Mapping[str, Sequence[tuple[str, Row]]] | None = None) -> Figure | None:
    """Our result with its interval beside the published one: a panel for each metric, a line for each method."""
    known = [(row.label, row) for row in table.rows if row.recall]
    panels = dict.fromkeys(TITLES, known) if panels is None else panels
    if not any(getattr(row, metric) for metric, rows in panels.items() for _, row in rows):
        return None
    drawn, published = [], False
    for metric, rows in panels.items():
        lines = []
        for label, row in rows:
            mine, paper = ours(row, metric), theirs(row, metric)
            published |= paper is not None
            marks = [Mark("ours", mine.mean, "c0", half=mine.half)] if mine else []
            marks += [] if paper is None else [Mark("published", paper, "c1 hollow", "diamond")]
            lines.append((label, marks))
        drawn.append(dots(f"{TITLES[metric]}@{table.k}", lines))
    caption = f"{table.data}, protocol {table.protocol}: ours with the 95 % interval"
    entries = {"ours": ("c0", "dot")} | ({"published": ("c1 hollow", "diamond")} if published else {})
    return Figure(name, drawn, f"{caption}{', and what was published' if published else ''}.", legend(entries))


def render(table: Table, runs: Sequence[Run]) -> str:
    """The comparison as one page in the look of a run's report."""
    shown, learned = intervals("results", table), curves(table, runs)
    sections = [("Results", shown.html() if shown else ""), ("Table", html(grid(table)))]
    sections += [("Learning", learned.html())] if learned else []
    subtitle = f"{len(table.rows)} methods, best first, under the protocol {table.protocol}."
    return page.render(f"Methods on {table.data}", subtitle, sections)
