"""Training rounds without latents, over companies that differ by one node; all verdicts are true.

The server tells the same model in all of them, so two sums differ by what one node sends and by what users draw. FCF
and FedMF draw nothing, and FedGRec draws all items as negatives if there are so few. Where users draw some negatives,
a few more pairs of sums tell which rows are always large.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.federation.common.options import Agreement
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


def told(root: Path, way: str, **agreed: Any) -> tuple[int, int] | None:
    """How many of a node's items are found out, and how many it has; None if no round without it is opened."""
    options, pairs = WAYS[way]
    liar = Chooser(in_one_batch(root, 4, agreed, **options))
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
    if not alone:
        return None
    mine = liar.items_of(V)
    return max(len(guess & mine) for guess in guesses(np.sum(alone, axis=0), len(mine))), len(mine)


@pytest.mark.parametrize("way", WAYS)
def test_rounds_whose_companies_differ_by_one_node(tmp_path: Path, way: str) -> None:
    assert told(tmp_path, way, batches_for_training=1) is None


@pytest.mark.keep(2)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "FCF"])
def test_where_batches_are_few_such_rounds_open_and_tell_what_a_node_has(tmp_path: Path, way: str) -> None:
    """By default: a node that is away would stop training there. The option's own sentence says so."""
    assert "two of them tell what one node's people have" in said_of("batches_for_training")
    found = told(tmp_path, way)
    assert found is not None
    right, has = found
    assert right >= has - 1


def said_of(option: str) -> str:
    (about,) = (f.metadata["help"] for f in fields(Agreement) if f.name == option)
    return str(about)
