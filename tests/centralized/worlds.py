"""Small data, and every model in a size that suits it."""

from typing import Any

import numpy as np

from fedgrec.data import Dataset, Interactions, Split
from fedgrec.data.ids import IdMap

# Batches do not divide the data evenly, so that the last, smaller batch is tested too.
SMALL: dict[str, dict[str, Any]] = {
    "popularity": {},
    "turbocf": {},
    "ease": {"l2": 5.0},
    "itemknn": {"neighbours": 5, "shrinkage": 1.0},
    "mf-bpr": {"dim": 16, "rate": 0.05, "batch": 250, "epochs": 6},
    "lightgcn": {"dim": 16, "rate": 0.05, "batch": 250, "epochs": 6},
    "ngcf": {"dim": 16, "rate": 0.01, "batch": 250, "epochs": 6, "layers": 2},
    "multvae": {"hidden": 16, "latent": 8, "rate": 0.01, "batch": 25, "epochs": 20},
}
NEED_TORCH = ("ngcf", "multvae")
TRAINED = ("mf-bpr", "lightgcn", "ngcf", "multvae")


def pairs(users: Any, items: Any, n_users: int, n_items: int) -> Interactions:
    ids = IdMap.range(n_users, "user"), IdMap.range(n_items, "item")
    return Interactions.from_indices(np.asarray(users), np.asarray(items), user_ids=ids[0], item_ids=ids[1])


def board(n: int = 40, shuffled: bool = False) -> Dataset:
    """Users like the items of their own colour; one such item each is held out, and one for validation.

    Shuffled, the train items have nothing to do with colours, so nobody can know what is held out.
    """
    users, items = np.nonzero((np.arange(n)[:, None] + np.arange(n)[None, :]) % 2 == 0)
    test, validation = (items == (users + 2 * (users % 7) + shift) % n for shift in (0, 2))
    parts = [users[~test & ~validation], items[~test & ~validation]]
    if shuffled:
        rng = np.random.default_rng(0)
        keys = np.setdiff1d(rng.permutation(n * n), users * n + items)
        parts = list(np.divmod(rng.choice(np.concatenate([keys, users * n + items]), len(parts[0]), False), n))
    held = [pairs(users[mask], items[mask], n, n) for mask in (test, validation)]
    train = pairs(*parts, n, n)
    known = train.keys()
    held = [part.select(~np.isin(part.keys(), known)) for part in held]
    return Dataset("board", Split(train, *held))


def ragged(n_users: int = 30, n_items: int = 50, n_pairs: int = 200, seed: int = 0) -> Interactions:
    """Random pairs; some users and items have none, some items are everybody's."""
    rng = np.random.default_rng(seed)
    users = rng.integers(1, n_users - 1, n_pairs)
    items = (n_items * rng.random(n_pairs) ** 3).astype(np.int64)
    return pairs(users, items, n_users, n_items)
