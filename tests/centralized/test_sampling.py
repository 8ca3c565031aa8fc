"""The triples are what they should be: uniform, exact, and a function of (seed, epoch)."""

import numpy as np
import pytest

from fedgrec.centralized.sampling import Triples, skip_positives
from fedgrec.errors import DataError
from tests.centralized.worlds import board, pairs, ragged


def test_skipping_equals_its_twin() -> None:
    train = ragged()
    users = np.repeat(np.arange(train.n_users), 5)
    room = train.n_items - train.user_degrees()[users]
    ranks = (np.random.default_rng(1).random(len(users)) * room).astype(np.int64)
    ranks[:2], ranks[-2:] = 0, room[-2:] - 1
    expected = [
        np.setdiff1d(np.arange(train.n_items), train.of(int(u)))[rank] for u, rank in zip(users, ranks, strict=True)
    ]
    np.testing.assert_array_equal(skip_positives(train, users, ranks), expected)


def test_positives_are_train_items_and_negatives_are_not() -> None:
    train = ragged()
    users, positives, negatives = Triples(train).draw(0, 0, 3000)
    known = set(train.keys().tolist())
    assert all(key in known for key in (users * train.n_items + positives).tolist())
    assert not any(key in known for key in (users * train.n_items + negatives).tolist())


def test_draws_are_uniform() -> None:
    """u0 has items 0 and 1 of 5, u1 has item 4; u2 has nothing and u3 everything: neither can be drawn."""
    train = pairs([0, 0, 1, 3, 3, 3, 3, 3], [0, 1, 4, 0, 1, 2, 3, 4], 4, 5)
    n = 60_000
    users, positives, negatives = Triples(train).draw(3, 0, n)
    assert np.bincount(users, minlength=4) / n == pytest.approx([0.5, 0.5, 0, 0], abs=0.01)
    first = users == 0
    assert np.bincount(positives[first], minlength=5) / first.sum() == pytest.approx([0.5, 0.5, 0, 0, 0], abs=0.01)
    assert np.bincount(negatives[first], minlength=5) / first.sum() == pytest.approx(
        [0, 0, 1 / 3, 1 / 3, 1 / 3], abs=0.01
    )
    assert np.bincount(negatives[~first], minlength=5) / (~first).sum() == pytest.approx([0.25] * 4 + [0], abs=0.01)


def test_test_items_are_negatives_like_any_other() -> None:
    """If test items were never drawn as negatives, a model could learn them from their absence."""
    data = board()
    assert data.split.test is not None
    users, _, negatives = Triples(data.split.train).draw(0, 0, 20_000)
    drawn = np.isin(data.split.test.keys(), users * data.split.train.n_items + negatives)
    assert drawn.all()


def test_draws_are_a_function_of_seed_and_epoch() -> None:
    triples = Triples(ragged())
    first = triples.draw(1, 4, 100)
    triples.draw(1, 5, 100)
    np.testing.assert_array_equal(first, triples.draw(1, 4, 100))
    assert (first != triples.draw(1, 5, 100)).any()
    assert (first != triples.draw(2, 4, 100)).any()


def test_nobody_to_learn_from_is_said() -> None:
    with pytest.raises(DataError, match="nothing to rank"):
        Triples(pairs([0, 0], [0, 1], 1, 2))


def test_what_was_drawn_ahead_is_what_would_be_drawn() -> None:
    """Also if another epoch is asked for than the one drawn ahead, as after a state was loaded."""
    straight, ahead = Triples(ragged()), Triples(ragged())
    for expected, asked in [(1, 1), (2, 2), (3, 7), (8, 3)]:
        ahead.draw_ahead(5, expected, 50)
        first, again = ahead.draw(5, asked, 50), ahead.draw(5, asked, 50)
        np.testing.assert_array_equal(first, straight.draw(5, asked, 50))
        np.testing.assert_array_equal(first, again)
        assert first is not again, "who has it may change it"


def test_pairs_come_equally_often_where_pairs_are_drawn() -> None:
    """A user with three times the items is drawn three times as often; its items are drawn equally."""
    train = pairs([0, 0, 0, 1], [0, 1, 2, 3], 2, 6)
    users, positives, _ = Triples(train, by_pair=True).draw(0, 0, 40_000)
    found = np.bincount(users * 6 + positives, minlength=12)[[0, 1, 2, 9]]
    assert found.sum() == 40_000
    np.testing.assert_allclose(found / 40_000, 0.25, atol=0.01)
