"""Maps of items that have places. All items are drawn here; page.js draws one person's items over them."""

from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Floats, Ints
from fedgrec.pages.report.charts import SHAPES, legend
from fedgrec.pages.report.gather import Run

SIDE = 10_000  # the side of the square map
SPOT = "M-10 0a10 10 0 1 0 20 0a10 10 0 1 0-20 0z"  # a circle with a number on it
SIZES = (5, 15, 40)  # a place with this many users is drawn one size larger
MEANINGS = {
    "known to the model": ("c0", "dot"),
    "hidden, not found": ("c4 hollow", "diamond"),
    "recommended": ("c1", "dot"),
    "recommended and hidden: a hit": ("c2", "dot"),
}


class Chart:
    """Where items are on the square, x to the right and y downwards; the demo also has towns and homes."""

    def __init__(self, run: Run, places: Floats) -> None:
        self.run, self.xy = run, places * run.names.scale  # [N, 2]
        self.towns = run.places if run.names.on_earth else None
        x, y = self.xy[np.isfinite(self.xy[:, 0])].T
        reach = 0.56 * max(np.ptp(x), np.ptp(y)) or 1.0
        self.left, self.top = (x.max() + x.min()) / 2 - reach, (y.max() + y.min()) / 2 + reach
        self.scale = SIDE / 2 / reach

    def on(self, xy: Any) -> Ints:
        """Positions on the square map, from places [n, 2]."""
        x, y = np.asarray(xy, np.float64).reshape(-1, 2).T
        placed: NDArray[np.float64] = np.stack([x - self.left, self.top - y], axis=1) * self.scale
        return placed.round().astype(np.int64)

    def item(self, item: int) -> list[int]:
        """An item's position and, in the demo, its town; empty for an item without a place."""
        if not np.isfinite(self.xy[item, 0]):
            return []
        town = [] if self.towns is None else [int(self.towns.town[self.run.model.item_ids[item]])]
        return [*self.on(self.xy[item])[0].tolist(), *town]

    def person(self, user: int) -> dict[str, Any]:
        if self.towns is None:
            return {}
        person = int(self.run.model.user_ids[user])
        home = self.on(self.towns.user_coordinates[person][::-1] * self.run.names.scale)[0].tolist()
        return {"home": home, "town": int(self.towns.user_town[person])}

    def about(self) -> dict[str, Any]:
        towns = [] if self.towns is None else list(self.towns.town_names)
        return {"side": SIDE, "towns": towns, "shapes": {**SHAPES, "spot": SPOT}}

    def html(self) -> str:
        """Two maps of the same items: the whole area, and one person's surroundings."""
        is_placed = np.isfinite(self.xy[:, 0])
        xy, degrees = self.on(self.xy[is_placed]), self.run.model.item_degrees[is_placed]
        size = np.searchsorted(SIZES, degrees, side="right")
        dots = "".join(
            f'<path class="size{n}" d="{"".join(f"M{x} {y}h0" for x, y in xy[size == n].tolist())}"/>\n'
            for n in range(len(SIZES) + 1)
            if (size == n).any()
        )
        title = "All items" if self.towns is None else "All towns"
        view = f'class="map" role="group" viewBox="0 0 {SIDE} {SIDE}"'
        home: dict[str, tuple[str, str]] = {} if self.towns is None else {"home": ("c4", "star")}
        return (
            f'<div class=panels>\n<figure><figcaption>{title}</figcaption>\n<svg id="country" aria-label="{title}" '
            f'{view}>\n<g id="places">{dots}</g>\n{self._town_names()}<g class="mine"></g>\n</svg></figure>\n'
            f"<figure><figcaption id=near-title>Around the person's items</figcaption>\n"
            f'<svg id="near" aria-label="Around the person\'s items" {view}>\n<use href="#places"/>\n'
            f'<g class="mine"></g>\n</svg></figure>\n</div>\n{legend(home | MEANINGS).svg()}'
            "<p class=note>Grey dots are items, larger where more people have them.</p>\n"
        )

    def _town_names(self) -> str:
        if self.towns is None:
            return ""
        of_item, names = self.towns.town[np.array(list(self.run.model.item_ids))], ""
        for town, name in enumerate(self.towns.town_names):
            if (of_item == town).any():
                x, y = self.on(self.xy[of_item == town]).T
                names += f'<text class="town" x="{x.mean():.0f}" y="{y.min() - 160}">{escape(name)}</text>\n'
        return names
