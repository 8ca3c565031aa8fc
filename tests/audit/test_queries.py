"""Queries with fresh decoys: what is in all of a person's queries is that person's."""

from dataclasses import replace

import numpy as np
import pytest

from fedgrec.cable.core import Ints
from fedgrec.studies.audit import weaker_designs as designs
from fedgrec.studies.audit.recording import View
from tests.audit.worlds import plain


def asked(view: View, times: int) -> View:
    return replace(view, sums=view.sums[-1:] * times)


def test_a_query_has_the_items_and_as_many_others() -> None:
    rng, mine = np.random.default_rng(0), np.array([3, 7])
    asked_for = designs.query(mine, 5, 20, rng)
    assert len(asked_for) == len(set(asked_for.tolist())) == 7
    assert set(mine) <= set(asked_for)
    assert sorted(designs.query(mine, 50, 20, rng)) == list(range(20))
    assert sorted(designs.query(mine, 0, 20, rng)) == [3, 7]


def test_what_is_in_every_query_is_named_first() -> None:
    view, _ = plain()
    scores = designs.guess_by_queries([np.array([3, 7, 9]), np.array([3, 5, 7]), np.array([0, 3, 7])], view)
    assert set(np.argsort(-scores)[:2]) == {3, 7}


def test_of_equals_the_popular_ones_come_first() -> None:
    view, _ = plain()
    assert view.degrees is not None
    popular = int(np.argmax(view.degrees))
    assert np.argmax(designs.guess_by_queries([np.arange(view.n_items)], view)) == popular


def test_more_queries_name_more() -> None:
    view, truth = plain()
    shares = [designs.audit_queries(asked(view, times), truth).attack.value for times in (1, 2, 4)]
    assert shares[0] < 0.7
    assert shares[1] > 0.9
    assert shares[2] == 1
    assert designs.audit_queries(asked(view, 2), truth).better


def test_decoys_that_stay_the_same_hide_what_fresh_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: four queries with the same decoys are as good as one."""
    view, truth = plain()
    real = designs.query

    def same(mine: Ints, decoys: int, n_items: int, rng: np.random.Generator) -> Ints:
        return real(mine, decoys, n_items, np.random.default_rng(int(mine.sum())))

    monkeypatch.setattr(designs, "query", same)
    assert designs.audit_queries(asked(view, 4), truth).attack.value < 0.7


def test_who_asks_for_everything_tells_nothing() -> None:
    view, truth = plain()
    everything = replace(view, options=replace(view.options, negatives=view.n_items))
    assert not designs.audit_queries(everything, truth).better


def test_the_line_says_that_nobody_asks_here() -> None:
    assert designs.audit_queries(*plain()).sentence.startswith("Here nobody asks for items. If")
