"""Two sums over the same whole batches, in the second of which one node leaves out one user: it draws whom.

The server tells each node which share of its users takes part, and only the largest node has users to spare. Nobody
else than that user is in the difference. The server does not learn the user's name, but all of its items at once.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore, Person
from tests.attacks.companies import Chooser, Table, in_one_batch, touched
from tests.attacks.lying_server import TRAIN

LARGEST, USERS = 0, 3


def profiles(liar: Chooser) -> list[set[int]]:
    """The items of each user of the largest node; only a test may know them."""
    with NodeStore(liar.fed.nodes[LARGEST]) as store:
        return [{item for _, item in store.ids_and_items([row])[1]} for row in store.first_rows(-1)]


@pytest.mark.parametrize("options", [{"latents_every": 1}, {"method": "fcf"}], ids=["FedGRec with latents", "FCF"])
def test_nobody_is_the_difference_of_two_rounds(tmp_path: Path, options: dict[str, Any]) -> None:
    fed = in_one_batch(tmp_path, 4, users=USERS, **options)
    with NodeStore(fed.nodes[LARGEST]) as store:
        store.add_users(open_node(fed.nodes[LARGEST]).method(1), [Person("one more", [1, 5, 9, 20])])
    liar = Chooser(fed)
    fcf = options.get("method") == "fcf"
    if not fcf:
        liar.warm_up()

    def opened(round_: int, false: bool, **share: int) -> Table | None:
        """FCF sends the same twice; what FedGRec sends under false degrees it takes back under true ones."""
        plan = replace(liar.plan(TRAIN, round=round_), **share)
        model = liar.broadcast(plan)
        if fcf:
            return liar.opened(liar.everybody, "items", plan, model)
        degrees = 4 * model.degrees if false else model.degrees
        return liar.opened(
            liar.everybody, "latents", plan, replace(model, degrees=degrees, tables=np.zeros_like(model.tables))
        )

    whole, less = opened(1, True), opened(2, False, take=USERS, of=USERS + 1, least=USERS)
    told = touched(whole, -less if fcf and less is not None else less)
    assert told not in profiles(liar), f"all items of one person: {told}"
