"""From a name, a folder or a file to train, validation and test: `load`."""

import hashlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedgrec.config.configuration import Config
from fedgrec.config.options import DataOptions
from fedgrec.data import split as splits
from fedgrec.data.ids import IdMap, number
from fedgrec.data.interactions import Interactions
from fedgrec.data.readers import EXTENSIONS, Pairs, ending, read, stem
from fedgrec.data.registry import SOURCES, digest, locate
from fedgrec.data.split import Rule, Split, by_time, grown_split
from fedgrec.data.synthetic import Places, demo
from fedgrec.errors import DataError, nearest

__all__ = ["SOURCES", "Dataset", "describe", "load", "locate"]

SplitKind = Literal["auto", "given", "ratio", "last", "time", "all"]
MATRIX = "matrix"  # what the data of a model that was fitted in Python is called
TIMED = ("last", "time")  # the splits that need times; for the others no time is read


@dataclass(frozen=True, eq=False)
class Dataset:
    """A split, its source, and notes for the person who uses it."""

    name: str
    split: Split
    checksums: dict[str, str] = field(default_factory=dict)  # file → sha256
    notes: tuple[str, ...] = ()  # sentences
    places: Places | None = None  # the demo's map
    split_kind: str = "given"


@dataclass(frozen=True, eq=False)
class _Source:
    """The data as read, before it is split: train and, if the source has one, test."""

    name: str
    parts: list[Interactions]
    checksums: dict[str, str]
    notes: list[str]
    given: bool  # whether the source is split already
    low_rated: list[Pairs] = field(default_factory=list)
    places: Places | None = None


def load(
    source: str | Path,
    *,
    split: SplitKind = "auto",
    test_ratio: float = 0.2,
    leave_out: int = 1,
    validation: float = 0.0,
    k_core: int = 0,
    min_rating: float | None = None,
    keep_ratings: bool = False,
    weight_ceiling: float = 0.0,
    user: str = "user",
    item: str = "item",
    rating: str = "rating",
    time: str = "time",
    seed: int = 0,
    before: Split | None = None,
    order: bool = False,
) -> Dataset:
    """Load `demo`, a public data set by name, a folder with train.* and maybe test.*, or one file.

    `auto` takes the split of a folder as given, and splits anything else like `ratio`, which holds out `test_ratio` of
    each user's items. `last` holds out each user's latest `leave_out` items, `time` all pairs after one moment, `all`
    none. Times are read for `last`, for `time`, and if a method asks for users' `order`; but for `time`, a pair's time
    is its place among all pairs then. Ids and pairs of the split `before` keep their places, even if the data has grown
    since.
    """
    if split not in get_args(SplitKind):
        raise DataError(f"there is no split {split!r}; known are {', '.join(get_args(SplitKind))}")
    if str(source) == "demo":
        if keep_ratings or weight_ceiling or min_rating is not None:
            raise DataError("the demo has no ratings: leave out min_rating, keep_ratings and weight_ceiling")
        found = _demo()
    else:
        columns = {"user": user, "item": item, "rating": rating, "time": time if order or split in TIMED else None}
        kept = {"min_rating": min_rating, "keep_ratings": keep_ratings or weight_ceiling > 0}
        found = _read_files(source, columns | kept, in_order=split != "time" and columns["time"] is not None)
    if split == "given" and not found.given:
        raise DataError(
            f"{source} is one set of pairs: use split 'ratio', 'last' or 'time', or give a folder with train and test"
        )
    kind = split if split != "auto" else "given" if found.given else "ratio"

    parts, notes = [part.weighted(weight_ceiling) for part in found.parts], list(found.notes)
    if kind != "given" and len(parts) == 2:
        parts = [splits.together(*parts)]
    if k_core > 0:
        parts = _core(parts, k_core, notes)
    rule = Rule(kind, test_ratio, validation, seed, leave_out)
    result = _first_split(parts, rule, notes) if before is None else _next_split(before, parts, rule, notes)
    if not result.train.n_pairs:
        raise DataError(f"{source} leaves no pair to train on: check the file and min_rating")
    if kind == "time" and result.test is not None and result.test.times is not None and result.test.n_pairs:
        notes.append(f"Test begins at {splits.moment(result.test.times.min())}.")
    if result.left_out is not None and result.left_out.n_pairs:  # by a cut in time
        notes.append(
            f"{result.left_out.n_pairs:,} later pairs of users or items that train does not know were left out."
        )
    if (low := _numbered(found.low_rated, result.train)) is not None:
        result = replace(result, left_out=splits.together(low, result.left_out))
    notes += _remarks(result)
    return Dataset(found.name, result, found.checksums, tuple(notes), found.places, kind)


