"""Split pairs into those to train on and those to measure with."""

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.data.interactions import IdMap, Interactions
from fedgrec.errors import DataError


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

    def joined(name: str) -> Any:
        parts = getattr(a, name), getattr(b, name)
        return None if parts[0] is None or parts[1] is None else np.concatenate(parts)

    pairs = np.concatenate([a.users(), b.users()]), joined("items"), joined("ratings"), joined("times")
    return Interactions.from_indices(*pairs, user_ids=a.user_ids, item_ids=a.item_ids)[0]
