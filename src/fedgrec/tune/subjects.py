"""What is tuned: a federated method or a centralized one. Test items are taken away before anything else happens."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from fedgrec import centralized
from fedgrec.compare.runs import FREE
from fedgrec.config import Config
from fedgrec.data import Dataset
from fedgrec.errors import DataError
from fedgrec.loading import load_for
from fedgrec.options import DataOptions, RunOptions
from fedgrec.resolve import EVALUATIONS, resolved
from fedgrec.simulation import Observer, Simulation

Values = Mapping[str, Any]


class Subject(Protocol):
    """Runs with these values; nothing is written."""

    method: str
    dataset: Dataset

    def about(self) -> dict[str, Any]:
        """What all trials have in common, ready for JSON."""

    def run(self, values: Values, observer: Observer) -> None: ...

    def toml(self, values: Values) -> str:
        """A file to train with."""


def validated(config: Config) -> Dataset:
    """The data of a search: train and validation, without the test items."""
    dataset = load_for(config)
    held_out = dataset.split.validation
    if held_out is None or not held_out.n_pairs:
        raise DataError(f"{config.data.data} leaves no validation items to choose by: raise `validation`")
    return replace(dataset, split=replace(dataset.split, test=None))


@dataclass(frozen=True)
class Federated:
    config: Config
    dataset: Dataset

    @classmethod
    def of(cls, config: Config) -> "Federated":
        return cls(config, validated(config))

    @property
    def method(self) -> str:
        return self.config.method

    def about(self) -> dict[str, Any]:
        parts = (asdict(getattr(resolved(self.config, self.dataset), name)) for name in ("data", "model", "run"))
        return _plain({"method": self.method, **{k: v for part in parts for k, v in part.items() if k not in FREE}})

    def run(self, values: Values, observer: Observer) -> None:
        Simulation(self._with(values), self.dataset, None, observer).run()

    def toml(self, values: Values) -> str:
        return self._with(values).to_toml()

    def _with(self, values: Values) -> Config:
        return resolved(self.config.changed(values, "--search"), self.dataset)


@dataclass(frozen=True)
class Centralized:
    method: str
    config: Config  # data, seed and how a trial is judged
    options: Any  # the model's
    device: str
    dataset: Dataset

    @classmethod
    def of(cls, method: str, config: Config, options: Any, device: str) -> "Centralized":
        return cls(method, config, options, device, validated(config))

    def about(self) -> dict[str, Any]:
        run = self.config.run
        data = asdict(resolved(self.config, self.dataset).data)
        judged = {"seed": run.seed, "validation": run.validation, "topk": run.topk, "ndcg_ideal": run.ndcg_ideal}
        return _plain({"method": self.method, **data, **asdict(self.options), **judged})

    def run(self, values: Values, observer: Observer) -> None:
        run, options = self.config.run, dataclasses.replace(self.options, **values)
        every = run.evaluate_every or max(1, -(-getattr(options, "epochs", 0) // EVALUATIONS))
        judged: dict[str, Any] = {"topk": run.topk, "ndcg_ideal": run.ndcg_ideal, "protocol": "honest"}
        model = centralized.make(self.method, self.dataset.split.train, run.seed, self.device, **asdict(options))
        centralized.train(model, self.dataset, observer=observer, evaluate_every=every, **judged)

    def toml(self, values: Values) -> str:
        """For `fedgrec compare --config`."""
        data, run = resolved(self.config, self.dataset).data, self.config.run
        judged = {"validation": run.validation, "topk": run.topk, "ndcg_ideal": run.ndcg_ideal}
        sections = {"data": _changed(asdict(data), DataOptions()), "run": _changed(judged, RunOptions())}
        sections[f"compare.{self.method}"] = asdict(dataclasses.replace(self.options, **values))
        lines = ["# Found by `fedgrec tune`: `fedgrec compare --config THIS` trains it beside others."]
        for name, section in sections.items():
            lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
        return "\n".join([*lines, ""])


def _changed(values: Values, usual: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value != getattr(usual, key)}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives it back: tuples are lists."""
    return dict(json.loads(json.dumps(values)))
