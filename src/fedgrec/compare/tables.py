"""One list of rows as a table for the terminal, in Markdown, in LaTeX and as CSV."""

import csv as csv_module
import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedgrec.compare.rows import Row
from fedgrec.compare.statistics import Estimate, relative
from fedgrec.core import size

NOTHING = "–"
GAP = "  "
USERS = "ᵘ"  # marks an interval over users
LONGEST = 26  # of a label in a narrow terminal


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
    right: bool = False


def columns(table: Table) -> list[Column]:
    """What is shown of a row; columns that no row has anything for are left out."""
    at, rows = f"@{table.k}", table.rows
    found = [Column("method", lambda row: row.label), Column("kind", lambda row: row.kind)]
    found += _metric_columns(f"Recall{at}", "recall", rows) + _metric_columns(f"NDCG{at}", "ndcg", rows)
    found += [_further_column(f"{name}{at}", name) for name in table.metrics]
    found.append(Column("chosen", chosen))
    if any(row.up is not None for row in rows):
        found += [
            Column("up clear", lambda row: amount(row.up), True),
            Column("up secure", lambda row: amount(row.up_secure), True),
            Column("a turn", lambda row: amount(each_turn(row, row.up_secure)), True),
            Column("down", lambda row: amount(row.down), True),
            Column("a turn", lambda row: amount(each_turn(row, row.down)), True),
        ]
    found.append(Column("seconds", lambda row: number(row.seconds, ",.1f"), True))
    found.append(Column("seeds", lambda row: str(len(row.seeds)), True))
    if any(row.note for row in rows):
        found.append(Column("note", lambda row: row.note))
    return found


def _metric_columns(title: str, name: str, rows: Sequence[Row]) -> list[Column]:
    found = [Column(title, lambda row: measured(getattr(row, name)))]
    if any(theirs(row, name) is not None for row in rows):
        found.append(Column("published", lambda row: number(theirs(row, name), ".4f"), True))
        found.append(Column("diff", lambda row: number(difference(row, name), "+.1f", " %"), True))
    return found


def _further_column(title: str, name: str) -> Column:
    return Column(title, lambda row: measured(row.more.get(name)))


# -------------------------------------------------------------------------------------------------- cells


def theirs(row: Row, name: str) -> float | None:
    return getattr(row.published, name) if row.published else None


def difference(row: Row, name: str) -> float | None:
    """Ours from theirs, in %."""
    ours, published = getattr(row, name), theirs(row, name)
    return relative(ours.mean, published) if ours and published else None


def measured(estimate: Estimate | None) -> str:
    if estimate is None:
        return NOTHING
    half = "" if estimate.half is None else f" ± {estimate.half:.4f}{USERS if estimate.over == 'users' else ''}"
    return f"{estimate.mean:.4f}{half}"


def number(value: float | None, form: str, unit: str = "") -> str:
    return NOTHING if value is None else f"{value:{form}}{unit}"


def amount(value: float | None) -> str:
    return NOTHING if value is None else size(value)


def each_turn(row: Row, value: float | None) -> float | None:
    return None if value is None else value / row.turns


def chosen(row: Row) -> str:
    """'round 360–400/400': the earliest and the latest of the seeds."""
    if not row.chosen or not row.length:
        return NOTHING
    low, high = min(row.chosen), max(row.chosen)
    return f"{row.unit} {low:,}{f'–{high:,}' if high > low else ''}/{row.length:,}"


def notes(table: Table) -> list[str]:
    """What a reader must know beside the numbers, in sentences."""
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


# ------------------------------------------------------------------------------------------------ formats


