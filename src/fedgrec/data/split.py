"""Split pairs into those to train on and those to measure with: of new data, of grown data, and in a run's folder."""

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgrec.data.files import read_tensors, understood, write_tensors
from fedgrec.data.interactions import IdMap, Interactions
from fedgrec.errors import DataError

SPLIT, USER_IDS, ITEM_IDS = "split.safetensors", "users.json", "items.json"
PARTS = ("train", "validation", "test")
MEND = "restore it, or train again in another folder"
TEST_STREAM, VALIDATION_STREAM = 2, 3  # beside the seed, so that draws differ from those of a first split

Mask = NDArray[np.bool_]  # one entry for each pair
Places = tuple[IdMap, NDArray[np.int64]]  # all ids, and the index of each of the data's own ids among them


@dataclass(frozen=True, eq=False)
class Split:
    """Disjoint sets of pairs under the same ids; `left_out` are pairs that serve neither training nor measuring."""

    train: Interactions
    test: Interactions | None = None
    validation: Interactions | None = None
    left_out: Interactions | None = None  # rated too low, or with a user or item that train does not know

    def __post_init__(self) -> None:
        for other in (self.test, self.validation, self.left_out):
            if other is not None and (other.user_ids != self.train.user_ids or other.item_ids != self.train.item_ids):
                raise DataError("the parts of a split must share their user and item ids: load them together")

    @property
    def held_out(self) -> dict[str, int]:
        """How many pairs each part has that is held out of train."""
        parts = {"validation": self.validation, "test": self.test}
        return {name: part.n_pairs for name, part in parts.items() if part is not None}

    @cached_property
    def before_test(self) -> Interactions:
        """Train and validation pairs: at test time a person has seen both."""
        return together(self.train, self.validation)

    @cached_property
    def known(self) -> Interactions:
        """All pairs of the data, in whatever part: people are never recommended items that they have."""
        return together(together(self.before_test, self.test), self.left_out)


def ratio(data: Interactions, fraction: float, seed: int | tuple[int, ...]) -> tuple[Interactions, Interactions]:
    """(kept, held): hold out round(fraction · n) of each user's n items at random, but never all."""
    if not 0 <= fraction < 1:
        raise DataError(f"the share to hold out is {fraction}: it must be at least 0 and less than 1")
    noise = np.random.Generator(np.random.PCG64(seed)).random(data.n_pairs)
    held = highest(data, noise, n_to_hold(fraction, data.user_degrees()))
    return data.select(~held), data.select(held)


