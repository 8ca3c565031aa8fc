"""`fedgrec recommend`, for one person or for everybody, `explain` and `evaluate`: what a finished run can do."""

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedgrec.cli.configured import add_item_names, command, fitted
from fedgrec.errors import ConfigError, DataError, RunError, many, missing_extra

COLUMNS = ("user", "item", "score", "rank")  # and "title", where items have any
ENDINGS = (".csv", ".parquet")
AT_ONCE = 100_000  # users whose lists are in memory at a time


def register(commands: Any) -> None:
    recommend = command(commands, "recommend", run_recommend, "what a person should see next")
    add = recommend.add_argument
    add("run", type=Path, metavar="RUN", help="a run's folder")
    who = recommend.add_mutually_exclusive_group(required=True)
    who.add_argument("--user", metavar="ID", help="a user of the training data")
    who.add_argument(
        "--items",
        action="append",
        metavar="ID,ID,...",
        help="items of a person the model has never met; may be given again. An id with a comma goes in quotes: "
        "--items '\"Paris, Texas\",book-3'",
    )
    who.add_argument("--similar", metavar="ID", help="items like this one")
    who.add_argument("--all", action="store_true", help="all users of the training data, into --out")
    add("--users-from", type=Path, metavar="FILE", help="with --all: the users of this file alone, one id a line")
    add(
        "--out",
        type=Path,
        metavar="FILE",
        help="with --all: a .csv or .parquet file with the columns user, item, score, rank, and title if there are any",
    )
    add("--only", type=Path, metavar="FILE", help="recommend nothing but the items of this file, one id a line")
    add("--without", type=Path, metavar="FILE", help="recommend none of the items of this file, one id a line")
    add("-n", "--number", type=int, default=10, metavar="N", help="how many (default: 10)")
    add_item_names(recommend)
    add("--json", action="store_true", help="print JSON")

    explain = command(commands, "explain", run_explain, "why a person is shown an item")
    add = explain.add_argument
    add("run", type=Path, metavar="RUN", help="a run's folder")
    add("--user", required=True, metavar="ID", help="a user of the training data")
    add("--item", required=True, metavar="ID", help="any item")
    add("-n", "--number", type=int, default=10, metavar="N", help="how many of the person's items (default: 10)")
    add_item_names(explain)
    add("--json", action="store_true", help="print JSON")

    add = command(commands, "evaluate", run_evaluate, "rank all items again and measure").add_argument
    add("run", type=Path, metavar="RUN", help="a run's folder")
    add(
        "--data",
        metavar="WORD",
        help="measure on the people of this table or folder instead: the model gets some of their items and must find "
        "the others (the only way for the run of a federation's server, whose users are on the nodes)",
    )
    add("--split", choices=("test", "validation"), default="test", help="(default: test)")
    add("--topk", metavar="K,K,...", help="list lengths (default: the run's)")
    add("--metrics", default="all", metavar="A,B,...", help="which ones, such as recall,map,novelty (default: all)")
    add("--ndcg-ideal", choices=("capped", "paper"), help="(default: the run's)")
    add("--json", action="store_true", help="print JSON")


def run_recommend(arguments: argparse.Namespace) -> int:
    """Recommend items from a run, for a known user or for a person it never met."""
    import numpy as np

    from fedgrec.cable.core import printable
    from fedgrec.data.item_names import names_of
    from fedgrec.models.recommender import Seen, without_empty
    from fedgrec.runs.trained import open_run

    check_number(arguments)
    if writes_table(arguments):
        return write_table(arguments)
    model = open_run(arguments.run, needs_users=arguments.user is not None)
    number, allowed = arguments.number, _candidates(arguments, model.item_ids)
    if arguments.user is not None:
        user = model.user_ids.parse(arguments.user)
        seen, lists = model.seen(user), model.lists(np.array([user]), number, allowed=allowed)
    elif arguments.items is not None:
        seen = np.array([item for text in arguments.items for item in named(text, model.item_ids)], np.int32)
        lists = model.lists_for(model.new_user_vector(seen), number, Seen.of([seen]), allowed)
    else:
        seen, alike = np.zeros(0, np.int32), np.array([model.item_ids.parse(arguments.similar)])
        lists = model.similar_lists(alike, number, allowed)
    ids, scores = without_empty(lists)
    names = names_of(model, arguments.run, arguments.item_names)
    if arguments.json:
        ranked = zip(ids.tolist(), scores.tolist(), strict=True)
        print(json.dumps([{**names.about(item), "score": score} for item, score in ranked]))
        return 0
    if names.note:
        print(fitted(names.note))
    if len(seen):
        liked = ", ".join(names.title_and_id(int(i)) for i in seen[:5])
        print(f"knows: {printable(liked)}" + (f" and {len(seen) - 5} more" if len(seen) > 5 else ""))
    for rank, (item, score) in enumerate(zip(ids, scores, strict=True), 1):
        print(f"{rank:>3}. {printable(names.title_and_id(int(item))):<50} {score:8.4f}")
    if not len(ids):
        whole = len(model.item_ids if allowed is None else allowed)
        print(f"Nothing is left to recommend: all {whole:,} items are known.")
    return 0