def load_data(
    options: DataOptions, validation: float = 0.0, seed: int = 0, before: Split | None = None, order: bool = False
) -> Dataset:
    """The data set that the options name, split as they say; `validation` is the share held out of train."""
    named: dict[str, Any] = {name.removesuffix("_column"): value for name, value in asdict(options).items()}
    return load(named.pop("data"), **named, validation=validation, seed=seed, before=before, order=order)


def load_for(config: Config, before: Split | None = None, order: bool = False) -> Dataset:
    """The data of a run. Under `honest`, validation items are held out of train, unless the run trains on everything.

    `before` is the split of a resumed run; pairs stay in their part of it (see split.py).
    `order`: whether another method than the run's asks for it.
    """
    if config.data.data == MATRIX and not Path(MATRIX).exists():
        raise DataError("this model was fitted and saved in Python, so there is no file with its data")
    holds_out = config.run.protocol == "honest" and config.data.split != "all"
    order = order or config.model.takes_order
    return load_data(config.data, config.run.validation if holds_out else 0.0, config.run.seed, before, order)


def _first_split(parts: list[Interactions], rule: Rule, notes: list[str]) -> Split:
    if rule.kind == "time":
        none = np.zeros(parts[0].n_pairs, bool)
        return by_time(parts[0], rule, none, none, new=~none)
    if rule.kind == "ratio":
        parts = list(splits.ratio(parts[0], rule.test_ratio, rule.seed))
    elif rule.kind == "last":
        parts = list(splits.leave_last_out(parts[0], rule.leave_out))
    result = Split(parts[0], _without_known(parts[0], parts[1], notes) if len(parts) == 2 else None)
    if rule.kind == "last" and rule.validation:
        train, validation = splits.leave_last_out(result.train, rule.leave_out)
        return replace(result, train=train, validation=validation)
    return splits.hold_out_validation(result, rule.validation, rule.seed) if rule.validation else result


def _next_split(before: Split, parts: list[Interactions], rule: Rule, notes: list[str]) -> Split:
    if len(parts) == 1:
        return grown_split(before, parts[0], rule)
    return grown_split(before, splits.together(*parts), rule, _without_known(parts[0], parts[1], notes))


def describe(dataset: Dataset) -> dict[str, Any]:
    """A run's record of its data, ready for JSON."""
    train, held_out = dataset.split.train, {"validation": 0, "test": 0, **dataset.split.held_out}
    sizes = {"users": train.n_users, "items": train.n_items, "train": train.n_pairs, **held_out}
    return {"name": dataset.name, "checksums": dict(dataset.checksums), "sizes": sizes, "split": dataset.split_kind}


def _demo() -> _Source:
    data, places = demo()
    checksum = hashlib.sha256(data.indptr.tobytes() + data.items.tobytes()).hexdigest()
    return _Source(
        "demo", [data], {"generated": checksum}, ["The demo's people and places are invented."], False, places=places
    )


def _read_files(source: str | Path, options: dict[str, Any], in_order: bool) -> _Source:
    if not str(source).strip():
        raise DataError("the data has no name: name a data set, a folder or a file")
    path = Path(source).expanduser()
    if str(source) in SOURCES:
        path = locate(str(source))
    elif not path.exists():
        if isinstance(source, Path) or path.suffix or len(path.parts) > 1:
            raise DataError(f"{source} does not exist: check the path")
        known = ["demo", *SOURCES]
        raise DataError(
            f"there is no data set or file {source!r}; known are {', '.join(known)}.{nearest(source, known)}"
        )
    elif not (path.is_file() or path.is_dir()):
        raise DataError(f"{path} is neither a file nor a folder: save the interactions in a file")
    files = [path] if path.is_file() else _files_of(path)
    read_parts = [read(file, **options) for file in files]
    notes = [part.note for part in read_parts if part.note]
    low_rated = [part.low_rated for part in read_parts if part.low_rated is not None]
    if dropped := sum(len(part.users) for part in low_rated):
        notes.append(f"{dropped:,} pairs rated below {options['min_rating']} were left out.")
    parts = _number_together(_placed(read_parts) if in_order else read_parts)
    if merged := sum(len(raw.users) - part.n_pairs for raw, part in zip(read_parts, parts, strict=True)):
        notes.append(f"Repeated pairs, merged: {merged:,}.")
    name = stem(path) if path.is_file() else path.resolve().name
    return _Source(name, parts, {file.name: digest(file) for file in files}, notes, path.is_dir(), low_rated)


