"""Titles and places of items: from a CSV, from a run's folder, or the demo's own.

    item,title,latitude,longitude
    book-3,The Sea,52.1,4.3

Everything that shows items calls `names_of`. Items without a title are shown by their ids.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedgrec.cable.core import Floats
from fedgrec.data import IdMap, Interactions
from fedgrec.data.files import write_text
from fedgrec.data.readers import ALIASES
from fedgrec.data.synthetic import N_ITEMS, demo
from fedgrec.data.text_tables import Table, read_header, read_rows, spelled
from fedgrec.errors import DataError

KEPT = "item-names.csv"  # in a run's folder
# Names that a column goes by, compared in lower case without underscores and spaces.
COLUMNS = {
    "item": (*ALIASES["item"], "id"),
    "title": ("title", "name", "itemname", "itemtitle"),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "lon", "lng", "long"),
    "x": ("x",),
    "y": ("y",),
}
LIMITS = {"latitude": 90.0, "longitude": 180.0}


@dataclass(frozen=True, eq=False)
class ItemNames:
    """Titles and places of a model's items, by their index."""

    ids: IdMap
    titles: Sequence[str]  # [N]; "" where there is none
    places: Floats | None = None  # [N, 2] longitude and latitude, or x and y; NaN where an item has none
    on_earth: bool = False  # whether places are degrees
    note: str = ""  # a sentence about rows for unknown items

    def title(self, item: int) -> str:
        return self.titles[item] or str(self.ids[item])

    def title_and_id(self, item: int) -> str:
        """Title and id, for people who may type the id next."""
        return f"{self.titles[item]} (item {self.ids[item]})" if self.titles[item] else str(self.ids[item])

    def about(self, item: int) -> dict[str, Any]:
        """For a program: the id and, if there is one, the title."""
        return {"item": self.ids[item], **({"title": self.titles[item]} if self.titles[item] else {})}

    @property
    def scale(self) -> tuple[float, float]:
        """The factors of x and y on a map: a degree of longitude is shorter than one of latitude."""
        if self.places is None or not self.on_earth:
            return 1.0, 1.0
        return math.cos(math.radians(float(np.nanmean(self.places[:, 1])))), 1.0


class HasItems(Protocol):
    """What `names_of` needs of a model."""

    @property
    def config(self) -> Any: ...
    @property
    def item_ids(self) -> IdMap: ...
    @property
    def known(self) -> Interactions: ...


def names_of(model: HasItems, folder: Path | None = None, given: Path | None = None) -> ItemNames:
    """The names in the `given` file; else those kept in the run's folder; else the demo's; else ids."""
    if _file(folder, given) is None and model.config.data.data == "demo" and _are_places(model):
        return _of_demo(model.item_ids)
    return names_for(model.item_ids, folder, given)


def names_for(ids: IdMap, folder: Path | None, given: Path | None = None) -> ItemNames:
    """The names in the `given` file; else those kept in the folder of a run or a node; else ids."""
    file = _file(folder, given)
    return read_names(file, ids) if file else ItemNames(ids, [""] * len(ids))


def _file(folder: Path | None, given: Path | None) -> Path | None:
    return given or (folder / KEPT if folder and (folder / KEPT).exists() else None)


def keep(given: Path, folder: Path) -> None:
    """Put the rows of the file into a run's folder, where `names_of` finds them."""
    table = _read(given)
    kept = {role: table.columns[role] for role in COLUMNS if role in table.columns}
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([list(kept), *zip(*kept.values(), strict=True)])
    write_text(folder / KEPT, text.getvalue())


def read_names(path: Path, ids: IdMap) -> ItemNames:
    """The names of these items in a CSV; rows about other items are counted and left out."""
    table, rows = _read(path), dict[int, int]()  # item → its row
    for row, name in enumerate(table.columns["item"]):
        if ids.knows(name):
            item = ids.parse(name)
            if item in rows:  # 007 and 7, where ids are numbers
                raise _twice(table, row, rows[item])
            rows[item] = row
    titles = [table.columns["title"][rows[item]] if item in rows else "" for item in range(len(ids))]
    others, note = len(table.lines) - len(rows), ""
    if others:
        note = f"{others:,} of {len(table.lines):,} rows in {path.name} name items that are not in the data."
    pair = _pair(table)
    if pair is None:
        return ItemNames(ids, titles, note=note)
    places = np.full((len(ids), 2), np.nan)
    for item, row in rows.items():
        if table.columns[pair[0]][row]:
            places[item] = [float(table.columns[role][row]) for role in pair]
    located = bool(np.isfinite(places).any())
    return ItemNames(ids, titles, places if located else None, pair[0] == "longitude", note)


