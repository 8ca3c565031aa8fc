"""Shares, intervals and ranks, by hand and against scikit-learn."""

import numpy as np
import pytest

from fedgrec.studies.audit.directions import LEAST, LeaningLines, Lines, blind, group
from fedgrec.studies.audit.scores import finding, finding_items, interval, is_better, named, percent


def test_an_interval_holds_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    inside = [e.low <= 0.3 <= e.high for e in (interval((rng.random(60) < 0.3).astype(float)) for _ in range(60))]
    assert 0.85 <= np.mean(inside) <= 0.99


def test_a_weighted_share_is_a_ratio_of_sums() -> None:
    found = interval(np.array([1.0, 0.0, 0.5]), np.array([2.0, 1.0, 1.0]))
    assert found.value == pytest.approx(2.5 / 4)
    assert 0 <= found.low < found.value < found.high <= 1


def test_better_is_said_at_999_in_1000() -> None:
    rng = np.random.default_rng(0)
    chances = rng.random((100, 40))
    same = [is_better(row[:20], row[20:]) for row in chances]
    assert sum(same) <= 1
    assert is_better(chances[0] + 1, chances[0])
    assert not is_better(chances[0], chances[0])
    assert not is_better(chances[0], chances[0] + 1)


def test_as_many_items_are_named_as_a_person_has() -> None:
    scores = np.array([[5.0, 4, 3, 2, 1, 0]])
    assert named(scores, [np.array([0, 1, 5])])[0] == pytest.approx(2 / 3)
    assert named(scores, [np.array([1, 5])], [np.array([0])])[0] == pytest.approx(1 / 2)
    assert named(-scores, [np.array([0, 1, 5])])[0] == pytest.approx(1 / 3)


def test_an_attack_that_guesses_by_popularity_for_everybody_has_no_power() -> None:
    popularity, items = np.array([5, 4, 3, 2, 1]), [np.array([0, 3]), np.array([1, 2])]
    by_popularity = named(np.tile(popularity.astype(float), (2, 1)), items)
    assert finding_items("", "", by_popularity, items, popularity).powerless
    assert not finding_items("", "", by_popularity + np.array([0, 0.5]), items, popularity).powerless


def test_a_finding_says_what_its_mean_hides() -> None:
    attack, popularity = np.array([0.9, 0.7] + [0.1] * 18), np.full(20, 0.1)
    line = finding("", "", attack, None, popularity)
    assert line.at_risk == pytest.approx(0.8)  # two of twenty people
    assert line.beyond is not None
    assert line.beyond.value == pytest.approx(attack.mean() - 0.1)
    assert line.beyond.low < line.beyond.value < line.beyond.high


def test_of_equal_scores_chance_decides() -> None:
    """Not the number of the item: else items of low numbers would be named always."""
    right = [named(np.zeros((1, 400)), [items])[0] for items in np.arange(400).reshape(4, 100)]
    assert max(right) < 0.45


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1])
def test_rows_on_lines_are_grouped_whatever_their_noise(noise: float) -> None:
    """The threshold follows from how many people there are."""
    rng = np.random.default_rng(0)
    lines = rng.standard_normal((30, 64))
    owner = np.repeat(np.arange(30), 12)
    rows = rng.choice([-3.0, -1.0, 2.0], len(owner))[:, None] * lines[owner]
    rows += noise * np.abs(rows).mean() * rng.standard_normal(rows.shape)
    groups = group(Lines(rows, either_sign=True), 30)
    assert all(len(set(groups[owner == person])) == 1 for person in range(30))
    assert len(set(groups)) == 30
    signed, positive = group(Lines(rows, either_sign=False), 60), (rows * lines[owner]).sum(axis=1) > 0
    assert all(len(set(positive[signed == found])) == 1 for found in set(signed) - {-1})


def test_rows_that_lean_are_grouped_by_what_they_were_before() -> None:
    """Each row lacks its part along its own direction; an attack that does not know this direction finds nothing."""
    rng = np.random.default_rng(0)
    people, owner = rng.standard_normal((30, 16)), np.repeat(np.arange(30), 12)
    public = people[owner] + rng.standard_normal((len(owner), 16))
    public /= np.linalg.norm(public, axis=1, keepdims=True)
    rows = people[owner] - np.einsum("rd,rd->r", people[owner], public)[:, None] * public
    rows *= rng.choice([-3.0, -1.0, 2.0], len(owner))[:, None]

    def right(lines: Lines) -> float:
        found = group(lines, 30).reshape(30, -1)
        return float(np.mean([part[0] >= 0 and (part == part[0]).all() for part in found]))

    assert right(LeaningLines(rows, public, either_sign=True)) == 1
    assert right(LeaningLines(rows, rng.permutation(public), either_sign=True)) < 0.1
    assert right(Lines(rows, either_sign=True)) < 0.1


def test_rows_without_a_neighbour_are_in_no_group() -> None:
    rows = np.random.default_rng(0).standard_normal((50, 64))
    assert (group(Lines(rows, either_sign=True), 50) == -1).all()
    assert LEAST > 1
    assert group(Lines(rows[:0], either_sign=True), 3).shape == (0,)


def test_groups_by_popularity_are_of_like_popularity() -> None:
    assert blind(np.array([9, 1, 8, 2]), 2)[1].tolist() == [1, 0, 1, 0]


def test_shares_are_said_shortly() -> None:
    assert [percent(share) for share in (0, 0.0042, 0.0949, 0.0996, 0.31, 1)] == ["0", "0.4", "9.5", "10", "31", "100"]
