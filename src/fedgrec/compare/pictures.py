"""Learning curves over rounds, over bytes and over epochs: the mean over seeds, and a band from the lowest seed to the
highest."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedgrec.compare.runs import Run
from fedgrec.compare.tables import Table
from fedgrec.report.drawing import (
    BLUE,
    GREEN,
    INK,
    PURPLE,
    RED,
    SKY,
    Picture,
    legend_below,
    new_figure,
    png,
    require,
    set_frame,
)


class Kind(NamedTuple):
    """What a panel is drawn over."""

    federated: bool
    label: str
    bytes: bool = False


KINDS = (Kind(True, "round"), Kind(True, "MB a user sent as secure sums", True), Kind(False, "epoch"))
BYTES = "bytes_up_secure"
COLOURS, DASHES = (BLUE, RED, GREEN, PURPLE, SKY, INK), ("-", (0, (5, 2)), (0, (1, 1.2)))


def curves(table: Table, runs: Sequence[Run]) -> Picture | None:
    """Panels for rounds, for bytes and for epochs, recall above NDCG; nothing where nothing was trained."""
    require()
    split = "validation" if table.protocol == "honest" else "test"
    found = {row.label: [run for run in runs if run.entry.label == row.label and run.finished] for row in table.rows}
    found = {label: mine for label, mine in found.items() if mine}
    trained = {r[0].entry.federated for r in found.values() if r[0].length}
    kinds = [kind for kind in KINDS if kind.federated in trained]
    if not kinds:
        return None
    styles = dict(zip(found, itertools.cycle(itertools.product(DASHES, COLOURS)), strict=False))
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(max(4 * len(kinds), 5), 7.2)
    panels = figure.subplots(2, len(kinds), squeeze=False, sharey="row")
    for (i, metric), (j, kind) in itertools.product(enumerate(("recall", "ndcg")), enumerate(kinds)):
        axes, key = panels[i, j], f"{metric}@{table.k}"
        for label, mine in found.items():
            _line(axes, mine, key, split, kind, table.users, styles[label])
        title = f"{'Recall' if metric == 'recall' else 'NDCG'}@{table.k}"
        set_frame(axes, f"{title}, {'federated' if kind.federated else 'centralized'}", kind.label)
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for handle in found:  # every method once, whichever panels it is in
        dash, colour = styles[handle]
        panels[0, 0].plot([], [], color=colour, ls=dash, lw=2, label=handle)
    legend_below(figure, panels[0, 0], 4)
    caption = (
        f"On {split} items of {table.data}: the mean over seeds, and from the lowest to the highest seed. What is not "
        "trained is a thin level line; what was judged once is a point. Rounds and epochs are not the same "
        "amount of work."
    )
    alt = f"Learning curves of {', '.join(found)}: Recall and NDCG on {split} items."
    return Picture("curves.png", png(figure), alt, caption)


def _line(axes: Any, runs: Sequence[Run], key: str, split: str, kind: Kind, users: int, style: tuple[Any, str]) -> None:
    dash, colour = style
    by_seed = [{line["round"]: line for line in run.metrics() if line["split"] == split} for run in runs]
    rounds = sorted(set.intersection(*(set(seed) for seed in by_seed)))  # patience may end seeds at different rounds
    values = np.array([[seed[r][key] for r in rounds] for seed in by_seed])  # [seeds, rounds]
    if not values.size:
        return
    federated = runs[0].entry.federated
    at = [by_seed[0][r][BYTES] / users / 1e6 for r in rounds] if kind.bytes and federated else rounds
    few = len(rounds) == 1  # a point, which no line shows
    if few and runs[0].length and federated == kind.federated:
        axes.plot(at, values.mean(axis=0), color=colour, marker="o", ms=6)
    elif not runs[0].length:
        axes.axhline(values.mean(), color=colour, ls=dash, lw=1.1)
    elif federated == kind.federated:
        axes.plot(at, values.mean(axis=0), color=colour, ls=dash, lw=2, clip_on=False)
        if len(runs) > 1:
            axes.fill_between(at, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.18, lw=0)
