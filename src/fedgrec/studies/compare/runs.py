"""One method with one seed, in a folder of its own: started, resumed, read."""

import json
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec import centralized
from fedgrec.centralized.contract import MODEL
from fedgrec.config.configuration import Config, flat, recorded, toml_text
from fedgrec.config.options import DataOptions
from fedgrec.data import Dataset
from fedgrec.data.datasets import describe
from fedgrec.data.files import understood, write_json, write_text
from fedgrec.errors import RunError
from fedgrec.models.model import CONFIG, SERVER
from fedgrec.runs.record import DATA, RunRecord, is_finished, read_metrics, read_result
from fedgrec.runs.simulation import Observer, Simulation
from fedgrec.runs.trained import measured, open_run
from fedgrec.studies.compare.names import Entry

FREE = {"threads", "checkpoint_every", "device"}  # may change between two calls: results do not depend on them
SPREAD, FAILURE = "users-interval.json", "failure.txt"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Run(ABC):
    entry: Entry
    seed: int
    folder: Path
    config: Config  # its `model` has the method's own options, of whichever kind

    @property
    def length(self) -> int:
        """Rounds or epochs; 0 where nothing is trained."""
        return self.config.run.rounds if self.entry.federated else getattr(self.config.model, "epochs", 0)

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Every option by its name."""

    @abstractmethod
    def recorded(self) -> Mapping[str, Any]:
        """The same, as the folder's config.toml has it."""

    @abstractmethod
    def train(self, dataset: Dataset, observer: Observer) -> None:
        """Train from the last checkpoint or the beginning to the end, or until the observer wants to stop."""

    def per_user(self, dataset: Dataset) -> dict[str, NDArray[np.float64]]:
        """Metrics of each user's test items under the selected model."""
        model, parts = open_run(self.folder), dataset.split
        assert parts.test is not None
        return measured(model, replace(model.config.run, device="cpu"), parts.before_test, parts.test).per_user

    @property
    def finished(self) -> bool:
        return is_finished(self.folder)

    @property
    def has_model(self) -> bool:
        """Whether the folder holds a model; packed runs keep only numbers."""
        return any((self.folder / name).exists() for name in (SERVER, MODEL))

    def check_options(self) -> None:
        """Refuse a folder whose run was made with other options: its numbers would answer another question."""
        files = [path.name for path in self.folder.iterdir()] if self.folder.exists() else []
        if all(name == FAILURE or name.endswith(".part") for name in files):  # it failed before it wrote anything else
            return
        if not (self.folder / CONFIG).exists():
            raise RunError(f"{self.folder} holds no run: it has no {CONFIG}; name another --out, or remove that folder")
        before, now = self.recorded(), self.settings()
        to_its_end = self.finished and self.length in [line["round"] for line in self.metrics()]  # patience had no say
        free = FREE | ({"patience"} if to_its_end and not now.get("patience") else set())
        names = sorted(name for name in before.keys() | now.keys() if name not in free)
        differ = [name for name in names if before.get(name) != now.get(name)]
        if differ:
            what = ", ".join(f"{name} was {before.get(name)!r} and is now {now.get(name)!r}" for name in differ)
            raise RunError(f"{self.folder} has other options ({what}): name another --out, or remove that folder")

    def result(self) -> dict[str, Any]:
        return read_result(self.folder)

    def metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.folder)

    def write_interval_over_users(self, dataset: Dataset) -> None:
        """Write half the interval of each metric's mean over users, for methods with one seed; computed once."""
        if not self.halves_over_users():
            halves = {name: half_width(values) for name, values in self.per_user(dataset).items()}
            write_json(self.folder / SPREAD, {"of": self.result(), "halves": halves})

    def halves_over_users(self) -> dict[str, float | None]:
        """Half the interval over users of each metric, where it was written."""
        path = self.folder / SPREAD
        with suppress(RunError), understood(path, "it is made again"):
            found = json.loads(path.read_text(encoding="utf-8"))
            return dict(found["halves"]) if found["of"] == self.result() else {}  # stale once the run was made longer
        return {}


@dataclass(frozen=True)
class FederatedRun(Run):
    def settings(self) -> Mapping[str, Any]:
        return by_name(self.config)

    def recorded(self) -> Mapping[str, Any]:
        return by_name(recorded(self.folder / CONFIG))

    def train(self, dataset: Dataset, observer: Observer) -> None:
        simulation = Simulation(self.config, dataset, self.folder, observer)
        simulation.resume()
        simulation.run()


@dataclass(frozen=True)
class CentralizedRun(Run):
    training: Mapping[str, Any]  # values of TrainingOptions

    def settings(self) -> Mapping[str, Any]:
        return flat(tomllib.loads(self._toml()), (), "")

    def recorded(self) -> Mapping[str, Any]:
        path = self.folder / CONFIG
        with understood(path, "remove its folder"):  # an option that a record does not name had its default
            return asdict(DataOptions()) | flat(tomllib.loads(path.read_text(encoding="utf-8")), (), str(path))

    def _toml(self) -> str:
        """The run's config.toml."""
        shared = self.config.run
        run = {"seed": self.seed, "validation": shared.validation, "device": shared.device, **self.training}
        sections = {"data": asdict(self.config.data), "model": asdict(self.config.model), "run": run}
        return toml_text("# A run of `fedgrec compare`.", self.entry.method, sections)

    def train(self, dataset: Dataset, observer: Observer) -> None:
        RunRecord.check_same_data(self.folder, dataset)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / CONFIG, self._toml())
        write_json(self.folder / DATA, {**describe(dataset), "notes": list(dataset.notes)})
        model = centralized_model(self.config, dataset, self.seed)
        centralized.train(model, dataset, self.folder, resume=True, observer=observer, **self.training)


def centralized_model(config: Config, dataset: Dataset, seed: int) -> centralized.Model:
    return centralized.make(config.method, dataset.split.train, seed, config.run.device, **asdict(config.model))


def half_width(values: Sequence[float] | NDArray[np.float64]) -> float | None:
    """t·s/√n with Student's t at n − 1 degrees of freedom: half the interval of the mean; None for one value."""
    from scipy.special import stdtrit

    n = len(values)
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2) * np.std(values, ddof=1) / np.sqrt(n)) if n > 1 else None


def by_name(config: Config) -> dict[str, Any]:
    return {"method": config.method, **asdict(config.data), **asdict(config.model), **asdict(config.run)}
