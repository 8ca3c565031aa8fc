"""Charts as SVG: panels for a page, where mouse and keyboard show their values, and whole files for documents.

A panel is 400 units wide, so that its text can be read on a phone; a page puts panels side by side. Colours are classes
that charts.css defines for light and dark.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import NamedTuple

WIDTH, LETTER = 400, 7.0  # the width of a panel; the average width of a letter
LEFT, RIGHT, TOP, BOTTOM = 52, 388, 34, 44  # where the plot begins and ends; room above and below it
PLOT = 190  # its height
ROW = 34  # the height of a row in a chart of dots
COLOURS, DASHES = 6, 3  # classes c0, c1, ... and d0, d1, ... of charts.css
SHAPES = {
    "dot": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "diamond": "M0-5.5L5.5 0L0 5.5L-5.5 0z",
    "star": "M0-8.5L2.2-2.9L8.1-2.6L3.5 1.1L5 6.9L0 3.6L-5 6.9L-3.5 1.1L-8.1-2.6L-2.2-2.9z",
}
Form = Callable[[float], str]


def style(i: int) -> str:
    """The look of the i-th of several lines: colours first, then dashes."""
    return f"c{i % COLOURS} d{i // COLOURS % DASHES}"


def plain(value: float) -> str:
    return f"{value:,.6g}"


def metric(value: float) -> str:
    return f"{value:.4f}"


class Panel(NamedTuple):
    label: str  # the text for screen readers
    height: float
    body: str
    kind: str = "chart"

    def svg(self, place: str = "") -> str:
        return (
            f'<svg class="{self.kind}" role="group" aria-label="{escape(self.label)}" {place}'
            f'viewBox="0 0 {WIDTH} {self.height:.0f}">\n{self.body}</svg>\n'
        )


@dataclass(frozen=True)
class Figure:
    """Panels, their caption, and a legend of their colours."""

    name: str  # of its file
    panels: Sequence[Panel]
    caption: str
    legend: Panel | None = None

    def html(self) -> str:
        panels = "".join(panel.svg() for panel in self.panels)
        legend = self.legend.svg() if self.legend else ""
        below = f"{legend}<figcaption>{escape(self.caption)}</figcaption>"
        return f"<figure>\n<div class=panels>\n{panels}</div>\n{below}</figure>\n"

    def file(self) -> str:
        """The whole figure as one SVG file, two panels side by side."""
        columns, y, parts = min(2, len(self.panels)), 0.0, []
        for start in range(0, len(self.panels), columns):
            some = self.panels[start : start + columns]
            parts += [_placed(panel, i * (WIDTH + 20), y) for i, panel in enumerate(some)]
            y += max(panel.height for panel in some)
        if self.legend:
            parts.append(_placed(self.legend, 0, y))
            y += self.legend.height
        size = f'viewBox="-10 -10 {columns * (WIDTH + 20)} {y + 20:.0f}" width="{columns * 480}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="file" {size}>\n<title>{escape(self.caption)}</title>\n'
            f"<style>\n{own_file('charts.css')}</style>\n{''.join(parts)}</svg>\n"
        )


def _placed(panel: Panel, x: float, y: float) -> str:
    return panel.svg(f'x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{panel.height:.0f}" ')


def own_file(name: str) -> str:
    """What lies beside this module: styles, scripts, and frames with places for `str.format`."""
    return (resources.files("fedgrec.pages.report") / name).read_text("utf-8")


# --------------------------------------------------------------------------------------------------- axes


@dataclass(frozen=True)
class Axis:
    """From numbers to places; `start` and `end` are the places of `low` and `high`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    names: Sequence[str] = ()  # texts at 0, 1, 2, ..., instead of numbers

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, most: int = 5) -> Iterable[float]:
        if self.names:
            return range(len(self.names))
        if self.log:
            powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            return [10.0**power for power in powers[:: math.ceil(len(powers) / most)]]
        step = _step((self.high - self.low) / most)
        return [step * i for i in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)]

    def said(self, value: float) -> str:
        return self.names[int(value)] if self.names else plain(value)


def _step(least: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= least * (1 - 1e-9))


