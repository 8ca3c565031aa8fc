"""When users tell their items with decoys: when they are taken in (store.py), then once in every season.

    the source is read     new items are noted; nothing is told, nothing taken back         (actual_items.py)
    a season ends          before the first count of changes after it, or the recount if the node missed that count,
                           every user tells once more, whether it has new items or not               (cable/decoys.py)
    the recount            new answers wait for it in `changes`, as any change does                      (changes.py)

The operating system draws, in the transaction of the message that asks: a second request finds the answers made.
"""

import numpy as np

from fedgrec.cable import decoys
from fedgrec.federation.common.plan import CHANGES, Plan, is_recount
from fedgrec.federation.node import actual_items, changes
from fedgrec.federation.node.folder import NodeFolder
from fedgrec.federation.node.store import NodeStore


def before_keys(folder: NodeFolder, store: NodeStore, place: tuple[str, int, int]) -> None:
    """A node commits itself to what it sends in a recount, so users tell before that.

    A season that the node knows has begun, so its recount does not change any more.
    """
    stage, _, begins = place
    actual_items.check(store, folder.agreed.decoys_epsilon)
    begun = store.get("season", (0, 0))[0]
    if is_recount(folder.method(1), stage) and begins != begun:
        _tell_once(folder, store, begun)


def before_count(folder: NodeFolder, store: NodeStore, plan: Plan) -> None:
    """The plan of a sum has been checked; if it is a count of changes, users tell before it."""
    if plan.stage == CHANGES:
        _tell_once(folder, store, plan.begun)


def _tell_once(folder: NodeFolder, store: NodeStore, begun: int) -> None:
    """Let users tell, once in the season that began with this round."""
    epsilon = folder.agreed.decoys_epsilon
    if epsilon and store.get("told") != begun:
        tell(store, folder.n_items, epsilon)
        store.put("told", begun)


def tell(store: NodeStore, n_items: int, epsilon: float) -> None:
    """Every user who stays tells of all items; the answers wait for the next recount."""
    changes.check_quiet(store)
    for row in store.column("users", "row", "WHERE leaving = 0"):
        told, new = np.array(changes.wanted(store, row), int), np.array(actual_items.unanswered(store, row), int)
        changes.want(store, row, decoys.next_told_items(told, new, n_items, epsilon, decoys.fresh_source()).tolist())
        actual_items.answer(store, row)
