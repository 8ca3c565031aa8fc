"""Text files of rows and columns, with the line of each row, so that messages can name it."""

import csv
import gzip
import io
import itertools
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgrec.errors import DataError

SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars", "::": "double colons"}
BEGINNING = 2**16  # bytes
USUAL = {".csv": ",", ".tsv": "\t", ".inter": "\t", ".dat": "::"}


class Column(NamedTuple):
    """A column of cells: the distinct ones, in the order in which they first come, and which of them each row has."""

    values: Sequence[Any]
    places: NDArray[np.integer[Any]]  # [rows]

    @staticmethod
    def of(cells: Sequence[Any]) -> "Column":
        """The cells of each row, as a column."""
        try:
            index: dict[Any, int] = {}
            places = np.fromiter((index.setdefault(cell, len(index)) for cell in cells), np.int64, len(cells))
            return Column(list(index), places)
        except TypeError:  # parquet has lists
            return Column(cells, np.arange(len(cells)))


@dataclass(frozen=True)
class Header:
    """What is known of a file before its rows are read."""

    path: Path
    names: list[str]
    separator: str = ","
    line: int = 0  # the header's last line; 0: there is none
    note: str = ""

    def place(self, name: str) -> int:
        if (times := self.names.count(name)) > 1:
            raise DataError(f"{self.path}:1: there are {times} columns {name!r}: rename all but the one to read")
        return self.names.index(name)


@dataclass(frozen=True)
class Table:
    """Named columns, and the line of each row for messages."""

    path: Path
    columns: Mapping[str, Any]  # by name a `Column`; of items' names the cells
    lines: Sequence[int]  # the first line of each row
    word: str = "line"
    ends: Mapping[int, int] = field(default_factory=dict)  # row → its last line, if it has several
    decimal_commas: bool = False  # whether a comma may be part of a number: it does not separate columns

    def bad(self, row: int, what: str) -> DataError:
        where = f"{self.path}:{self.lines[row]}" if self.word == "line" else f"{self.path}, row {self.lines[row]}"
        return DataError(f"{where}: {what}")


def read_header(path: Path, kind: str) -> Header:
    """The columns of a .csv, .tsv, .inter or .dat file, from its beginning alone."""
    text = _decoded(path, _beginning(path))
    separator = _separator(path, text, kind)
    note = "" if separator == USUAL[kind] else f"{path.name} is read with {SEPARATORS[separator]} between its columns."
    if kind == ".dat":
        return Header(path, ["user", "item", "rating", "time"], separator, 0, note)
    _, line, head = next(_rows(path, text, separator))
    names = [name.split(":")[0] if kind == ".inter" else name.strip() for name in head]
    return Header(path, names, separator, line, note)


def read_rows(head: Header, wanted: Sequence[str]) -> Table:
    """These columns of all rows, and the lines of the rows."""
    names, path, at = head.names, head.path, [head.place(name) for name in wanted]
    found: list[tuple[dict[str, int], array[int]]] = [({}, array("q")) for _ in wanted]
    lines, ends = array("q"), {}
    for first, last, row in _rows(path, _decoded(path, contents(path)), head.separator):
        if last <= head.line:
            continue
        if len(row) != len(names):
            runs_on = f", in a quoted field that goes on to line {last}" if last > first else ""
            raise DataError(
                f"{path}:{first}: {len(row)} fields where {len(names)} belong ({', '.join(names)}){runs_on}; "
                f"mend the line"
            )
        if last > first:
            ends[len(lines)] = last
        lines.append(first)
        for (index, places), column in zip(found, at, strict=True):
            places.append(index.setdefault(row[column], len(index)))
    if not lines:
        raise DataError(f"{path} has a header but no rows: give a file with at least one row")
    columns = {name: Column(list(index), np.array(places)) for name, (index, places) in zip(wanted, found, strict=True)}
    return Table(path, columns, lines, "line", ends, head.separator != ",")


