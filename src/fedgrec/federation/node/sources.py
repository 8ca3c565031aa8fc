"""Where a node finds its users' interactions: a table (CSV or SQLite) or a folder of files. Standard library only.

    table.csv, table.tsv   a header with the columns `user` and `item`; `held_out` (0 or 1) may say what to judge by,
                           `time` (seconds, or an ISO date) in which order users got their items
    shop.db#orders         table (or view) `orders` of an SQLite file, with the same columns
    folder/                such tables, and files with one item a line, each named after its user

Items are named as in the catalogue, a file with one item a line: the line is the item's number. Times are read only if
the federation's method asks for the order. Items of one time, and lists, are in the order of their lines.
"""

import csv
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fedgrec.errors import DataError

Line = tuple[str, str, bool | None, float]  # user, item, whether it is held out (None: not said), time (0: not read)
Marks = Mapping[int, bool | None]  # of one user: item → whether it is held out; sorted, or in order of time
TABLES = {".csv": ",", ".tsv": "\t"}
DATABASES = {".db", ".sqlite", ".sqlite3"}
USER, ITEM, HELD_OUT, TIME = "user", "item", "held_out", "time"


@dataclass
class Found:
    """What a source holds."""

    users: dict[str, dict[int, bool | None]] = field(default_factory=dict)  # the marks of each
    unknown: int = 0  # interactions with items that are not in the catalogue
    nameless: int = 0  # interactions without a user or without an item


def read_source(source: str, catalogue: Mapping[str, int], in_order: bool = False) -> Found:
    found, when = Found(), dict[tuple[str, int], tuple[float, int]]()
    for place, (user, item, held, time) in enumerate(lines(source, in_order)):
        if not user or not item:
            found.nameless += 1
            continue
        number = catalogue.get(item)
        if number is None:
            found.unknown += 1
        else:
            found.users.setdefault(user, {})[number] = held
            when[user, number] = (time, place) if in_order else (0, number)
    for user, marks in found.users.items():
        found.users[user] = {item: marks[item] for item in sorted(marks, key=lambda item: when[user, item])}
    if not any(held is not True for marks in found.users.values() for held in marks.values()):
        raise DataError(f"{source} has no user with an item of the catalogue: are the items named as in it?")
    return found


def split(marks: Marks, share: float, known: Marks | None = None, last: bool = False) -> tuple[list[int], list[int]]:
    """Items to train on, in their order, and held-out items; an item without a mark stays what it is in `known`.

    Of a new user's n items, round(share · n) are held out, never all. An item that comes later is held out with chance
    `share`: rounding for one item at a time would hold out none. The operating system draws, so nobody can repeat it.

    `last`: the held-out items are the last of those without a mark; once later ones come, the first of them train. What
    has trained is never held out.
    """
    free = [item for item, held in marks.items() if held is None]
    most = max(min(round(share * len(free)), len(free) - 1), 0)
    if last:
        late = set(free[len(free) - most :])
        known = {item: item in late and (known or {}).get(item) is not False for item in free}
    said = {item: (known or {}).get(item) if held is None else held for item, held in marks.items()}
    new, chance = sorted(item for item, held in said.items() if held is None), secrets.SystemRandom()
    if len(new) == len(said):
        drawn = chance.sample(new, most)
    else:
        drawn = [item for item in new if known and chance.random() < share]
    held_out = {item for item, held in said.items() if held} | set(drawn)
    return [item for item in said if item not in held_out], sorted(held_out)


def lines(source: str, in_order: bool = False) -> Iterator[Line]:
    """Every interaction of a source."""
    name, _, table = source.partition("#")
    path = Path(name)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        if not files:
            raise DataError(f"{path} holds no file: put a table there, or a file for each user")
        for file in files:
            yield from _file(file, in_order)
    elif not path.exists():
        raise DataError(f"{path}: there is no such file or folder with interactions")
    elif path.suffix in DATABASES:
        yield from _database(path, table, in_order)
    else:
        yield from _file(path, in_order)


def _file(path: Path, in_order: bool) -> Iterator[Line]:
    """A table where its header says so; else a user's file, with one item a line."""
    with path.open(encoding="utf-8", newline="") as file:
        try:
            rows = csv.reader(file, delimiter=TABLES.get(path.suffix, ","))
            first = next(rows, [])
            header = [word.strip() for word in first]
            if USER in header and ITEM in header:
                yield from _table(path, header, rows, in_order)
            elif len(header) > 1:
                raise DataError(
                    f"{path}:1: a table has the columns {USER} and {ITEM}, this one {', '.join(header)}: rename two; "
                    "in a list of one item a line, an item with a comma stands in quotes"
                )
            else:
                items = (row[0].strip() for row in (first, *rows) if row)
                yield from ((path.stem, item, None, 0) for item in items if item)
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path} is neither a table with the columns user and item, nor a list: {error}") from None


def _table(path: Path, header: list[str], rows: Iterable[list[str]], in_order: bool) -> Iterator[Line]:
    user, item = header.index(USER), header.index(ITEM)
    held = header.index(HELD_OUT) if HELD_OUT in header else None
    time = _time_column(path, header) if in_order else None
    for number, row in enumerate(rows, 2):
        if len(row) == len(header):
            mark = None if held is None else _mark(row[held], path, number)
            when = 0 if time is None else _seconds(row[time], f"{path}:{number}")
            yield row[user].strip(), row[item].strip(), mark, when
        elif row:
            raise DataError(f"{path}:{number}: {len(row)} fields where the header has {len(header)}")


def _mark(word: str, path: Path, number: int) -> bool:
    if word.strip() not in {"0", "1"}:
        raise DataError(f"{path}:{number}: held_out is {word!r}: write 0 or 1")
    return word.strip() == "1"


def _time_column(path: Path, columns: Sequence[str]) -> int:
    if TIME not in columns:
        raise DataError(f"{path} has no column {TIME}, and the federation's method asks what follows what: add it")
    return columns.index(TIME)


def _seconds(cell: object, where: str) -> float:
    try:
        return float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        try:
            moment = datetime.fromisoformat(str(cell).strip())
        except ValueError:
            raise DataError(f"{where}: the time {cell!r} is neither seconds nor an ISO date") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _database(path: Path, table: str, in_order: bool) -> Iterator[Line]:
    if not table:
        raise DataError(f"{path} is a database: name the table after a #, such as  {path.name}#interactions")
    quoted = '"' + table.replace('"', '""') + '"'
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        columns = [name for _, name, *_ in db.execute(f"PRAGMA table_info({quoted})")]
        if USER not in columns or ITEM not in columns:
            raise DataError(f"{path} has no table {table!r} with the columns user and item: make a view that has them")
        held = HELD_OUT if HELD_OUT in columns else "NULL"
        time = columns[_time_column(path, columns)] if in_order else 0
        for user, item, mark, when in db.execute(f"SELECT {USER}, {ITEM}, {held}, {time} FROM {quoted}"):
            user, item = ("" if name is None else str(name).strip() for name in (user, item))  # noqa: PLW2901
            yield user, item, None if mark is None else bool(mark), _seconds(when, f"{path}: {user}, {item}")
    except sqlite3.Error as error:
        raise DataError(f"{path} is not readable as an SQLite file: {error}") from None
    finally:
        db.close()
