"""What a comparison names: methods, options behind a colon, sections of a TOML file.

fedgrec                          a method with its defaults
fedgrec:layers=1,rounds=4000     with options of its own
tuned                            the section [compare.tuned] of the file
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgrec.config.configuration import flat, options, parse_assignment, toml
from fedgrec.config.options import METHODS
from fedgrec.errors import ConfigError, nearest

# The keys of centralized.MODELS, written out so that `--help` need not import it.
CENTRALIZED = ("lightgcn", "ngcf", "multvae", "mf-bpr", "popularity", "turbocf", "ease", "itemknn")

Options = dict[str, Any]


def known() -> list[str]:
    """All methods: the federated ones, then the others."""
    return [*METHODS, *CENTRALIZED]


@dataclass(frozen=True)
class Entry:
    label: str  # as it was named
    method: str
    section: Options = field(default_factory=dict)  # its options in the file
    inline: Options = field(default_factory=dict)  # its options behind the colon

    @property
    def federated(self) -> bool:
        return self.method in METHODS

    @property
    def folder(self) -> str:
        """The label as part of a file's name."""
        return re.sub(r"[^\w.+-]+", "-", self.label).strip("-.")


@dataclass(frozen=True)
class File:
    """A TOML file: options of all runs in [data] and [run], of one method in [compare.NAME]."""

    where: str = "configuration file"
    shared: Options = field(default_factory=dict)
    sections: Mapping[str, Options] = field(default_factory=dict)


def read_file(path: Path) -> File:
    content = toml(path)
    sections = content.get("compare", {})
    for name, values in sections.items():
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: [compare] holds a section for each method: write [compare.NAME] above {name!r}")
    shared = {name: values for name, values in content.items() if name != "compare"}
    common = [option for option in options() if option.part != "model"]
    for name, values in shared.items():
        if name not in {option.group for option in common} or not isinstance(values, dict):
            raise ConfigError(f"{path}: {name!r} has no place here: write it into [data], [run] or [compare.NAME]")
    return File(str(path), flat(shared, common, str(path)), sections)


def entries(text: str | None, file: File) -> list[Entry]:
    """The methods that `text` names, or else all sections of the file."""
    found = [_entry(*named, file) for named in (_split(text) if text else [(name, name, {}) for name in file.sections])]
    if not found:
        raise ConfigError(f"name methods to compare, such as  --methods fedgrec,popularity  of {', '.join(known())}")
    folders: dict[str, Entry] = {}
    for entry in found:
        if (first := folders.setdefault(entry.folder, entry)) is not entry:
            same = first.label == entry.label
            what = f"{entry.label!r} is named twice" if same else f"{first.label!r} and {entry.label!r}"
            raise ConfigError(f"--methods: {what}: each needs a folder of its own, so name it once")
    return found


def _entry(label: str, name: str, inline: Options, file: File) -> Entry:
    section = dict(file.sections.get(name, {}))
    method = str(section.pop("method", name))
    if method not in known():
        where = f"{file.where}: [compare.{name}]" if method != name else "--methods"
        names = [*known(), *file.sections] if method == name else known()
        raise ConfigError(f"{where}: there is no method {method!r}.{nearest(method, names)} Known: {', '.join(names)}")
    return Entry(label, method, section, inline)


def _split(text: str) -> list[tuple[str, str, Options]]:
    """'a,b:x=1,y=[2,3],c' → (label, name, options) of a, b and c."""
    found: list[tuple[str, str, Options]] = []
    for piece in filter(None, map(str.strip, re.split(r",(?![^\[]*\])", text))):
        head, equals, value = piece.partition("=")
        name, colon, key = head.rpartition(":") if equals else (piece, "", "")
        if not equals or colon:
            found.append((piece, name.strip(), {}))
        if (not equals and ":" in piece) or (equals and not key.strip()) or not found or not found[-1][1]:
            raise ConfigError(f"--methods {text}: write options as NAME:key=value,key=value")
        if equals:
            label, name, options = found[-1]
            key, converted = parse_assignment(f"{key}={value}")
            found[-1] = (label if colon else f"{label},{piece}", name, options | {key.replace("-", "_"): converted})
    return found
