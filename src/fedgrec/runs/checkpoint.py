"""Both sides of a run as named tensors, and back: what a checkpoint holds."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from numpy.typing import NDArray

from fedgrec.cable.core import Cohort, ServerState
from fedgrec.methods.change import Past

Tensors = Mapping[str, NDArray[Any]]
SERVER_PARTS = ("items", "degrees", "moment1", "moment2")


def tensors_of(server: ServerState, users: Cohort, told: bool = False) -> dict[str, NDArray[Any]]:
    """All that training changes; and what users have told, if that differs from what they have."""
    tensors = {f"server.{name}": getattr(server, name) for name in SERVER_PARTS}
    tensors |= {f"server.{name}": value for name, value in server.kept.items()}
    tensors |= {f"more.{name}": value for name, value in server.more.items()}
    tensors |= {f"users.{f.name}": getattr(users.state, f.name) for f in fields(users.state)}
    if users.around is not None:
        tensors["around"] = users.around
    if told:
        tensors |= {"told.indptr": users.indptr, "told.items": users.items}
    return tensors | (users.past.tensors() if users.past else {})


def restored(tensors: Tensors, round_: int, server: ServerState, users: Cohort) -> tuple[ServerState, Cohort]:
    """Server and users as they were; the given ones tell the names and types of their parts."""
    kept = {name.removeprefix("server."): value for name, value in tensors.items() if name.startswith("server.")}
    parts: dict[str, Any] = {name: kept.pop(name) for name in SERVER_PARTS}
    found = [name.removeprefix("more.") for name in tensors if name.startswith("more.")]
    more = {name: tensors[f"more.{name}"] for name in dict.fromkeys([*server.more, *found])}
    state = type(users.state)(**{f.name: tensors[f"users.{f.name}"] for f in fields(users.state)})
    told = {name: tensors[f"told.{name}"] for name in ("indptr", "items") if f"told.{name}" in tensors}
    return (
        replace(server, **parts, more=more, round=round_, kept=kept),
        replace(users, state=state, around=tensors.get("around"), past=Past.restored(tensors), **told),
    )
