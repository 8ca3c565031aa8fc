"""Attacks find what leaks, find nothing where nothing leaks, and fail once what they use is taken away."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.cable.core import Rows
from fedgrec.config.configuration import Config
from fedgrec.config.options import METHODS
from fedgrec.data import load
from fedgrec.studies.audit import clusters, membership
from fedgrec.studies.audit.audit import attacked
from fedgrec.studies.audit.recording import Contributions, Truth, View, record
from fedgrec.studies.audit.scores import Finding, NotApplicable
from tests.audit.worlds import PLAIN, alike, plain, sparse


def rows_changed(view: View, leaf: str, change: Any) -> View:
    """The view with other numbers in the rows of a leaf."""
    sums = []
    for seen in view.sums:
        rows = seen.total.leaves[leaf]
        leaves = {**seen.total.leaves, leaf: Rows(rows.index, change(rows.values))}
        sums.append(replace(seen, total=replace(seen.total, leaves=leaves)))
    return replace(view, sums=tuple(sums))


def shuffled(values: Any) -> Any:
    return np.random.default_rng(1).permutation(values)


def lengths(values: Any) -> Any:
    """Each row's length alone, without its direction."""
    kept = np.zeros_like(values)
    kept[:, 0] = np.linalg.norm(values, axis=1) + 1
    return kept


def signs_drawn(values: Any) -> Any:
    return values * np.random.default_rng(1).choice([-1, 1], values.shape)


# ------------------------------------------------------------------------------------ rows with one owner


def test_rows_with_one_contributor_are_counted() -> None:
    view, truth = plain()
    one = replace(view.sums[-1], people=np.arange(3))
    # Rows 4 and 9 have one contributor, row 6 has three, row 7 two.
    found = Contributions(np.array([4, 6, 7, 6, 7, 6, 9]), np.array([0, 0, 0, 1, 1, 2, 2]))
    line = clusters.audit_alone(replace(view, sums=(one,)), replace(truth, contributions=found))
    assert line.attack.value == pytest.approx(2 / 4)
    assert line.more == {"rows": 4, "rows_alone": 2, "people_with_such_rows": 2}
    nobody = Contributions(np.array([4, 4]), np.array([0, 1]))
    assert clusters.audit_alone(replace(view, sums=(one,)), replace(truth, contributions=nobody)).attack.value == 0


# ------------------------------------------------------------------------------------- rows by direction


def isolated(view: View, truth: Truth) -> float:
    return float(clusters.isolated(clusters.guess(view), view, truth).mean())


def test_one_plain_step_isolates_nearly_everybody() -> None:
    view, truth = plain()
    assert isolated(view, truth) >= 0.95
    line = clusters.audit(view, truth)[0]
    assert isinstance(line, Finding)
    assert line.better


@pytest.mark.parametrize("mutant", [shuffled, lengths, signs_drawn])
def test_without_directions_nobody_is_isolated(mutant: Any) -> None:
    view, truth = plain()
    assert isolated(rows_changed(view, "items", mutant), truth) < 0.1


def forgotten(view: View) -> View:
    """The mutant: the server has forgotten which item each broadcast row belongs to."""
    sums = []
    for seen in view.sums:
        tables = np.random.default_rng(1).permutation(seen.broadcast.tables, axis=1)
        sums.append(replace(seen, broadcast=replace(seen.broadcast, tables=tables)))
    return replace(view, sums=tuple(sums))


FEW = {"similarity": "cosine", "live": False, "users_per_round": 12, "negatives": 20, "rounds": 1}


@pytest.mark.parametrize("changes", [{"layers": 0}, {"l2": 0.001}, {"loss": "softmax", "live": True}], ids=str)
def test_cosines_hide_hardly_anybody(changes: dict[str, Any]) -> None:
    assert isolated(*plain(**FEW | changes)) >= 0.9


def test_softmax_of_cosines_hides_everybody_from_who_does_not_know_the_items() -> None:
    view, truth = plain(**FEW | {"loss": "softmax", "live": True})
    assert isolated(forgotten(view), truth) < 0.1
    assert isolated(replace(view, leaning=lambda broadcast: None), truth) < 0.1


