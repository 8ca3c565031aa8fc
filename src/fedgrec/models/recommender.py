"""The interface of every trained model, whichever method trained it.

Users and items are indices here. Lists are arrays of item indices [n, k] and scores [n, k], best first; an empty place
has the index −1 and the score −inf.
"""

from abc import ABC, abstractmethod
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Floats, Ints
from fedgrec.config.configuration import Config
from fedgrec.data import IdMap, Interactions
from fedgrec.errors import FedgrecError
from fedgrec.methods.contract import Part
from fedgrec.models.fold_in import item_shares, newcomers
from fedgrec.models.ranking import FEW, Ids, Indptr, Rough, places, rows_of, top_k, top_k_scores

Lists = tuple[Ints, Floats]


class Explanation(NamedTuple):
    """Why a person is shown an item: score = own + terms.sum()"""

    score: float
    own: float  # what the person's own embedding adds
    ids: NDArray[Any]  # [n] the person's items, by index (from `FedGRec` by id), the one that adds most first
    terms: Floats  # [n] what each of them adds


class Seen(NamedTuple):
    """Items to keep out of each list: for list i they are `items[indptr[i]:indptr[i + 1]]`, in any order."""

    indptr: Indptr  # [n+1]
    items: Ids

    @staticmethod
    def nothing(n: int) -> "Seen":
        return Seen(np.zeros(n + 1, np.int64), np.zeros(0, np.int32))

    @staticmethod
    def of(rows: list[Any]) -> "Seen":
        """One row of indices for each list."""
        lengths = [0, *(len(row) for row in rows)]
        return Seen(np.cumsum(lengths, dtype=np.int64), np.concatenate([np.zeros(0, np.int32), *rows], dtype=np.int32))

    def row(self, place: int) -> Ints:
        return self.items[self.indptr[place] : self.indptr[place + 1]]

    def among(self, allowed: Ints, n_items: int) -> "Seen":
        """The same items, renumbered by their place among the allowed items; others are dropped."""
        place = np.full(n_items, -1, np.int32)
        place[allowed] = np.arange(len(allowed))
        kept = place[self.items] >= 0
        return Seen(np.concatenate([[0], np.cumsum(kept)])[self.indptr], place[self.items][kept])


