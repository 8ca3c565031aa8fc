"""Values in the files of a federation's folders: read, checked, and turned into dataclasses.

Somebody may have edited such a file, or copied another one over it. A value that does not fit raises an error.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from fedgrec.errors import nearest
from fedgrec.federation.common.errors import FederationError

_hints = cache(get_type_hints)
KINDS: dict[Any, str] = {str: "a text", int: "a whole number", float: "a number", bytes: "hexadecimal digits"}
Made = TypeVar("Made")


def as_json(content: Any) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FederationError(f"{path} is missing: make the folder with  fedgrec federation init") from None


def parse_json(path: Path, content: bytes) -> dict[str, Any]:
    """The names and values in a JSON file of this content."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FederationError(f"{path} is not readable ({error}): restore it from where it was made") from None
    if not isinstance(parsed, dict):
        raise FederationError(f"{path} holds no names and values: restore it from where it was made")
    return parsed


def filled(kind: type[Made], values: Any, where: Path | str, **known: Any) -> Made:
    """An object of a dataclass: its fields come from `known` and from `values`, which were read from `where`."""
    wanted = {field.name: field for field in fields(kind) if field.name not in known}  # type: ignore[arg-type]
    if not isinstance(values, Mapping):
        raise FederationError(f"{where} holds no names and values: restore it from where it was made")
    for name in values:
        if name not in wanted:
            hint = nearest(str(name), list(wanted))
            raise FederationError(f"{where}: there is no value {name!r}, it may set {', '.join(wanted)}.{hint}")
    for name, field in wanted.items():
        if name not in values and field.default is MISSING:
            raise FederationError(f"{where}: {name} is missing: restore the file from where it was made")
    hints = _hints(cast(Any, kind))
    try:
        return kind(**known, **{name: _checked(name, hints[name], value) for name, value in values.items()})
    except ValueError as error:
        raise FederationError(f"{where}: {error}") from None


def _checked(name: str, kind: Any, value: Any) -> Any:
    try:
        if kind is bytes:
            return bytes.fromhex(value)
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            raise TypeError
    except (TypeError, ValueError):
        raise ValueError(f"{name} cannot be {value!r}: it is {KINDS[kind]}") from None
    return value
