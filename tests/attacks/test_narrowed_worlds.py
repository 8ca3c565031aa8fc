"""A server sends a model of another shape, or one in which all items but a few are closed, to learn who has these."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedgrec.cable.core import Broadcast
from fedgrec.federation.common.packets import FINISH, Packet, pack_broadcast
from tests.attacks.lying_server import DEGREES, TRAIN, Liar
from tests.federation.worlds import N_ITEMS, world

Lie = Callable[[Broadcast], Broadcast]
TWO_ITEMS = np.isin(np.arange(N_ITEMS), [3, 4]).astype(np.float32)
LIES: dict[str, Lie] = {
    "two items are open": lambda sent: replace(sent, more=sent.more | {"open": TWO_ITEMS}),
    "a name that the method does not know": lambda sent: replace(
        sent, more=sent.more | {"gram": np.eye(4, dtype="f4")}
    ),
    "steps of two rows": lambda sent: replace(sent, more=sent.more | {"steps": np.ones(2, np.float32)}),
    "steps that belong to no stage like this": lambda sent: replace(
        sent, more={"steps": np.ones(N_ITEMS, np.float32)} if "steps" not in sent.more else {}
    ),
    "a table less": lambda sent: replace(sent, tables=sent.tables[:-1]),
    "a table more": lambda sent: replace(sent, tables=np.concatenate([sent.tables, sent.tables[-1:]])),
    "narrower rows": lambda sent: replace(sent, tables=sent.tables[:, :, :-1]),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_only_a_model_of_the_stage_is_computed_with(tmp_path: Path, lie: Lie) -> None:
    liar = Liar(world(tmp_path))
    assert liar.sum([0, 1, 2], TRAIN, lie(liar.broadcast(TRAIN))) is None
    assert liar.refused("is no model of 30 items"), liar.refusals
    assert liar.sum([0, 1, 2], TRAIN) is not None, "the true model is taken"


def test_only_a_model_of_the_method_is_served(tmp_path: Path) -> None:
    liar = Liar(world(tmp_path))
    for lie, expected in [(LIES["two items are open"], "error"), (lambda sent: sent, FINISH)]:
        model, arrays = pack_broadcast(lie(liar.method.served(liar.model)))
        assert liar.ask(0, Packet(FINISH, {"model": model, "number": 1}, {}, arrays)).kind == expected


def test_under_noise_open_items_are_those_with_a_degree(tmp_path: Path) -> None:
    """There `open` belongs to the method: what is open follows from the counts, and from nothing else."""
    liar = Liar(world(tmp_path, options={"dp_epsilon": 8.0}))
    assert liar.sum([0, 1, 2], DEGREES) is not None, liar.refusals
    first = replace(TRAIN, round=0)
    plain = replace(liar.broadcast(first), degrees=np.ones(N_ITEMS, np.int64))
    for is_open, taken in [(TWO_ITEMS, False), (np.ones(N_ITEMS, np.float32), True)]:
        opened = liar.sum([0, 1, 2], first, replace(plain, more=plain.more | {"open": is_open}))
        assert (opened is not None) == taken, liar.refusals