def run_explain(arguments: argparse.Namespace) -> int:
    """A user's score for an item as a sum of what each of the user's items adds to it."""
    from fedgrec.cable.core import printable
    from fedgrec.data.item_names import names_of
    from fedgrec.runs.trained import open_run

    check_number(arguments)
    model = open_run(arguments.run)
    user, item = model.user_ids.parse(arguments.user), model.item_ids.parse(arguments.item)
    found, names, n = model.explain(user, item), names_of(model, arguments.run, arguments.item_names), arguments.number
    if arguments.json:
        adds = {"items": [[model.item_ids[i], term] for i, term in zip(found.ids, found.terms.tolist(), strict=True)]}
        print(json.dumps({"item": model.item_ids[item], "score": found.score, "own": found.own, **adds}))
        return 0
    lines = [(names.title_and_id(int(i)), term) for i, term in zip(found.ids[:n], found.terms, strict=False)]
    lines += [(f"{many(len(found.ids) - n, 'further item')}", found.terms[n:].sum())] if len(found.ids) > n else []
    for text, score in (*lines, ("the user's own part", found.own), (names.title_and_id(item), found.score)):
        print(f"{printable(text):<55} {score:8.4f}")
    return 0


def check_number(arguments: argparse.Namespace) -> None:
    if arguments.number < 1:
        raise ConfigError(f"-n {arguments.number}: ask for at least one item")


def _candidates(arguments: argparse.Namespace, ids: Any) -> Any:
    """The items that --only and --without leave, sorted; None: every item."""
    import numpy as np

    if arguments.only is None and arguments.without is None:
        return None
    only = np.arange(len(ids)) if arguments.only is None else _read("--only", arguments.only, ids)
    left = np.setdiff1d(only, [] if arguments.without is None else _read("--without", arguments.without, ids))
    if not len(left):
        raise ConfigError("--only and --without leave no item: name at least one that may be recommended")
    return left


def named(text: str, ids: Any) -> list[int]:
    """The items that a text names: the whole text if it is an id, else ids between commas, quoted where needed."""
    if ids.knows(text):
        return [ids.parse(text)]
    try:
        next(csv.reader([text], skipinitialspace=True, strict=True), None)
    except csv.Error as error:
        if "unexpected end" in str(error):
            raise ConfigError(f'--items {text}: a quote is not closed; write "an id, with a comma",another') from None
    fields = next(csv.reader([text], skipinitialspace=True), [])
    return [ids.parse(field.strip()) for field in fields if field.strip()]


def run_evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate a run's selected model on its own split, or by people whom it has never met."""
    from fedgrec.config.configuration import Config
    from fedgrec.models.metrics import named as metrics_named
    from fedgrec.runs.trained import open_run

    names = metrics_named(arguments.metrics)
    model = open_run(arguments.run, needs_users=arguments.data is None)
    changes = {"topk": arguments.topk, "ndcg_ideal": arguments.ndcg_ideal}
    shared = Config(model.config.data, run=model.config.run)  # the options that every method has
    config = shared.changed({k: v for k, v in changes.items() if v is not None}, "command line")
    line = _by_strangers(arguments, model, config) if arguments.data else _on_own_split(arguments, model, config)
    line = {key: value for key, value in line.items() if "@" not in key or key.partition("@")[0] in names}
    if arguments.json:
        print(json.dumps(line))
        return 0
    for name, value in line.items():
        print(f"{name:<18} {value:.4f}" if isinstance(value, float) else f"{name:<18} {value}")
    return 0


