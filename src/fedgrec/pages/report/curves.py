"""The charts of a run's report: how it learned, and how good its users' lists are."""

import itertools

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Ints
from fedgrec.pages.report import charts
from fedgrec.pages.report.charts import LEFT, RIGHT, Axis, Figure, Panel, Series, legend, plot
from fedgrec.pages.report.gather import Run, Survey


def learning(run: Run) -> Figure:
    """Recall and NDCG against rounds."""
    judge, chosen = run.metrics[0]["split"], run.model.round
    judged = [line for line in run.metrics if line["split"] == judge]
    final = [line for line in run.metrics if line["split"] != judge]  # under `honest`, the one evaluation on test
    panels, entries = [], {f"selected: round {chosen:,}": ("mean", "")}
    for title in ("Recall", "NDCG"):
        series = []
        for i, k in enumerate(run.config.run.topk):
            key, look = f"{title.lower()}@{k}", charts.style(i)
            name, once = f"@{k} on {judge}", f"@{k} on {final[0]['split']}, looked at once" if final else ""
            series.append(Series(name, [(line["round"], line[key]) for line in judged], look, mark="dot"))
            entries[name] = look, ""
            if final:
                points = [(line["round"], line[key]) for line in final]
                series.append(Series(once, points, look, line=False, mark="star"))
                entries[once] = look, "star"
        panels.append(plot(title, "round", series, marked=chosen))
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
    return Figure("curves", panels, caption, legend(entries))


def lists(run: Run, survey: Survey) -> Figure:
    """How much recall differs between users, and whether the lists hold more than popular items."""
    panels, entries = [], {"of recommendations": ("c0", "dot"), "of all items": ("guess", "dot")}
    if any(map(len, survey.hidden)):
        recall = survey.recall(run.k)
        panels.append(_recall_histogram(recall, f"a user's Recall@{run.k}"))
        entries[f"mean {recall.mean():.3f}"] = "mean", ""
    shown = survey.lists[:, : run.k]
    panels.append(_popularity(run.model.item_degrees, shown[shown >= 0]))
    who = f"all {len(survey.users):,}" if survey.everyone else f"{len(survey.users):,} evenly spaced"
    caption = (
        f"From the lists of {run.k} for {who} users. Nothing but the most popular items would be one "
        f"coloured column at the far right."
    )
    return Figure("users", panels, caption, legend(entries))


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def _recall_histogram(recall: NDArray[np.float64], what: str) -> Panel:
    share = np.histogram(recall, np.linspace(0, 1, 21))[0] / len(recall)

    def said(i: int) -> str:
        return f"{what}: {i / 20:.2f} to {(i + 1) / 20:.2f}"

    title, across = "How well users are served", Axis(0.0, 1.0, LEFT, RIGHT)
    return charts.columns(title, across, what, {"of users": share.tolist()}, _share, said, marked=float(recall.mean()))


def _popularity(degrees: Ints, recommended: Ints) -> Panel:
    """Items by popularity, in classes that widen, because popularity has a long tail."""
    edges = np.unique([0, *np.geomspace(1, degrees.max() + 1, 12).round().astype(int)])
    names = [
        charts.plain(low) if high == low + 1 else f"{low:,}–{high - 1:,}"
        for low, high in itertools.pairwise(edges.tolist())
    ]
    parts = {}
    for name, values in (("of recommendations", degrees[recommended]), ("of all items", degrees)):
        share = np.histogram(values, [*edges[:-1], np.inf])[0] / max(len(values), 1)
        parts[name] = share.tolist()
    title, what = "How popular recommended items are", "users who have the item"
    return charts.columns(
        title, charts.categories(names, LEFT, RIGHT), what, parts, _share, lambda i: f"{names[i]} {what}"
    )
