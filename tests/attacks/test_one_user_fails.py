"""A server sends a model with which only users of certain items fail: whoever is beside them must not be silent too."""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.federation.node import node, uploads
from fedgrec.federation.node.current_sum import Computed
from fedgrec.federation.node.store import NodeStore
from tests.attacks.lying_server import DEGREES, TRAIN, Liar, counts, total
from tests.federation.worlds import world

HUGE = 3.4e38  # finite in 32 bits, and the product of two is not


def test_numbers_that_would_overflow_are_refused_before_any_item_is_looked_at(tmp_path: Path) -> None:
    liar = Liar(world(tmp_path))
    plain = liar.broadcast(TRAIN)
    tables = plain.tables.copy()
    tables[:, 7] = HUGE
    assert liar.sum([0, 1, 2], TRAIN, replace(plain, tables=tables)) is None
    assert liar.refused("is no model of"), liar.refusals
    assert "masked" not in liar.answers


def test_who_fails_sends_zeros_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum lacks exactly what this user has, and holds as many users as before: it does not show that one failed."""
    liar = Liar(world(tmp_path))
    fails_for(monkeypatch, row=3)
    opened = liar.sum([0, 1, 2], DEGREES)
    assert opened is not None, liar.refusals
    assert opened.users == 18
    missing = np.array(counts(liar, [0, 1, 2])) - total(opened, "degrees")
    lacks = np.zeros_like(missing)
    for path in liar.fed.nodes.values():
        with NodeStore(path) as store:
            lacks[[item for _, item in store.ids_and_items([3])[1]]] += 1
            assert store.took_part(DEGREES.place) == [row for row in store.first_rows(-1) if row != 3]
    assert np.array_equal(missing, lacks)


def test_mutation_all_users_of_a_node_are_silent_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the attack asks: is anybody on the node one for whom the model fails?"""
    liar = Liar(world(tmp_path))
    fails_for(monkeypatch, row=3)
    monkeypatch.setattr(node, "compute_upload", _all_or_nobody)
    assert not any(total(liar.sum([0, 1, 2], DEGREES), "degrees"))


def fails_for(monkeypatch: pytest.MonkeyPatch, row: int) -> None:
    """Whatever is computed for this user of a node fails."""
    cohort = NodeStore.cohort

    def failing(store: NodeStore, method: Any, rows: Sequence[int]) -> Any:
        if row in rows:
            raise sqlite3.DataError("whatever depends on a user's items")
        return cohort(store, method, rows)

    monkeypatch.setattr(NodeStore, "cohort", failing)


def _all_or_nobody(store: NodeStore, method: Any, sum_: Any, rows: Sequence[int], *more: Any) -> Computed:
    found = uploads.compute_upload(store, method, sum_, rows, *more)
    return found if found.rows == rows else Computed(np.zeros_like(found.words), [])
