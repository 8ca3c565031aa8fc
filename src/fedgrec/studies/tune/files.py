"""What a search leaves beside its trials: the best options, a list, a page."""

import math
from pathlib import Path
from typing import Any

from fedgrec.data.files import write_text
from fedgrec.pages.report import page
from fedgrec.pages.report.charts import Figure, Panel, Series, legend, plot
from fedgrec.pages.tables import Cell, Grid, csv, html, number
from fedgrec.studies.tune.search import Search
from fedgrec.studies.tune.study import Found, Tried, other_metric

BEST, TRIALS, PAGE = "best.toml", "trials.csv", "trials.html"
SHOWN = 10
STATES = {"complete": ("c0", "dot"), "pruned": ("guess hollow", "dot"), "best": ("c1", "star")}
SO_FAR = {"best so far": ("c4", "")}


def write(found: Found, folder: Path) -> None:
    """best.toml, trials.csv and a page."""
    write_text(folder / TRIALS, csv([_record(trial, found.request.metric) for trial in found.trials]))
    if found.best is None:
        return
    write_text(folder / BEST, found.request.subject.toml(typed(found, found.best)))
    whole = grid(found, most=len(found.trials))
    sections = [("How the search went", figure(found).html()), ("Trials", html(whole))]
    write_text(folder / PAGE, page.render(whole.title, "Judged on validation items.", sections))


def typed(found: Found, trial: Tried) -> dict[str, Any]:
    """A trial's values as the options take them."""
    choices = {search.key: dict(search.choices) for search in found.request.searches if search.choices}
    return {key: choices[key][value] if key in choices else value for key, value in trial.values.items()}


def grid(found: Found, most: int = SHOWN) -> Grid:
    """The best trials, and how the others ended."""
    request, ranked = found.request, found.ranked
    keys, metric = [search.key for search in request.searches], request.metric
    rows = [
        [str(t.number), number(t.value, ".4f"), f"{t.round:,}", *(_cell(t.values[key]) for key in keys)]
        for t in ranked[:most]
    ]
    counts = [f"{sum(t.state == state for t in found.trials)} {state}" for state in ("complete", "pruned", "failed")]
    notes = [f"{len(found.trials)} of {request.trials} trials: {', '.join(counts)}."]
    notes.append("Judged on validation items; test items were taken away before the first trial.")
    notes += filter(None, [told_apart(found)])
    failed = [t for t in found.trials if t.failure]
    if failed:
        notes.append(f"Trial {failed[0].number} failed: {failed[0].failure}")
    title = f"{request.subject.config.method} on {request.subject.dataset.name}: the best of {len(ranked)}"
    return Grid(title if ranked else "No trial", ["trial", metric, "round", *keys], rows, notes)


def told_apart(found: Found) -> str:
    """A sentence where the metric does not tell the best trials apart, or nothing."""
    ranked, metric = found.ranked, found.request.metric
    if len(ranked) < 2:
        return ""
    best, next_one = ranked[0].value or 0.0, f"They are ranked by {other_metric(metric)}, then by the earlier round."
    equal = sum(t.value == ranked[0].value for t in ranked)
    if equal == len(ranked):
        most = ", the most there is" if best >= 1 else ""
        return f"All {equal} trials have {metric} {best:.4f}{most}: it chooses nothing here. {next_one}"
    if users := ranked[0].users:
        error = math.sqrt(best * (1 - best) / users)  # the most that it is where a user's metric is from 0 to 1
        near = sum(best - (t.value or 0.0) <= error for t in ranked)
        if near > equal:
            return (
                f"{near} trials are within one standard error of the best (at most {error:.4f} for the mean over "
                f"{users:,} users): these validation items do not tell them apart."
            )
    return f"{equal} trials share the best {metric}, {best:.4f}. {next_one}" if equal > 1 else ""


def figure(found: Found) -> Figure:
    """How the search went, and each option's values against the metric."""
    metric = found.request.metric
    panels = [_history(found), *(_against(search, found) for search in found.request.searches)]
    return Figure(
        "trials", panels, f"{metric} on validation items, of every trial's best evaluation.", legend(STATES | SO_FAR)
    )


def _history(found: Found) -> Panel:
    done = [t for t in found.trials if t.value is not None]
    best, steps = 0.0, []
    for t in done:
        best = max(best, t.value or 0.0) if t.state == "complete" else best
        steps.append((t.number, best))
    line = Series("best so far", [step for step in steps if step[1]], SO_FAR["best so far"][0])
    return plot(found.request.metric, "trial", [line, *_dots(found, [(t.number, t) for t in done])])


def _against(search: Search, found: Found) -> Panel:
    words = [word for word, _ in search.choices]
    places = [(words.index(t.values[search.key]) if words else t.values[search.key], t) for t in found.trials]
    points = _dots(found, [(place, t) for place, t in places if t.value is not None])
    return plot(search.key, "", points, log=search.log, names=words, zero=False)


def _dots(found: Found, points: list[tuple[Any, Tried]]) -> list[Series]:
    series = []
    for state, (look, shape) in STATES.items():
        mine = [(x, t.value or 0.0) for x, t in points if t.state == state or (state == "best" and t == found.best)]
        series.append(Series(state, sorted(mine), look, line=False, mark=shape))
    return [one for one in series if one.points]


def _record(trial: Tried, metric: str) -> dict[str, Any]:
    found = {"trial": trial.number, "state": trial.state, metric: trial.value, other_metric(metric): trial.second}
    found |= {"users": trial.users, "round": trial.round}
    return found | {"seconds": trial.seconds, **trial.values, "failure": trial.failure}


def _cell(value: Any) -> Cell:
    return Cell(f"{value:.4g}", value) if isinstance(value, float) else Cell(str(value))