def _on_own_split(arguments: argparse.Namespace, model: Any, config: Any) -> dict[str, Any]:
    from fedgrec.data.datasets import load_for
    from fedgrec.data.split import read_split
    from fedgrec.runs.record import RunRecord
    from fedgrec.runs.trained import Centralized, measured

    before = read_split(arguments.run)
    if before is None and isinstance(model, Centralized):
        raise RunError(
            f"{arguments.run} was made by a version that did not keep its split: its figures are in result.json"
        )
    dataset = load_for(config, before, order=model.takes_order)
    RunRecord.check_same_data(arguments.run, dataset)
    held_out = getattr(dataset.split, arguments.split)
    if held_out is None or not held_out.n_pairs:
        raise DataError(f"{arguments.run} has no {arguments.split} items under the protocol {config.run.protocol!r}")
    seen = dataset.split.train if arguments.split == "validation" else dataset.split.before_test
    result = measured(model, config.run, seen, held_out)
    about = {"round": model.round, "split": arguments.split, "protocol": config.run.protocol}
    return {**about, **result.metrics, "users": result.users}


def _by_strangers(arguments: argparse.Namespace, model: Any, config: Any) -> dict[str, Any]:
    """Represent new people by some of their items, and measure how well the model ranks their other items."""
    import numpy as np

    from fedgrec.data.datasets import load_data
    from fedgrec.models.ranking import Judging, evaluate, rows_of
    from fedgrec.models.recommender import Seen

    items = model.item_vectors().astype(np.float32)
    if arguments.split != "test":
        raise ConfigError("--split validation is of the run's own data: leave it out, or leave out --data")
    options = config.changed({"data": arguments.data, "split": "auto"}, "command line").data
    parts = load_data(options, 0.0, config.run.seed, order=model.takes_order).split
    if parts.test is None:
        raise DataError(
            f"{arguments.data} holds nothing out to judge by: give one table, or a folder with train and test"
        )
    train, known = parts.train.under(model.item_ids), parts.test.under(model.item_ids)
    unknown = parts.train.n_pairs + parts.test.n_pairs - train.n_pairs - known.n_pairs
    test = known.select(train.user_degrees()[known.users()] > 0)  # without known items nothing can be ranked
    if not test.n_pairs:
        raise DataError(
            f"nobody in {arguments.data} has two items or more that {arguments.run} knows: see its items.json"
        )
    vectors, with_items = np.zeros((train.n_users, items.shape[1]), np.float32), np.flatnonzero(train.user_degrees())
    histories = Seen(train.indptr, train.in_order())
    vectors[with_items] = model.new_user_vectors(*rows_of(histories, with_items))
    result = evaluate(vectors, items, train, test, Judging(config.run.topk, config.run.ndcg_ideal))
    about = {"round": model.round, "split": arguments.data, "unknown_pairs": unknown}
    return {**about, **result.metrics, "users": result.users}


# ------------------------------------------------------------------------------------------ everybody's lists


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


def write_table(arguments: argparse.Namespace) -> int:
    """Everybody's list, into one file."""
    import numpy as np

    from fedgrec.data.files import whole
    from fedgrec.data.item_names import names_of
    from fedgrec.runs.trained import open_run

    model = open_run(arguments.run)
    names = names_of(model, arguments.run, arguments.item_names)
    titles = np.array(names.titles, object) if any(names.titles) else None
    columns = COLUMNS if titles is None else (*COLUMNS, "title")
    named = arguments.users_from
    users = np.arange(len(model.user_ids)) if named is None else _read("--users-from", named, model.user_ids)
    allowed = _candidates(arguments, model.item_ids)
    write = _write_parquet if arguments.out.suffix == ".parquet" else _write_csv
    blocks = (users[lo : lo + AT_ONCE] for lo in range(0, len(users), AT_ONCE))
    with whole(arguments.out) as part:
        rows = write(part, columns, (_table(model, block, arguments.number, allowed, titles) for block in blocks))
    if names.note:
        print(fitted(names.note))
    print(f"{arguments.out}: {many(rows, 'recommendation')} for {many(len(users), 'user')}")
    return 0


def _read(flag: str, path: Path, ids: Any) -> Any:
    """The indices of a file's ids, one a line."""
    import numpy as np

    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines() splits ids at rarer characters
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{flag} {path} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(ids.parse(line.strip()))
            except DataError as error:
                raise DataError(f"{path}:{number}: {error}") from None
    if not found:
        raise DataError(f"{flag} {path} names no {ids.kind}: write one id a line")
    return np.array(list(dict.fromkeys(found)))


def _table(model: Any, users: Any, number: int, allowed: Any, titles: Any) -> list[Any]:
    """The columns of these users' lists, without empty places."""
    from fedgrec.models.recommender import flat

    ids, scores = model.lists(users, number, allowed=allowed)
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
