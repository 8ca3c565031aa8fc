"""The demo's map: where a user went, what is recommended to them, and what of it they did visit."""

from typing import Any

import numpy as np

from fedgrec.core import Ints
from fedgrec.data.synthetic import Places
from fedgrec.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    LAND,
    LINE,
    RED,
    Picture,
    legend_below,
    new_figure,
    png,
    set_title,
)
from fedgrec.report.gather import Run, Sample

NUMBER: dict[str, Any] = {
    "ha": "center", "va": "center_baseline", "fontsize": 8.5, "color": "white", "fontweight": "bold",
}  # fmt: skip


def town_map(run: Run, places: Places, sample: Sample) -> Picture:
    """All towns, the user's own enlarged, and the recommendations by name."""
    xy = places.coordinates[run.at][:, ::-1]  # [N, 2] longitude, latitude
    person = int(run.model.user_ids[sample.user])
    home, town = places.user_coordinates[person][::-1], int(places.user_town[person])
    local = places.town[run.at] == town  # [N]
    relevant = np.concatenate([sample.seen, sample.shown, sample.hidden])
    low, high = _square(np.vstack([xy[relevant[local[relevant]]], home]))

    figure = new_figure(12.6, 5.4)
    whole, near, words = figure.subplots(1, 3, width_ratios=[3, 3, 2])
    words.set_box_aspect(3 / 2)  # as high as the square maps
    _country(whole, places, town)
    whole.add_patch(_box(low, high))
    _mark(whole, xy, run.model.item_degrees, sample, home, scale=0.22)
    _mark(near, xy, run.model.item_degrees, sample, home, scale=1.0, gap=0.052 * (high[0] - low[0]))
    for axes, corners in ((whole, _square(xy)), (near, (low, high))):
        axes.set(xticks=[], yticks=[], facecolor=LAND)
        axes.set(**{f"{name}lim": limits for name, limits in zip("xy", np.transpose(corners), strict=True)})
        axes.set_box_aspect(1)
        axes.spines[:].set_color(LINE)
    set_title(whole, "All towns")
    set_title(near, f"{places.town_names[town]}, around one user's home")
    _list(words, [places.names[place] for place in run.at[sample.shown]], sample)
    legend_below(figure, near, 6)

    away = int((~local[sample.shown]).sum())
    where = f" {away} of the {len(sample.shown)} recommended are in other towns." if away else ""
    caption = f"Grey dots are places, larger where more people go.{where} {sample.why}"
    alt = (
        f"Map of {len(places.town_names)} invented towns, and one of {places.town_names[town]} with the "
        f"home of user {person}, {len(sample.seen)} visited and {len(sample.shown)} recommended places, "
        f"{int(sample.hit.sum())} of them hits."
    )
    return Picture("map.png", png(figure), alt, caption)


def _country(axes: Any, places: Places, home_town: int) -> None:
    for town, name in enumerate(places.town_names):
        x, y = places.coordinates[places.town == town].T[::-1]
        weight = "bold" if town == home_town else "normal"
        style = {"ha": "center", "va": "bottom", "fontsize": 9, "color": INK, "fontweight": weight}
        axes.text(x.mean(), y.max() + 0.06, name, **style)


def _mark(axes: Any, xy: Any, degrees: Ints, sample: Sample, home: Any, scale: float, gap: float = 0.0) -> None:
    """Places by their role for this user; with a gap, recommended ones are numbered and moved apart."""
    missed = np.setdiff1d(sample.hidden, sample.shown)
    true = np.vstack([home, xy[sample.shown]])
    drawn = _apart(true, gap)

    def scatter(points: Any, size: Any, colour: str, label: str, edge: str = "white", **style: Any) -> None:
        style = {"lw": scale, **style}
        axes.scatter(*points.T, s=scale * size, color=colour, ec=edge, label=label, **style)

    scatter(xy, 6 + 2 * degrees, GREY, "a place", lw=0, alpha=0.55)
    scatter(xy[sample.seen], 60, BLUE, "visited, known to the model")
    scatter(xy[missed], 50, "white", "visited, hidden, not found", INK, marker="D")
    for spot, place in zip(drawn, true, strict=True):
        axes.plot(*np.stack([spot, place]).T, color=INK, lw=1.1 * scale, zorder=1)
    scatter(drawn[1:][~sample.hit], 190, RED, "recommended")
    scatter(drawn[1:][sample.hit], 190, GREEN, "recommended and visited: a hit")
    scatter(drawn[0], 420, INK, "home", marker="*")
    for rank, spot in enumerate(drawn[1:] if gap else [], 1):
        axes.text(*spot, str(rank), clip_on=True, **NUMBER)


def _list(axes: Any, names: list[str], sample: Sample) -> None:
    """The recommendations in words, so that the picture stands alone."""
    axes.set(xlim=(0, 1), ylim=(len(names), 0))
    axes.axis("off")
    set_title(axes, "Recommended")
    for rank, (name, hit) in enumerate(zip(names, sample.hit, strict=True), 1):
        y, weight = rank - 0.5, "bold" if hit else "normal"
        axes.scatter(0.05, y, s=190, color=GREEN if hit else RED, ec="white", lw=1)
        axes.text(0.05, y, str(rank), **NUMBER)
        axes.text(0.13, y, name, va="center_baseline", fontsize=10.5, color=INK, fontweight=weight)


def _apart(points: Any, gap: float) -> Any:
    """The points, moved until none is nearer than `gap` to another: markers shall not hide each other."""
    moved = points.astype(float)
    moved += 1e-6 * np.arange(len(moved))[:, None] * [1, -1]  # equal points need a direction to part in
    for _ in range(200):
        apart = moved[:, None] - moved[None]  # [n, n, 2]
        distance = np.linalg.norm(apart, axis=2) + np.eye(len(moved)) * (gap + 1)
        push = np.maximum(gap - distance, 0) / distance / 2
        moved += (apart * push[:, :, None]).sum(axis=1)
    return moved


def _square(points: Any) -> tuple[Any, Any]:
    """The lower and upper corner of a square around the points, with a margin."""
    middle, reach = (points.max(axis=0) + points.min(axis=0)) / 2, np.ptp(points, axis=0).max() / 2
    return middle - 1.12 * reach - 0.005, middle + 1.12 * reach + 0.005


def _box(low: Any, high: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(tuple(low), *(high - low), fill=False, ec=INK, lw=1)
