"""What a node or a gateway does for one user: recommend items, forget the user. It needs no network."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import as_server
from fedgrec.federation.common.arrays import read_arrays
from fedgrec.federation.common.catalogue import withdrawn
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.folder import GATEWAY
from fedgrec.federation.common.packets import unpack_broadcast
from fedgrec.federation.common.plan import EVALUATE
from fedgrec.federation.node import actual_items, changes
from fedgrec.federation.node.folder import SERVED, TABLE, open_node
from fedgrec.federation.node.gateway import open_gateway
from fedgrec.federation.node.ranking import best, scores
from fedgrec.federation.node.store import NodeStore, having


def recommend(folder: Path, user: str, n: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The user's n best items that it does not have, and their scores."""
    home = open_node(_home_of(folder, user))
    table = next((path for path in (home.shared / SERVED, home.shared / TABLE) if path.exists()), home.shared / TABLE)
    arrays, about = read_arrays(table)
    with NodeStore(home.path) as store:
        begun, n_users = store.get("season", (0, 1))
        method, row = home.method(n_users, begun), store.row_of(user)
        if about["stage"] not in (EVALUATE, method.stages[-1].name):
            raise FederationError(f"{table} is from the warm-up: there is no trained model here yet")
        mine, (held_out,) = changes.mine(store, row), store.held_out([row])
        cohort = store.cohort(method, [row])
        counted = cohort.items_of(0)[: 0 if actual_items.are_kept(store) else None]  # a decoy may be recommended
        served = unpack_broadcast(about, arrays)
        had = np.unique(np.concatenate([counted, mine, held_out, withdrawn(home.shared)])).astype(np.int64)
        # What the person has now, counted or not; a model may be older than an item.
        cohort = having(cohort, [np.array([item for item in mine if item < served.n_items], np.int64)])
    found = scores(method, as_server(served), cohort)[0]
    chosen = best(found, had[had < served.n_items], n)
    chosen = chosen[chosen >= 0]
    return chosen, found[chosen]


def _home_of(folder: Path, user: str) -> Path:
    """The node's folder of this user: in a gateway each user has one."""
    if not (folder / GATEWAY).exists():
        return folder
    home = open_gateway(folder)
    for index, name in home.hosted().items():
        if name == user:
            return home.members[index]
    raise FederationError(f"there is no user {user!r} on this node")


def forget(folder: Path, user: str) -> None:
    """The user leaves the node or the gateway that it is on."""
    home = open_node(_home_of(folder, user))
    with NodeStore(home.path) as store:
        changes.forget(store, user, home.user_salt)


def users_of(folder: Path) -> list[str]:
    """The ids of a node's or a gateway's users."""
    if (folder / GATEWAY).exists():
        return list(open_gateway(folder).hosted().values())
    with NodeStore(folder) as store:
        return store.ids()
