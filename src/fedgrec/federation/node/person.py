"""What a node or a gateway does for one user: recommend items, forget the user. It needs no network."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Broadcast, Cohort, as_server
from fedgrec.federation.common.arrays import read_arrays
from fedgrec.federation.common.catalogue import withdrawn
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.folder import GATEWAY
from fedgrec.federation.common.packets import unpack_broadcast
from fedgrec.federation.common.plan import EVALUATE
from fedgrec.federation.node import actual_items, changes
from fedgrec.federation.node.folder import SERVED, TABLE, NodeFolder, open_node
from fedgrec.federation.node.gateway import node_folders, open_gateway
from fedgrec.federation.node.ranking import best, scores
from fedgrec.federation.node.store import NodeStore, having
from fedgrec.methods.contract import Method


class People(NamedTuple):
    """Users with what they rank by."""

    ids: list[str]
    cohort: Cohort  # with the items that they have now, counted or not
    had: list[Any]  # [n] Ints: what is never recommended to each of them


def recommend(folder: Path, user: str, n: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The user's n best items that it does not have, and their scores."""
    home = open_node(_home_of(folder, user))
    served = _served(home)
    with NodeStore(home.path, read_only=True) as store:
        method = _method(home, store)
        people = _people(home, store, method, [store.row_of(user)], served.n_items)
    found = scores(method, as_server(served), people.cohort)[0]
    chosen = best(found, people.had[0], n)
    chosen = chosen[chosen >= 0]
    return chosen, found[chosen]


def everybody(folder: Path) -> tuple[Broadcast, People]:
    """The model that a node or a gateway has on its disk, and all who stay there. Nothing is written."""
    homes, found = [open_node(path) for path in node_folders(folder)], list[People]()
    served = _served(homes[0])
    for home in homes:
        with NodeStore(home.path, read_only=True) as store:
            store.db.execute("BEGIN")  # all queries see the same moment
            if rows := store.column("users", "row", "WHERE leaving = 0 ORDER BY row"):
                found.append(_people(home, store, _method(home, store), rows, served.n_items))
    if not found:
        raise FederationError(f"{folder} has no users")
    cohorts = [part.cohort for part in found]
    state = type(cohorts[0].state).joined([cohort.state for cohort in cohorts])
    nothing, no_keys = np.zeros(0, np.int64), np.zeros(sum(map(len, cohorts)), np.uint64)
    items = [cohort.items_of(user) for cohort in cohorts for user in range(len(cohort))]
    orders = [cohort.order for cohort in cohorts if cohort.order is not None]
    whole = having(Cohort(no_keys, nothing, nothing, state), items)
    whole = replace(whole, order=np.concatenate(orders) if orders else None)
    return served, People(
        [name for part in found for name in part.ids], whole, [row for part in found for row in part.had]
    )


def _method(home: NodeFolder, store: NodeStore) -> Method:
    begun, n_users = store.get("season", (0, 1))
    return home.method(n_users, begun)


def _served(home: NodeFolder) -> Broadcast:
    """The newest model that recommends."""
    table = next((path for path in (home.shared / SERVED, home.shared / TABLE) if path.exists()), home.shared / TABLE)
    arrays, about = read_arrays(table)
    if about["stage"] not in (EVALUATE, home.method(1).stages[-1].name):
        raise FederationError(f"{table} is from the warm-up: there is no trained model here yet")
    return unpack_broadcast(about, arrays)


def _people(home: NodeFolder, store: NodeStore, method: Method, rows: Sequence[int], n_items: int) -> People:
    """These users; a model may be older than some of their items."""
    cohort, gone, in_order = store.cohort(method, rows), withdrawn(home.shared), method.options.takes_order
    counted = slice(0 if actual_items.are_kept(store) else None)  # a decoy may be recommended
    theirs, held_out = changes.history if in_order else changes.mine, store.held_out(rows)
    mine = [np.array(theirs(store, row), np.int64) for row in rows]
    had = [
        np.unique(np.concatenate([cohort.items_of(user)[counted], mine[user], held_out[user], gone])).astype(np.int64)
        for user in range(len(rows))
    ]
    known = [[part[part < n_items] for part in parts] for parts in (mine, had)]
    ids = [user for (user,) in store.of("users", "id", rows, "ORDER BY row")]
    whole = having(cohort, [np.sort(items) for items in known[0]])
    if in_order:
        whole = whole.ordered_by(np.concatenate([np.argsort(items) for items in known[0]]))
    return People(ids, whole, known[1])


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
    with NodeStore(folder, read_only=True) as store:
        return store.ids()
