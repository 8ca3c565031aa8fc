"""The split of data that has changed: known pairs stay in their part, new pairs are split by the same rule."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgrec.data.ids import IdMap
from fedgrec.data.interactions import Interactions
from fedgrec.data.split import Split, after_cut, highest, last_items, n_to_hold, times_of

TEST_STREAM, VALIDATION_STREAM = 2, 3  # beside the seed, so that draws differ from those of a first split

Mask = NDArray[np.bool_]  # one entry for each pair
Places = tuple[IdMap, NDArray[np.int64]]  # all ids, and the index of each of the data's own ids among them


@dataclass(frozen=True)
class Rule:
    """How a run splits its data."""

    kind: str  # given, ratio, last, time or all
    test_ratio: float
    validation: float
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
        test |= new & _last_of_others(data, test, rule.leave_out)
    elif rule.kind == "given" and given is not None:
        test |= new & _among(data, _under(given, users, items))
    rest, held, new = data.select(~test), validation[~test], new[~test]
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
    )[0]


def _among(data: Interactions, part: Interactions | None) -> Mask:
    """Which pairs of the data are in `part`; the part's ids are the first of the data's."""
    if part is None:
        return np.zeros(data.n_pairs, bool)
    return np.isin(data.keys(), part.users() * data.n_items + part.items)


def _drawn(data: Interactions, held: Mask, new: Mask, fraction: float, seed: tuple[int, int]) -> Mask:
    """New pairs to hold out, so that each user has as many held out as `split.ratio` asks for, and keeps one pair."""
    users, M = data.users(), data.n_users
    wanted = n_to_hold(fraction, data.user_degrees()) - np.bincount(users[held], minlength=M)
    counts = np.clip(wanted, 0, np.bincount(users[new], minlength=M))
    noise = np.random.Generator(np.random.PCG64(seed)).random(int(new.sum()))
    drawn = np.zeros(data.n_pairs, bool)
    drawn[new] = highest(data.select(new), noise, counts)
    return drawn


def _last_of_others(data: Interactions, held: Mask, n: int) -> Mask:
    """Each user's last n pairs among those that are not held out."""
    last = np.zeros(data.n_pairs, bool)
    last[~held] = last_items(data.select(~held), n)
    return last


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
