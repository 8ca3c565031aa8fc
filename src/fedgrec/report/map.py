"""The demo's map: all places, drawn here; what one person has and gets is drawn over them by page.js."""

from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.core import Ints
from fedgrec.data.synthetic import Places
from fedgrec.report.charts import SHAPES, legend
from fedgrec.report.gather import Run

SIDE = 10_000  # of the square map
SPOT = "M-10 0a10 10 0 1 0 20 0a10 10 0 1 0-20 0z"  # with a number on it
SIZES = (5, 15, 40)  # users from which on a place is drawn larger, and still larger
MEANINGS = {
    "home": ("c4", "star"),
    "visited, known to the model": ("c0", "dot"),
    "visited, hidden, not found": ("c4 hollow", "diamond"),
    "recommended": ("c1", "dot"),
    "recommended and visited: a hit": ("c2", "dot"),
}


class Chart:
    """Where places and homes are on the square, x to the right and y downwards."""

    def __init__(self, run: Run, places: Places) -> None:
        self.run, self.places = run, places
        x, y = places.coordinates[:, 1], places.coordinates[:, 0]  # longitude, latitude
        reach = 0.56 * max(np.ptp(x), np.ptp(y)) + 0.005
        self.left, self.top, self.scale = (
            (x.max() + x.min()) / 2 - reach,
            (y.max() + y.min()) / 2 + reach,
            SIDE / 2 / reach,
        )

    def on(self, coordinates: Any) -> Ints:
        """[n, 2] latitude and longitude → places on the square."""
        y, x = np.asarray(coordinates, np.float64).reshape(-1, 2).T
        placed: NDArray[np.float64] = np.stack([x - self.left, self.top - y], axis=1) * self.scale
        return placed.round().astype(np.int64)

    def item(self, item: int) -> list[int]:
        place = int(self.run.at[item])
        return [*self.on(self.places.coordinates[place])[0].tolist(), int(self.places.town[place])]

    def person(self, user: int) -> dict[str, Any]:
        person = int(self.run.model.user_ids[user])
        home = self.on(self.places.user_coordinates[person])[0].tolist()
        return {"home": home, "town": int(self.places.user_town[person])}

    def about(self) -> dict[str, Any]:
        return {"side": SIDE, "towns": list(self.places.town_names), "shapes": {**SHAPES, "spot": SPOT}}

    def html(self) -> str:
        """Two maps of the same places: of all towns, and of one person's surroundings."""
        xy = self.on(self.places.coordinates[self.run.at])
        size = np.searchsorted(SIZES, self.run.model.item_degrees, side="right")
        dots = "".join(
            f'<path class="size{n}" d="{"".join(f"M{x} {y}h0" for x, y in xy[size == n].tolist())}"/>\n'
            for n in range(len(SIZES) + 1)
            if (size == n).any()
        )
        names = ""
        for town, name in enumerate(self.places.town_names):
            x, y = self.on(self.places.coordinates[self.places.town == town]).T
            names += f'<text class="town" x="{x.mean():.0f}" y="{y.min() - 160}">{escape(name)}</text>\n'
        view = f'class="map" role="group" viewBox="0 0 {SIDE} {SIDE}"'
        return (
            f'<div class=panels>\n<figure><figcaption>All towns</figcaption>\n<svg id="country" aria-label="All towns" '
            f'{view}>\n<g id="places">{dots}</g>\n{names}<g class="mine"></g>\n</svg></figure>\n'
            f"<figure><figcaption id=near-title>Around the person's home</figcaption>\n"
            f'<svg id="near" aria-label="Around the person\'s home" {view}>\n<use href="#places"/>\n'
            f'<g class="mine"></g>\n</svg></figure>\n</div>\n{legend(MEANINGS).svg()}'
            "<p class=note>Grey dots are places, larger where more people go.</p>\n"
        )
