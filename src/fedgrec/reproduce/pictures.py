"""The paper's number and ours as dots; bytes as bars."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedgrec.compare.rows import Row
from fedgrec.compare.tables import Table, theirs
from fedgrec.report.drawing import (
    BLUE,
    GREEN,
    INK,
    LINE,
    RED,
    SKY,
    Picture,
    legend_below,
    new_figure,
    png,
    require,
    set_frame,
)

Points = Sequence[tuple[str, Row]]
TITLES = {"recall": "Recall", "ndcg": "NDCG"}


def dots(name: str, table: Table, panels: Mapping[str, Points]) -> Picture:
    """One panel for each metric, one line for each method, the first on top."""
    require()
    longest = max(map(len, panels.values()))
    figure = new_figure(2.5 + 4.2 * len(panels), 1.6 + 0.3 * longest)
    drawn = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (metric, points) in zip(drawn, panels.items(), strict=True):
        for place, (_, row) in enumerate(points):
            _point(axes, -place, theirs(row, metric), getattr(row, metric))
        set_frame(axes, f"{TITLES[metric]}@{table.k}", "")
        axes.set_yticks([-i for i in range(len(points))], [label for label, _ in points])
        axes.grid(axis="x", color=LINE, lw=0.7)
        axes.set_xlim(left=0)
    published = any(theirs(row, metric) is not None for metric, points in panels.items() for _, row in points)
    drawn[0].plot([], [], "o", color=BLUE, label="ours")
    if published:
        drawn[0].plot([], [], "D", mec=RED, mfc="none", label="published")
    legend_below(figure, drawn[0], 2)
    caption = f"{table.data}, protocol {table.protocol}: ours with the 95 % interval, and what was published."
    alt = f"{', '.join(TITLES[metric] for metric in panels)} of {longest} methods on {table.data}."
    return Picture(f"{name}.png", png(figure), alt, caption)


def _point(axes: Any, place: int, paper: float | None, ours: Any) -> None:
    if paper is not None:
        axes.plot(paper, place, "D", mec=RED, mfc="none", ms=7, zorder=3)
    if ours is not None:
        axes.errorbar(ours.mean, place, xerr=ours.half, fmt="o", color=BLUE, ms=5, capsize=3, lw=1.3, zorder=2)


def bars(name: str, title: str, labels: Sequence[str], parts: Mapping[str, Sequence[float | None]]) -> Picture:
    """Bytes on a logarithmic axis: a group of bars for each label, one for each part."""
    require()
    figure = new_figure(9, 1.5 + 0.45 * len(labels))
    axes = figure.subplots()
    height = 0.8 / len(parts)
    for i, ((part, values), colour) in enumerate(zip(parts.items(), (INK, BLUE, GREEN, SKY), strict=False)):
        known = [(place, value) for place, value in enumerate(values) if value]
        places = [-place + 0.4 - height * (i + 0.5) for place, _ in known]
        axes.barh(places, [value for _, value in known], height * 0.9, color=colour, label=part)
    set_frame(axes, title, "bytes")
    axes.set_xscale("log")
    axes.set_yticks([-i for i in range(len(labels))], labels)
    axes.grid(axis="x", color=LINE, lw=0.7)
    legend_below(figure, axes, 4)
    return Picture(f"{name}.png", png(figure), f"{title}: bars for {', '.join(labels)}.", title)