@pytest.mark.slow
def test_cosines_hide_people_from_who_does_not_know_the_items() -> None:
    view, truth = plain(similarity="cosine", live=False)
    assert isolated(view, truth) >= 0.95
    assert isolated(forgotten(view), truth) < 0.6
    assert isolated(replace(view, leaning=lambda broadcast: None), truth) < 0.7


def test_who_is_isolated_is_counted_by_hand() -> None:
    """Persons 0 and 1 are alone in three rows each; row 6 is of both, row 7 of 1 and 2."""
    view, truth = plain()
    found = Contributions(np.array([0, 1, 2, 6, 3, 4, 5, 6, 7, 7]), np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 2]))
    items = Rows(np.arange(8), np.ones((8, 2), np.int32))
    seen = replace(view.sums[-1], people=np.arange(3), total=replace(view.sums[-1].total, leaves={"items": items}))
    small, known = replace(view, sums=(seen,)), replace(truth, contributions=found)
    for groups, expected in (
        ([0, 0, 0, 1, 1, 1, 0, 1], [1, 1]),  # a shared row may be with either
        ([0, 0, 0, 1, 1, 1, 1, 0], [0, 1]),  # row 7 is not of person 0: three rows of four are too few
        ([0, 0, -1, 1, 1, 1, -1, -1], [0, 1]),  # two of person 0's three rows are too few
        ([0, 0, 0, 0, 0, 0, 0, 0], [0, 0]),
        ([-1] * 8, [0, 0]),
    ):
        assert clusters.isolated(np.array(groups), small, known).tolist() == expected


def named(view: View, truth: Truth) -> Finding:
    line = clusters.audit(view, truth)[1]
    assert isinstance(line, Finding)
    return line


def test_signs_tell_a_persons_items_from_what_it_drew() -> None:
    assert named(*plain(live=False)).attack.value > 0.4
    assert named(*plain(live=False)).better


@pytest.mark.parametrize("mutant", [shuffled, lengths, np.abs])
def test_without_signs_no_items_are_named(mutant: Any) -> None:
    view, truth = plain(live=False)
    assert not named(rows_changed(view, "items", mutant), truth).better


# -------------------------------------------------------------------------------------- rows of latents


def tied(view: View, truth: Truth) -> float:
    line = clusters.audit_latents(view, truth)
    assert isinstance(line, Finding)
    return line.attack.value


def test_latents_tie_most_items_together() -> None:
    view, truth = plain()
    assert tied(view, truth) >= 0.5
    line = clusters.audit_latents(view, truth)
    assert isinstance(line, Finding)
    assert line.better


@pytest.mark.parametrize("mutant", [shuffled, lengths, signs_drawn])
def test_without_directions_latents_tie_nothing(mutant: Any) -> None:
    view, truth = plain()
    assert tied(rows_changed(view, "latents", mutant), truth) < 0.2  # lengths of two levels tell a little


def test_a_group_that_two_people_have_is_tied_to_neither() -> None:
    view, truth = record(Config().changed(PLAIN | {"users_per_round": 2, "rounds": 1}), alike())
    seen = view.sums[0]
    everything = np.zeros(15, np.int64)
    assert clusters.tied(everything, seen, view, truth).tolist() == [0, 0]


# ------------------------------------------------------------------------------------------- membership


def few_in_a_round(**changes: Any) -> tuple[View, Truth]:
    return plain(users_per_round=6, rounds=30, **changes)


def test_sums_of_few_people_name_their_items() -> None:
    line = membership.audit_sums(*few_in_a_round())
    assert isinstance(line, Finding)
    assert line.better
    assert line.attack.low > 0.3


def test_item_updates_alone_name_items_too() -> None:
    line = membership.audit_sums(*few_in_a_round(layers=0))
    assert isinstance(line, Finding)
    assert line.better


def test_sums_tell_nothing_about_people_who_were_in_others() -> None:
    """The mutant: labels swapped, each person stands for another one."""
    view, truth = few_in_a_round()
    swapped = np.random.default_rng(0).permutation(view.n_users)
    sums = tuple(replace(seen, people=swapped[seen.people]) for seen in view.sums)
    line = membership.audit_sums(replace(view, sums=sums), truth)
    assert isinstance(line, Finding)
    assert not line.better


