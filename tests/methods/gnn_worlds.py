"""Users of FedGNN who like what a board says."""

from typing import Any

import numpy as np

from fedgrec.cable.core import Cohort
from fedgrec.methods.expansion import ThirdParty
from fedgrec.methods.fedgnn import DEGREES, FedGNN

KEY = b"known to users alone"


def board(users: int = 7, items: int = 15, density: float = 0.35, seed: int = 0) -> np.ndarray:
    """Who likes what, at random; everybody has an item.  # [M, N]"""
    Y = np.random.default_rng(seed).random((users, items)) < density
    Y[:, 0] |= ~Y.any(1)
    return Y


def people(method: FedGNN, Y: np.ndarray, seed: int = 0, rated: bool = False) -> Cohort:
    """One user for each row of Y [M, N], who likes what is true in it."""
    rng = np.random.default_rng(seed)
    indptr, items = np.concatenate([[0], np.cumsum(Y.sum(1))]), np.nonzero(Y)[1].astype(np.int32)
    targets = rng.integers(1, 6, len(items)).astype(float) if rated else None
    return method.init_users(rng.integers(0, 2**64, len(Y), dtype=np.uint64), indptr, items, targets)


def third(neighbours: int, seed: int = 0) -> ThirdParty:
    return ThirdParty(neighbours, np.random.default_rng(seed))


def warmed_up(method: FedGNN, Y: np.ndarray, **how: Any) -> tuple[Any, Cohort]:
    """Server and users before the first round."""
    server, users = method.init(1), people(method, Y, **how)
    total, _ = method.local_update(users, DEGREES, method.broadcast(server, DEGREES))
    server = method.apply(server, DEGREES, total)
    return server, method.match(users, 0, 0)[0]
