"""`fedgrec recommend RUN --all --out FILE`: everybody's list in one table."""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedgrec.cli.widths import fitted
from fedgrec.errors import ConfigError, DataError, many, missing_extra

COLUMNS = ("user", "item", "score", "rank")  # and "title", where items have any
ENDINGS = (".csv", ".parquet")
AT_ONCE = 100_000  # users whose lists are in memory at a time


def register(recommend: Any, who: Any) -> None:
    who.add_argument("--all", action="store_true", help="all users of the training data, into --out")
    recommend.add_argument(
        "--users-from", type=Path, metavar="FILE", help="with --all: the users of this file alone, one id a line"
    )
    recommend.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="with --all: a .csv or .parquet file with the columns user, item, score, rank, and title if there are any",
    )


def writes_table(arguments: argparse.Namespace) -> bool:
    """Whether the arguments ask for a table; refuses arguments that do not go together."""
    if not arguments.all:
        if arguments.out is not None or arguments.users_from is not None:
            raise ConfigError("--out and --users-from go with --all; one list is printed, with --json for a program")
        return False
    if arguments.out is None:
        raise ConfigError(f"--all needs --out FILE, which ends in {' or '.join(ENDINGS)}")
    if arguments.json:
        raise ConfigError("--all writes a table to --out: leave out --json")
    if arguments.out.suffix not in ENDINGS:
        raise ConfigError(f"--out {arguments.out}: name a file that ends in {' or '.join(ENDINGS)}")
    return True


def run(arguments: argparse.Namespace) -> int:
    import numpy as np

    from fedgrec.data.files import whole
    from fedgrec.data.item_names import names_of
    from fedgrec.runs.trained import open_run

    model = open_run(arguments.run)
    names = names_of(model, arguments.run, arguments.item_names)
    titles = np.array(names.titles, object) if any(names.titles) else None
    columns = COLUMNS if titles is None else (*COLUMNS, "title")
    named = arguments.users_from
    users = np.arange(len(model.user_ids)) if named is None else _read(named, model.user_ids)
    write = _write_parquet if arguments.out.suffix == ".parquet" else _write_csv
    number = min(arguments.number, len(model.item_ids))
    blocks = (users[lo : lo + AT_ONCE] for lo in range(0, len(users), AT_ONCE))
    with whole(arguments.out) as part:
        rows = write(part, columns, (_table(model, block, number, titles) for block in blocks))
    if names.note:
        print(fitted(names.note))
    print(f"{arguments.out}: {many(rows, 'recommendation')} for {many(len(users), 'user')}")
    return 0


def _read(path: Path, ids: Any) -> Any:
    import numpy as np

    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines() splits ids at rarer characters
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--users-from {path} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(ids.parse(line.strip()))
            except DataError as error:
                raise DataError(f"{path}:{number}: {error}") from None
    if not found:
        raise DataError(f"--users-from {path} names nobody: write one id a line")
    return np.array(list(dict.fromkeys(found)))


def _table(model: Any, users: Any, number: int, titles: Any) -> list[Any]:
    """The columns of these users' lists, without empty places."""
    from fedgrec.models.recommender import flat

    ids, scores = model.lists(users, number)
    table = list(flat(model.user_names[users], model.item_names, ids, scores))
    return table if titles is None else [*table, titles[ids[ids >= 0]]]


def _write_csv(path: Path, names: tuple[str, ...], tables: Iterator[list[Any]]) -> int:
    rows = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for users, items, scores, *others in tables:
            writer.writerows(zip(users, items, scores.astype(str), *others, strict=True))
            rows += len(users)
    return rows


def _write_parquet(path: Path, names: tuple[str, ...], tables: Iterator[list[Any]]) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise missing_extra("writing .parquet files", "parquet") from None
    rows, writer = 0, None
    try:
        for columns in tables:
            try:
                table = pa.table(dict(zip(names, columns, strict=True)))
            except (pa.ArrowException, OverflowError) as error:  # of several types, or beyond 64 bits
                raise DataError(f"these ids do not fit a .parquet file ({error}): name a .csv") from None
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
            rows += len(table)
    finally:
        if writer is not None:
            writer.close()
    return rows
