"""The comparison as one page in the look of a run's report."""

from collections.abc import Sequence

from fedgrec import tables as formats
from fedgrec.compare import pictures, tables
from fedgrec.compare.runs import Run
from fedgrec.report import page


def render(table: tables.Table, runs: Sequence[Run]) -> str:
    results, curves = pictures.results("results", table), pictures.curves(table, runs)
    return page.render(
        f"Methods on {table.data}",
        f"{len(table.rows)} methods, best first, under the protocol {table.protocol}.",
        [
            ("Results", results.html() if results else ""),
            ("Table", formats.html(tables.grid(table))),
            ("Learning", curves.html() if curves else ""),
        ],
    )
