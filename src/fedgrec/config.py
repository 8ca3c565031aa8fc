"""Where options come from, one on top of the other: preset, TOML file, `--set key=value`, flags or keywords."""

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from fedgrec.errors import ConfigError, nearest
from fedgrec.options import DataOptions, FedGRecOptions, RunOptions, method_module

Layer = tuple[Mapping[str, Any], str]  # option values, and where they come from (for the error sentence)


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
        sections: dict[str, dict[str, Any]] = {}
        for values, where in layers:
            for key, value in values.items():
                if key != "method":
                    section, found, kind = find(key, where, base.method)
                    sections.setdefault(section, {})[found.name] = checked(found, kind, value, where)
        asked = sections.get("run", {})
        noise = asked.get("dp_epsilon", base.run.dp_epsilon) and asked.get("dp_unit", base.run.dp_unit) == "user"
        if noise and (method or not self.run.noisy):
            base = replace(base, model=_with_noise(base.model))
        return dataclasses.replace(
            base, **{name: dataclasses.replace(getattr(base, name), **new) for name, new in sections.items()}
        )

    def of(self, method: str) -> "Config":
        """The same run of another method, with that method's defaults."""
        return self if method == self.method else replace(self, method=method, model=method_module(method).Options())

    def to_toml(self) -> str:
        lines = ["# A resolved fedgrec configuration: `fedgrec train --config THIS` gives the same run.\n"]
        lines.append(f"method = {_toml(self.method)}\n")
        for section in ("data", "model", "run"):
            lines.append(f"[{section}]")
            for name, value in dataclasses.asdict(getattr(self, section)).items():
                if value is not None:
                    lines.append(f"{name} = {_toml(value)}")
            lines.append("")
        return "\n".join(lines)


def _with_noise(model: Any) -> Any:
    """Values that are better under noise, for options that still have their defaults."""
    fields = {f.name: f.default for f in dataclasses.fields(model)}
    better = getattr(model, "with_noise", {})
    return replace(model, **{name: new for name, new in better.items() if getattr(model, name) == fields[name]})


Found = tuple[str, "dataclasses.Field[Any]", Any]  # an option: its section, its field, its type


def options(method: str = "fedgrec") -> Iterator[Found]:
    """Every option of a run of this method."""
    model = FedGRecOptions if method == "fedgrec" else method_module(method).Options
    for section, cls in (("data", DataOptions), ("model", model), ("run", RunOptions)):
        yield from _of_section(section, cls)


@cache
def _of_section(section: str, cls: Any) -> list[Found]:
    """Cached: reading types takes long, and a file of options asks for each of its names."""
    hints = get_type_hints(cls)
    return [(section, f, hints[f.name]) for f in dataclasses.fields(cls)]


def find(key: str, where: str, method: str = "fedgrec") -> Found:
    """An option by its name, or an error that suggests the nearest one."""
    key = key.replace("-", "_")
    for found in options(method):
        if found[1].name == key:
            return found
    of = "" if method == "fedgrec" else f" of method {method}"
    raise ConfigError(
        f"{where}: there is no option {key!r}{of}.{nearest(key, [f.name for _, f, _ in options(method)])}"
    )


def checked(f: "dataclasses.Field[Any]", kind: Any, value: Any, where: str) -> Any:
    """The value in the option's type and within its bounds."""
    try:
        value = _convert(value, kind)
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: {f.name} cannot be {value!r}: it is {_describe(kind)}") from None
    if f.metadata["choices"] and value not in f.metadata["choices"]:
        raise ConfigError(f"{where}: {f.name} cannot be {value!r}: choose one of {', '.join(f.metadata['choices'])}")
    least, most = f.metadata["least"], f.metadata["most"]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and ((least is not None and not value >= least) or (most is not None and not value <= most)):
        bounds = " and ".join(f"at {w} {b:g}" for w, b in (("least", least), ("most", most)) if b is not None)
        raise ConfigError(f"{where}: {f.name} cannot be {value!r}: it is {bounds}")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Options of a TOML file; its sections are for the reader's eye, names are unique without them."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such configuration file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from None
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            if key not in {"data", "model", "run"}:
                raise ConfigError(f"{path}: there is no section [{key}].{nearest(key, ['data', 'model', 'run'])}")
            flat |= value
        elif key != "description":
            flat[key] = value
    return flat


# A run of an earlier release may lack these options. These values give what it did.
FORMER = {"similarity": "inner", "popular_negatives": 0.0, "latents_every": 1, "item_levels": 0, "download": "float32"}
GONE = {"query"}  # options of earlier releases


def recorded(path: Path) -> Config:
    """The configuration that a run or a federation has written down, maybe with an earlier release."""
    values = {name: value for name, value in read_toml(path).items() if name not in GONE}
    names = {f.name for _, f, _ in options(str(values.get("method", "fedgrec")))}
    former = {name: value for name, value in FORMER.items() if name in names}
    return Config().changed(former | values, str(path))


def presets() -> dict[str, str]:
    """Names of the presets and what each is for."""
    folder = resources.files("fedgrec") / "presets"
    return {
        name: tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))["description"]
        for name in sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))
    }


def preset(name: str) -> Config:
    """The configuration that a preset names."""
    if name not in presets():
        raise ConfigError(
            f"there is no preset {name!r}.{nearest(name, list(presets()))} Presets: {', '.join(presets())}"
        )
    with resources.as_file(resources.files("fedgrec") / "presets" / f"{name}.toml") as path:
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
    if kind is float:
        return float(value)
    if kind is str:
        return str(value)
    element = kind.__args__[0]
    parts = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int | float) else value
    return tuple(_convert(part, element) for part in parts if part != "")


def _describe(kind: Any) -> str:
    words = {
        int: "a whole number",
        float: "a number",
        str: "a word",
        bool: "true or false",
        float | None: "a number",
    }
    return words.get(kind, "a list of numbers")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return repr(value)