def n_to_hold(fraction: float, degrees: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of a user's n items `ratio` holds out."""
    wanted: NDArray[np.int64] = np.rint(fraction * degrees).astype(np.int64)
    return np.clip(wanted, 0, np.maximum(degrees - 1, 0))


def leave_last_out(data: Interactions, n: int = 1) -> tuple[Interactions, Interactions]:
    """(kept, held): hold out each user's last n items by time (of equal times the larger index), but never all."""
    held = last_items(data, n)
    return data.select(~held), data.select(held)


def last_items(data: Interactions, n: int = 1) -> NDArray[np.bool_]:
    """The pairs that `leave_last_out` holds out. [nnz]"""
    if n < 1:
        raise DataError(f"leave-last-out holds out {n} items: it must be at least 1")
    return highest(data, times_of(data, "leave-last-out"), np.clip(data.user_degrees() - 1, 0, n))


def after_cut(times: NDArray[np.float64], fraction: float, option: str) -> NDArray[np.bool_]:
    """The pairs after one moment: round(fraction · n) of n, fewer if several share that moment, never all. [nnz]

    `option` is the option that set the fraction, for the error message.
    """
    n = len(times)
    wanted = min(round(fraction * n), n - 1)
    if wanted < 1:
        return np.zeros(n, bool)
    cut = np.partition(times, n - wanted - 1)[n - wanted - 1]  # the last moment that is kept
    after: NDArray[np.bool_] = times > cut
    if not after.any():
        last = int((times == cut).sum())
        enough = math.ceil(100 * last / n) / 100
        mend = f"raise {option} to {enough:g}" if enough < 1 else "split by ratio"
        raise DataError(
            f"the last {last:,} of {n:,} interactions have the same time, {moment(cut)}, so no cut in time leaves "
            f"some of them behind it: {mend}"
        )
    return after


def times_of(data: Interactions, who: str) -> NDArray[np.float64]:
    if data.times is None:
        raise DataError(f"{who} needs to know when: give data with a time column, or split by ratio")
    return data.times


def moment(seconds: float) -> str:
    """A time for a message: as a date if it lies between 1973 and 2286, else as a plain number."""
    if 1e8 <= seconds < 1e10:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return f"{seconds:,.0f}"


def hold_out_validation(split: Split, fraction: float = 0.1, seed: int = 0) -> Split:
    """The same split with a validation set taken out of train; test stays untouched."""
    if split.validation is not None:
        raise DataError("this split already has a validation set: hold it out once")
    kept, held = ratio(split.train, fraction, (seed, 1))  # (seed, 1): draws that differ from the test set's
    return replace(split, train=kept, validation=held)


def k_core(data: Interactions, k: int) -> Interactions:
    """The largest part where every user and every item has at least k pairs; other users and items lose their ids."""
    mask = np.ones(data.n_pairs, bool)
    users = data.users()
    while True:
        # Dropping a user can bring an item below k, and the other way round, so repeat until nothing is dropped.
        n_user = np.bincount(users[mask], minlength=data.n_users)
        n_item = np.bincount(data.items[mask], minlength=data.n_items)
        keep = mask & (n_user >= k)[users] & (n_item >= k)[data.items]
        if (keep == mask).all():
            break
        mask = keep
    if not mask.any():
        raise DataError(f"no user and item are left with at least {k} interactions each: use a smaller k_core")
    return restrict(data, n_user >= max(k, 1), n_item >= max(k, 1))


def restrict(data: Interactions, users: NDArray[np.bool_], items: NDArray[np.bool_]) -> Interactions:
    """The pairs of the users [M] and items [N] that stay; only these keep ids."""
    kept = data.select(users[data.users()] & items[data.items])
    return Interactions(
        IdMap((data.user_ids[u] for u in np.flatnonzero(users).tolist()), "user"),
        IdMap((data.item_ids[i] for i in np.flatnonzero(items).tolist()), "item"),
        np.concatenate([[0], np.cumsum(kept.user_degrees()[users])]),
        (np.cumsum(items) - 1)[kept.items],
        kept.ratings,
        kept.times,
    )


def highest(data: Interactions, priority: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """A mask of the `counts` [M] pairs of each user that have the highest priority [nnz]. [nnz]"""
    order = np.lexsort((priority, data.users()))  # stable: equal priorities stay in order of item index
    rank = np.empty(data.n_pairs, np.int64)
    rank[order] = np.arange(data.n_pairs)
    return rank >= np.repeat(data.indptr[1:] - counts, data.user_degrees())


def together(a: Interactions, b: Interactions | None) -> Interactions:
    """The pairs of both, with ratings and times if both have them."""
    if b is None or not b.n_pairs:
        return a
    pairs = np.concatenate([a.users(), b.users()]), *(a.and_of(b, name) for name in ("items", "ratings", "times"))
    return Interactions.from_indices(*pairs, user_ids=a.user_ids, item_ids=a.item_ids)


# ------------------------------------------------------------------------------------------ grown data


@dataclass(frozen=True)
class Rule:
    """How a run splits its data."""

    kind: str  # given, ratio, last, time or all
    test_ratio: float
    validation: float  # a share; where kind is last, not 0 means as many items as for test
    seed: int
    leave_out: int = 1  # items of each user to hold out, where kind is last


def grown_split(before: Split, now: Interactions, rule: Rule, given: Interactions | None = None) -> Split:
    """All pairs as they are `now`; ids known `before` come first, new ids follow.

    Held-out pairs stay held out, train pairs stay in train, and pairs that the data no longer has are dropped. `given`
    are the pairs that the data itself holds out for test.
    """
    users, items = _behind(before.train.user_ids, now.user_ids), _behind(before.train.item_ids, now.item_ids)
    data = _under(now, users, items)
    train, validation, test = (_among(data, part) for part in (before.train, before.validation, before.test))
    new = ~(train | validation | test)
    if rule.kind == "time":
        return by_time(data, rule, validation, test, new)
    if rule.kind == "ratio":
        test |= _drawn(data, test, new, rule.test_ratio, (rule.seed, TEST_STREAM))
    elif rule.kind == "last":
        test |= _latest(data, test, new, rule.leave_out)
    elif rule.kind == "given" and given is not None:
        test |= new & _among(data, _under(given, users, items))
    rest, held, new = data.select(~test), validation[~test], new[~test]
    if rule.kind == "last" and rule.validation:
        held |= _latest(rest, held, new, rule.leave_out)
    else:
        held |= _drawn(rest, held, new, rule.validation, (rule.seed, VALIDATION_STREAM))
    return Split(
        rest.select(~held),
        None if before.test is None and not test.any() else data.select(test),
        None if before.validation is None and not held.any() else rest.select(held),
    )


def _behind(before: IdMap, now: IdMap) -> Places:
    """The ids known before, then the new ones. Ids are compared as text: one word makes a whole column text."""
    if before == now:
        return before, np.arange(len(now))
    ids, place = [*before], {str(name): place for place, name in enumerate(before)}
    for name in now:
        if str(name) not in place:
            place[str(name)] = len(ids)
            ids.append(name)
    numbers = IdMap.range(len(ids), before.kind)
    joined = IdMap(ids, before.kind)
    return numbers if joined == numbers else joined, np.array([place[str(name)] for name in now], np.int64)


def _under(data: Interactions, users: Places, items: Places) -> Interactions:
    (user_ids, user), (item_ids, item) = users, items
    return Interactions.from_indices(
        user[data.users()], item[data.items], data.ratings, data.times, user_ids=user_ids, item_ids=item_ids
    )


def _among(data: Interactions, part: Interactions | None) -> Mask:
    """Which pairs of the data are in `part`; the part's ids are the first of the data's."""
    if part is None:
        return np.zeros(data.n_pairs, bool)
    return np.isin(data.keys(), part.users() * data.n_items + part.items)


def _latest(data: Interactions, held: Mask, new: Mask, n: int) -> Mask:
    """New pairs to hold out: those among each user's last n that are not held out."""
    last = np.zeros_like(held)
    last[~held] = last_items(data.select(~held), n)
    return new & last


def _drawn(data: Interactions, held: Mask, new: Mask, fraction: float, seed: tuple[int, int]) -> Mask:
    """New pairs to hold out, so that each user has as many held out as `split.ratio` asks for, and keeps one pair."""
    users, M = data.users(), data.n_users
    wanted = n_to_hold(fraction, data.user_degrees()) - np.bincount(users[held], minlength=M)
    counts = np.clip(wanted, 0, np.bincount(users[new], minlength=M))
    noise = np.random.Generator(np.random.PCG64(seed)).random(int(new.sum()))
    drawn = np.zeros(data.n_pairs, bool)
    drawn[new] = highest(data.select(new), noise, counts)
    return drawn


def by_time(data: Interactions, rule: Rule, validation: Mask, test: Mask, new: Mask) -> Split:
    """One cut in time for everybody: `new` pairs after it go to test, those after an earlier cut to validation.

    Pairs that are not new stay in their part. A new pair after a cut is left out if its user or its item is not in
    train: no method could have learned about it.
    """
    times = times_of(data, "a cut in time")
    late, later = after_cut(times, rule.test_ratio, "test_ratio"), np.zeros(data.n_pairs, bool)
    later[~late] = after_cut(times[~late], rule.validation, "validation")
    test, validation = test | (new & late), validation | (new & later)
    train = ~(test | validation)
    known = np.isin(data.users(), data.users()[train]) & np.isin(data.items, data.items[train])
    left = new & ~train & ~known
    held = data.select(validation & ~left) if rule.validation or validation.any() else None
    return Split(data.select(train), data.select(test & ~left), held, data.select(left))


# ------------------------------------------------------------------------------------- a run's folder


def write_split(folder: Path, split: Split) -> None:
    """Which pairs are in which part, by the rows of the id files."""
    parts = {name: part for name in PARTS if (part := getattr(split, name)) is not None}
    tensors = {f"{name}_indptr": part.indptr for name, part in parts.items()}
    tensors |= {f"{name}_items": part.items for name, part in parts.items()}
    write_tensors(folder / SPLIT, tensors, {})


def read_split(folder: Path) -> Split | None:
    """The split of a run, without ratings and times; None if the run has written none."""
    if not (folder / SPLIT).exists():
        return None
    with understood(folder / SPLIT, MEND):
        tensors, _ = read_tensors(folder / SPLIT)
        users, items = IdMap.load(folder / USER_IDS, len(tensors["train_indptr"]) - 1), IdMap.load(folder / ITEM_IDS)
        parts = {
            name: Interactions(users, items, tensors[f"{name}_indptr"], tensors[f"{name}_items"])
            for name in PARTS
            if f"{name}_indptr" in tensors
        }
        return Split(**parts)
