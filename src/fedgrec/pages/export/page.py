"""The files of a page that recommends by itself: it needs no server, loads from no other site and sends nothing."""

import base64
import json
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.data.files import check_writable, said, write_together
from fedgrec.data.item_names import ItemNames, names_of
from fedgrec.data.readers import stem
from fedgrec.errors import RunError
from fedgrec.models.model import Model
from fedgrec.models.recommender import Recommender
from fedgrec.pages.export.table import ItemTable, Table, agreement
from fedgrec.runs.trained import open_run

ITEMS, INDEX = "items.js", "index.html"
MARK = '<meta name="generator" content="fedgrec export">'  # a folder whose index.html has this mark may be overwritten


@dataclass(frozen=True)
class Exported:
    """An exported page and figures about it."""

    path: Path  # of index.html
    items: int
    page_bytes: int  # all files but the item table
    table_bytes: int
    shared: float  # how many of the page's 20 recommendations the model gives too, on average (of fewer, in proportion)
    people: int  # how many people `shared` was measured over
    folds_in: bool  # whether the model knows its own users alone, and `shared` is measured against what they get
    note: str  # about the items' names


def write_page(run: str | Path | Recommender, folder: str | Path, item_names: str | Path | None = None) -> Exported:
    """Write a page for a run or a model into a folder, which is new, empty or that of an earlier page.

    `item_names` is a CSV of items' names that replaces the one that the run keeps.
    """
    folder, home = Path(folder), None if isinstance(run, Recommender) else Path(run)
    _refuse_used(folder)
    check_writable(folder, "--page")
    model = run if isinstance(run, Recommender) else open_run(run, needs_users=False)
    names = names_of(model, home, None if item_names is None else Path(item_names))
    table = ItemTable.of(model)
    shared, people = agreement(model, table)
    content = {ITEMS: f"const FEDGREC_ITEMS = {json.dumps(_packed(table, names), separators=(',', ':'))};\n"}
    content |= {name: _own(name) for name in ("ranking.js", "page.js", "page.css")} | {INDEX: _index(model)}
    with said(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_together({folder / name: text.encode() for name, text in content.items()})
    sizes = {name: len(text.encode()) for name, text in content.items()}
    table_bytes = sizes.pop(ITEMS)
    page = folder / INDEX
    return Exported(page, len(names.ids), sum(sizes.values()), table_bytes, shared, people, model.folds_in, names.note)


def _refuse_used(folder: Path) -> None:
    if folder.is_dir() and any(not path.name.endswith(".part") for path in folder.iterdir()):
        index = folder / INDEX
        if not index.is_file() or MARK not in index.read_text(encoding="utf-8", errors="replace"):
            raise RunError(f"{folder} is not empty and holds no earlier page: choose another --page")


def _packed(table: ItemTable, names: ItemNames) -> dict[str, Any]:
    """The data that ranking.js reads. Scales and places are float32, rows int8, all little-endian."""
    is_range = names.ids == type(names.ids).range(len(names.ids))
    packed: dict[str, Any] = {
        "count": len(names.ids),
        "share": table.share,
        "ids": None if is_range else [str(i) for i in names.ids],
        "titles": list(names.titles) if any(names.titles) else None,
        "closed": np.flatnonzero(table.closed).tolist(),
        "tables": [_part(part) for part in table.tables],
    }
    if names.places is not None:
        packed["places"] = _base64((names.places * names.scale).astype("<f4"))
    return packed


def _part(part: Table) -> dict[str, Any]:
    return {
        "weight": part.weight,
        "recency": part.recency,
        "width": part.ranks.whole.shape[1],
        "ranks": _base64(part.ranks.whole),
        "ranksScales": _base64(part.ranks.scales.astype("<f4")),
        "gives": None if part.gives.whole is part.ranks.whole else _base64(part.gives.whole),
        "givesScales": _base64(part.gives.scales.astype("<f4")),
    }


def _base64(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def _index(model: Recommender) -> str:
    name = stem(Path(model.config.data.data)) if model.known.n_users else "a federation"
    trained = "round" if isinstance(model, Model) else "epoch"
    about = f"{model.config.method}, {trained} {model.round:,}, {len(model.item_ids):,} items"
    page = _own(INDEX).replace("{mark}", MARK).replace("{about}", escape(about))
    return page.replace("{count}", f"{len(model.item_ids):,}").replace("{name}", escape(name))  # last: any text


def _own(name: str) -> str:
    return (resources.files("fedgrec.pages.export") / name).read_text("utf-8")
