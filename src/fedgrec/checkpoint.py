"""Both sides of a run as named tensors, and back: what a checkpoint holds."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.core import Cohort, Edges, Past, ServerState

Tensors = Mapping[str, NDArray[Any]]
SERVER_PARTS = ("items", "degrees", "moment1", "moment2")


def tensors_of(server: ServerState, users: Cohort, told: bool = False) -> dict[str, NDArray[Any]]:
    """All that training changes; and what users have told, if that differs from what they have."""
    tensors = {f"server.{name}": getattr(server, name) for name in SERVER_PARTS}
    if server.standing is not None:
        tensors["server.standing"] = server.standing
    tensors |= {f"more.{name}": value for name, value in server.more.items()}
    tensors |= {f"users.{f.name}": getattr(users.state, f.name) for f in fields(users.state)}
    if users.around is not None:
        tensors["around"] = users.around
    if told:
        tensors |= {"told.indptr": users.indptr, "told.items": users.items}
    return tensors | (_tensors_of_past(users.past) if users.past and users.past.pushed else {})


def restored(tensors: Tensors, round_: int, server: ServerState, users: Cohort) -> tuple[ServerState, Cohort]:
    """Server and users as they were; the given ones tell the names and types of their parts."""
    parts: dict[str, Any] = {name: tensors[f"server.{name}"] for name in SERVER_PARTS}
    found = [name.removeprefix("more.") for name in tensors if name.startswith("more.")]
    more = {name: tensors[f"more.{name}"] for name in dict.fromkeys([*server.more, *found])}
    standing: Any = tensors.get("server.standing")
    state = type(users.state)(**{f.name: tensors[f"users.{f.name}"] for f in fields(users.state)})
    told = {name: tensors[f"told.{name}"] for name in ("indptr", "items") if f"told.{name}" in tensors}
    return (
        replace(server, **parts, more=more, round=round_, standing=standing),
        replace(users, state=state, around=tensors.get("around"), past=_restored_past(tensors), **told),
    )


def _tensors_of_past(past: Past) -> dict[str, NDArray[Any]]:
    """What the latents hold of users who have not sent their changes; degrees are recounted before any round."""
    users = sorted(past.pushed)
    edges = [past.pushed[user] for user in users]
    return {
        "past.users": np.array(users, np.int64),
        "past.indptr": np.concatenate([[0], np.cumsum([len(part.items) for part in edges])]).astype(np.int64),
        "past.items": np.concatenate([part.items for part in edges]),
        "past.weights": np.concatenate([part.weights for part in edges]),
    }


def _restored_past(tensors: Tensors) -> Past | None:
    if "past.users" not in tensors:
        return None
    ends = tensors["past.indptr"][1:-1]
    edges = map(Edges, np.split(tensors["past.items"], ends), np.split(tensors["past.weights"], ends))
    return Past(pushed=dict(zip(tensors["past.users"].tolist(), edges, strict=True)))
