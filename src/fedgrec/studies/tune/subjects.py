"""What is tuned: a federated method or a centralized one. Test items are taken away before anything else happens."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from fedgrec import centralized
from fedgrec.config.configuration import Config
from fedgrec.config.options import DataOptions, RunOptions
from fedgrec.data import Dataset
from fedgrec.data.datasets import load_for
from fedgrec.errors import DataError
from fedgrec.runs.resolve import EVALUATIONS, resolved
from fedgrec.runs.simulation import Observer, Simulation
from fedgrec.studies.compare.runs import FREE, toml

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Subject(ABC):
    """Runs with these values; nothing is written."""

    config: Config  # its `model` has the method's own options, of whichever kind

    @cached_property
    def dataset(self) -> Dataset:
        """The data of a search: train and validation, without the test items."""
        dataset = load_for(self.config)
        held_out = dataset.split.validation
        if held_out is None or not held_out.n_pairs:
            raise DataError(f"{self.config.data.data} leaves no validation items to choose by: raise `validation`")
        return replace(dataset, split=replace(dataset.split, test=None))

    @property
    def method(self) -> str:
        return self.config.method

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What all trials have in common, ready for JSON."""

    @abstractmethod
    def run(self, values: Values, observer: Observer) -> None: ...

    @abstractmethod
    def toml(self, values: Values) -> str:
        """A file to train with."""


class Federated(Subject):
    def about(self) -> dict[str, Any]:
        parts = (asdict(getattr(resolved(self.config, self.dataset), name)) for name in ("data", "model", "run"))
        return _plain({"method": self.method, **{k: v for part in parts for k, v in part.items() if k not in FREE}})

    def run(self, values: Values, observer: Observer) -> None:
        Simulation(self._with(values), self.dataset, None, observer).run()

    def toml(self, values: Values) -> str:
        return self._with(values).to_toml()

    def _with(self, values: Values) -> Config:
        return resolved(self.config.changed(values, "--search"), self.dataset)


class Centralized(Subject):
    def _data(self) -> dict[str, Any]:
        return asdict(resolved(Config(self.config.data, run=self.config.run), self.dataset).data)

    def about(self) -> dict[str, Any]:
        run = self.config.run
        judged = {"seed": run.seed, "validation": run.validation, "topk": run.topk, "ndcg_ideal": run.ndcg_ideal}
        return _plain({"method": self.method, **self._data(), **asdict(self.config.model), **judged})

    def run(self, values: Values, observer: Observer) -> None:
        run, options = self.config.run, replace(self.config.model, **values)
        every = run.evaluate_every or max(1, -(-getattr(options, "epochs", 0) // EVALUATIONS))
        judged: dict[str, Any] = {"topk": run.topk, "ndcg_ideal": run.ndcg_ideal, "protocol": "honest"}
        model = centralized.make(self.method, self.dataset.split.train, run.seed, run.device, **asdict(options))
        centralized.train(model, self.dataset, observer=observer, evaluate_every=every, **judged)

    def toml(self, values: Values) -> str:
        """For `fedgrec compare --config`."""
        run = self.config.run
        judged = {"validation": run.validation, "topk": run.topk, "ndcg_ideal": run.ndcg_ideal}
        sections = {"data": _changed(self._data(), DataOptions()), "run": _changed(judged, RunOptions())}
        sections[f"compare.{self.method}"] = asdict(replace(self.config.model, **values))
        return toml("# Found by `fedgrec tune`: `fedgrec compare --config THIS` trains it beside others.", sections)


def _changed(values: Values, usual: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value != getattr(usual, key)}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives it back: tuples are lists."""
    return dict(json.loads(json.dumps(values)))