def read_fast(head: Header, wanted: Sequence[str]) -> Table | None:
    """What `read_rows` gives, but without lines, by pyarrow; None without pyarrow, or if the two might differ."""
    try:
        import pyarrow as pa
        from pyarrow import csv as fast
    except ImportError:
        return None
    data, mark = contents(head.path), head.separator
    breaks = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    longest = np.diff(breaks, prepend=-1, append=len(data)).max()
    odd = any(one in data for one in (b'"', b"\0", b"\x1f")) or data.count(b"\r") > data.count(b"\r\n")
    if odd or longest > csv.field_size_limit() or head.line > len(breaks):
        return None
    rest = data[breaks[head.line - 1] + 1 if head.line else 0 :]
    if mark == "::":
        mark, rest = "\x1f", rest.replace(b"::", b"\x1f")
    names, kept = [str(place) for place in range(len(head.names))], [str(head.place(name)) for name in wanted]
    try:
        data.decode("utf-8")  # columns that are not wanted too
        found = fast.read_csv(
            pa.BufferReader(rest),
            fast.ReadOptions(column_names=names),
            fast.ParseOptions(delimiter=mark, quote_char=False),
            fast.ConvertOptions(column_types=dict.fromkeys(kept, pa.string()), include_columns=kept),
        )
    except (pa.ArrowException, UnicodeDecodeError):
        return None
    coded = [column.combine_chunks().dictionary_encode() for column in found.columns]
    columns = [Column(column.dictionary.to_pylist(), column.indices.to_numpy()) for column in coded]
    table = Table(head.path, dict(zip(wanted, columns, strict=True)), range(len(found)), decimal_commas=mark != ",")
    return table if len(found) else None


def spelled(names: Iterable[Any], spellings: Iterable[str], without: str = "_") -> Any:
    """Of several names the one that comes first among the spellings, in lower case and `without` these letters."""
    usual: dict[str, Any] = {}
    for name in names:
        usual.setdefault("".join(letter for letter in str(name).lower() if letter not in without), name)
    return next((usual[spelling] for spelling in spellings if spelling in usual), None)


def contents(path: Path) -> bytes:
    """The bytes of a file, unpacked if its name ends in .gz."""
    data = path.read_bytes()
    if path.suffix.lower() != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} is not a whole gzip archive ({error}): copy or download it again; if it is not packed, take .gz "
            "off its name"
        ) from error


def _beginning(path: Path) -> bytes:
    """The first whole lines of a file; all of it, if it is short or its beginning is blank, or to say what is wrong."""
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with suppress(EOFError, OSError, zlib.error), opened(path, "rb") as file:
        data: bytes = file.read(BEGINNING)
        whole = data[: data.rfind(b"\n") + 1]
        if len(data) == BEGINNING and whole.strip():
            return whole
    return contents(path)


def _decoded(path: Path, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not UTF-8 text; save the file as UTF-8") from error
    if (at := data.find(b"\0")) >= 0:
        line = data.count(b"\n", 0, at) + 1
        raise DataError(f"{path}:{line}: there is a NUL byte: the file is damaged, or UTF-16; save it as UTF-8")
    if not text.strip():
        raise DataError(f"{path} is empty: give a file with at least one row")
    return text


def _separator(path: Path, text: str, kind: str) -> str:
    """The usual separator if the first line has it; else another one, if the line has exactly one."""
    head = text.lstrip().split("\n", 1)[0].strip()
    line = text[: len(text) - len(text.lstrip())].count("\n") + 1
    usual = USUAL[kind]
    if usual in head:
        return usual
    # A header has only names. The first row of a .dat file is data, where a mark may be part of an id, so the mark must
    # make four columns.
    others = [mark for mark in SEPARATORS if (head.count(mark) == 3 if kind == ".dat" else mark in head)]
    if not others and len(head.split()) > 1:
        raise DataError(
            f"{path}:{line}: the columns seem to be separated by spaces; save the file with {SEPARATORS[usual]} "
            "between them"
        )
    return others[0] if len(others) == 1 else usual


def _rows(path: Path, text: str, separator: str) -> Iterator[tuple[int, int, list[str]]]:
    """The first line, the last line and the fields of every row that is not empty."""
    if separator == "::":  # used without quotes
        yield from ((n, n, line.rstrip("\r").split("::")) for n, line in enumerate(text.split("\n"), 1) if line.strip())
        return
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    before = None  # held back: a quote that is never closed goes on to the end
    while True:
        first = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            if "field larger than" not in str(error):
                raise DataError(f"{path}:{first}: {error}; mend the line") from error
            raise DataError(
                f"{path}:{first}: a field of more than {csv.field_size_limit():,} characters; shorten it, or close the "
                "quote that opens it"
            ) from error
        if row:
            if before:
                yield before
            before = first, reader.line_num, row
    if before and '"' in text and _never_closed(text, separator, before[0]):
        raise DataError(
            f'{path}:{before[0]}: a quote opens on this line and is never closed; close it, or write it as ""'
        )
    if before:
        yield before


def _never_closed(text: str, separator: str, first: int) -> bool:
    """Whether a quote of the row that begins on this line is still open where the file ends."""
    rest = itertools.islice(io.StringIO(text, newline=""), first - 1, None)
    try:
        next(csv.reader(rest, delimiter=separator, strict=True))
    except csv.Error as error:
        return "unexpected end" in str(error)
    return False
