"""Users are never recommended an item that they have by the data, even if it is held out."""

from pathlib import Path

import numpy as np
import pytest

from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.person import recommend, users_of
from fedgrec.federation.node.store import NodeStore
from tests.federation.worlds import N_ITEMS, world


@pytest.mark.parametrize("per_user_masks", [False, True])
def test_held_out_items_are_not_recommended(tmp_path: Path, per_user_masks: bool) -> None:
    fed = world(tmp_path, users=2, options={"rounds": 1}, per_user_masks=per_user_masks)
    fed.run()
    held_out = 0
    for home in fed.nodes.values():
        for user in users_of(home):
            with NodeStore(home) as store:
                row = [store.row_of(user)]
                had = np.concatenate([store.cohort(open_node(home).method(1), row).items_of(0), *store.held_out(row)])
                held_out += len(store.held_out(row)[0])
            items, scores = recommend(home, user, N_ITEMS)
            assert sorted([*items.tolist(), *had.tolist()]) == list(range(N_ITEMS))
            assert len(scores) == len(items)
    assert held_out > 3
