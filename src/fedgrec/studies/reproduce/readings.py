"""Other readings of points that the paper leaves open: named changes to the preset `paper`.

`fedgrec reproduce TARGET --reading NAME` runs a target's FedGRec under one of them and keeps the target's K, S and τ.
"""

import functools
import tomllib
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from fedgrec.errors import ConfigError, nearest
from fedgrec.studies.compare.names import Entry


@dataclass(frozen=True)
class Reading:
    """The change that a reading makes, in words and as options."""

    what: str
    options: dict[str, Any]


@functools.cache
def readings() -> dict[str, Reading]:
    """All of them by name."""
    found = tomllib.loads((resources.files("fedgrec.studies.reproduce") / "readings.toml").read_text("utf-8"))
    return {name: Reading(values.pop("what"), values) for name, values in found.items()}


def reading(name: str) -> Reading:
    known = readings()
    if name not in known:
        raise ConfigError(f"--reading {name}: no such reading.{nearest(name, [*known])} Known: {', '.join(known)}")
    return known[name]


def read(entries: tuple[Entry, ...], name: str) -> tuple[Entry, ...]:
    """The entries that a reading changes, changed; without a reading, all entries as they are."""
    if not name:
        return entries
    options = reading(name).options
    changed = [entry for entry in entries if entry.section.get("preset") == "paper"]
    return tuple(replace(entry, section={**entry.section, **options}) for entry in changed)
