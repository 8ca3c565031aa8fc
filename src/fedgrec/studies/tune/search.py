"""What is searched, a range or a list of values of one option; and in what: a federated method or a centralized one.

server_rate=0.001..0.1:log      a number between two others, evenly in its logarithm
layers=1..3                     a whole number, both ends included
loss=bpr,mse                    one of these
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from fedgrec import centralized
from fedgrec.centralized import model_class
from fedgrec.config.checking import Option, checked, find, options_of
from fedgrec.config.configuration import Config, named, options, parse_assignment, toml_text
from fedgrec.config.options import DataOptions, RunOptions
from fedgrec.data import Dataset
from fedgrec.data.datasets import load_for
from fedgrec.errors import ConfigError, DataError
from fedgrec.runs.resolve import located, resolved
from fedgrec.runs.simulation import Observer, Simulation
from fedgrec.studies.compare.names import CENTRALIZED
from fedgrec.studies.compare.plan import SHARED, judged, rhythm
from fedgrec.studies.compare.runs import FREE, by_name, centralized_model

HOW = "write KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=a,b,c"
Values = Mapping[str, Any]
COMMA = re.compile(r",(?![^\[]*\])")  # not within the brackets of a list


@dataclass(frozen=True)
class Search:
    """Values of one option: a range from `low` to `high`, or, where there are `choices`, one of these."""

    key: str
    low: Any = None
    high: Any = None
    log: bool = False
    choices: tuple[tuple[str, Any], ...] = ()  # as written, and as the option takes it

    def suggest(self, trial: Any) -> Any:
        """A value for an Optuna trial."""
        if self.choices:
            return dict(self.choices)[trial.suggest_categorical(self.key, [word for word, _ in self.choices])]
        if isinstance(self.low, int):
            return trial.suggest_int(self.key, self.low, self.high, log=self.log)
        return trial.suggest_float(self.key, self.low, self.high, log=self.log)

    def __str__(self) -> str:
        if self.choices:
            return f"{self.key}={','.join(word for word, _ in self.choices)}"
        return f"{self.key}={self.low}..{self.high}{':log' if self.log else ''}"


def parse(text: str, method: str) -> Search:
    """What `--search` says, checked against the option that it names."""
    where = f"--search {text}"
    key, equals, rest = (part.strip() for part in text.partition("="))
    if not equals or not rest:
        raise ConfigError(f"{where}: {HOW}")
    searched = option(key, where, method)
    if searched.name in SHARED:
        raise ConfigError(
            f"{where}: {searched.name} is the same in all trials, or they would not compare: use its flag"
        )
    ends = re.fullmatch(r"(.+?)\.\.(.+?)(:log)?", rest)
    if ends:
        return _range(searched, ends[1], ends[2], bool(ends[3]), where)
    words = [word.strip() for word in COMMA.split(rest) if word.strip()]
    if len(words) < 2 or len(set(words)) < len(words):
        raise ConfigError(f"{where}: name at least two values, each once; one value is --set {key}={rest}")
    values = (checked(searched, parse_assignment(f"{key}={word}")[1], where) for word in words)
    return Search(searched.name, choices=tuple(zip(words, values, strict=True)))


def _range(searched: Option, low: str, high: str, log: bool, where: str) -> Search:
    if searched.kind not in (int, float):
        raise ConfigError(f"{where}: {searched.name} is no number: name its values, as in {searched.name}=a,b")
    least, most = (checked(searched, end, where) for end in (low, high))
    if not least < most:
        raise ConfigError(f"{where}: {low} is not less than {high}: {HOW}")
    if log and least <= 0:
        raise ConfigError(f"{where}: a logarithmic range begins above 0, and {low} is not")
    return Search(searched.name, least, most, log)


def option(key: str, where: str, method: str) -> Option:
    if method not in CENTRALIZED:
        return named(key, method, where)
    shared = [option for option in options() if option.name in SHARED]
    return find(key, [*shared, *options_of(model_class(method).Options)], where, method)


# ------------------------------------------------------------------------------------------------ in what


@dataclass(frozen=True)
class Subject(ABC):
    """Runs with these values; nothing is written. Test items are taken away before anything else happens."""

    config: Config  # its `model` has the method's own options, of whichever kind

    @cached_property
    def dataset(self) -> Dataset:
        """The data of a search: train and validation, without the test items."""
        dataset = load_for(self.config)
        held_out = dataset.split.validation
        if held_out is None or not held_out.n_pairs:
            raise DataError(f"{self.config.data.data} leaves no validation items to choose by: raise `validation`")
        return replace(dataset, split=replace(dataset.split, test=None))

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
        return _plain({k: v for k, v in by_name(resolved(self.config, self.dataset)).items() if k not in FREE})

    def run(self, values: Values, observer: Observer) -> None:
        Simulation(self._with(values), self.dataset, None, observer).run()

    def toml(self, values: Values) -> str:
        return self._with(values).to_toml()

    def _with(self, values: Values) -> Config:
        return resolved(self.config.changed(values, "--search"), self.dataset)


class Centralized(Subject):
    def _data(self) -> dict[str, Any]:
        return asdict(located(self.config.data))

    def _judged(self) -> dict[str, Any]:
        run = self.config.run
        return {"validation": run.validation, "topk": run.topk, "ndcg_ideal": run.ndcg_ideal}

    def about(self) -> dict[str, Any]:
        model, seed = asdict(self.config.model), self.config.run.seed
        return _plain({"method": self.config.method, **self._data(), **model, "seed": seed, **self._judged()})

    def run(self, values: Values, observer: Observer) -> None:
        config = replace(self.config, model=replace(self.config.model, **values))
        every = config.run.evaluate_every or rhythm(config.model)
        model = centralized_model(config, self.dataset, config.run.seed)
        centralized.train(model, self.dataset, observer=observer, evaluate_every=every, **judged(config.run))

    def toml(self, values: Values) -> str:
        """For `fedgrec compare --config`."""
        sections = {"data": _changed(self._data(), DataOptions()), "run": _changed(self._judged(), RunOptions())}
        sections[f"compare.{self.config.method}"] = asdict(replace(self.config.model, **values))
        about = "# Found by `fedgrec tune`: `fedgrec compare --config THIS` trains it beside others."
        return toml_text(about, "", sections)


def _changed(values: Values, usual: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value != getattr(usual, key)}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives it back: tuples are lists."""
    return dict(json.loads(json.dumps(values)))
