"""Recommendations for a user of a node or of a gateway, from what is on the disk: the network is not needed."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.core import as_server
from fedgrec.federation.common.arrays import read_arrays
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.folder import GATEWAY
from fedgrec.federation.common.packets import unpack_broadcast
from fedgrec.federation.common.plan import EVALUATE
from fedgrec.federation.node.folder import TABLE, open_node
from fedgrec.federation.node.gateway import open_gateway
from fedgrec.federation.node.ranking import best, scores
from fedgrec.federation.node.store import NodeStore


def recommend(folder: Path, user: str, n: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The user's n best items that it does not have, and their scores."""
    home = open_node(_home_of(folder, user))
    arrays, about = read_arrays(home.shared / TABLE)
    with NodeStore(home.path) as store:
        method, row = home.method(store.get("n_users", 1)), store.row_of(user)
        if about["stage"] not in (EVALUATE, method.stages[-1].name):
            raise FederationError(f"{home.shared / TABLE} is from the warm-up: there is no trained model here yet")
        cohort, (held_out,) = store.cohort(method, [row]), store.held_out([row])
    found = scores(method, as_server(unpack_broadcast(*_as_of_today(about, arrays))), cohort)[0]
    chosen = best(found, np.concatenate([cohort.items_of(0), held_out]), n)
    chosen = chosen[chosen >= 0]
    return chosen, found[chosen]


def _as_of_today(
    about: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Tables that a node of protocol 1 kept: it was sent all numbers as they were, and kept no word about that."""
    if "kind" in about:
        return about, arrays
    how = {"kind": "float32", "precision": arrays["tables"].dtype.name}
    return about | how, arrays | {"degrees": arrays["degrees"].astype(np.int32)}


def _home_of(folder: Path, user: str) -> Path:
    """The node's folder of this user: in a gateway each user has one."""
    if not (folder / GATEWAY).exists():
        return folder
    home = open_gateway(folder)
    for index, name in home.hosted().items():
        if name == user:
            return home.members[index]
    raise FederationError(f"there is no user {user!r} on this node")


def users_of(folder: Path) -> list[str]:
    """The ids of a node's or a gateway's users."""
    if (folder / GATEWAY).exists():
        return list(open_gateway(folder).hosted().values())
    with NodeStore(folder) as store:
        return store.ids()