def _files_of(folder: Path) -> list[Path]:
    """The file train.* and, if there is one, test.*"""
    files = [f for part in ("train", "test") for f in sorted(folder.glob(f"{part}.*")) if ending(f) in EXTENSIONS]
    stems = [stem(f) for f in files]
    if stems not in (["train"], ["train", "test"]):
        raise DataError(
            f"{folder} must hold one train and at most one test file, ending in {', '.join(EXTENSIONS)}; "
            f"it holds {', '.join(f.name for f in files) or 'none'}"
        )
    return files


def _placed(parts: list[Pairs]) -> list[Pairs]:
    """With each pair's place among all pairs for its time; where times are equal, or the format has none, that of
    the files. A table without times says nothing of order."""
    if any(part.times is None and part.sizes is None for part in parts):
        return parts
    times = [np.zeros(len(part.users)) if part.times is None else part.times for part in parts]
    by_time = np.argsort(np.concatenate(times), kind="stable")
    places = np.empty(len(by_time))
    places[by_time] = np.arange(len(by_time))
    cuts = np.cumsum([len(part.users) for part in parts])[:-1]
    return [replace(part, times=here) for part, here in zip(parts, np.split(places, cuts), strict=True)]


def _number_together(parts: list[Pairs]) -> list[Interactions]:
    """The pairs of all files under shared id maps."""
    users, user_ids = _number_column([p.users for p in parts], [p.sizes and p.sizes[0] for p in parts], "user")
    items, item_ids = _number_column([p.items for p in parts], [p.sizes and p.sizes[1] for p in parts], "item")
    cuts = np.cumsum([len(part.users) for part in parts])[:-1]
    indices = zip(np.split(users, cuts), np.split(items, cuts), parts, strict=True)
    return [
        Interactions.from_indices(u, i, part.ratings, part.times, user_ids=user_ids, item_ids=item_ids)
        for u, i, part in indices
    ]


def _number_column(columns: list[NDArray[Any]], sizes: list[int | None], kind: str) -> tuple[NDArray[np.int64], IdMap]:
    if len({column.dtype.kind for column in columns}) > 1:  # '7' in one file, 'seven' in the other: text in both
        columns = [np.array([str(i) for i in column.tolist()], object) for column in columns]
    ids = np.concatenate(columns)
    known = None
    if all(size is not None for size in sizes):
        size = max(size or 0 for size in sizes)
        # Ids that are already indices stay as they are, unless most rows would be empty.
        if size <= 1_000 + 16 * len(ids):
            known = IdMap.range(size, kind)
    return number(ids, kind, known)


def _numbered(low_rated: list[Pairs], data: Interactions) -> Interactions | None:
    """The pairs rated too low to learn from, if the data has both their user and their item."""
    if not low_rated:
        return None
    named = [(str(u), str(i)) for part in low_rated for u, i in zip(part.users, part.items, strict=True)]
    users, items = data.user_ids, data.item_ids
    pairs = [(users.parse(u), items.parse(i)) for u, i in named if users.knows(u) and items.knows(i)]
    indices = np.array(pairs, np.int64).reshape(-1, 2)
    return Interactions.from_indices(indices[:, 0], indices[:, 1], user_ids=users, item_ids=items)


def _core(parts: list[Interactions], k: int, notes: list[str]) -> list[Interactions]:
    """The k-core of the first part; the second part keeps its pairs of the users and items that are left."""
    whole = parts[0]
    core = splits.k_core(whole, k)
    users = np.array([i in core.user_ids for i in whole.user_ids])
    items = np.array([i in core.item_ids for i in whole.item_ids])
    cored = [core, *(splits.restrict(part, users, items) for part in parts[1:])]
    lost = sum(p.n_pairs for p in parts) - sum(p.n_pairs for p in cored)
    if lost:
        notes.append(f"{lost:,} pairs outside the {k}-core were left out.")
    return cored


def _without_known(train: Interactions, test: Interactions, notes: list[str]) -> Interactions:
    """Test without the pairs of train: ranking masks train items, so no ranking could find them."""
    known = np.isin(test.keys(), train.keys(), assume_unique=True)
    if known.any():
        notes.append(f"Test pairs that are also in train, left out of test: {known.sum():,}.")
        return test.select(~known)
    return test


def _remarks(split: Split) -> list[str]:
    """Sentences about what is unusual in the test set."""
    if split.test is None:
        return ["There is no test set."]
    notes = []
    unseen = int((split.train.degrees() == 0)[split.test.items].sum())
    if unseen:
        notes.append(f"Test pairs of items that are never seen in train: {unseen:,}.")
    idle = int((split.test.user_degrees() == 0).sum())
    if idle:
        notes.append(f"Users without test items, left out of the mean: {idle:,}.")
    lost = int(((split.train.user_degrees() == 0) & (split.test.user_degrees() > 0)).sum())
    if lost:
        notes.append(f"Users with test items but none to train on: {lost:,}.")
    return notes