class Recommender(ABC):
    """A trained model. Subclasses define a user's score for an item; this class makes lists from the scores."""

    config: Config
    known: Interactions  # never recommended: all items that people have in the data, held out or not

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle or a copy takes: the fields. What follows from them, such as compiled code, is made again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @property
    @abstractmethod
    def round(self) -> int:
        """How many rounds or epochs the model was trained for."""

    @property
    @abstractmethod
    def inner_product(self) -> bool:
        """Whether a score is the inner product of a user's and an item's vector; otherwise `scores` gives it."""

    @abstractmethod
    def scores(self, users: Ints) -> Floats:
        """Every item's score for these users, [n, N]."""

    @abstractmethod
    def _item_vectors(self) -> Floats: ...

    @abstractmethod
    def _user_vectors(self, users: Ints) -> Floats: ...

    @property
    @abstractmethod
    def trained_on(self) -> Seen:
        """The train items of every user."""

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write the folder that `open_run` reads."""

    def explain(self, user: int, item: int) -> Explanation:
        """The parts of the user's score for the item."""
        raise FedgrecError(f"a score of {self.config.method} is not explained here: only federated runs are")

    # ----------------------------------------------------------------------------------------- names

    @property
    def user_ids(self) -> IdMap:
        return self.known.user_ids

    @property
    def item_ids(self) -> IdMap:
        return self.known.item_ids

    @cached_property
    def user_names(self) -> NDArray[Any]:
        """The users' ids: an array of integers if all ids are integers, else of objects.  # [M]"""
        return _names(self.user_ids)

    @cached_property
    def item_names(self) -> NDArray[Any]:
        """The items' ids, likewise.  # [N]"""
        return _names(self.item_ids)

    def seen(self, user: int) -> Ints:
        """The items that are never recommended to this user."""
        return self.known.of(user)

    def seen_by(self, users: Ints) -> Seen:
        """The items that are never recommended to these users."""
        return Seen(*rows_of(self.known, users.astype(np.int64)))

    @property
    def closed(self) -> Ints:
        """Items that are recommended to nobody, sorted."""
        return np.zeros(0, np.int64)

    def _open(self, allowed: Ints | None) -> Ints | None:
        """The allowed items that are not closed; None: every item."""
        if not len(self.closed):
            return allowed
        return np.setdiff1d(np.arange(len(self.item_ids)) if allowed is None else allowed, self.closed)

    # --------------------------------------------------------------------------------------- vectors

    def item_vectors(self) -> Floats:
        """[N, D]"""
        return self._items

    def user_vectors(self, users: Ints) -> Floats:
        """[n, D]"""
        self._check_vectors()
        return self._user_vectors(users)

    @cached_property
    def _items(self) -> Floats:
        """The item vectors, kept: computing them takes longer than one user's list."""
        self._check_vectors()
        return self._item_vectors()

    def _check_vectors(self) -> None:
        if not self.inner_product:
            raise FedgrecError(
                f"scores of {self.config.method} are no inner products, so users and items have no vectors: "
                "it recommends to the users of its training data, and that is all"
            )

    def new_user_vectors(self, indptr: Ints, items: Ints) -> Floats:
        """The vectors of people whom the model has never met, from their items, [n, D]."""
        if (np.diff(indptr) == 0).any():
            which = f" {int(np.argmin(np.diff(indptr)))} (counted from 0)" if len(indptr) > 2 else ""
            raise FedgrecError(f"name at least one item that the person{which} liked")
        if not self.takes_order:
            items = items[np.lexsort((items, np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))))]
        return self._strangers(indptr, items)

    @property
    def takes_order(self) -> bool:
        """Whether the order counts in which newcomers' items are named: the last one was taken last."""
        return False

    @property
    def folds_in(self) -> bool:
        """Whether a newcomer's vector is one that fold_in.py derives, because the method itself defines none."""
        return True

    @property
    def share(self) -> str:
        """By which share each of a newcomer's n items counts, if its vector is a sum over them; see `Method.share`."""
        return "root"

    @property
    def recency(self) -> float:
        """How much less each of them counts with every later one; see `Method.recency`."""
        return 1.0

    @property
    def parts(self) -> list[Part]:
        """The parts of a newcomer's score; see `Method.parts`."""
        return []

    def _strangers(self, indptr: Ints, items: Ints) -> Floats:
        return newcomers(self.item_shares, indptr, items)

    @cached_property
    def item_shares(self) -> Floats:
        """What each item adds to a newcomer's vector, learned from the users of the model; see fold_in.py.  # [N, D]"""
        users = np.arange(len(self.user_ids))
        if not len(users):
            raise FedgrecError(
                f"the model of {self.config.method} alone, without its users, knows nothing of a person it has not met"
            )
        return item_shares(self.user_vectors(users), self.item_vectors(), *self.trained_on)

    def new_user_vector(self, items: Ints) -> Floats:
        """[1, D]"""
        items = distinct(items)
        return self.new_user_vectors(np.array([0, len(items)]), items)

    # ----------------------------------------------------------------------------------------- lists

    def lists(self, users: Ints, k: int, seen: Seen | None = None, allowed: Ints | None = None) -> Lists:
        """For each of these users the k best items that are allowed and not seen.

        By default `seen` is all items that a user is known to have, and `allowed` is every item. `allowed` is sorted.
        No list has more places than there are items.
        """
        seen = self.seen_by(users) if seen is None else seen
        if self.inner_product:
            return self.lists_for(self.user_vectors(users), k, seen, allowed)
        k, allowed = places(k, len(self.item_ids)), self._open(allowed)
        at = np.arange(len(self.item_ids)) if allowed is None else allowed

        def score(some: slice) -> Any:
            found = np.asarray(self.scores(users[some]), np.float32)
            return found if allowed is None else found[:, at]

        kept = seen if allowed is None else seen.among(allowed, len(self.item_ids))
        return _renumbered(top_k_scores(score, len(at), k, kept.indptr, kept.items), allowed)

    def lists_for(
        self, vectors: Floats, k: int, seen: Seen, allowed: Ints | None = None, rough: Rough | None = None
    ) -> Lists:
        """The same for people with these vectors, [n, D]; `rough`, of the item vectors, makes few lists fast."""
        return best(vectors, self.item_vectors(), k, seen, self._open(allowed), rough)

    def similar_lists(self, items: Ints, k: int, allowed: Ints | None = None) -> Lists:
        """For each of these items the k most similar items (by cosine)."""
        return self._alike(self._directions, items, k, "item", self._open(allowed))

    def similar_user_lists(self, users: Ints, k: int) -> Lists:
        """For each of these users the k most similar users (by cosine)."""
        return self._alike(_unit(self.user_vectors(np.arange(len(self.user_ids)))), users, k, "user")

    @cached_property
    def _directions(self) -> Floats:
        """The item vectors at length 1."""
        return _unit(self.item_vectors())

    def _alike(self, unit: Floats, which: Ints, k: int, kind: str, allowed: Ints | None = None) -> Lists:
        if unit.shape[1] == 1:
            raise FedgrecError(f"{self.config.method} has one number for each {kind}: none is more like another")
        return best(
            unit[which], unit, k, Seen(np.arange(len(which) + 1, dtype=np.int64), which.astype(np.int32)), allowed
        )

    def recommend_to(self, user: int, seen: Ints, n: int) -> Lists:
        """The n best unseen items for a known user, and their scores; fewer where fewer are left."""
        return without_empty(self.lists(np.array([user]), n, Seen.of([seen])))


