"""Text files of rows and columns, with the line of each row, so that messages can name it."""

import csv
import gzip
import io
import itertools
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedgrec.errors import DataError

SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars", "::": "double colons"}
USUAL = {".csv": ",", ".tsv": "\t", ".inter": "\t", ".dat": "::"}


@dataclass(frozen=True)
class Table:
    """Named columns of cells, and the line of each row for messages."""

    path: Path
    columns: Mapping[str, Sequence[Any]]
    lines: Sequence[int]  # the first line of each row
    word: str = "line"
    ends: Mapping[int, int] = field(default_factory=dict)  # row → its last line, if it has several
    twice: Mapping[str, int] = field(default_factory=dict)  # repeated column name → how many columns have it
    note: str = ""
    decimal_commas: bool = False  # whether a comma may be part of a number: it does not separate columns

    def column(self, name: str) -> Sequence[Any]:
        if name in self.twice:
            raise DataError(
                f"{self.path}:1: there are {self.twice[name]} columns {name!r}: rename all but the one to read"
            )
        return self.columns[name]

    def bad(self, row: int, what: str) -> DataError:
        where = f"{self.path}:{self.lines[row]}" if self.word == "line" else f"{self.path}, row {self.lines[row]}"
        return DataError(f"{where}: {what}")


def read_text(path: Path, kind: str) -> Table:
    """A .csv, .tsv, .inter or .dat file."""
    text = _decoded(path)
    separator = _separator(path, text, kind)
    numbered = _split_lines(text) if separator == "::" else _rows(path, text, separator)
    if kind == ".dat":
        names = ["user", "item", "rating", "time"]
    else:
        _, _, head = next(numbered)
        names = [name.split(":")[0] if kind == ".inter" else name.strip() for name in head]
    note = "" if separator == USUAL[kind] else f"{path.name} is read with {SEPARATORS[separator]} between its columns."
    return replace(_table(path, names, numbered), note=note, decimal_commas=separator != ",")


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


def _decoded(path: Path) -> str:
    data = contents(path)
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


def _split_lines(text: str) -> Iterator[tuple[int, int, list[str]]]:
    """`_rows` for the separator `::`, which is used without quotes."""
    return ((n, n, line.rstrip("\r").split("::")) for n, line in enumerate(text.split("\n"), 1) if line.strip())


def _rows(path: Path, text: str, separator: str) -> Iterator[tuple[int, int, list[str]]]:
    """The first line, the last line and the fields of every row that is not empty."""
    stream, quotes = io.StringIO(text, newline=""), '"' in text
    reader = csv.reader(stream, delimiter=separator)
    while True:
        first = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "field larger than" not in str(error):
                raise DataError(f"{path}:{first}: {error}; mend the line") from error
            raise DataError(
                f"{path}:{first}: a field of more than {csv.field_size_limit():,} characters; shorten it, or close the "
                "quote that opens it"
            ) from error
        if not row:
            continue
        if quotes and stream.tell() == len(text) and _never_closed(text, separator, first):
            raise DataError(
                f'{path}:{first}: a quote opens on this line and is never closed; close it, or write it as ""'
            )
        yield first, reader.line_num, row


def _never_closed(text: str, separator: str, first: int) -> bool:
    """Whether a quote of the row that begins on this line is still open where the file ends."""
    rest = itertools.islice(io.StringIO(text, newline=""), first - 1, None)
    try:
        next(csv.reader(rest, delimiter=separator, strict=True))
    except csv.Error as error:
        return "unexpected end" in str(error)
    return False


def _table(path: Path, names: list[str], numbered: Iterator[tuple[int, int, list[str]]]) -> Table:
    rows: list[list[str]] = []
    lines: list[int] = []
    ends: dict[int, int] = {}
    for first, last, row in numbered:
        if len(row) != len(names):
            runs_on = f", in a quoted field that goes on to line {last}" if last > first else ""
            raise DataError(
                f"{path}:{first}: {len(row)} fields where {len(names)} belong ({', '.join(names)}){runs_on}; "
                f"mend the line"
            )
        if last > first:
            ends[len(rows)] = last
        rows.append(row)
        lines.append(first)
    if not rows:
        raise DataError(f"{path} has a header but no rows: give a file with at least one row")
    twice = {name: n for name, n in Counter(names).items() if n > 1}
    return Table(path, dict(zip(names, zip(*rows, strict=True), strict=True)), lines, "line", ends, twice)
