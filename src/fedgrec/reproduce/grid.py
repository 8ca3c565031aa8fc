"""A table of words, for the terminal, in Markdown and in LaTeX."""

import csv as csv_module
import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgrec.compare.tables import LATEX

GAP = "  "


@dataclass(frozen=True)
class Grid:
    """Cells as they are read; the first `words` columns are flush left, the others, numbers, flush right."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()  # sentences
    words: int = 1

    def flush(self, cells: Sequence[str], widths: Sequence[int], first: int = 0) -> list[str]:
        """Cells padded to these widths; `first`: the column of cells[1], where the middle was left out."""
        places = [0, *range(first or 1, (first or 1) + len(cells) - 1)]
        return [
            cell.ljust(n) if place < self.words else cell.rjust(n)
            for cell, n, place in zip(cells, widths, places, strict=True)
        ]


def terminal(grid: Grid, width: int = 80) -> str:
    """As many columns side by side as fit, the rest below with the first column again; then the notes."""
    lines = [grid.head, *grid.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(grid.head))]
    said, start = [grid.title, ""], 1
    while start < len(widths) or start == 1:
        end = start + 1
        while end < len(widths) and sum(widths[start : end + 1]) + widths[0] + len(GAP) * (end + 1 - start) <= width:
            end += 1
        for line in lines:
            cells = grid.flush([line[0], *line[start:end]], [widths[0], *widths[start:end]], start)
            said.append(GAP.join(cells).rstrip())
        said.append("")
        start = end
    for note in grid.notes:
        said += textwrap.wrap(note, width, subsequent_indent="  ", break_long_words=False)
    return "\n".join(said) + "\n"


def markdown(grid: Grid) -> str:
    """A section with its notes."""
    lines = [[_escape_markdown(cell) for cell in line] for line in (grid.head, *grid.rows)]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(grid.head))]
    rule = [f"{'-' * (n - 1)}{'-' if i < grid.words else ':'}" for i, n in enumerate(widths)]
    table = [f"| {' | '.join(grid.flush(line, widths))} |" for line in (lines[0], rule, *lines[1:])]
    notes = [f"- {_escape_markdown(note)}" for note in grid.notes]
    return "\n".join([f"## {grid.title}", "", *table, "", *notes, ""])


def latex(grid: Grid, label: str) -> str:
    """A float for booktabs; its caption says what the notes say."""

    def line(cells: Sequence[str]) -> str:
        return f"{' & '.join(map(_escape_latex, cells))} \\\\"

    form = "l" * grid.words + "r" * (len(grid.head) - grid.words)
    caption = _escape_latex(" ".join([f"{grid.title}.", *grid.notes]))
    top = ["\\begin{table}", "\\centering", f"\\caption{{{caption}}}", f"\\label{{tab:{label}}}"]
    body = [f"\\begin{{tabular}}{{{form}}}", "\\toprule", line(grid.head), "\\midrule", *map(line, grid.rows)]
    return "\n".join([*top, *body, "\\bottomrule", "\\end{tabular}", "\\end{table}", ""])


def csv(records: Sequence[Mapping[str, Any]]) -> str:
    """Unrounded, under the keys of all records; empty where one has nothing to say."""
    text = io.StringIO()
    keys = dict.fromkeys(key for record in records for key in record)
    writer = csv_module.DictWriter(text, list(keys), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _escape_markdown(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _escape_latex(text: str) -> str:
    return "".join(LATEX.get(c, c) for c in text)
