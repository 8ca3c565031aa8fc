"""The map of a run whose items have places: what a user has, what is recommended, and what of it was hidden."""

from dataclasses import dataclass
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

LONGEST = 34  # letters of a title beside the maps
MOST = 200  # what the most popular item adds to the size of a dot
NUMBER: dict[str, Any] = {
    "ha": "center", "va": "center_baseline", "fontsize": 8.5, "color": "white", "fontweight": "bold",
}  # fmt: skip


def item_map(run: Run, sample: Sample) -> Picture | None:
    """All items, the user's surroundings enlarged, and the recommendations by name; None: nothing of it has a place."""
    relevant = np.concatenate([sample.seen, sample.shown, sample.hidden])
    if run.names.places is None or not np.isfinite(run.names.places[relevant]).any():
        return None
    xy = run.names.places * run.names.scale  # [N, 2]
    towns = None if run.places is None or not run.names.on_earth else _Towns.of(run, run.places, sample, xy)
    local = _company(xy, relevant) if towns is None else towns.local  # [N]
    near_by = xy[relevant[local[relevant]]]
    low, high = _square(near_by if towns is None else np.vstack([near_by, towns.home]))

    figure = new_figure(12.6, 5.4)
    whole, near, words = figure.subplots(1, 3, width_ratios=[3, 3, 2])
    words.set_box_aspect(3 / 2)  # as high as the square maps
    if towns is not None:
        _label(whole, towns)
    whole.add_patch(_box(low, high))
    home = None if towns is None else towns.home
    _mark(whole, xy, run.model.item_degrees, sample, home, scale=0.22)
    _mark(near, xy, run.model.item_degrees, sample, home, scale=1.0, gap=0.052 * (high[0] - low[0]))
    for axes, corners in ((whole, _square(xy)), (near, (low, high))):
        axes.set(xticks=[], yticks=[], facecolor=LAND)
        axes.set(**{f"{name}lim": limits for name, limits in zip("xy", np.transpose(corners), strict=True)})
        axes.set_box_aspect(1)
        axes.spines[:].set_color(LINE)
    set_title(whole, "All items" if towns is None else "All towns")
    set_title(near, "Around one user's items" if towns is None else f"{towns.own}, around one user's home")
    _list(words, [run.names.title(item) for item in sample.shown.tolist()], sample)
    legend_below(figure, near, 6)

    away = int((~local[sample.shown]).sum())
    where = f" {away} of the {len(sample.shown)} recommended are farther away, or have no place." if away else ""
    caption = f"Grey dots are items, larger where more people have them.{where} {sample.why}"
    alt = (
        f"Map of all items, and one around user {run.model.user_ids[sample.user]}: {len(sample.seen)} known and "
        f"{len(sample.shown)} recommended items, {int(sample.hit.sum())} of them hits."
    )
    return Picture("map.png", png(figure), alt, caption)


@dataclass(frozen=True)
class _Towns:
    """What the demo's data knows besides where its items are."""

    home: Any  # [2] of the user
    own: str  # the user's town
    local: Any  # [N] whether an item is in that town
    labels: dict[str, Any]  # town → where its name stands

    @staticmethod
    def of(run: Run, places: Places, sample: Sample, xy: Any) -> "_Towns":
        at, person = np.array(list(run.model.item_ids), np.int64), int(run.model.user_ids[sample.user])
        town, own = places.town[at], int(places.user_town[person])
        home = places.user_coordinates[person][::-1] * run.names.scale
        spots = {name: xy[town == n] for n, name in enumerate(places.town_names) if (town == n).any()}
        labels = {name: (spot[:, 0].mean(), spot[:, 1].max() + 0.06) for name, spot in spots.items()}
        return _Towns(home, places.town_names[own], town == own, labels)


def _label(axes: Any, towns: _Towns) -> None:
    for name, (x, y) in towns.labels.items():
        weight = "bold" if name == towns.own else "normal"
        axes.text(x, y, name, ha="center", va="bottom", fontsize=9, color=INK, fontweight=weight)


def _company(xy: Any, relevant: Ints) -> Any:
    """The items within a tenth of the map of that relevant one that has the most relevant ones around it.  # [N]"""
    reach = np.ptp(xy[np.isfinite(xy[:, 0])], axis=0).max() / 10
    distance = np.linalg.norm(xy[relevant][:, None] - xy[relevant][None], axis=2)  # [n, n]
    centre = relevant[int((distance <= reach).sum(axis=1).argmax())]
    return np.linalg.norm(xy - xy[centre], axis=1) <= reach


def _mark(axes: Any, xy: Any, degrees: Ints, sample: Sample, home: Any, scale: float, gap: float = 0.0) -> None:
    """Items by their role for this user; with a gap, recommended ones are numbered and moved apart."""
    missed = np.setdiff1d(sample.hidden, sample.shown)
    on_map = np.isfinite(xy[sample.shown, 0])
    hit, ranks = sample.hit[on_map], np.flatnonzero(on_map) + 1
    true = xy[sample.shown[on_map]] if home is None else np.vstack([xy[sample.shown[on_map]], home])
    drawn = _apart(true, gap)

    def scatter(points: Any, size: Any, colour: str, label: str, edge: str = "white", **style: Any) -> None:
        style = {"lw": scale, **style}
        axes.scatter(*points.T, s=scale * size, color=colour, ec=edge, label=label, **style)

    scatter(xy, 6 + MOST * degrees / max(degrees.max(), 1), GREY, "an item", lw=0, alpha=0.55)
    scatter(xy[sample.seen], 60, BLUE, "known to the model")
    scatter(xy[missed], 50, "white", "hidden, not found", INK, marker="D")
    for spot, place in zip(drawn, true, strict=True):
        axes.plot(*np.stack([spot, place]).T, color=INK, lw=1.1 * scale, zorder=1)
    scatter(drawn[: len(ranks)][~hit], 190, RED, "recommended")
    scatter(drawn[: len(ranks)][hit], 190, GREEN, "recommended and hidden: a hit")
    if home is not None:
        scatter(drawn[-1], 420, INK, "home", marker="*")
    for rank, spot in zip(ranks, drawn, strict=False) if gap else ():
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
        axes.text(
            0.13,
            y,
            name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…",
            va="center_baseline",
            fontsize=10.5,
            color=INK,
            fontweight=weight,
        )


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
    points = points[np.isfinite(points[:, 0])]
    middle, reach = (points.max(axis=0) + points.min(axis=0)) / 2, np.ptp(points, axis=0).max() / 2
    return middle - 1.12 * reach - 0.005, middle + 1.12 * reach + 0.005


def _box(low: Any, high: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(tuple(low), *(high - low), fill=False, ec=INK, lw=1)
