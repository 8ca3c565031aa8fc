"""Small trainings in which something leaks, and some in which nothing can."""

from functools import cache
from typing import Any

import numpy as np

from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, IdMap, Interactions, Split
from fedgrec.studies.audit.recording import Truth, View, record

# One plain step, words of 32 bits, latents in every round.
PLAIN = {
    "loss": "bpr", "similarity": "inner", "local_steps": 1, "item_optimizer": "sgd", "item_levels": 0,
    "latents_every": 1, "popular_negatives": 0, "layers": 2, "dim": 64, "kernel": "reference", "half_life": 0,
}  # fmt: skip


def dataset(pairs: list[tuple[int, int]], users: int, items: int) -> Dataset:
    u, i = np.array(pairs).T
    data = Interactions.from_pairs(u, i, user_ids=IdMap.range(users, "user"), item_ids=IdMap.range(items, "item"))
    return Dataset("toy", Split(data))


def sparse(users: int = 60, items: int = 3_000, seed: int = 0) -> Dataset:
    """Many items, few of which two people share; low numbers are popular."""
    rng = np.random.default_rng(seed)
    pairs = []
    for user in range(users):
        mine = np.unique((items * rng.random(rng.integers(8, 16)) ** 1.5).astype(int))
        pairs += [(user, int(item)) for item in mine]
    return dataset(pairs, users, items)


def alike(users: int = 60, items: int = 40, each: int = 15) -> Dataset:
    """Everybody has the same items."""
    return dataset([(user, 2 * item) for user in range(users) for item in range(each)], users, items)


@cache
def plain(**changes: Any) -> tuple[View, Truth]:
    """Two rounds of everybody in the sparse world."""
    options = PLAIN | {"users_per_round": 40, "negatives": 40, "rounds": 2} | changes
    return record(Config().changed(options), sparse())
