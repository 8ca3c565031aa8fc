"""The pictures of a report, but for the map."""

import itertools
from typing import Any

import numpy as np

from fedgrec.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    PURPLE,
    RED,
    SKY,
    Picture,
    legend_below,
    new_figure,
    png,
    set_frame,
)
from fedgrec.report.gather import Run, Survey
from fedgrec.report.map import town_map

DASHES: dict[str, Any] = {"color": INK, "lw": 1.1, "ls": (0, (4, 3))}


def draw(run: Run) -> list[Picture]:
    """All that this run has something to show for."""
    drawn = []
    if run.metrics:
        drawn.append(curves(run))
    if run.places is not None and run.sample is not None:
        drawn.append(town_map(run, run.places, run.sample))
    if run.survey is not None:
        drawn.append(users(run, run.survey))
    return drawn


def curves(run: Run) -> Picture:
    """Recall and NDCG against rounds."""
    judge, chosen = run.metrics[0]["split"], run.model.round
    judged = [line for line in run.metrics if line["split"] == judge]
    final = [line for line in run.metrics if line["split"] != judge]  # the one look at test, under `honest`
    rounds = [line["round"] for line in judged]
    figure = new_figure(10, 4.1)
    panels = figure.subplots(1, 2)
    for axes, title in zip(panels, ("Recall", "NDCG"), strict=True):
        axes.axvline(chosen, **DASHES, zorder=0, label=f"selected: round {chosen:,}")
        for k, colour in zip(run.config.run.topk, itertools.cycle((BLUE, PURPLE, GREEN, SKY, RED))):
            key, style = f"{title.lower()}@{k}", {"color": colour, "clip_on": False}
            values = [line[key] for line in judged]
            axes.plot(rounds, values, lw=2.2, marker="o", ms=4, label=f"@{k} on {judge}", **style)
            for line in final:
                label = f"@{k} on {line['split']}, looked at once"
                axes.plot(line["round"], line[key], "*", ms=15, mec=INK, mew=0.8, label=label, **style)
        set_frame(axes, title, "round")
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05 or 1)
        axes.set_xlim(0, max(rounds) * 1.03)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    legend_below(figure, panels[0], 5)
    every = run.config.run.evaluate_every
    caption = f"Measured on {judge} items every {every:,} rounds; the dashed line is the selected round."
    if final:
        each = [
            f"{n / run.about['sizes']['users']:.1f} in {part}"
            for part, n in run.about["sizes"].items()
            if part in (judge, final[0]["split"])
        ]
        caption += (
            " The star is the one look at test. It is not on the curve's scale, because a user has "
            f"another number of items to find there: on average {', '.join(each)}."
        )
    alt = f"Learning curves: Recall and NDCG on {judge} items against rounds; round {chosen:,} is marked."
    return Picture("curves.png", png(figure), alt, caption)


def users(run: Run, survey: Survey) -> Picture:
    """How unequally users fare, and whether the lists hold more than what is popular anyway."""
    judged = any(map(len, survey.hidden))
    figure, alt = new_figure(10, 3.9), "bars comparing how popular recommended items and all items are."
    panels = figure.subplots(1, 1 + judged, squeeze=False)[0]
    if judged:
        _recall_histogram(panels[0], survey.recall(run.k), f"a user's Recall@{run.k}")
        alt = f"histogram of users' Recall@{run.k}, and {alt}"
    lists = survey.lists[:, : run.k]
    _popularity_bars(panels[-1], run.model.item_degrees, lists[lists >= 0])
    for axes in panels:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axes.legend(loc="best", fontsize=9.5, frameon=False, labelcolor=INK)
    who = f"all {len(survey.users):,}" if survey.everyone else f"{len(survey.users):,} evenly spaced"
    caption = (
        f"From the lists of {run.k} for {who} users. Nothing but the most popular items would be one "
        f"blue bar at the far right."
    )
    return Picture("users.png", png(figure), alt[0].upper() + alt[1:], caption)


def _recall_histogram(axes: Any, recall: Any, what: str) -> None:
    share = np.full(len(recall), 1 / len(recall))
    axes.hist(recall, np.linspace(0, 1, 21), weights=share, color=BLUE, ec="white")
    axes.axvline(recall.mean(), **DASHES, label=f"mean {recall.mean():.3f}")
    set_frame(axes, "How well users are served", what, "share of users")


def _popularity_bars(axes: Any, degrees: Any, recommended: Any) -> None:
    """Popularity has a long tail, so the classes widen."""
    edges = np.unique([0, *np.geomspace(1, degrees.max() + 1, 12).round().astype(int)])
    ranges = [(int(low), int(high) - 1) for low, high in itertools.pairwise(edges)]
    places = np.arange(len(ranges))
    for values, colour, label, shift in [
        (degrees[recommended], BLUE, "of recommendations", -0.2),
        (degrees, GREY, "of all items", 0.2),
    ]:
        share = np.histogram(values, [*edges[:-1], np.inf])[0] / max(len(values), 1)
        axes.bar(places + shift, share, 0.4, color=colour, label=label)
    names = [f"{low:,}" if low == high else f"{low:,}–{high:,}" for low, high in ranges]
    axes.set_xticks(places, names, rotation=35, ha="right", rotation_mode="anchor")
    set_frame(axes, "How popular recommended items are", "users who have the item", "share")
