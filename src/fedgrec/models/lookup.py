"""From what callers give (one id, several ids, rows of a matrix, candidates) to indices."""

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from fedgrec.cable.core import Ints
from fedgrec.data import IdMap
from fedgrec.data.ids import number
from fedgrec.errors import ConfigError
from fedgrec.models.recommender import Seen, distinct


def _is_many(given: Any) -> bool:
    return not isinstance(given, str | bytes | tuple) and hasattr(given, "__iter__") and getattr(given, "ndim", 1) != 0


def is_one_person(items: Any) -> bool:
    if hasattr(items, "tocsr"):
        return bool(items.ndim == 1 or items.shape[0] == 1)
    return not (isinstance(items, list) and items and all(_is_many(one) for one in items))


def _listed(ids: Any) -> Any:
    """An array or a DataFrame column as an array, so that integers need no loop; anything else as a list."""
    if isinstance(ids, str | bytes) or not hasattr(ids, "__iter__"):
        raise ConfigError(f"{ids!r} is not a collection of ids: put ids into a list")
    ids = ids.to_numpy() if hasattr(ids, "to_numpy") else ids
    if not isinstance(ids, np.ndarray):
        return list(ids)
    if ids.ndim != 1 or ids.dtype.kind == "b":
        raise ConfigError(f"ids come in an array of one dimension, not in one of {ids.ndim} and type {ids.dtype}")
    return ids


def indices(given: Any, ids: IdMap, name: str) -> tuple[Ints, bool]:
    """The indices of one id, of several ids or (None) of all; and whether it was one id."""
    if given is None:
        return np.arange(len(ids)), False
    if not _is_many(given):
        return np.array([ids.index(given.item() if isinstance(given, np.ndarray) else given)]), True
    found = number(_listed(given), ids.kind, ids)[0]
    if not len(found):
        raise ConfigError(f"{name} is empty: give at least one id, or None for all")
    return found, False


def _matrix_rows(matrix: Any) -> Seen:
    """The non-zero columns of each row of a sparse matrix, or of a single row."""
    if matrix.ndim == 1:
        return Seen.of([matrix.tocoo().coords[0][matrix.tocoo().data != 0]])
    csr = matrix.tocsr(copy=True)
    csr.eliminate_zeros()
    return Seen(csr.indptr.astype(np.int64), csr.indices.astype(np.int32))


def joined(a: Seen, b: Seen) -> Seen:
    """The items of both, row by row."""
    indptr = a.indptr + b.indptr
    items = np.empty(indptr[-1], np.int32)
    for part, before in ((a, b.indptr[:-1]), (b, a.indptr[1:])):
        items[np.arange(len(part.items)) + np.repeat(before, np.diff(part.indptr))] = part.items
    return Seen(indptr, items)


def rows_of(given: Any, ids: IdMap, n: int | None = None) -> Seen:
    """Item indices of n people (None: of however many are given), from a matrix or a collection of ids for each.

    A list with one entry may hold a row of a matrix.
    """
    if isinstance(given, list) and len(given) == 1 and hasattr(given[0], "tocsr"):
        given, n = given[0], 1
    if hasattr(given, "tocsr"):
        found = _matrix_rows(given)
        if (last := found.items.max(initial=-1)) >= len(ids):
            raise ConfigError(f"the matrix has an item in column {last}, but there are only {len(ids):,} items")
    else:
        found = Seen.of([distinct(number(_listed(row), "item", ids)[0]) for row in given])
    rows = len(found.indptr) - 1
    if n is not None and rows != n:
        many = "give the one row of this user, user_items[user]" if n == 1 else "give one for each of the users"
        raise ConfigError(f"user_items has {rows} rows for {n} users: {many}")
    return found


def candidates(items: Iterable[Hashable] | None, without: Iterable[Hashable] | None, ids: IdMap) -> Ints | None:
    """The items that may be recommended, sorted; None: every item."""
    if items is None and without is None:
        return None
    allowed = np.arange(len(ids)) if items is None else np.unique(number(_listed(items), "item", ids)[0])
    if without is not None:
        allowed = np.setdiff1d(allowed, number(_listed(without), "item", ids)[0])
    if not len(allowed):
        raise ConfigError("items and filter_items leave no candidate: name at least one item that may be recommended")
    return allowed