def terminal(table: Table, width: int = 80) -> str:
    """As many columns side by side as fit, the rest below with the methods' names again; then the notes."""
    shown = [column for column in columns(table) if column.title != "note"]
    short = _shortened([row.label for row in table.rows])
    first, rest = Column("method", lambda row: short[row.label]), shown[1:]
    blocks: list[list[Column]] = [[first]]
    for column in rest:
        if len(blocks[-1]) > 1 and _width([*blocks[-1], column], table.rows) > width:
            blocks.append([first])
        blocks[-1].append(column)
    whole = [row for row in table.rows if row.recall]
    lines = []
    for block in blocks:
        lines += [*_aligned(block, whole), ""] if whole else []
    for row in table.rows:
        if row.note:
            lines += textwrap.wrap(f"{row.label}: {row.note}", width, subsequent_indent="  ", break_long_words=False)
    for note in notes(table):
        lines += textwrap.wrap(note, width, subsequent_indent="  ", break_long_words=False)
    return "\n".join(lines) + "\n"


def markdown(table: Table) -> str:
    shown = columns(table)
    cells = [[_escape_markdown(column.text(row)) for column in shown] for row in table.rows]
    titles = [column.title for column in shown]
    widths = [max(len(line[i]) for line in [titles, *cells]) for i in range(len(shown))]

    def line(texts: Sequence[str]) -> str:
        padded = (
            text.rjust(n) if column.right else text.ljust(n)
            for text, n, column in zip(texts, widths, shown, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    rule = "|".join(
        f" {'-' * (n - 1)}: " if column.right else f" {'-' * n} " for n, column in zip(widths, shown, strict=True)
    )
    said = "".join(f"- {_escape_markdown(note)}\n" for note in notes(table))
    return "\n".join([line(titles), f"|{rule}|", *map(line, cells)]) + f"\n\n{said}"


def latex(table: Table) -> str:
    """A float for booktabs; its caption says what the notes say."""
    shown = columns(table)
    form = "".join("r" if column.right else "l" for column in shown)

    def line(texts: Sequence[str]) -> str:
        return f"{' & '.join(map(_escape_latex, texts))} \\\\"

    rows = [line([column.text(row) for column in shown]) for row in table.rows]
    caption = " ".join(map(_escape_latex, notes(table)))
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{caption}}}",
            f"\\label{{tab:compare-{''.join(c for c in table.data if c.isalnum() or c == '-')}}}",
            f"\\begin{{tabular}}{{{form}}}",
            "\\toprule",
            line([column.title for column in shown]),
            "\\midrule",
            *rows,
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
            "",
        ]
    )


def csv(table: Table) -> str:
    """Unrounded; bytes and seconds as plain numbers; empty where there is nothing to say."""
    text = io.StringIO()
    writer = csv_module.DictWriter(text, list(record(table, None)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(record(table, row) for row in table.rows)
    return text.getvalue()


def record(table: Table, row: Row | None) -> dict[str, Any]:
    """A row in one level; without one, its keys."""
    row = row or Row("", "", False, "", ())
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
    found |= {"bytes_down_per_user": row.down, "turns": row.turns if row.federated else None}
    return found | {"seconds": row.seconds, "note": row.note}


def _aligned(shown: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    cells = [[column.title for column in shown], *([column.text(row) for column in shown] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(shown))]
    rights = [column.right for column in shown]
    return [
        GAP.join(
            text.rjust(n) if right else text.ljust(n) for text, n, right in zip(line, widths, rights, strict=True)
        ).rstrip()
        for line in cells
    ]


def _width(shown: Sequence[Column], rows: Sequence[Row]) -> int:
    return max(map(len, _aligned(shown, rows)))


def _shortened(labels: Sequence[str]) -> dict[str, str]:
    """Labels that leave room for numbers, as long as they still differ."""
    short = {label: label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…" for label in labels}
    return short if len(set(short.values())) == len(set(labels)) else {label: label for label in labels}


def _escape_markdown(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


LATEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"},
    **{"<": "\\textless{}", ">": "\\textgreater{}", "–": "--", "±": "$\\pm$", USERS: "$^{u}$"},
    **{"“": "``", "”": "''", "…": "\\ldots{}"},
}


def _escape_latex(text: str) -> str:
    return "".join(LATEX.get(c, c) for c in text)
