"""What the users of nodes have, and which sums they were in. It scores an audit, and needs the folders of all nodes.

Nodes keep only what users have now. If items have changed since a sum, the score uses what users have now.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.gateway import node_folders
from fedgrec.federation.node.store import NodeStore
from fedgrec.studies.audit.links import KnownUser


def known_users(folders: Iterable[Path]) -> list[KnownUser]:
    return [user for folder in folders for path in node_folders(folder) for user in _on_node(path)]


def _on_node(path: Path) -> list[KnownUser]:
    home = open_node(path)
    with NodeStore(path) as store:
        took_part, rows = store.participation(), store.first_rows(-1)
        _, pairs = store.ids_and_items(rows)
    items: dict[int, list[int]] = {row: [] for row in rows}
    sessions: dict[int, set[str]] = {row: set() for row in rows}
    for row, item in pairs:
        items[row].append(item)
    for session, users in took_part.items():
        for row in set(users) & sessions.keys():  # others have left since
            sessions[row].add(session)
    return [KnownUser(home.index, np.array(items[row], np.int64), frozenset(sessions[row])) for row in rows]
