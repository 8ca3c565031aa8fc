"""A server says that hardly anybody has an item, so that the item's sum gets too few bits: nobody fails by that.

A ring follows from the item's degree. If a node refused numbers that are too large for it, its refusal would tell the
server that the node's people have the item.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedgrec.cable.core import UploadSpec
from fedgrec.federation.common.plan import Plan
from tests.attacks.lying_server import Liar, counts
from tests.federation.worlds import world

LEVELS, BITS = 1000, 12  # of a word; of the ring for two people, as many as the server admits
ROUND = Plan("train", 0, 1, 18, 18)


def lie(tmp_path: Path) -> tuple[Liar, np.ndarray, int]:
    """All words are as large as they can be, and the item that most have is said to be nobody's."""
    liar = Liar(world(tmp_path, "spectral", dim=3, spare=1, item_levels=LEVELS, users_per_round=18, download="float32"))
    degrees = np.array(counts(liar, [0, 1, 2]))
    item = int(degrees.argmax())
    plain = liar.broadcast(ROUND)
    told = np.where(np.arange(len(degrees)) == item, 0, degrees)
    opened = liar.sum([0, 1, 2], ROUND, replace(plain, tables=np.full_like(plain.tables, 1e6), degrees=told))
    return liar, np.zeros(0) if opened is None else opened.leaves["items"].values[item], int(degrees[item])


def test_the_sum_of_the_item_wraps_and_nobody_fails(tmp_path: Path) -> None:
    liar, found, people = lie(tmp_path)
    assert not liar.refusals
    half = 2 ** (BITS - 1)
    assert people * LEVELS >= half
    assert (found == (people * LEVELS + half) % (2 * half) - half).all()


def test_mutation_a_node_whose_people_have_the_item_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UploadSpec, "wrapped", lambda self, words: words)
    liar, found, _ = lie(tmp_path)
    assert not len(found)
    assert liar.refusals
