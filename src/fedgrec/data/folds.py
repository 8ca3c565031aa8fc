"""Folds of pairs, for scikit-learn's cross-validation."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.data.ids import number
from fedgrec.data.matrices import checked_frame
from fedgrec.errors import DataError


class PairFolds:
    """`cross_validate(FedGRec(), pairs, cv=PairFolds(5))` for a DataFrame with one row for each pair.

    A fold holds out about a fifth of each user's rows. One row of every user and of every item always trains.
    """

    def __init__(self, n_splits: int = 5, *, random_state: int = 0) -> None:
        self.n_splits, self.random_state = n_splits, random_state

    def get_n_splits(self, pairs: Any = None, y: Any = None, groups: Any = None) -> int:
        return self.n_splits

    def split(
        self, pairs: Any, y: Any = None, groups: Any = None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """The rows to train on and the rows held out, for each fold."""
        if hasattr(pairs, "tocoo"):
            raise DataError("PairFolds splits the rows of a DataFrame of pairs; a row of a matrix is a whole user")
        columns, order = checked_frame(pairs, False), np.random.default_rng(self.random_state).permutation(len(pairs))
        users, items = (number(columns[role], role, None)[0] for role in ("user", "item"))
        kept = np.concatenate([order[np.unique(ids[order], return_index=True)[1]] for ids in (users, items)])
        free = order[~np.isin(order, kept)]
        free = free[np.argsort(users[free], kind="stable")]  # one user's rows after another's, in random order
        if not 2 <= self.n_splits <= len(free):
            raise DataError(f"{self.n_splits} folds of {len(free)} pairs: take at least 2, and no more than pairs")
        for k in range(self.n_splits):
            held_out = np.sort(free[k :: self.n_splits])
            yield np.setdiff1d(order, held_out), held_out
