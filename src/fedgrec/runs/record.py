"""The folder that a run leaves: a contract that other tools read; and both sides of a run as a checkpoint's tensors."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedgrec.cable.core import Cohort, ServerState
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset
from fedgrec.data.datasets import describe
from fedgrec.data.files import Tensors, read_json, understood, write_json, write_text
from fedgrec.data.split import ITEM_IDS, USER_IDS, write_split
from fedgrec.errors import DamagedError, RunError
from fedgrec.methods.change import Past
from fedgrec.models.model import CONFIG, Model
from fedgrec.models.selection import METRICS, RESULT

DATA = "data.json"
SERVER_PARTS = ("items", "degrees", "moment1", "moment2")  # in a checkpoint


class RunRecord:
    """Writes a run's files, each whole or not at all."""

    def __init__(self, folder: Path, config: Config, dataset: Dataset) -> None:
        self.folder = folder
        users, items = dataset.split.train.user_ids.to_json(), dataset.split.train.item_ids.to_json()
        id_maps = {"users": USER_IDS, "items": ITEM_IDS}
        about = {**describe(dataset), "id_maps": id_maps, "notes": list(dataset.notes)}
        self.check_same_data(folder, dataset)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT).unlink(missing_ok=True)  # of a run that now goes on
        write_text(folder / CONFIG, config.to_toml())  # first: what follows is written again when the run is resumed
        write_json(folder / USER_IDS, users)
        write_json(folder / ITEM_IDS, items)
        write_split(folder, dataset.split)
        write_json(folder / DATA, about)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @staticmethod
    def check_same_data(folder: Path, dataset: Dataset) -> None:
        """A run goes on, and is judged, only on the data that it was trained on."""
        if not is_same_data(folder, dataset):
            raise RunError(
                f"the data is not what {folder} was trained on (see its {DATA}): restore it, start a new run in "
                f"another folder, or, if it has grown, go on with  fedgrec grow {folder}"
            )

    def selected(self) -> Model | None:
        """The model of the best round so far; None if its files are of two rounds: training writes it again."""
        try:
            return Model.load(self.folder)
        except DamagedError:  # going on without it would give another model
            raise
        except RunError:
            return None


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The evaluations of a run, in order."""
    path, found = folder / METRICS, list[dict[str, Any]]()
    if not path.exists():
        return []
    for number, text in enumerate(path.read_bytes().splitlines(), 1):
        with understood(Path(f"{path}:{number}"), "restore it, or train again in another folder"):
            line = json.loads(text)
            line["round"]
            line["split"]
            found.append(line)
    return found


def read_result(folder: Path) -> dict[str, Any]:
    """The line that counts, of a finished run."""
    return dict(read_json(folder / RESULT, "restore it, or remove it and the run is ended again", "round"))


def check_finished(folder: Path) -> None:
    if not is_finished(folder):
        raise RunError(f"{folder} is not finished: `fedgrec train --out {folder} --resume` goes on")


def chosen_round(folder: Path) -> int:
    """The round that a finished run chose on its held-out items."""
    check_finished(folder)
    return int(read_result(folder)["round"])


def is_same_data(folder: Path, dataset: Dataset) -> bool:
    """Whether this is what a run was trained on, as far as it has written that down."""
    now, keys = describe(dataset), ("sizes", "checksums")
    return not (folder / DATA).exists() or all(recorded_about(folder, key) == now[key] for key in keys)


def recorded_about(folder: Path, key: str) -> Any:
    """What a run has written down about its data: its `sizes`, the `checksums` of its files, how it was `split`."""
    return read_json(folder / DATA, "restore it, or train again in another folder", key)[key]


def is_finished(folder: Path) -> bool:
    return (folder / RESULT).exists()


# ---------------------------------------------------------------------------------------- checkpoints


def tensors_of(server: ServerState, users: Cohort, told: bool = False) -> dict[str, NDArray[Any]]:
    """All that training changes; and what users have told, if that differs from what they have."""
    tensors = {f"server.{name}": getattr(server, name) for name in SERVER_PARTS}
    tensors |= {f"server.{name}": value for name, value in server.kept.items()}
    tensors |= {f"more.{name}": value for name, value in server.more.items()}
    tensors |= {f"users.{f.name}": getattr(users.state, f.name) for f in fields(users.state)}
    if users.around is not None:
        tensors["around"] = users.around
    if told:
        tensors |= {"told.indptr": users.indptr, "told.items": users.items}
    return tensors | (users.past.tensors() if users.past else {})


def restored(tensors: Tensors, round_: int, server: ServerState, users: Cohort) -> tuple[ServerState, Cohort]:
    """Server and users as they were; the given ones tell the names and types of their parts."""
    kept = {name.removeprefix("server."): value for name, value in tensors.items() if name.startswith("server.")}
    parts: dict[str, Any] = {name: kept.pop(name) for name in SERVER_PARTS}
    found = [name.removeprefix("more.") for name in tensors if name.startswith("more.")]
    more = {name: tensors[f"more.{name}"] for name in dict.fromkeys([*server.more, *found])}
    state = type(users.state)(**{f.name: tensors[f"users.{f.name}"] for f in fields(users.state)})
    told = {name: tensors[f"told.{name}"] for name in ("indptr", "items") if f"told.{name}" in tensors}
    return (
        replace(server, **parts, more=more, round=round_, kept=kept),
        replace(users, state=state, around=tensors.get("around"), past=Past.restored(tensors), **told),
    )
