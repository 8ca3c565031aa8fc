"""The folder that a run leaves: a contract that other tools read."""

import json
from pathlib import Path
from typing import Any

from fedgrec.config.configuration import Config
from fedgrec.data import Dataset
from fedgrec.data.datasets import describe
from fedgrec.data.files import read_json, understood, write_json, write_text
from fedgrec.data.split import ITEM_IDS, USER_IDS, write_split
from fedgrec.errors import DamagedError, RunError
from fedgrec.models.model import CONFIG, Model
from fedgrec.models.selection import METRICS, RESULT

DATA = "data.json"


class RunRecord:
    """Writes a run's files, each whole or not at all."""

    def __init__(self, folder: Path, config: Config, dataset: Dataset) -> None:
        self.folder = folder
        users, items = dataset.split.train.user_ids.to_json(), dataset.split.train.item_ids.to_json()
        about = {
            **describe(dataset),
            "id_maps": {"users": USER_IDS, "items": ITEM_IDS},
            "notes": list(dataset.notes),
        }
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


def chosen_round(folder: Path) -> int:
    """The round that a finished run chose on its held-out items."""
    if not is_finished(folder):
        raise RunError(f"{folder} is not finished: `fedgrec train --out {folder} --resume` goes on")
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
