"""The split of data that has changed: pairs of before stay where they were, new ones are split by the same rule."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgrec.data.ids import IdMap
from fedgrec.data.interactions import Interactions
from fedgrec.data.split import Split, after_cut, highest, last_items, n_to_hold, times_of

TEST_STREAM, VALIDATION_STREAM = 2, 3  # beside the seed: other draws than those of a first split

Mask = NDArray[np.bool_]  # one entry a pair
Places = tuple[IdMap, NDArray[np.int64]]  # all ids, and where in them the data's own ids are


@dataclass(frozen=True)
class Rule:
    """How a run splits its data."""

    kind: str  # given, ratio, last, time or all
    test_ratio: float
    validation: float
    seed: int
    leave_out: int = 1  # of each user, where kind is last


def grown_split(before: Split, now: Interactions, rule: Rule, given: Interactions | None = None) -> Split:
    """All pairs as they are `now`, under the ids of before and behind them the new ones.

    What was held out stays held out, what was train stays train, what is gone is gone. `given` are the pairs that the
    data itself holds out for test.
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
    """By name: a table whose ids were all numbers has them as text once one is a word."""
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
    """Which pairs are in a part whose ids are the first of the data's."""
    if part is None:
        return np.zeros(data.n_pairs, bool)
    return np.isin(data.keys(), part.users() * data.n_items + part.items)


def _drawn(data: Interactions, held: Mask, new: Mask, fraction: float, seed: tuple[int, int]) -> Mask:
    """New pairs to hold out, so that a user has as many held out as `split.ratio` asks for, and one is left."""
    users, M = data.users(), data.n_users
    wanted = n_to_hold(fraction, data.user_degrees()) - np.bincount(users[held], minlength=M)
    counts = np.clip(wanted, 0, np.bincount(users[new], minlength=M))
    noise = np.random.Generator(np.random.PCG64(seed)).random(int(new.sum()))
    drawn = np.zeros(data.n_pairs, bool)
    drawn[new] = highest(data.select(new), noise, counts)
    return drawn


def _last_of_others(data: Interactions, held: Mask, n: int) -> Mask:
    """Each user's last n pairs of those that are not held out."""
    last = np.zeros(data.n_pairs, bool)
    last[~held] = last_items(data.select(~held), n)
    return last


def by_time(data: Interactions, rule: Rule, validation: Mask, test: Mask, new: Mask) -> Split:
    """One cut in time for everybody: of the `new` pairs test has those after it, validation those after an earlier cut.

    The others stay where they are. A new pair after a cut whose user or item is not in train is left out: no method
    could have learned of it.
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
