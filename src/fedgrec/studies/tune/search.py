"""What is searched: a range or a list of values of one option.

server_rate=0.001..0.1:log      a number between two others, evenly in its logarithm
layers=1..3                     a whole number, both ends included
loss=bpr,mse                    one of these
"""

import re
from dataclasses import dataclass
from typing import Any

from fedgrec.centralized import model_class
from fedgrec.config.checking import Option, checked, find, options_of
from fedgrec.config.configuration import named, options, parse_assignment
from fedgrec.errors import ConfigError
from fedgrec.studies.compare.names import CENTRALIZED
from fedgrec.studies.compare.plan import SHARED

HOW = "write KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=a,b,c"
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
    """An option of a method, or one that all methods share, by its name."""
    if method not in CENTRALIZED:
        return named(key, method, where)
    shared = [option for option in options() if option.name in SHARED]
    return find(key, [*shared, *options_of(model_class(method).Options)], where, method)
