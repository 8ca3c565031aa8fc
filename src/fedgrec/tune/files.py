"""What a search leaves beside its trials: the best options, a list, a picture."""

import math
from pathlib import Path
from typing import Any

from fedgrec.compare.tables import number
from fedgrec.errors import FedgrecError
from fedgrec.files import write_bytes, write_text
from fedgrec.report.drawing import (
    BLUE,
    GREY,
    INK,
    RED,
    Picture,
    legend_below,
    new_figure,
    png,
    require,
    set_frame,
)
from fedgrec.reproduce.grid import Grid, csv
from fedgrec.tune.search import Search
from fedgrec.tune.study import Found, Tried, other_metric

BEST, TRIALS, PICTURE = "best.toml", "trials.csv", "trials.png"
SHOWN = 10


def write(found: Found, folder: Path) -> str:
    """best.toml, trials.csv and a picture; returns why there is no picture, if so."""
    write_text(folder / TRIALS, csv([_record(trial, found.request.metric) for trial in found.trials]))
    if found.best is None:
        return ""
    write_text(folder / BEST, found.request.subject.toml(typed(found, found.best)))
    try:
        write_bytes(folder / PICTURE, picture(found).png)
    except FedgrecError as error:
        return str(error)
    return ""


def typed(found: Found, trial: Tried) -> dict[str, Any]:
    """A trial's values as the options take them."""
    choices = {search.key: dict(search.choices) for search in found.request.searches if search.choices}
    return {key: choices[key][value] if key in choices else value for key, value in trial.values.items()}


def grid(found: Found) -> Grid:
    """The best trials, and how the others ended."""
    request, best = found.request, found.best
    keys, metric = [search.key for search in request.searches], request.metric
    ranked = found.ranked
    rows = [
        [str(t.number), number(t.value, ".4f"), f"{t.round:,}", *(_said(t.values[key]) for key in keys)]
        for t in ranked[:SHOWN]
    ]
    counts = [f"{sum(t.state == state for t in found.trials)} {state}" for state in ("complete", "pruned", "failed")]
    notes = [f"{len(found.trials)} of {request.trials} trials: {', '.join(counts)}."]
    notes.append("Judged on validation items; test items were taken away before the first trial.")
    notes += filter(None, [told_apart(found)])
    failed = [t for t in found.trials if t.failure]
    if failed:
        notes.append(f"Trial {failed[0].number} failed: {failed[0].failure}")
    title = (
        f"{request.subject.method} on {request.subject.dataset.name}: the best of {len(ranked)}" if best else "No trial"
    )
    return Grid(title, ["trial", metric, "round", *keys], rows, notes)


def told_apart(found: Found) -> str:
    """A sentence where the metric does not tell the best trials apart, or nothing.

    A user's metric lies between 0 and 1, so with mean p over n users its standard error is at most √(p(1−p)/n).
    """
    ranked, metric = found.ranked, found.request.metric
    if len(ranked) < 2:
        return ""
    best, next_one = ranked[0].value or 0.0, f"They are ranked by {other_metric(metric)}, then by the earlier round."
    equal = sum(t.value == ranked[0].value for t in ranked)
    if equal == len(ranked):
        most = ", the most there is" if best >= 1 else ""
        return f"All {equal} trials have {metric} {best:.4f}{most}: it chooses nothing here. {next_one}"
    if users := ranked[0].users:
        error = math.sqrt(best * (1 - best) / users)
        near = sum(best - (t.value or 0.0) <= error for t in ranked)
        if near > equal:
            return (
                f"{near} trials are within one standard error of the best (at most {error:.4f} for the mean over "
                f"{users:,} users): these validation items do not tell them apart."
            )
    return f"{equal} trials share the best {metric}, {best:.4f}. {next_one}" if equal > 1 else ""


def picture(found: Found) -> Picture:
    """How the search went, and each option's values against the metric."""
    require()
    searches, metric = found.request.searches, found.request.metric
    columns = min(3, 1 + len(searches))
    lines = -(-(1 + len(searches)) // columns)
    figure = new_figure(3.9 * columns, 3.3 * lines + 0.5)
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    _history(panels[0], found)
    for axes, search in zip(panels[1:], searches, strict=False):
        _against(axes, search, found)
    for axes in panels[1 + len(searches) :]:
        axes.set_visible(False)
    legend_below(figure, panels[0], 4)
    caption = f"{metric} on validation items, of every trial's best evaluation."
    return Picture(PICTURE, png(figure), f"{metric} of {len(found.trials)} trials, in order and by option.", caption)


def _history(axes: Any, found: Found) -> None:
    done = [t for t in found.trials if t.value is not None]
    _dots(axes, [(t.number, t) for t in done])
    best, steps = 0.0, []
    for t in done:
        best = max(best, t.value or 0.0) if t.state == "complete" else best
        steps.append((t.number, best))
    axes.step(*zip(*[s for s in steps if s[1]], strict=True), where="post", color=INK, lw=1.2, label="best so far")
    set_frame(axes, found.request.metric, "trial")


def _against(axes: Any, search: Search, found: Found) -> None:
    words = [word for word, _ in search.choices]
    places = [(words.index(t.values[search.key]) if words else t.values[search.key], t) for t in found.trials]
    _dots(axes, [(place, t) for place, t in places if t.value is not None])
    set_frame(axes, search.key, "")
    if words:
        axes.set_xticks(range(len(words)), words)
        axes.set_xlim(-0.5, len(words) - 0.5)
    elif search.log:
        axes.set_xscale("log")
    elif isinstance(search.low, int):
        axes.xaxis.get_major_locator().set_params(integer=True)


def _dots(axes: Any, points: list[tuple[Any, Tried]]) -> None:
    for state, colour, face in (("complete", BLUE, BLUE), ("pruned", GREY, "none")):
        some = [(x, t.value) for x, t in points if t.state == state]
        if some:
            axes.plot(*zip(*some, strict=True), "o", mec=colour, mfc=face, ms=5, label=state)
    top = min((p for p in points if p[1].state == "complete"), key=lambda p: p[1].rank)
    axes.plot(top[0], top[1].value, "*", color=RED, ms=13, label="best")


def _record(trial: Tried, metric: str) -> dict[str, Any]:
    found = {"trial": trial.number, "state": trial.state, metric: trial.value, other_metric(metric): trial.second}
    found |= {"users": trial.users, "round": trial.round}
    return found | {"seconds": trial.seconds, **trial.values, "failure": trial.failure}


def _said(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
