"""Newcomers in models that keep a vector for each of their own users: by hand, exactly, and what is refused."""

import numpy as np
import pytest

from fedgrec.models.fold_in import item_shares, newcomers


def test_two_items_by_hand() -> None:
    """Item 0 has two owners, item 1 one. The users' vectors are five times Eq. (6) over the items': A = 5."""
    items, indptr, mine = np.array([[2.0], [3.0]]), np.array([0, 1, 3]), np.array([0, 0, 1])
    root = np.sqrt(2)
    users = 5 * np.array([[2 / root], [(2 / root + 3) / root]])
    shares = item_shares(users, items, indptr, mine)
    np.testing.assert_allclose(shares, [[10 / root], [15]])
    people = newcomers(shares, np.array([0, 2, 2, 3]), np.array([0, 1, 1]))
    np.testing.assert_allclose(people, [[5 + 15 / root], [0], [15]])


def written_out(items: np.ndarray, people: list[np.ndarray], owners: np.ndarray) -> np.ndarray:
    """Eq. (6), one term after the other."""
    return np.array([sum(items[t] / np.sqrt(len(mine) * owners[t]) for t in mine) for mine in people])


@pytest.mark.parametrize("dim", [1, 5])
def test_users_who_are_a_linear_map_of_their_items_are_found_again(dim: int) -> None:
    """Then newcomers get exactly what the same map gives them. A user without items teaches nothing."""
    rng = np.random.default_rng(1)
    items, hidden = rng.normal(size=(30, dim)), rng.normal(size=(dim, dim))
    people = [rng.choice(30, size, replace=False) for size in rng.integers(1, 9, 40)]
    owners = np.bincount(np.concatenate(people), minlength=30)
    users = np.vstack([written_out(items, people, owners) @ hidden, rng.normal(size=(1, dim))])
    indptr = np.cumsum([0, *map(len, people), 0])
    shares = item_shares(users, items, indptr, np.concatenate(people))
    others = [rng.choice(30, size, replace=False) for size in (1, 4, 30)]
    found = newcomers(shares, np.cumsum([0, *map(len, others)]), np.concatenate(others))
    np.testing.assert_allclose(found, written_out(items, others, np.maximum(owners, 1)) @ hidden, rtol=1e-8)
