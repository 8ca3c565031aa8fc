"""What users have, if they tell it with decoys (cable/decoys.py): the table `own` of a node's store.

With decoys, `interactions` and `changes` hold what a user has told: sums hold nothing else about its items. The source
says what the user has. Ranking uses these items, and never recommends them; the held-out items judge it. A user is
asked about an item once: an item that goes and comes back keeps its answer, because two answers together would tell
more than ε.
"""

import json
from collections.abc import Sequence

import numpy as np

from fedgrec.cable.core import Cohort
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.sqlite_store import LISTED
from fedgrec.federation.node.store import NodeStore, having


def are_kept(store: NodeStore) -> bool:
    """Whether the users of this store tell with decoys."""
    return bool(store.get("decoys"))


def check(store: NodeStore, epsilon: float) -> None:
    """Decoys are agreed on before the first user comes, because what was told cannot be taken back."""
    if (store.get("last_row") or store.first_rows(1)) and are_kept(store) != (epsilon > 0):
        how = "with" if are_kept(store) else "without"
        agreed = f"agreement.toml has dp_epsilon = {epsilon:g}" if epsilon else "agreement.toml has none"
        raise FederationError(
            f"the users in {store.path} were taken in {how} decoys, and {agreed}: put back what it said, or begin a "
            f"new federation"
        )


def items(store: NodeStore, row: int) -> list[int]:
    return store.column("own", "item", "WHERE user = ? AND gone = 0 ORDER BY item", [row])


def unanswered(store: NodeStore, row: int) -> list[int]:
    """What the user has and was not asked about yet."""
    return store.column("own", "item", "WHERE user = ? AND answered = 0 ORDER BY item", [row])


def answer(store: NodeStore, row: int) -> None:
    """The user has been asked about all that it has."""
    store.db.execute("UPDATE own SET answered = 1 WHERE user = ? AND answered = 0", [row])


def note(store: NodeStore, row: int, items: Sequence[int]) -> None:
    """The user has these items now; what it told does not change."""
    now = json.dumps(list(items))
    store.db.execute(f"DELETE FROM own WHERE user = ? AND answered = 0 AND NOT item {LISTED}", [row, now])
    store.db.execute(f"UPDATE own SET gone = NOT item {LISTED} WHERE user = ?", [now, row])
    new = "INSERT OR IGNORE INTO own (user, item, answered, gone) VALUES (?, ?, 0, 0)"
    store.db.executemany(new, [(row, item) for item in items])


def let_go(store: NodeStore, row: int, forgotten: bool) -> None:
    """The user leaves. A user who is not forgotten may come back while what it told still counts."""
    if forgotten:
        store.db.execute("DELETE FROM own WHERE user = ?", [row])
    elif are_kept(store):
        note(store, row, [])


def ask_again(store: NodeStore, row: int, told: Sequence[int]) -> None:
    """The user is back. If nothing is left of what it told, it tells like a new user."""
    if not told:
        store.db.execute("DELETE FROM own WHERE user = ? AND gone = 1", [row])
        store.db.execute("UPDATE own SET answered = 0 WHERE user = ?", [row])


def with_actual_items(store: NodeStore, cohort: Cohort, rows: Sequence[int]) -> Cohort:
    """The users with the items that they have: ranking uses these, whatever the users told."""
    if not are_kept(store):
        return cohort
    return having(cohort, [np.array(items(store, row), np.int64) for row in sorted(rows)])
