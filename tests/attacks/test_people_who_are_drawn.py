"""Two sums over the same whole batches, in the second of which one node leaves out one user: it draws whom.

The server tells each node which share of its users takes part, and only the largest node has users to spare. Nobody
else than that user is in the difference. The server does not learn the user's name, but all of its items at once.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.config.options import FedGRecOptions
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore, Person
from tests.attacks.companies import Chooser, Table, in_one_batch, touched
from tests.attacks.lying_server import TRAIN

LARGEST, USERS = 0, 3


def profiles(liar: Chooser) -> list[set[int]]:
    """The items of each user of the largest node; only a test may know them."""
    with NodeStore(liar.fed.nodes[LARGEST]) as store:
        return [{item for _, item in store.ids_and_items([row])[1]} for row in store.first_rows(-1)]


class Two:
    """A server that has two rounds opened over everybody: in the second one, the largest node leaves one user out."""

    def __init__(self, root: Path, **options: Any) -> None:
        fed = in_one_batch(root, 4, users=USERS, **options)
        with NodeStore(fed.nodes[LARGEST]) as store:
            store.add_users(open_node(fed.nodes[LARGEST]).method(1), [Person("one more", [1, 5, 9, 20])])
        self.liar, self.fcf = Chooser(fed), options.get("method") == "fcf"
        if not self.fcf:
            self.liar.warm_up()

    def difference(self, first: int, second: int, leaf: str) -> set[int] | None:
        """The items in which they differ; None if one of them is not opened."""
        whole = self._opened(first, True, leaf)
        assert whole is not None, self.liar.refusals
        less = self._opened(second, False, leaf, take=USERS, of=USERS + 1, least=USERS)
        return touched(whole, -less if leaf == "items" and less is not None else less)

    def _opened(self, round_: int, false: bool, leaf: str, **share: int) -> Table | None:
        """FCF sends the same twice; the latents of FedGRec under false degrees are taken back under true ones."""
        plan = replace(self.liar.plan(TRAIN, round=round_), **share)
        model = self.liar.broadcast(plan)
        degrees = 4 * model.degrees if false and leaf == "latents" else model.degrees
        tables = model.tables if self.fcf else np.zeros_like(model.tables)
        return self.liar.opened(self.liar.everybody, leaf, plan, replace(model, degrees=degrees, tables=tables))


@pytest.mark.parametrize("options", [{"latents_every": 1}, {"method": "fcf"}], ids=["FedGRec with latents", "FCF"])
def test_what_is_open_rounds_of_own_items_alone_tell_one_unnamed_person(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """This is known, and stands: use the defaults, or noise, where it matters."""
    two = Two(tmp_path, **options)
    told = two.difference(1, 2, "items" if two.fcf else "latents")
    assert told in profiles(two.liar), two.liar.refusals


def test_by_default_fedgrec_sends_latents_of_everybody_or_not_at_all(tmp_path: Path) -> None:
    """A sweep holds all users of a node; other rounds hold negatives beside own items."""
    two = Two(tmp_path, latents_every=FedGRecOptions().latents_every)
    assert two.difference(1, 2, "latents") is None
    assert two.liar.refused("adds up 4 users or more in stage 'train', not 3")
    told = two.difference(17, 18, "items")
    assert told is not None, two.liar.refusals
    assert all(len(told - profile) >= 10 for profile in profiles(two.liar))
