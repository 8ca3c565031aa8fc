"""Files of interactions in the formats people have, read into pairs of ids.

| name            | format                                                                             |
|-----------------|------------------------------------------------------------------------------------|
| `.txt`          | LightGCN: `user item item …` per line, integers; a line with only a user is legal  |
| `.csv`, `.tsv`  | a header with named columns                                                        |
| `.inter`        | RecBole: tabs, a header such as `user_id:token  item_id:token  rating:float`       |
| `.dat`          | MovieLens: `user::item::rating::timestamp`, no header                              |
| `.parquet`      | named columns; needs pyarrow                                                       |
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.errors import DataError, missing_extra

# Names a column goes by, compared in lower case without underscores.
ALIASES = {
    "user": ("user", "userid", "uid", "reviewerid", "customerid", "visitorid"),
    "item": (
        "item", "itemid", "iid", "movieid", "productid", "businessid", "asin", "bookid", "trackid", "songid",
        "artistid", "venueid", "placeid", "locationid",
    ),
    "rating": ("rating", "stars", "score", "ratings"),
    "time": ("time", "timestamp", "date", "datetime", "unixreviewtime"),
}  # fmt: skip
EXTENSIONS = (".txt", ".csv", ".tsv", ".inter", ".dat", ".parquet")
LARGEST_ID = 2**31 - 1  # item indices are int32


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs of one file, in its order, under the ids it gives them."""

    users: NDArray[Any]  # [n] int64, or object for strings
    items: NDArray[Any]  # [n]
    ratings: NDArray[np.float64] | None = None  # [n], only where they were asked for
    times: NDArray[np.float64] | None = None  # [n] seconds
    sizes: tuple[int, int] | None = None  # users and items, where the ids are already indices
    dropped: int = 0  # pairs below the rating threshold


@dataclass(frozen=True)
class _Table:
    """Named columns of cells, and where each row came from, for messages."""

    path: Path
    columns: dict[str, Sequence[Any]]
    lines: Sequence[int]
    word: str = "line"

    def bad(self, row: int, what: str) -> DataError:
        where = f"{self.path}:{self.lines[row]}" if self.word == "line" else f"{self.path}, row {self.lines[row]}"
        return DataError(f"{where}: {what}")


