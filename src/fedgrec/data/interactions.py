"""The items of each user, as a ragged array."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedgrec.data.ids import IdMap, number
from fedgrec.data.matrices import checked_frame, checked_matrix
from fedgrec.errors import DataError

__all__ = ["IdMap", "Interactions"]


@dataclass(frozen=True, eq=False)
class Interactions:
    """The items of user u are `items[indptr[u]:indptr[u + 1]]`: sorted, each once."""

    user_ids: IdMap
    item_ids: IdMap
    indptr: NDArray[np.int64]  # [M+1]
    items: NDArray[np.int32]  # [nnz]
    ratings: NDArray[np.float32] | None = None  # [nnz]
    times: NDArray[np.float64] | None = None  # [nnz], seconds

    def __post_init__(self) -> None:
        types = {"indptr": np.int64, "items": np.int32, "ratings": np.float32, "times": np.float64}
        for name, dtype in types.items():
            if getattr(self, name) is not None:
                array: NDArray[Any] = np.ascontiguousarray(getattr(self, name), dtype=dtype).view()
                array.flags.writeable = False  # only our view: the caller's array stays writable
                object.__setattr__(self, name, array)
        self._check()

    def _check(self) -> None:
        indptr, items = self.indptr, self.items
        steps = np.diff(indptr)
        if indptr.shape != (self.n_users + 1,) or indptr[0] != 0 or indptr[-1] != len(items) or (steps < 0).any():
            raise DataError(f"indptr must rise from 0 to the number of pairs in {self.n_users + 1} entries")
        if any(a is not None and a.shape != items.shape for a in (self.ratings, self.times)):
            raise DataError("ratings and times must have one entry for each pair")
        if len(items) and (items.min() < 0 or items.max() >= self.n_items):
            raise DataError(f"item indices must lie in 0 … {self.n_items - 1}")
        falls = np.flatnonzero(np.diff(items) <= 0) + 1
        if not np.isin(falls, indptr).all():
            raise DataError("the items of each user must be sorted, and each there once")

    @property
    def n_users(self) -> int:
        """M, including users without items."""
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        """N, including items without users."""
        return len(self.item_ids)

    @property
    def n_pairs(self) -> int:
        """The number of distinct (user, item) pairs."""
        return len(self.items)

    def of(self, user: int) -> NDArray[np.int32]:
        """The items of one user, by index: a view."""
        return self.items[self.indptr[user] : self.indptr[user + 1]]

    def degrees(self) -> NDArray[np.int64]:
        """|N_t|: how many users each item has. [N]"""
        return np.bincount(self.items, minlength=self.n_items).astype(np.int64)

    def user_degrees(self) -> NDArray[np.int64]:
        """|N_u|: how many items each user has. [M]"""
        return np.diff(self.indptr)

    def users(self) -> NDArray[np.int64]:
        """The user of each pair, beside `items`. [nnz]"""
        return np.repeat(np.arange(self.n_users), self.user_degrees())

    def keys(self) -> NDArray[np.int64]:
        """Each pair as one number, user · N + item, in rising order: easy to compare. [nnz]"""
        return self.users() * self.n_items + self.items

    def in_order(self) -> NDArray[np.int32]:
        """The items, each user's in order of time, or sorted where no times are known. [nnz]"""
        return self.items if self.times is None else self.items[np.lexsort((self.times, self.users()))]

    def select(self, mask: NDArray[np.bool_]) -> "Interactions":
        """The pairs where `mask` [nnz] is true, under the same ids."""
        kept = np.concatenate([[0], np.cumsum(mask)])[self.indptr]

        def pick(array: Any) -> Any:
            return None if array is None else array[mask]

        return Interactions(self.user_ids, self.item_ids, kept, pick(self.items), pick(self.ratings), pick(self.times))

    def extended(self, more: "Interactions") -> "Interactions":
        """These pairs and `more`. Known users and items keep their indices; of a repeated pair the last one counts."""
        users, items = self.user_ids.extended(more.user_ids), self.item_ids.extended(more.item_ids)
        u, _ = number([*more.user_ids], "user", users)
        i, _ = number([*more.item_ids], "item", items)
        return Interactions.from_indices(
            np.concatenate([self.users(), u[more.users()]]), np.concatenate([self.items, i[more.items]]),
            self.and_of(more, "ratings"), self.and_of(more, "times"), user_ids=users, item_ids=items,
        )  # fmt: skip

    def and_of(self, more: "Interactions", name: str) -> Any:
        """The ratings or times of these pairs, then of `more`; None unless both have them."""
        parts = [getattr(self, name), getattr(more, name)]
        return None if any(part is None for part in parts) else np.concatenate(parts)

    def under(self, item_ids: IdMap) -> "Interactions":
        """The pairs whose items are among `item_ids`, under these ids."""
        names = [str(self.item_ids[item]) for item in range(self.n_items)]
        places = np.array([item_ids.parse(name) if item_ids.knows(name) else -1 for name in names], np.int64)
        items, users = places[self.items], self.users()
        there = items >= 0
        times = None if self.times is None else self.times[there]
        return Interactions.from_indices(
            users[there], items[there], times=times, user_ids=self.user_ids, item_ids=item_ids
        )

    @classmethod
    def from_pairs(
        cls,
        users: Iterable[Hashable] | NDArray[Any],
        items: Iterable[Hashable] | NDArray[Any],
        ratings: ArrayLike | None = None,
        times: ArrayLike | None = None,
        *,
        user_ids: IdMap | None = None,
        item_ids: IdMap | None = None,
    ) -> "Interactions":
        """Pairs of ids, in any order; of repeats the last one counts.

        Without an id map, ids that are exactly the integers 0 … n−1 keep their value; others are numbered in
        order of first appearance.
        """
        u, user_ids = number(users, "user", user_ids)
        i, item_ids = number(items, "item", item_ids)
        return cls.from_indices(u, i, ratings, times, user_ids=user_ids, item_ids=item_ids)

    @classmethod
    def from_indices(
        cls,
        users: NDArray[np.integer[Any]],
        items: NDArray[np.integer[Any]],
        ratings: ArrayLike | None = None,
        times: ArrayLike | None = None,
        *,
        user_ids: IdMap,
        item_ids: IdMap,
    ) -> "Interactions":
        """`from_pairs` for pairs that are already indices into the id maps."""
        if len(users) != len(items):
            raise DataError(f"there are {len(users)} users but {len(items)} items: give one of each for every pair")
        keys = np.asarray(users, np.int64) * len(item_ids) + items
        # np.unique keeps the first of equal keys; the reversed order makes that the last pair given.
        keys, last = np.unique(keys[::-1], return_index=True)
        last = len(users) - 1 - last

        def pick(values: ArrayLike | None, dtype: type) -> Any:
            if values is None:
                return None
            array: NDArray[Any] = np.asarray(values, dtype)
            if array.shape != (len(users),):
                raise DataError(f"there are {len(users)} pairs but {array.size} ratings or times: give one for each")
            return array[last]

        indptr = np.searchsorted(keys, np.arange(len(user_ids) + 1) * len(item_ids))
        parts = np.asarray(items)[last], pick(ratings, np.float32), pick(times, np.float64)
        return cls(user_ids, item_ids, indptr, *parts)

    @classmethod
    def from_matrix(cls, matrix: Any, *, keep_ratings: bool = False) -> "Interactions":
        """From a SciPy sparse matrix [M, N], or a DataFrame with columns user, item[, rating][, time]."""
        if hasattr(matrix, "tocoo"):
            coo = checked_matrix(matrix, keep_ratings)
            return cls.from_pairs(
                coo.row, coo.col, coo.data if keep_ratings else None,
                user_ids=IdMap.range(coo.shape[0], "user"), item_ids=IdMap.range(coo.shape[1], "item"),
            )  # fmt: skip
        column = checked_frame(matrix, keep_ratings)
        return cls.from_pairs(column["user"], column["item"], column.get("rating"), column.get("time"))

    def weighted(self, ceiling: float) -> "Interactions":
        """With weights above 0 and at most 1 for ratings: their share of a public ceiling; 0: as it is."""
        if not ceiling or self.ratings is None:
            return self
        if (low := ~(self.ratings > 0)).any():
            user, item = self.user_ids[int(self.users()[low][0])], self.item_ids[int(self.items[low][0])]
            raise DataError(
                f"{int(low.sum()):,} of {self.n_pairs:,} weights are not above 0, as that of user {user!r} and item "
                f"{item!r}: leave such pairs out"
            )
        return replace(self, ratings=np.minimum(self.ratings / np.float32(ceiling), np.float32(1)))

    def to_scipy(self) -> Any:
        """A SciPy CSR array [M, N] of the ratings, or of ones."""
        from scipy.sparse import csr_array

        values = np.ones(self.n_pairs, np.float32) if self.ratings is None else self.ratings.copy()
        return csr_array((values, self.items.copy(), self.indptr.copy()), shape=(self.n_users, self.n_items))