def colluding(view: View, truth: Truth) -> Finding:
    line = membership.audit_colluding(view, truth)
    assert isinstance(line, Finding)
    return line


def test_two_thirds_who_take_their_uploads_away_name_the_others_items() -> None:
    """Rounds of 36 people, of whom about 12 are left."""
    view, truth = plain(users_per_round=36, rounds=12)
    all_ = membership.audit_sums(view, truth)
    assert colluding(view, truth).better
    assert colluding(view, truth).attack.low > all_.attack.high
    wrong = tuple(replace(part, total=seen.total) for part, seen in zip(truth.left, view.sums, strict=True))
    assert colluding(view, replace(truth, left=wrong)).attack.high < colluding(view, truth).attack.low
    swapped = tuple(replace(part, people=np.roll(np.arange(view.n_users), 7)[part.people]) for part in truth.left)
    assert not colluding(view, replace(truth, left=swapped)).better


def test_where_all_work_together_nobody_is_left() -> None:
    view, truth = plain()
    nobody = tuple(replace(part, people=part.people[:0]) for part in truth.left)
    assert isinstance(membership.audit_colluding(view, replace(truth, left=nobody)), NotApplicable)


def test_the_model_knows_who_took_part_from_who_did_not() -> None:
    view, truth = few_in_a_round()
    took_part, stranger = (membership.audit_model(view, truth, strangers=who) for who in (False, True))
    assert isinstance(took_part, Finding)
    assert isinstance(stranger, Finding)
    assert took_part.better
    assert not stranger.better
    other_items = replace(view, model=lambda indptr, items: shuffled(view.model(indptr, items).T).T)
    mutant = membership.audit_model(other_items, truth, strangers=False)
    assert isinstance(mutant, Finding)
    assert not mutant.better


# ------------------------------------------------------------------------------------ where nothing leaks


@pytest.mark.keep(3)
@pytest.mark.parametrize(
    "changes",
    [{"negatives": 100}, {"negatives": 5}, {"negatives": 100, "layers": 0}, {"method": "fcf"}, {"method": "spectral"}],
    ids=str,
)
def test_where_all_are_alike_no_attack_beats_popularity(changes: dict[str, Any]) -> None:
    """Everybody has the same items, and with 100 negatives everybody touches every row."""
    options: dict[str, Any] = {"users_per_round": 20, "rounds": 4, "dim": 8, "kernel": "reference"}
    options |= changes if "method" in changes else PLAIN | options | changes
    found = attacked(*record(Config().changed(options), alike()))
    assert [line.name for line in found.lines if isinstance(line, Finding) and line.better] == []
    assert sum(isinstance(line, Finding) for line in found.lines) >= 4


# ---------------------------------------------------------------------------------------- every method


@pytest.mark.keep(4)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_audited(method: str) -> None:
    small = {"method": method, "rounds": 6, "dim": 8, "users_per_round": 8, "kernel": "reference"}  # the fifth: a sweep
    found = attacked(*record(Config().changed(small), sparse(users=30, items=80)))
    assert [line for line in found.table().splitlines() if len(line) > 80] == []
    names = [line.name for line in found.lines if isinstance(line, NotApplicable)]
    assert (clusters.TIED in names) == (method not in ("fedgrec", "two-parts"))


# ---------------------------------------------------------------------------------------------- Gowalla


@pytest.mark.slow
def test_400_users_of_gowalla() -> None:
    folder = Path(os.environ.get("FEDGREC_DATA") or "/nonexistent") / "gowalla"
    if not folder.is_dir():
        pytest.skip("FEDGREC_DATA names no folder with gowalla")
    options = PLAIN | {"live": False, "negatives": 32, "users_per_round": 400, "rounds": 1, "kernel": "cpu"}
    view, truth = record(Config().changed(options), load(folder))
    line = clusters.audit_alone(view, truth)
    share, together = isolated(view, truth), tied(view, truth)
    print(f"rows alone {line.attack.value:.3f}, isolated {share:.4f}, tied {together:.3f}")  # noqa: T201
    assert share >= 0.95
    assert together >= 0.5
