"""Two sums that differ by one person: the difference names that person's items."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedgrec.cable.core import Rows, Upload
from fedgrec.config.configuration import Config
from fedgrec.config.options import METHODS, method_module
from fedgrec.studies.audit import weaker_designs as designs
from fedgrec.studies.audit.recording import Apart, Truth, View, minus, record, visible
from fedgrec.studies.audit.scores import Finding
from tests.audit.worlds import plain, sparse


def found(view: View, truth: Truth) -> Finding:
    line = designs.audit_sums(view, truth)
    assert isinstance(line, Finding)
    return line


def upload(rows: dict[int, list[int]], leaf: str = "items", users: int = 1) -> Upload:
    return Upload({leaf: Rows(np.array([*rows]), np.array([*rows.values()]))}, users)


# ------------------------------------------------------------------------------------------- recorded


def test_a_sum_without_a_person_and_what_the_person_sent_are_the_sum() -> None:
    _, truth = plain()
    apart = truth.trained
    assert apart is not None
    for sent in list(apart.uploads.values())[:5]:
        rest = visible(minus(apart.sum.total, sent))
        assert rest.users == apart.sum.total.users - 1
        for name, rows in (rest + sent).leaves.items():
            there = rows.values.any(axis=1)
            assert rows.index[there].tolist() == apart.sum.total.leaves[name].index.tolist()
            assert (rows.values[there] == apart.sum.total.leaves[name].values).all()


def test_a_difference_is_taken_row_by_row() -> None:
    first, second = upload({1: [5, 5], 4: [2, 0], 7: [1, 1]}, users=3), upload({1: [5, 5], 4: [1, 0]}, users=2)
    left = visible(minus(first, second))
    assert left.users == 1
    assert left.leaves["items"].index.tolist() == [4, 7]
    assert left.leaves["items"].values.tolist() == [[1, 0], [1, 1]]
    assert (minus(first, first).leaves["items"].values == 0).all()


# ------------------------------------------------------------------------------------------- two sums


def test_two_sums_name_everything_where_there_are_latents() -> None:
    line = found(*plain())
    assert line.attack.value == 1
    assert line.better


def test_two_sums_name_most_by_signs_where_there_are_none() -> None:
    line = found(*plain(layers=0))
    assert line.attack.value > 0.9
    assert line.better


@pytest.mark.parametrize("method", METHODS)
def test_two_sums_beat_popularity_for_every_method(method: str) -> None:
    rounds = 2 + getattr(method_module(method).Options, "sums", 0)
    small = {"method": method, "rounds": rounds, "dim": 8, "users_per_round": 20, "kernel": "reference"}
    assert found(*record(Config().changed(small), sparse(users=30, items=400))).better


def others_sent(apart: Apart | None) -> Apart:
    """The mutant: each person stands for another one."""
    assert apart is not None
    people = [*apart.uploads]
    return replace(apart, uploads=dict(zip(people, (apart.uploads[p] for p in people[1:] + people[:1]), strict=True)))


def test_the_difference_of_another_person_names_nothing() -> None:
    view, truth = plain()
    assert not found(view, replace(truth, trained=others_sent(truth.trained))).better


@pytest.mark.parametrize("mutant", [np.negative, np.zeros_like], ids=["most", "nothing"])
def test_naming_the_way_that_most_go_names_nothing(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = designs.towards_the_few
    monkeypatch.setattr(designs, "towards_the_few", lambda rows: mutant(real(rows)))
    assert not found(*plain(layers=0)).better


def test_few_are_told_from_many_by_number_or_by_length() -> None:
    """On one line: two rows against six as long; two rows far out among short ones of both signs."""
    line = np.array([[0.6, 0.8]])
    for places in ([1, 1, -1, -1, -1, -1, -1, -1], [9, 9, -1, 1, 1, -1, 1, 1], [-9, -9, 1, 1, 3, 1, -1, 1]):
        for sign in (1, -1):
            scores = designs.towards_the_few(sign * np.array(places)[:, None] * line)
            assert set(np.argsort(-scores)[:2]) == {0, 1}


def test_rows_count_by_their_public_steps() -> None:
    view, _ = plain(layers=0)
    steps = np.ones(view.n_items)
    steps[[3, 4]] = 100
    sent = upload({3: [1, 0], 4: [1, 0], 5: [-2, 0], 6: [-2, 0], 7: [-2, 0], 8: [1, 0]})
    assert set(np.argsort(-designs.guess(sent, view, steps))[:2]) == {3, 4}
