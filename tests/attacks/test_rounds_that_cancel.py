"""Training rounds without latents, over companies that differ by one node; all verdicts are true.

The server tells the same model in all of them, so two sums differ by what one node sends and by what users draw. FCF
and FedMF draw nothing, and FedGRec draws all items as negatives if there are so few. Where users draw some negatives,
a few more pairs of sums tell which rows are always large.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.attacks.companies import Chooser, Table, in_one_batch
from tests.attacks.lying_server import TRAIN

V = 0  # the node that the server is curious about
WAYS: dict[str, tuple[dict[str, Any], int]] = {  # options, and pairs of sums
    "FCF": ({"method": "fcf"}, 1),
    "FedMF": ({"method": "fedmf"}, 1),
    "FedGRec, squared errors": ({"latents_every": 0, "loss": "mse"}, 1),
    "FedGRec, all negatives": ({"latents_every": 0, "negatives": 1000}, 1),
    "FedGRec, few negatives": ({"latents_every": 0, "negatives": 8}, 6),
}


def guesses(sent: Table, count: int) -> list[set[int]]:
    """So many items whose rows are largest, or stand out on one side of the direction in which rows differ most."""
    along = sent @ np.linalg.svd(sent.astype(float))[2][0]
    return [set(np.argsort(size)[-count:].tolist()) for size in (np.abs(sent).sum(axis=1), along, -along)]


@pytest.mark.parametrize("way", WAYS)
def test_rounds_whose_companies_differ_by_one_node(tmp_path: Path, way: str) -> None:
    options, pairs = WAYS[way]
    liar = Chooser(in_one_batch(tmp_path, 4, **options))
    if "latents_every" in options:
        liar.warm_up()

    def opened(company: list[int], round_: int) -> Table | None:
        """With items of zeros nobody's own embedding moves, where it is trained in steps."""
        model = liar.broadcast(plan := liar.plan(TRAIN, round=round_))
        zeros = replace(model, tables=np.zeros_like(model.tables))
        return liar.opened(company, "items", plan, model if way == "FCF" else zeros)

    sums = [(opened(liar.everybody, 17 + 2 * n), opened([1, 2, 3], 18 + 2 * n)) for n in range(pairs)]
    assert all(whole is not None for whole, _ in sums), liar.refusals
    alone = [whole - less for whole, less in sums if whole is not None and less is not None]
    if alone:
        mine = liar.items_of(V)
        right = max(len(guess & mine) for guess in guesses(np.sum(alone, axis=0), len(mine)))
        assert right < 4, f"{right} of the {len(mine)} items of one node"
    assert not alone
