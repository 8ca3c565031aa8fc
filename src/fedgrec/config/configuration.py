"""Where options come from, one on top of the other: preset, TOML file, `--set key=value`, flags or keywords."""

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from fedgrec.config.checking import Option, check_group, checked, find, options_of, renamed
from fedgrec.config.options import GROUPS, METHODS, DataOptions, FedGRecOptions, RunOptions, method_module
from fedgrec.errors import ConfigError, nearest

Layer = tuple[Mapping[str, Any], str]  # option values, and where they come from (for the error sentence)
USUAL_METHOD = USUAL_PRESET = "two-parts"  # of `fedgrec train`, where it is not told otherwise
NOISY_PRESET = "best"  # with noise in the sums
NAMELESS = ("fedgrec", USUAL_METHOD)  # methods that nobody has to name
PARTS = ("data", "model", "run")


@dataclass(frozen=True)
class Config:
    """A whole run, resolved: running it again gives the same run."""

    data: DataOptions = field(default_factory=DataOptions)
    model: Any = field(default_factory=FedGRecOptions)  # the Options of the method
    run: RunOptions = field(default_factory=RunOptions)
    method: str = "fedgrec"

    def changed(self, values: Mapping[str, Any], where: str = "options") -> "Config":
        """A copy with these options replaced; keys are option names, values are checked."""
        return self.layered((values, where))

    def layered(self, *layers: Layer) -> "Config":
        """A copy under these layers, the last on top. Only the whole must make sense, not every layer alone."""
        method = [values["method"] for values, _ in layers if "method" in values]
        base = self.of(method[-1]) if method else self
        new: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
        for values, where in layers:
            for key, value in values.items():
                if key != "method":
                    found = named(key, base.method, where)
                    new[found.part][found.name] = checked(found, value, where)
        asked = new["run"]
        epsilon, unit = (asked.get(name, getattr(base.run, name)) for name in ("dp_epsilon", "dp_unit"))
        if epsilon and (method or (self.run.dp_epsilon, self.run.dp_unit) != (epsilon, unit)):
            base = replace(base, model=_promising(base.model, epsilon, unit))
        return replace(base, **{part: replace(getattr(base, part), **new[part]) for part in PARTS if new[part]})

    def of(self, method: str) -> "Config":
        """The same run of another method, with that method's defaults."""
        return self if method == self.method else replace(self, method=method, model=method_module(method).Options())

    def to_toml(self) -> str:
        about = "# A resolved fedgrec configuration: `fedgrec train --config THIS` gives the same run."
        values: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
        for part in PARTS:
            options_now = getattr(self, part)
            for found in options_of(type(options_now), part):
                values[found.group][found.name] = getattr(options_now, found.name)
        return toml_text(about, self.method, values)


def _promising(model: Any, epsilon: float, unit: str) -> Any:
    """Values that are better under such a promise, for options that still have their defaults."""
    fields = {f.name: f.default for f in dataclasses.fields(model)}
    better = {
        name: new for name, new in model.under_promise(epsilon, unit).items() if getattr(model, name) == fields[name]
    }
    return replace(model, **better)


def options(method: str = "fedgrec") -> tuple[Option, ...]:
    model = FedGRecOptions if method == "fedgrec" else method_module(method).Options
    return (*options_of(DataOptions, "data"), *options_of(model), *options_of(RunOptions, "run"))


def named(key: str, method: str, where: str) -> Option:
    """The option of this name that a run of the method has."""
    return find(key, options(method), where, "" if method in NAMELESS else f"method {method}")


def toml(path: Path) -> dict[str, Any]:
    """A TOML file as it is."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such configuration file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Options of a TOML file; its sections are the groups of options, and names are unique without them."""
    content = toml(path)
    content.pop("description", None)
    method = content.get("method", "fedgrec")
    known = options(method) if method in METHODS else []
    return flat(content, known, str(path))


def flat(content: Mapping[str, Any], known: Iterable[Option], where: str) -> dict[str, Any]:
    """Options without their sections. [model] and [run] may hold what they held in release 0.2."""
    found: dict[str, Any] = {}
    for section, values in content.items():
        if not isinstance(values, dict):
            found[section] = values
            continue
        if section not in GROUPS:
            raise ConfigError(f"{where}: there is no section [{section}].{nearest(section, list(GROUPS))}")
        for option in known:
            if option.name in values and section != option.part:
                check_group(section, option, where)
        found |= values
    return found


def recorded(path: Path) -> Config:
    """The configuration that a run or a federation has written down, maybe with release 0.2."""
    values = read_toml(path)
    return Config().changed(renamed(values, options(values.get("method", "fedgrec"))), str(path))


def presets() -> dict[str, str]:
    """Names of the presets and what each is for."""
    folder = resources.files("fedgrec.config") / "presets"
    return {
        name: tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))["description"]
        for name in sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))
    }


def preset(name: str) -> Config:
    if name not in presets():
        raise ConfigError(
            f"there is no preset {name!r}.{nearest(name, list(presets()))} Presets: {', '.join(presets())}"
        )
    with resources.as_file(resources.files("fedgrec.config") / "presets" / f"{name}.toml") as path:
        return Config().changed(read_toml(path), f"preset {name}")


def parse_assignment(text: str) -> tuple[str, Any]:
    """`key=value` as --set takes it; the value is TOML where it can be, else a plain word."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}: write it as key=value, such as --set layers=2")
    try:
        return key.strip(), tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def toml_text(about: str, method: str, sections: Mapping[str, Mapping[str, Any]]) -> str:
    """A file of options, without those that have no value."""
    lines = [f"{about}\n", *([f"method = {toml_value(method)}\n"] if method else [])]
    for name, section in sections.items():
        if section:
            lines += [f"[{name}]", *(f"{key} = {toml_value(v)}" for key, v in section.items() if v is not None), ""]
    return "\n".join(lines)


def toml_value(value: Any) -> str:
    """Options are numbers, words and lists, whose JSON is valid TOML; but for inf, which JSON has not."""
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
