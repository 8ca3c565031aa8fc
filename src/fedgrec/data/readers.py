"""Files of interactions in the formats people have, read into pairs of ids.

| name            | format                                                                             |
|-----------------|------------------------------------------------------------------------------------|
| `.txt`          | LightGCN: `user item item …` per line, integers; a line with only a user is legal  |
| `.csv`, `.tsv`  | a header with named columns                                                        |
| `.inter`        | RecBole: tabs, a header such as `user_id:token  item_id:token  rating:float`       |
| `.dat`          | MovieLens: `user::item::rating::timestamp`, no header                              |
| `.parquet`      | named columns; needs pyarrow                                                       |

All but `.parquet` may be packed: `.csv.gz`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.data.text_tables import Column, Header, Table, contents, read_fast, read_header, read_rows, spelled
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
PACKED = (".gz", ".zip", ".bz2", ".xz", ".zst", ".7z", ".tar", ".tgz")
MISSING = ("nan", "null", "none", "<na>", "\\n")  # what programs write into text where there is no value
LARGEST_ID = 2**31 - 1  # item indices are int32


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs of one file, in its order, under the ids it gives them."""

    users: NDArray[Any]  # [n] int64, or object for strings
    items: NDArray[Any]  # [n]
    ratings: NDArray[np.float64] | None = None  # [n], only where they were asked for
    times: NDArray[np.float64] | None = None  # [n] seconds
    sizes: tuple[int, int] | None = None  # users and items, where the ids are already indices
    low_rated: "Pairs | None" = None  # below min_rating: not trained on, but never recommended either
    note: str = ""  # a sentence about how the file was read


def read(
    path: str | Path,
    *,
    user: str = "user",
    item: str = "item",
    rating: str = "rating",
    time: str | None = "time",
    min_rating: float | None = None,
    keep_ratings: bool = False,
) -> Pairs:
    """Read one file; its name tells its format. With `time=None`, times are not read."""
    path = Path(path)
    kind = ending(path)
    if kind not in EXTENSIONS:
        raise DataError(_unknown_format(path, kind))
    if not path.is_file():
        raise DataError(f"{path} does not exist: check the path")
    wants_ratings = keep_ratings or min_rating is not None
    if kind == ".txt":
        if wants_ratings:
            raise DataError(f"{path} has no ratings: leave out min_rating and keep_ratings, or give a .csv")
        return _lightgcn(path)
    head = _parquet_header(path) if kind == ".parquet" else read_header(path, kind)
    columns = {"user": _column(head, "user", user), "item": _column(head, "item", item)}
    if columns["user"] == columns["item"]:
        raise DataError(f"{path}:1: the column {columns['user']!r} cannot hold both users and items: name two columns")
    columns |= {"rating": _column(head, "rating", rating)} if wants_ratings else {}
    columns |= {"time": _column(head, "time", time, required=False)} if time is not None else {}
    columns = {role: name for role, name in columns.items() if name is not None}
    names = list(dict.fromkeys(columns.values()))
    if kind == ".parquet":
        return _pairs(_parquet(head, names), columns, min_rating, keep_ratings)
    if (fast := read_fast(head, names)) is not None:
        with suppress(DataError):  # it has no lines to name
            return replace(_pairs(fast, columns, min_rating, keep_ratings), note=head.note)
    return replace(_pairs(read_rows(head, names), columns, min_rating, keep_ratings), note=head.note)


def _pairs(table: Table, columns: Mapping[str, str], min_rating: float | None, keep_ratings: bool) -> Pairs:
    def read(role: str, of: Callable[[Table, Column, str], Any]) -> Any:
        column = table.columns[columns[role]]
        return of(table, column, role)[column.places]

    users, items = read("user", _ids), read("item", _ids)
    ratings, times = (read(role, _numbers) if role in columns else None for role in ("rating", "time"))
    keep: Any = slice(None) if min_rating is None or ratings is None else ratings >= min_rating
    return Pairs(
        users[keep],
        items[keep],
        ratings[keep] if ratings is not None and keep_ratings else None,
        None if times is None else times[keep],
        low_rated=None if isinstance(keep, slice) else Pairs(users[~keep], items[~keep]),
    )


def ending(path: Path) -> str:
    """The ending that tells the format: '.csv' for clicks.csv and for clicks.csv.gz."""
    inner = Path(path.stem).suffix.lower()
    packed = path.suffix.lower() == ".gz" and inner in EXTENSIONS and inner != ".parquet"
    return inner if packed else path.suffix.lower()


def stem(path: Path) -> str:
    """The name without its ending: 'clicks' for clicks.csv and for clicks.csv.gz."""
    return path.stem if ending(path) == path.suffix.lower() else Path(path.stem).stem


def _unknown_format(path: Path, kind: str) -> str:
    known = ", ".join(EXTENSIONS)
    if not kind:
        return f"{path}: a file without an ending: name it {path.name}.csv, or what it is of {known}"
    if kind == ".gz" and Path(path.stem).suffix.lower() != ".parquet":
        return f"{path} is packed: unpack it, or name it {path.stem}.csv.gz, or what is in it of {known}"
    if kind in PACKED:
        return f"{path} is packed: unpack it first"
    return f"{path}: the format {kind!r} is not known; use {known}"