def _are_places(model: HasItems) -> bool:
    """Whether the items are the demo's places: each id is a place's number, and there are users (a server has none)."""
    return bool(model.known.n_users) and all(i in range(N_ITEMS) for i in model.item_ids)


def _of_demo(ids: IdMap) -> ItemNames:
    """The demo's names, by id: a k-core may have renumbered the items, but an id stays the number of a place."""
    _, places = demo()
    at = np.array(list(ids), np.int64)
    towns = [places.town_names[town] for town in places.town]
    titles = [f"{places.names[place]}, {towns[place]}" for place in at.tolist()]
    return ItemNames(ids, titles, places.coordinates[at][:, ::-1].astype(np.float64), on_earth=True)


# ------------------------------------------------------------------------------------------- the file


def _read(path: Path) -> Table:
    """The columns that matter, under the names of their roles, every cell stripped and checked."""
    if not path.is_file():
        raise DataError(f"{path} does not exist: give --item-names a CSV file with the columns item and title")
    head = read_header(path, ".tsv" if path.suffix.lower() == ".tsv" else ".csv")
    names = {role: spelled(head.names, words, without="_ ") for role, words in COLUMNS.items()}
    names = {role: name for role, name in names.items() if name is not None}
    for role in ("item", "title"):
        if role not in names:
            raise DataError(
                f"{path}:1: there is no column {role!r}; the columns are {', '.join(head.names)}: "
                f"name the one with the items' {'ids' if role == 'item' else 'titles'} {role!r}"
            )
    found = read_rows(head, list(names.values()))
    cells = {role: found.columns[name] for role, name in names.items()}
    columns = {role: [values[place].strip() for place in places] for role, (values, places) in cells.items()}
    if found.decimal_commas:  # 52,1 as in ratings
        for role in columns.keys() - {"item", "title"}:
            columns[role] = [cell.replace(",", ".") for cell in columns[role]]
    table = Table(path, columns, found.lines)
    _check_items(table)
    _check_places(table)
    return table


def _check_items(table: Table) -> None:
    first: dict[str, int] = {}
    for row, name in enumerate(table.columns["item"]):
        if not name:
            raise table.bad(row, "the item is missing; fill it in or remove the line")
        if name in first:
            raise _twice(table, row, first[name])
        first[name] = row


def _twice(table: Table, row: int, first: int) -> DataError:
    name = table.columns["item"][row]
    return table.bad(row, f"line {table.lines[first]} names the item {name!r} already; remove one of the two")


def _check_places(table: Table) -> None:
    """Both coordinates are numbers, or both cells are empty."""
    pair = _pair(table)
    for row in range(len(table.lines) if pair else 0):
        cells = [table.columns[role][row] for role in pair or ()]
        if any(cells) and not all(cells):
            raise table.bad(row, f"one of {' and '.join(pair or ())} is missing; fill it in, or empty both")
        for role, cell in zip(pair or (), cells, strict=True):
            try:
                right = not cell or abs(float(cell)) <= LIMITS.get(role, 1e30)
            except ValueError:
                right = False
            if not right:
                limits = f" from −{LIMITS[role]:g} to {LIMITS[role]:g}" if role in LIMITS else ""
                raise table.bad(row, f"the {role} {cell!r} is not a number{limits}; mend it, or empty both cells")


def _pair(table: Table) -> tuple[str, str] | None:
    """The two columns that say where items are, east first."""
    for pair in (("longitude", "latitude"), ("x", "y")):
        there = [role for role in pair if role in table.columns]
        if len(there) == 1:
            missing = pair[1 - pair.index(there[0])]
            raise DataError(
                f"{table.path}:1: there is a column {there[0]!r} and no {missing!r}: add it, or rename both"
            )
        if there:
            return pair
    return None
