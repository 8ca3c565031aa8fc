"""Both sides of a run as named tensors, and back: what a checkpoint holds."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from numpy.typing import NDArray

from fedgrec.core import Cohort, ServerState

Tensors = Mapping[str, NDArray[Any]]
SERVER_PARTS = ("items", "degrees", "moment1", "moment2")


def tensors_of(server: ServerState, users: Cohort) -> dict[str, NDArray[Any]]:
    """All that training changes."""
    tensors = {f"server.{name}": getattr(server, name) for name in SERVER_PARTS}
    if server.standing is not None:
        tensors["server.standing"] = server.standing
    tensors |= {f"more.{name}": value for name, value in server.more.items()}
    tensors |= {f"users.{f.name}": getattr(users.state, f.name) for f in fields(users.state)}
    if users.around is not None:
        tensors["around"] = users.around
    return tensors


def restored(tensors: Tensors, round_: int, server: ServerState, users: Cohort) -> tuple[ServerState, Cohort]:
    """Server and users as they were; what is given tells the kinds and names of their parts."""
    parts: dict[str, Any] = {name: tensors[f"server.{name}"] for name in SERVER_PARTS}
    found = [name.removeprefix("more.") for name in tensors if name.startswith("more.")]
    more = {name: tensors[f"more.{name}"] for name in dict.fromkeys([*server.more, *found])}
    standing: Any = tensors.get("server.standing")
    state = type(users.state)(**{f.name: tensors[f"users.{f.name}"] for f in fields(users.state)})
    return (
        replace(server, **parts, more=more, round=round_, standing=standing),
        replace(users, state=state, around=tensors.get("around")),
    )
