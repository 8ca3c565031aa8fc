"""Opened training sums in files: the server of a federation writes them, `fedgrec audit` reads them.

    SERVER/recordings/00000012.safetensors      the sum that has number 12 in the server's log

A file holds what the server has of one sum anyway: what was broadcast before it, the rows of the sum that are not zero,
and which nodes are in it. It holds nothing of a single node or user.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedgrec.cable.core import Broadcast, Leaf, Rows, Upload, UploadSpec
from fedgrec.data.files import read_tensors, understood, write_tensors
from fedgrec.errors import RunError

RECORDINGS, ENDING, FORMAT = "recordings", ".safetensors", 1
ABOUT, INDEX, VALUES, MORE = "about", "index.", "values.", "more."  # of a file: its metadata, and names of its arrays
SENT = ("round", "n_items", "level", "kind")  # of a broadcast, beside its arrays


@dataclass(frozen=True, eq=False)
class RecordedSum:
    """One opened training sum, as a federation's server has it."""

    number: int  # in the server's log
    session: str  # nodes keep under this name which of their users took part
    method: str
    broadcast: Broadcast
    spec: UploadSpec
    total: Upload
    nodes: tuple[int, ...]  # places on the roster of those in the sum; with per-user masks these are users
    names: tuple[str, ...]  # of the same nodes


def write_sum(folder: Path, seen: RecordedSum, keep: int) -> None:
    """Write a sum, whole or not at all; only the last `keep` recorded sums stay."""
    folder.mkdir(exist_ok=True, mode=0o700)
    broadcast = seen.broadcast
    arrays = {"tables": broadcast.tables, "degrees": broadcast.degrees}
    arrays |= {MORE + name: value for name, value in broadcast.more.items()}
    for name, rows in seen.total.leaves.items():
        there = rows.values.any(axis=1)  # a row of zeros looks like one that nobody touched
        arrays |= {INDEX + name: rows.index[there], VALUES + name: rows.values[there]}
    about = {
        **{name: getattr(seen, name) for name in ("number", "session", "method", "nodes", "names")},
        **{name: getattr(broadcast, name) for name in SENT},
        "users": seen.total.users,
        "spec": asdict(seen.spec),
        "format": FORMAT,
    }
    write_tensors(folder / f"{seen.number:08d}{ENDING}", arrays, {ABOUT: json.dumps(about)})
    for old in _files(folder)[:-keep]:
        old.unlink(missing_ok=True)


def read_sums(folder: Path, last: int) -> list[RecordedSum]:
    """The last recorded sums, in their order, of a folder of recordings or of the server's folder around it."""
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder: name a server's folder, or the recordings in it")
    here = folder / RECORDINGS if (folder / RECORDINGS).is_dir() else folder
    files = _files(here)
    if not files:
        raise RunError(
            f"{folder} has no recorded sums: set  record = 10  in the server's federation.toml, and restart the server"
        )
    return [_read(path) for path in files[-last:]]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"*{ENDING}") if path.stem.isdecimal())


def _read(path: Path) -> RecordedSum:
    with understood(path, "remove it, and audit the other sums"):
        arrays, metadata = read_tensors(path)
        about = json.loads(metadata[ABOUT])
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']}, and this release reads {FORMAT}")
        spec = about["spec"]
        leaves = tuple(Leaf(**leaf) for leaf in spec["leaves"])
        total = {leaf.name: Rows(arrays[INDEX + leaf.name], arrays[VALUES + leaf.name]) for leaf in leaves}
        more = {name.removeprefix(MORE): value for name, value in arrays.items() if name.startswith(MORE)}
        tables: dict[str, Any] = {"tables": arrays["tables"], "degrees": arrays["degrees"], "more": more}
        return RecordedSum(
            **{name: about[name] for name in ("number", "session", "method")},
            broadcast=Broadcast(**{name: about[name] for name in SENT}, **tables),
            spec=UploadSpec(**{**spec, "leaves": leaves}),
            total=Upload(total, about["users"]),
            nodes=tuple(about["nodes"]),
            names=tuple(about["names"]),
        )
