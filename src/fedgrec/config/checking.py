"""The one checker of options: a name finds its option, and a value gets its type and stays within its bounds."""

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_type_hints

from fedgrec.config.options import GROUPS, DataOptions, FedGRecOptions, RunOptions
from fedgrec.errors import ConfigError, nearest

OLD_NAMES = {"epsilon": "adam_epsilon"}  # in the records of release 0.2
NOW_CALLED = {
    "epsilon": "adam_epsilon, or in a federation's agreement evaluation_epsilon",
    "decoys_epsilon": "dp_epsilon, with dp_unit = interaction",
    "dp_sums": "dp_rounds",
}
OLD_VALUES = {("kernel", "batched"): "auto", ("secure", "exact"): "off"}  # what release 0.2 has written down
# Options that are gone, each with the value that changed nothing; None: no value did.
GONE = {"noise": "0.0", "pseudo": "negatives", "clip_norm": "word", "secure_every": None}
Chosen = TypeVar("Chosen")


class Option(NamedTuple):
    """An option: the part of a configuration that has it, its field, and its type."""

    part: str
    field: "dataclasses.Field[Any]"
    kind: Any

    @property
    def name(self) -> str:
        return self.field.name

    @property
    def group(self) -> str:
        """Its own, or that of the usual option of this name, or its part."""
        own: str = self.field.metadata["group"]
        return own or _usual_groups().get(self.name) or self.part

    @property
    def default(self) -> str:
        """Its default as a person writes it."""
        value = self.field.default
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
        return "none" if shown in (None, "") else str(shown)

    @property
    def bounds(self) -> str:
        """at least 0 and at most 1"""
        ends = ((word, self.field.metadata[word]) for word in ("least", "most"))
        return " and ".join(f"at {word} {end:.10g}" for word, end in ends if end is not None)

    @property
    def describes(self) -> str:
        """What a value of its type is."""
        return KINDS.get(self.kind, "a list of numbers")


KINDS = {int: "a whole number", float: "a number", str: "a word", bool: "true or false", float | None: "a number"}


@cache
def _usual_groups() -> dict[str, str]:
    parts = (("data", DataOptions), ("model", FedGRecOptions), ("run", RunOptions))
    return {f.name: f.metadata["group"] or part for part, kind in parts for f in dataclasses.fields(kind)}


def options_of(kind: Any, part: str = "model") -> tuple[Option, ...]:
    return _options_of(kind, part)


@cache  # reading types takes long
def _options_of(kind: Any, part: str) -> tuple[Option, ...]:
    hints = get_type_hints(kind)
    return tuple(Option(part, f, hints[f.name]) for f in dataclasses.fields(kind))


def bare(key: str) -> str:
    """An option's name as its field has it, without its group."""
    return key.replace("-", "_").rpartition(".")[2]


def find(key: str, known: Iterable[Option], where: str, of: str = "") -> Option:
    """An option by its name, alone or behind its group; or an error that says what is near. `of`: whose options."""
    group, dot, name = key.replace("-", "_").rpartition(".")
    options = {option.name: option for option in known}
    if dot and group not in GROUPS:
        raise ConfigError(f"{where}: there is no group {group!r} of options.{nearest(group, list(GROUPS))}")
    if name not in options:
        now = f" Its name is now {NOW_CALLED[name]}." if name in NOW_CALLED else nearest(name, list(options))
        raise ConfigError(f"{where}: there is no option {name!r}{of and f' of {of}'}.{now}")
    if dot:
        check_group(group, options[name], where)
    return options[name]


def check_group(group: str, option: Option, where: str) -> None:
    if group != option.group:
        raise ConfigError(
            f"{where}: {option.name} is not in the group {group!r} but in {option.group!r}: "
            f"write {option.group}.{option.name}, or [{option.group}] above it in a file"
        )


def checked(option: Option, value: Any, where: str) -> Any:
    """The value in the option's type and within its bounds."""
    wrong, about = f"{where}: {option.name} cannot be {value!r}", option.field.metadata
    try:
        value = _convert(value, option.kind)
    except (TypeError, ValueError):
        raise ConfigError(f"{wrong}: it is {option.describes}") from None
    if about["choices"] and value not in about["choices"]:
        now = OLD_VALUES.get((option.name, value)) or f"one of {', '.join(about['choices'])}"
        raise ConfigError(f"{wrong}: choose {now}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        least, most = about["least"], about["most"]
        if (least is not None and not value >= least) or (most is not None and not value <= most):
            raise ConfigError(f"{wrong}: it is {option.bounds}")
    return value


def changed(options: Chosen, values: Mapping[str, Any], where: str) -> Chosen:
    known = options_of(type(options))
    found = [(find(key, known, where), value) for key, value in values.items()]
    new = {option.name: checked(option, value, where) for option, value in found}
    return dataclasses.replace(options, **new)  # type: ignore[type-var]  # every kind of options is a dataclass


def renamed(values: Mapping[str, Any], known: Iterable[Option]) -> dict[str, Any]:
    """What release 0.2 has written down, under today's names, and what it did without an option."""
    options = {option.name: option.field.metadata["before"] for option in known}
    then = {name: before for name, before in options.items() if before is not None}
    return then | {
        key if key in options else OLD_NAMES.get(key, key): OLD_VALUES.get((key, str(value)), value)
        for key, value in values.items()
        if key in options or GONE.get(key, "") not in (None, str(value))
    }


def _convert(value: Any, kind: Any) -> Any:
    if kind == float | None:
        return None if value in (None, "", "none") else _convert(value, float)
    if kind is bool:
        if isinstance(value, str) and value.lower() in {"true", "yes", "on", "false", "no", "off"}:
            return value.lower() in {"true", "yes", "on"}
        if not isinstance(value, bool):
            raise TypeError
        return value
    if isinstance(value, bool):
        raise TypeError
    if kind is int:
        if isinstance(value, float) and not value.is_integer():
            raise ValueError
        return int(value)
    if kind in (float, str):
        return kind(value)
    element = kind.__args__[0]
    parts = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int | float) else value
    return tuple(_convert(part, element) for part in parts if part != "")
