"""Check sparse matrices and data frames before they become interactions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.data.readers import ALIASES
from fedgrec.data.text_tables import spelled
from fedgrec.errors import DataError

TAKEN = "from_matrix takes a SciPy sparse matrix [users, items], or a DataFrame with the columns 'user' and 'item'"


def checked_matrix(matrix: Any, keep_ratings: bool) -> Any:
    """A copy in coordinates, without stored zeros."""
    if matrix.ndim != 2:
        raise DataError(f"{TAKEN}; this one has {matrix.ndim} dimension: one row for each user")
    if matrix.dtype.kind == "c":
        raise DataError(f"{TAKEN}; this one holds complex numbers: give ratings, or ones")
    coo = matrix.tocsr(copy=True).tocoo()
    coo.eliminate_zeros()  # a stored zero is no interaction
    for n, word in zip(coo.shape, ("users", "items"), strict=True):
        if not n:
            raise DataError(f"the matrix has no {word}: its shape is {coo.shape}; give one row for each user")
    if not coo.nnz:
        raise DataError("the matrix has no interactions: all of its values are zero")
    bad = ~np.isfinite(coo.data)
    if not bad.any() and not keep_ratings:
        bad = coo.data < 0
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        value = coo.data[at].item()
        why = "an interaction is positive; leave it out, or keep_ratings" if np.isfinite(value) else "leave it out"
        raise DataError(f"row {coo.row[at]}, column {coo.col[at]} holds {value}: {why}")
    return coo


def checked_frame(frame: Any, keep_ratings: bool) -> dict[str, NDArray[Any]]:
    """The columns user and item and, if present, rating (only with `keep_ratings`) and time in seconds.

    The frame is one of pandas, polars or pyarrow; columns may have all names that they may have in a file.
    """
    if type(frame).__name__ == "LazyFrame":  # polars
        raise DataError(f"{TAKEN}; this is a LazyFrame, which is not computed yet: give its .collect()")
    names = list(getattr(frame, "column_names", getattr(frame, "columns", ())))  # the first is pyarrow's word
    columns = {role: role if role in names else spelled(names, words) for role, words in ALIASES.items()}
    found = {role: name for role, name in columns.items() if name is not None}
    if not {"user", "item"} <= found.keys():
        raise DataError(f"{TAKEN}; {_instead(frame, names)}")
    if not keep_ratings:
        found.pop("rating", None)
    for name in found.values():
        if names.count(name) > 1:
            raise DataError(f"the DataFrame has {names.count(name)} columns {name!r}: rename all but the one to read")
    if not len(frame):
        raise DataError("the DataFrame has no rows: give one for each interaction")
    checks = {"user": _ids, "item": _ids, "rating": _numbers, "time": _seconds}
    return {role: checks[role](frame[name].to_numpy(), role) for role, name in found.items()}


def _instead(thing: Any, names: list[Any]) -> str:
    """What the caller gave instead, and how to convert it."""
    if thing is None:
        return "this is None"
    if names:
        return f"this {type(thing).__name__} has the columns {', '.join(map(str, names))}: rename them"
    if isinstance(thing, np.ndarray):
        return "this is a dense array: write scipy.sparse.csr_array(array)"
    what = f"this is a {type(thing).__name__}"
    if hasattr(thing, "__fspath__") or isinstance(thing, str):
        return f"{what}: a file is read by fedgrec.data.load"
    return f"{what}: pairs go into pandas.DataFrame(pairs, columns=['user', 'item'])"


def _ids(column: NDArray[Any], name: str) -> NDArray[Any]:
    if column.dtype.kind in "iub":
        return column
    for row, value in enumerate(column.tolist()):
        if _missing(value):
            raise DataError(f"row {row}: the {name} is missing: fill it in, or drop the row")
        try:
            hash(value)
        except TypeError:
            raise DataError(f"row {row}: the {name} {value!r} cannot be an id: use words or numbers") from None
    return column


def _missing(value: Any) -> bool:
    try:
        blank = isinstance(value, str) and not value.strip()
        return value is None or blank or bool(value != value)  # noqa: PLR0124 - NaN is not itself
    except (TypeError, ValueError):  # pandas.NA has no truth value; an array has several
        return not isinstance(value, np.ndarray)


def _numbers(column: NDArray[Any], name: str) -> NDArray[np.float64]:
    if column.dtype.kind in "iub" or (column.dtype.kind == "f" and np.isfinite(column).all()):
        return column.astype(np.float64)
    found: NDArray[np.float64] = np.empty(len(column))
    for row, value in enumerate(column.tolist()):
        try:
            found[row] = value
        except (TypeError, ValueError):
            found[row] = np.nan
        if not np.isfinite(found[row]):
            raise DataError(f"row {row}: the {name} {value!r} is not a number: mend it, or drop the row")
    return found


def _seconds(column: NDArray[Any], name: str) -> NDArray[np.float64]:
    if column.dtype.kind == "M":
        gone = np.flatnonzero(np.isnat(column))
        if len(gone):
            raise DataError(f"row {gone[0]}: the {name} is missing: fill it in, or drop the row")
        return column.astype("datetime64[us]").astype(np.int64) / 1e6
    return _numbers(column, name)
