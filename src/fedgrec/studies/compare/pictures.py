"""The charts of a comparison: learning curves over rounds, bytes and epochs, results with intervals; and its page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedgrec.pages.report import page
from fedgrec.pages.report.charts import Figure, Mark, Series, dots, legend, plot, style
from fedgrec.pages.tables import html
from fedgrec.studies.compare.rows import Row
from fedgrec.studies.compare.runs import Run
from fedgrec.studies.compare.tables import Table, grid, theirs

TITLES = {"recall": "Recall", "ndcg": "NDCG"}
BYTES = "bytes_up_secure"


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


def results(name: str, table: Table, panels: Mapping[str, Sequence[tuple[str, Row]]] | None = None) -> Figure | None:
    """Our result with its interval beside the published one: a panel for each metric, a line for each method."""
    known = [(row.label, row) for row in table.rows if row.recall]
    panels = dict.fromkeys(TITLES, known) if panels is None else panels
    if not any(getattr(row, metric) for metric, rows in panels.items() for _, row in rows):
        return None
    drawn, published = [], False
    for metric, rows in panels.items():
        lines = []
        for label, row in rows:
            ours, paper = getattr(row, metric), theirs(row, metric)
            published |= paper is not None
            marks = [Mark("ours", ours.mean, "c0", half=ours.half)] if ours else []
            marks += [] if paper is None else [Mark("published", paper, "c1 hollow", "diamond")]
            lines.append((label, marks))
        drawn.append(dots(f"{TITLES[metric]}@{table.k}", lines))
    caption = f"{table.data}, protocol {table.protocol}: ours with the 95 % interval"
    entries = {"ours": ("c0", "dot")} | ({"published": ("c1 hollow", "diamond")} if published else {})
    return Figure(name, drawn, f"{caption}{', and what was published' if published else ''}.", legend(entries))


def render(table: Table, runs: Sequence[Run]) -> str:
    """The comparison as one page in the look of a run's report."""
    shown, learned = results("results", table), curves(table, runs)
    return page.render(
        f"Methods on {table.data}",
        f"{len(table.rows)} methods, best first, under the protocol {table.protocol}.",
        [
            ("Results", shown.html() if shown else ""),
            ("Table", html(grid(table))),
            ("Learning", learned.html() if learned else ""),
        ],
    )