def distinct(items: Ints) -> Ints:
    """Each item where it is named last."""
    last = len(items) - 1 - np.unique(items[::-1], return_index=True)[1]
    return items[np.sort(last)]


def best(
    vectors: Floats, items: Floats, k: int, seen: Seen, allowed: Ints | None = None, rough: Rough | None = None
) -> Lists:
    """`top_k` among the allowed items; no list has more places than there are items."""
    k = places(k, len(items))
    few = len(vectors) <= FEW  # whose lists take less time than a copy of the table
    if allowed is not None and few and 2 * len(allowed) > len(items):
        others = np.setdiff1d(np.arange(len(items)), allowed)
        seen, allowed = Seen.of([np.append(seen.row(place), others) for place in range(len(vectors))]), None
    if allowed is not None:
        seen, items, rough = seen.among(allowed, len(items)), items[allowed], None
    users, items = (np.ascontiguousarray(rows, np.float32) for rows in (vectors, items))
    return _renumbered(top_k(users, items, k, seen.indptr, seen.items, rough=rough), allowed)


def _unit(vectors: Floats) -> Floats:
    found: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return found


def without_empty(lists: Lists) -> Lists:
    """The first list, without its empty places."""
    ids, scores = lists[0][0], lists[1][0]
    return ids[ids >= 0], scores[ids >= 0]


def _renumbered(lists: Lists, allowed: Ints | None) -> Lists:
    ids, scores = lists
    return (ids if allowed is None else np.append(allowed, -1)[ids]), scores  # −1, an empty place, stays −1


def _names(ids: IdMap) -> NDArray[Any]:
    if all(type(i) is int and abs(i) < 2**63 for i in ids):
        return np.fromiter(ids, np.int64, len(ids))
    names = np.empty(len(ids), object)
    for place, one in enumerate(ids):  # one by one: a tuple may be an id
        names[place] = one
    return names


def named(places: Ints, names: NDArray[Any]) -> NDArray[Any]:
    """The ids of indices; −1 stays −1 if ids are integers, else it becomes None."""
    found: NDArray[Any] = names[places]
    found[places < 0] = -1 if names.dtype.kind == "i" else None
    return found


def flat(users: NDArray[Any], items: NDArray[Any], ids: Ints, scores: Floats) -> tuple[NDArray[Any], ...]:
    """Lists as a table without the empty places: user, item, score, rank from 1; `items` are the items' names."""
    row, place = np.nonzero(ids >= 0)
    return users[row], items[ids[row, place]], scores[row, place], place + 1
