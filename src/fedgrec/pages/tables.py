"""One table for the terminal, in Markdown, in LaTeX, in HTML, and records as CSV."""

import csv as csv_module
import html as html_module
import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

NOTHING = "–"
GAP = "  "
LONGEST = 26  # the most letters of a row's name in a terminal that is too narrow for the table
USERS = "ᵘ"  # marks an interval over users


class Cell(str):
    """A text with its number: the page sorts by the number, and draws a bar (`share` of the longest) beside it."""

    value: float | None
    share: float | None

    def __new__(cls, text: str, value: float | None = None, share: float | None = None) -> Self:
        cell = super().__new__(cls, text)
        cell.value, cell.share = value, share
        return cell


def number(value: float | None, form: str, unit: str = "") -> Cell:
    return Cell(NOTHING if value is None else f"{value:{form}}{unit}", value)


@dataclass(frozen=True)
class Grid:
    """Cells as texts. `align` has l or r for the first columns; the other columns, numbers, are flush right."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()  # sentences
    align: str = "l"
    strong: str = ""  # the name of the row that stands out on a page

    @property
    def sides(self) -> str:
        return self.align.ljust(len(self.head), "r")


# ----------------------------------------------------------------------------------------------- terminal


def terminal(grid: Grid, width: int = 80) -> str:
    """As many columns side by side as fit; the rest below, with the first column again; then the notes.

    A column that is too wide for any line, such as one of sentences, is printed below as text.
    """
    lines = [[cell.replace("\n", " ") for cell in line] for line in (grid.head, *grid.rows)]
    if _width(lines, range(len(grid.head))) > width:
        lines = _with_short_names(lines)
    columns = range(1, len(grid.head))
    shown = [i for i in columns if _width(lines, [0, i]) <= width]
    said = [grid.title, ""] if grid.title else []
    block: list[int] = []
    for i in [*shown, None]:
        if i is not None and (not block or _width(lines, [0, *block, i]) <= width):
            block.append(i)
            continue
        part = [[line[at] for at in (0, *block)] for line in lines]
        sides, widths = [grid.sides[at] for at in (0, *block)], _widths(lines, [0, *block])
        said += [GAP.join(_flush(line, widths, sides)).rstrip() for line in part] + [""]
        block = [] if i is None else [i]
    wide = [i for i in columns if i not in shown]
    below = [f"{row[0]}: {row[i]}" for row in grid.rows for i in wide if row[i] not in ("", NOTHING)]
    for text in [*below, *grid.notes]:
        said += textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False)
    return "\n".join(said) + "\n"


def _widths(lines: Sequence[Sequence[str]], columns: Sequence[int]) -> list[int]:
    return [max(len(line[i]) for line in lines) for i in columns]


def _width(lines: Sequence[Sequence[str]], columns: Sequence[int]) -> int:
    return sum(_widths(lines, columns)) + len(GAP) * (len(columns) - 1)


def _flush(cells: Sequence[str], widths: Sequence[int], sides: Sequence[str]) -> list[str]:
    return [cell.ljust(n) if side == "l" else cell.rjust(n) for cell, n, side in zip(cells, widths, sides, strict=True)]


def _with_short_names(lines: list[list[str]]) -> list[list[str]]:
    """Shorten names to leave room for numbers, if the short names still differ."""
    names = [line[0] for line in lines]
    short = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names]
    if len(set(short)) < len(set(names)):
        return lines
    return [[name, *line[1:]] for name, line in zip(short, lines, strict=True)]


# ------------------------------------------------------------------------------------------ files of text


def markdown(grid: Grid) -> str:
    """A section with its notes."""
    lines = [[_escape_markdown(cell) for cell in line] for line in (grid.head, *grid.rows)]
    widths = [max(3, n) for n in _widths(lines, range(len(grid.head)))]
    rule = [f"{'-' * (n - 1)}{'-' if side == 'l' else ':'}" for n, side in zip(widths, grid.sides, strict=True)]
    table = [f"| {' | '.join(_flush(line, widths, grid.sides))} |" for line in (lines[0], rule, *lines[1:])]
    heading = [f"## {_escape_markdown(grid.title)}", ""] if grid.title else []
    return "\n".join([*heading, *table, "", *(f"- {_escape_markdown(note)}" for note in grid.notes), ""])


def latex(grid: Grid, label: str) -> str:
    """A float for booktabs; its caption holds the notes."""

    def line(cells: Sequence[str]) -> str:
        return f"{' & '.join(map(_escape_latex, cells))} \\\\"

    title = [f"{grid.title}."] if grid.title else []
    caption = _escape_latex(" ".join([*title, *grid.notes]))
    name = re.sub(r"[^\w-]|_", "", label)  # TeX accepts nothing else in a label
    top = ["% needs \\usepackage{booktabs}", "\\begin{table}", "\\centering"]
    top += [f"\\caption{{{caption}}}", f"\\label{{tab:{name}}}"]
    body = [f"\\begin{{tabular}}{{{grid.sides}}}", "\\toprule", line(grid.head), "\\midrule", *map(line, grid.rows)]
    return "\n".join([*top, *body, "\\bottomrule", "\\end{tabular}", "\\end{table}", ""])


def csv(records: Sequence[Mapping[str, Any]]) -> str:
    """Unrounded, with a column for every key of any record; empty where a record lacks the key."""
    text = io.StringIO()
    keys = dict.fromkeys(key for record in records for key in record)
    writer = csv_module.DictWriter(text, list(keys), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


MARKDOWN = re.compile(r"([\\`*_\[\]<>|&])")


def _escape_markdown(text: str) -> str:
    """Escape what Markdown or HTML would interpret, except `code`, which sentences use for files and options."""
    parts = re.split(r"(`[^`|\n]+`)", text.replace("\n", " "))
    return "".join(part if i % 2 else MARKDOWN.sub(r"\\\1", part) for i, part in enumerate(parts))


LATEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", '"': "\\textquotedbl{}"},
    **{"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}", "–": "--", "±": "$\\pm$", USERS: "$^{u}$"},
    **{"“": "``", "”": "''", "…": "\\ldots{}", "\n": " "},
}


def _escape_latex(text: str) -> str:
    return "".join(LATEX.get(c, c) for c in text)


# --------------------------------------------------------------------------------------------------- HTML


def html(grid: Grid) -> str:
    """A table that scrolls by itself where a screen is narrow; a click on a title sorts it. The notes follow."""
    titles = "".join(
        f"<th scope=col class={side}><button type=button>{_escape(title) or '&nbsp;'}</button></th>"
        for title, side in zip(grid.head, grid.sides, strict=True)
    )
    rows = "".join(
        f"<tr{' class=strong' if row[0] == grid.strong else ''}>"
        + "".join(_td(cell, side, first=not i) for i, (cell, side) in enumerate(zip(row, grid.sides, strict=True)))
        + "</tr>\n"
        for row in grid.rows
    )
    name = _escape(grid.title or grid.head[0])
    notes = "".join(f"<li>{_with_code(note)}</li>" for note in grid.notes)
    return (
        f'<div class=wide tabindex=0 role=region aria-label="{name}"><table class=sortable>\n'
        f"<thead><tr>{titles}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
        + (f"<ul class=notes>{notes}</ul>\n" if notes else "")
    )


def _td(cell: str, side: str, first: bool) -> str:
    tag, scope = ("th", " scope=row") if first else ("td", "")
    value, share = (cell.value, cell.share) if isinstance(cell, Cell) else (None, None)
    key = "" if value is None else f' data-value="{float(value)!r}"'
    text = _escape(cell)
    if share is not None:
        track = f'<span class=track aria-hidden=true><span style="width:{100 * share:.1f}%"></span></span>'
        text = f"<span class=number>{text}</span>{track}"
    return f"<{tag}{scope} class={side}{key}>{text}</{tag}>"


def _with_code(note: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", _escape(note))


def _escape(text: str) -> str:
    return html_module.escape(str(text))