def read(
    path: str | Path,
    *,
    user: str = "user",
    item: str = "item",
    rating: str = "rating",
    time: str = "time",
    min_rating: float | None = None,
    keep_ratings: bool = False,
) -> Pairs:
    """Read one file, its format told by its name."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in EXTENSIONS:
        raise DataError(f"{path}: the format {kind or 'without an ending'!r} is not known; use {', '.join(EXTENSIONS)}")
    if not path.is_file():
        raise DataError(f"{path} does not exist: check the path")
    wants_ratings = keep_ratings or min_rating is not None
    if kind == ".txt":
        if wants_ratings:
            raise DataError(f"{path} has no ratings: leave out min_rating and keep_ratings, or give a .csv")
        return _lightgcn(path)
    table = _parquet(path) if kind == ".parquet" else _text_table(path, kind)
    users = _ids(table, _column(table, "user", user), "user")
    items = _ids(table, _column(table, "item", item), "item")
    ratings = _numbers(table, _column(table, "rating", rating)) if wants_ratings else None
    time_column = _column(table, "time", time, required=False)
    times = None if time_column is None else _numbers(table, time_column, dates=True)
    keep: Any = slice(None) if min_rating is None or ratings is None else ratings >= min_rating
    kept = users[keep]
    return Pairs(
        kept,
        items[keep],
        ratings[keep] if ratings is not None and keep_ratings else None,
        None if times is None else times[keep],
        dropped=len(users) - len(kept),
    )


def _lightgcn(path: Path) -> Pairs:
    """Parsed as one array of bytes: five megabytes take a tenth of a second."""
    data = path.read_bytes()
    text = np.frombuffer(data, np.uint8)
    digit = (text >= ord("0")) & (text <= ord("9"))
    wrong = np.flatnonzero(~digit & ~np.isin(text, np.frombuffer(b" \t\r\n", np.uint8)))
    if len(wrong):
        number = data.count(b"\n", 0, int(wrong[0])) + 1
        word = _word_at(data, int(wrong[0]))
        what = f"the id {word} is negative" if word.startswith("'-") else f"{word} is not an integer id"
        raise DataError(f"{path}:{number}: {what}; each line must be `user item item …`, integers from 0")
    if not digit.any():
        raise DataError(f"{path} is empty: each line must be `user item item …`, integers from 0")
    starts = np.flatnonzero(digit & ~np.concatenate([[False], digit[:-1]]))
    line = np.cumsum(text == ord("\n"))[starts]  # [tokens], from 0
    ids = np.fromstring(data.decode("ascii"), np.int64, sep=" ")
    # A number beyond int64 is clamped to its largest, so this sees it too.
    if ids.max() > LARGEST_ID:
        at = int(ids.argmax())
        raise DataError(
            f"{path}:{line[at] + 1}: {_word_at(data, int(starts[at]))} is too large for an index; "
            "number users and items from 0, or give a .csv"
        )
    is_user = np.concatenate([[True], line[1:] != line[:-1]])
    per_line = np.diff(np.append(np.flatnonzero(is_user), len(ids))) - 1
    users, items = ids[is_user], ids[~is_user]
    sizes = (int(users.max()) + 1, int(items.max(initial=-1)) + 1)
    return Pairs(np.repeat(users, per_line), items, sizes=sizes)


def _word_at(data: bytes, at: int) -> str:
    """The word around a byte, quoted, for a message."""
    start = max(data.rfind(white, 0, at) for white in (b" ", b"\t", b"\n")) + 1
    return repr(data[start : at + 30].split()[0].decode("utf-8", "replace"))


def _text_table(path: Path, kind: str) -> _Table:
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not UTF-8 text; save the file as UTF-8") from error
    if not text.strip():
        raise DataError(f"{path} is empty: give a file with at least one interaction")
    if kind == ".dat":
        names = ["user", "item", "rating", "time"]
        numbered: Iterable[tuple[int, list[str]]] = (
            (n, line.split("::")) for n, line in enumerate(text.splitlines(), 1) if line.strip()
        )
    else:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter="," if kind == ".csv" else "\t")
        numbered = ((reader.line_num, row) for row in reader if row)
        names = [name.split(":")[0] if kind == ".inter" else name.strip() for name in next(numbered)[1]]
    rows, lines = [], []
    for n, row in numbered:
        if len(row) != len(names):
            raise DataError(
                f"{path}:{n}: {len(row)} fields where {len(names)} belong ({', '.join(names)}); mend the line"
            )
        rows.append(row)
        lines.append(n)
    if not rows:
        raise DataError(f"{path} has a header but no rows: give a file with at least one interaction")
    return _Table(path, dict(zip(names, zip(*rows, strict=True), strict=True)), lines)


def _parquet(path: Path) -> _Table:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise missing_extra("reading .parquet files", "parquet") from None
    try:
        table = pq.read_table(path)
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise DataError(f"{path} is not a parquet file ({error}): write it again") from error
    if not table.num_rows:
        raise DataError(f"{path} is empty: give a file with at least one interaction")
    columns = {name: table[name].to_pylist() for name in table.column_names}
    return _Table(path, columns, range(1, table.num_rows + 1), "row")


def _column(table: _Table, role: str, name: str, *, required: bool = True) -> Sequence[Any] | None:
    """The column called `name`, or, where that is a usual name, one with another usual name."""
    if name in table.columns:
        return table.columns[name]

    def usual(word: str) -> str:
        return word.lower().replace("_", "")

    if usual(name) in ALIASES[role]:
        for known in ALIASES[role]:
            for column in table.columns:
                if usual(column) == known:
                    return table.columns[column]
        if not required:
            return None
    raise DataError(
        f"{table.path}:1: there is no {role} column {name!r}; the columns are {', '.join(table.columns)}: "
        f"say which one holds the {role}"
    )


def _ids(table: _Table, cells: Sequence[Any] | None, role: str) -> NDArray[Any]:
    """Integers if every cell is one, as written ('007' stays text); otherwise the strings."""
    assert cells is not None
    for row, cell in enumerate(cells):
        if cell is None or cell == "":
            raise table.bad(row, f"the {role} is missing; fill it in or remove the line")
    if all(isinstance(cell, int) for cell in cells):
        return np.array(cells, np.int64)
    text = [cell.strip() if isinstance(cell, str) else cell for cell in cells]
    if all(isinstance(cell, str) and len(cell) < 19 for cell in text):  # 19 digits may not fit int64
        try:
            numbers = np.array(text).astype(np.int64)
            if (numbers.astype(str) == text).all():
                return numbers
        except ValueError:
            pass
    ids = np.empty(len(text), object)
    ids[:] = text
    return ids


def _numbers(table: _Table, cells: Sequence[Any] | None, *, dates: bool = False) -> NDArray[np.float64]:
    """A column as finite numbers; with `dates`, ISO dates become seconds since 1970."""
    assert cells is not None
    try:
        numbers = np.array(cells).astype(np.float64) if not isinstance(cells[0], datetime) else None
        if numbers is not None and np.isfinite(numbers).all():
            return numbers
    except (ValueError, TypeError):
        pass
    return np.array([_one_number(table, row, cell, dates) for row, cell in enumerate(cells)], np.float64)


def _one_number(table: _Table, row: int, cell: Any, dates: bool) -> float:
    """The slow way, taken for dates and to say which line is wrong."""
    try:
        if not isinstance(cell, datetime):
            number = float(cell)
            if np.isfinite(number):
                return number
    except (ValueError, TypeError):
        pass
    if not dates:
        raise table.bad(row, f"the rating {cell!r} is not a number; mend or remove the line")
    try:
        moment = cell if isinstance(cell, datetime) else datetime.fromisoformat(str(cell).strip())
    except ValueError:
        raise table.bad(row, f"the time {cell!r} is neither seconds nor an ISO date; mend the line") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