def axis(values: Sequence[float], start: float, end: float, log: bool = False, zero: bool = True) -> Axis:
    """An axis with room for all values: from 0 on, or between powers of ten."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if log:
        low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** (math.floor(math.log10(high)) + 1)
        return Axis(low, high, start, end, log=True)
    low = min(low, 0.0) if zero else low - (high - low) * 0.05
    return Axis(low, low + 1.0 if high <= low else high + (high - low) * 0.05, start, end)


def categories(names: Sequence[str], start: float, end: float) -> Axis:
    return Axis(-0.5, len(names) - 0.5, start, end, names=names)


def _frame(title: str, x: Axis, y: Axis, x_label: str, y_form: Form = plain) -> tuple[str, float]:
    """Title, grid and ticks; also returns the height of the space under the plot."""
    parts = [f'<text class="title" x="0" y="16">{escape(title)}</text>\n']
    for value in y.ticks():
        at = y.at(value)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{RIGHT}"/>')
        parts.append(f'<text class="end" x="{LEFT - 6}" y="{at + 4:.1f}">{escape(y_form(value))}</text>\n')
    ticks = [(x.at(value), x.said(value)) for value in x.ticks()]
    longest = max((len(text) for _, text in ticks), default=0)
    slanted = longest * LETTER > (RIGHT - LEFT) / max(len(ticks), 1)
    below = y.start + 18
    for at, text in ticks:
        turned = f' transform="rotate(-40 {at:.1f} {below - 4:.1f})"' if slanted else ""
        side = "end" if slanted else "middle"
        parts.append(f'<text class="{side}" x="{at:.1f}" y="{below:.1f}"{turned}>{escape(text)}</text>\n')
    room = BOTTOM + (longest * LETTER * 0.64 if slanted else 0)
    if x_label:
        at = y.start + room - 6
        parts.append(f'<text class="middle" x="{(LEFT + RIGHT) / 2:.0f}" y="{at:.1f}">{escape(x_label)}</text>\n')
    return "".join(parts), room


def _shape(kind: str, look: str, x: float, y: float) -> str:
    return f'<path class="{look}" d="{SHAPES[kind]}" transform="translate({x:.1f} {y:.1f})"/>\n'


def _tip(text: str, first: bool, x: float, y: float, width: float, height: float) -> str:
    """An area that shows its values; the Tab key reaches the first one of a panel, arrow keys the others."""
    return (
        f'<rect class="tip" role="img" aria-label="{escape(text)}" tabindex="{0 if first else -1}" '
        f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>\n'
    )


# ------------------------------------------------------------------------------------------------- panels


@dataclass(frozen=True)
class Series:
    """Points in order of x: a line through them, marks on them, a band around them. Or one level for every x."""

    name: str
    points: Sequence[tuple[float, float]]
    look: str
    line: bool = True
    mark: str = ""  # a name in SHAPES
    band: Sequence[tuple[float, float]] = ()  # lowest and highest y of each point
    level: float | None = None


def plot(
    title: str,
    x_label: str,
    series: Sequence[Series],
    marked: float | None = None,
    log: bool = False,
    names: Sequence[str] = (),
    zero: bool = True,
) -> Panel:
    """Lines and dots over numbers, or over `names`; `marked` is an x with a dashed line."""
    xs = [x for one in series for x, _ in one.points]
    levels = [(one, one.level) for one in series if one.level is not None]
    ys = [y for one in series for y in (*(y for _, y in one.points), *itertools.chain(*one.band))]
    across = categories(names, LEFT, RIGHT) if names else axis(xs, LEFT, RIGHT, log, zero)
    up = axis([*ys, *(y for _, y in levels)], TOP + PLOT, TOP)
    frame, room = _frame(title, across, up, x_label)
    parts = [frame]
    parts += [f'<path class="line thin {one.look}" d="M{LEFT} {up.at(y):.1f}H{RIGHT}"/>\n' for one, y in levels]
    if marked is not None:
        at = across.at(marked)
        parts.append(f'<path class="mean" d="M{at:.1f} {TOP}V{TOP + PLOT}"/>\n')
    for one in series:
        places = [(across.at(x), up.at(y)) for x, y in one.points]
        if one.band:
            edges = [(x, up.at(low)) for (x, _), (low, _) in zip(places, one.band, strict=True)]
            edges += [(x, up.at(high)) for (x, _), (_, high) in reversed([*zip(places, one.band, strict=True)])]
            parts.append(f'<path class="band {one.look}" d="{_path(edges)}z"/>\n')
        if one.line and len(places) > 1:
            parts.append(f'<path class="line {one.look}" d="{_path(places)}"/>\n')
        for x, y in places if one.mark or len(places) == 1 else []:
            parts.append(_shape(one.mark or "dot", one.look, x, y))
    stops = sorted(set(xs))
    ends = [LEFT, *((across.at(a) + across.at(b)) / 2 for a, b in itertools.pairwise(stops)), RIGHT]
    for i, value in enumerate(stops):
        said = [f"{x_label or title} {across.said(value)}"]
        said += [f"{one.name}: {metric(y)}" for one in series for x, y in one.points if x == value]
        said += [f"{one.name}: {metric(y)}" for one, y in levels]
        parts.append(_tip("\n".join(said), not i, ends[i], TOP, ends[i + 1] - ends[i], PLOT))
    return Panel(title, TOP + PLOT + room, "".join(parts))


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def columns(
    title: str,
    x: Axis,
    x_label: str,
    parts: Mapping[str, Sequence[float]],
    form: Form,
    said: Sequence[str],
    marked: float | None = None,
) -> Panel:
    """Columns side by side in classes of the same width, whose names are `said`."""
    count = len(next(iter(parts.values())))
    up = axis([value for values in parts.values() for value in values], TOP + PLOT, TOP)
    frame, room = _frame(title, x, up, x_label, form)
    drawn, step = [frame], (RIGHT - LEFT) / count
    width = 0.86 * step / len(parts)
    for n, (look, values) in enumerate(zip(("c0", "guess"), parts.values(), strict=False)):
        for i, value in enumerate(values):
            at, y = LEFT + (i + 0.07) * step + n * width, up.at(value)
            height = up.start - y
            drawn.append(f'<rect class="{look}" x="{at:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>\n')
    if marked is not None:
        drawn.append(f'<path class="mean" d="M{x.at(marked):.1f} {TOP}V{TOP + PLOT}"/>\n')
    for i in range(count):
        text = [said[i], *(f"{name}: {form(values[i])}" for name, values in parts.items())]
        drawn.append(_tip("\n".join(text), not i, LEFT + i * step, TOP, step, PLOT))
    return Panel(title, TOP + PLOT + room, "".join(drawn))


class Mark(NamedTuple):
    """A value of a row, with its interval."""

    name: str
    value: float
    look: str
    shape: str = "dot"
    half: float | None = None


def dots(
    title: str, rows: Sequence[tuple[str, Sequence[Mark]]], form: Form = metric, log: bool = False, unit: Form = plain
) -> Panel:
    """A row for each name. The name stands above its marks, so that long names fit."""
    ends = [v for _, marks in rows for m in marks for v in (m.value - (m.half or 0), m.value + (m.half or 0))]
    across, height = axis(ends, 16, WIDTH - 24, log), TOP + ROW * len(rows)
    parts = [f'<text class="title" x="0" y="16">{escape(title)}</text>\n']
    for value in across.ticks():
        at = across.at(value)
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{height}"/>')
        parts.append(f'<text class="middle" x="{at:.1f}" y="{height + 16}">{escape(unit(value))}</text>\n')
    for i, (name, marks) in enumerate(rows):
        y = TOP + ROW * i + 24
        parts.append(f'<text class="name" x="0" y="{y - 11}">{escape(name)}</text>\n')
        for mark in marks:
            at = across.at(mark.value)
            if mark.half:
                low, high = across.at(mark.value - mark.half), across.at(mark.value + mark.half)
                parts.append(
                    f'<path class="line {mark.look}" d="M{low:.1f} {y}H{high:.1f}m0-4v8M{low:.1f} {y - 4}v8"/>\n'
                )
            parts.append(_shape(mark.shape, mark.look, at, y))
        said = [f"{mark.name}: {form(mark.value)}{f' ± {form(mark.half)}' if mark.half else ''}" for mark in marks]
        parts.append(_tip("\n".join([name, *said]), not i, 0, y - 24, WIDTH, ROW))
    return Panel(title, height + 26, "".join(parts))


def legend(entries: Mapping[str, tuple[str, str]]) -> Panel:
    """Name → look and shape ('' for a line), in as many lines as needed."""
    parts, x, y = [], 0.0, 18.0
    for name, (look, shape) in entries.items():
        width = 44 + len(name) * LETTER
        if x and x + width > WIDTH:
            x, y = 0.0, y + 20
        swatch = (
            _shape(shape, look, x + 9, y - 4) if shape else f'<path class="line {look}" d="M{x:.0f} {y - 4:.0f}h20"/>\n'
        )
        parts.append(f'{swatch}<text x="{x + 25:.0f}" y="{y:.0f}">{escape(name)}</text>\n')
        x += width
    return Panel("Legend", y + 10, "".join(parts), "chart legend")