def _lightgcn(path: Path) -> Pairs:
    """Parse the file as one array of bytes, which is fast."""
    data = contents(path)
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
    # NumPy clamps a number beyond int64 to the largest int64, so this check finds it too.
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


def _parquet_header(path: Path) -> Header:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise missing_extra("reading .parquet files", "parquet") from None
    try:
        file = pq.ParquetFile(path)
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise DataError(f"{path} is not a parquet file ({error}): write it again") from error
    if not file.metadata.num_rows:
        raise DataError(f"{path} is empty: give a file with at least one interaction")
    return Header(path, file.schema_arrow.names)


def _parquet(head: Header, names: Sequence[str]) -> Table:
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(head.path, columns=names)
    except (OSError, ValueError) as error:
        raise DataError(f"{head.path} is damaged ({error}): write it again") from error
    columns = {name: Column.of(table[name].to_pylist()) for name in names}
    return Table(head.path, columns, range(1, table.num_rows + 1), "row")


def _column(head: Header, role: str, name: str, *, required: bool = True) -> Any:
    """`name`, if a column is called so; for one of the role's ALIASES any column with such a name; else None."""
    usual = spelled([name], ALIASES[role]) is not None
    found = name if name in head.names else spelled(head.names, ALIASES[role]) if usual else None
    if found is not None:
        head.place(found)
    if found is not None or (usual and not required):
        return found
    headless = any(column.replace(".", "", 1).isdecimal() for column in head.names)
    hint = "; or write a header above the first line, such as user,item,rating" if headless else ""
    raise DataError(
        f"{head.path}:1: there is no {role} column {name!r}; the columns are {', '.join(head.names)}: "
        f"say which one holds the {role}, with  --set {role}_column=NAME{hint}"
    )


def _ids(table: Table, column: Column, role: str) -> NDArray[Any]:
    """The ids of the distinct cells: integers if every cell is one, as written ('007' stays text); else the strings."""
    cells, places = column

    def bad(cell: int, what: str) -> DataError:
        return table.bad(int(np.argmax(places == cell)), f"the {role} {what}")

    for n, cell in enumerate(cells):
        if cell is None or cell != cell or (isinstance(cell, str) and not cell.strip()):  # noqa: PLR0124 - NaN
            raise bad(n, "is missing; fill it in or remove the line")
        if not isinstance(cell, str | int | float):  # Parquet has lists, bytes and more
            raise bad(n, f"{cell!r} cannot be an id; write it as text or as a number")
        if table.word == "line" and (word := str(cell).strip()).lower() in MISSING:
            raise bad(
                n,
                f"is {word!r}, which programs write for a missing value; fill it in or remove the line; if it is a "
                "name, change it, or give a .parquet file, which tells names and missing values apart",
            )
    for row, end in table.ends.items():
        if "\n" in cells[places[row]] or "\r" in cells[places[row]]:
            raise table.bad(row, f"a quoted {role} goes on to line {end}; close the quote, or take out the line break")
    if all(isinstance(cell, int) and abs(cell) < 2**63 for cell in cells):
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


def _numbers(table: Table, column: Column, role: str) -> NDArray[np.float64]:
    """The distinct cells as finite numbers; of times, ISO dates become seconds since 1970.

    Ratings may have decimal commas (4,5), but only if none of them has a point: a point might separate thousands.
    """
    (cells, places), dates = column, role == "time"
    if table.decimal_commas and not dates and not any("." in cell for cell in cells):
        cells = [cell.replace(",", ".") for cell in cells]
    try:
        numbers = np.array(cells).astype(np.float64) if not isinstance(cells[0], datetime) else None
        if numbers is not None and np.isfinite(numbers).all():
            return numbers
    except (ValueError, TypeError):
        pass
    firsts = np.unique(places, return_index=True)[1].tolist()
    return np.array([_one_number(table, *one, dates) for one in zip(firsts, cells, strict=True)], np.float64)


def _one_number(table: Table, row: int, cell: Any, dates: bool) -> float:
    """The slow way, taken for dates and to say which line is wrong."""
    try:
        if not isinstance(cell, datetime):
            number = float(cell)
            if np.isfinite(number):
                return number
    except (ValueError, TypeError):
        pass
    if not dates:
        point = isinstance(cell, str) and cell.strip().replace(",", "", 1).isdecimal()
        mend = "write it with a point" if point else "mend or remove the line"
        raise table.bad(row, f"the rating {cell!r} is not a number; {mend}")
    try:
        moment = cell if isinstance(cell, datetime) else datetime.fromisoformat(str(cell).strip())
    except ValueError:
        raise table.bad(
            row, f"the time {cell!r} is neither seconds nor an ISO date; write it as 2024-01-31, or rename the column"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
