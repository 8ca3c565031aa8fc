"""The rows of a comparison as a table: its columns, its notes, and its records for a CSV file."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

from fedgrec.cable.core import size
from fedgrec.pages.tables import NOTHING, USERS, Cell, Grid, number
from fedgrec.studies.compare.rows import Row
from fedgrec.studies.compare.statistics import Estimate


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
    found += _metric_columns(f"Recall{at}", "recall", rows) + _metric_columns(f"NDCG{at}", "ndcg", rows)
    found += [_further_column(f"{name}{at}", name) for name in table.metrics]
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
    found = [Column(title, lambda row: measured(getattr(row, name)), "l")]
    if any(theirs(row, name) is not None for row in rows):
        found.append(Column("published", lambda row: number(theirs(row, name), ".4f")))
        found.append(Column("diff", lambda row: number(difference(row, name), "+.1f", " %")))
    return found


def _further_column(title: str, name: str) -> Column:
    return Column(title, lambda row: measured(row.more.get(name)), "l")


# -------------------------------------------------------------------------------------------------- cells


def theirs(row: Row, name: str) -> float | None:
    return getattr(row.published, name) if row.published else None


def difference(row: Row, name: str) -> float | None:
    """How much higher our value is than the published one, in %."""
    ours, published = getattr(row, name), theirs(row, name)
    return 100 * (ours.mean / published - 1) if ours and published else None


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
    for name in ("recall", "ndcg"):
        key, ours = f"{name}@{table.k}", getattr(row, name)
        found |= {key: ours and ours.mean, f"{key}_half_width": ours and ours.half}
        found |= {f"{key}_published": theirs(row, name), f"{key}_difference_percent": difference(row, name)}
    for name in table.metrics:
        key, extra = f"{name}@{table.k}", row.more.get(name)
        found |= {key: extra and extra.mean, f"{key}_half_width": extra and extra.half}
    found |= {"interval_over": row.recall and row.recall.over, "source": row.published and row.published.source}
    rounds = " ".join(map(str, row.chosen)) if row.length else ""
    found |= {"chosen": rounds, "unit": row.unit, "length": row.length or None}
    found |= {"bytes_up_per_user": row.up, "bytes_up_secure_per_user": row.up_secure}
    found |= {"bytes_down_per_user": row.down, "turns": row.turns}
    return found | {"seconds": row.seconds, "note": row.note}
