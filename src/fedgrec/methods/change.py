"""A graph that changes: what users send so that the sums match their present items.

A user remembers its part of each sum (`Past`). A sum of changes updates the degrees. The next round that carries
latents updates the latents: a user subtracts what it sent under its old items and weights, and adds it under the new
ones, in exact integers. A user without items leaves: it subtracts what it sent, and adds nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Cohort, Floats, Ints, Rows, UploadSpec

Weights = Callable[[Cohort], Floats]  # under which a cohort has sent its latents, one for each of its items


class Edges(NamedTuple):
    """A user's items, and the weights under which its latents were sent to them."""

    items: Ints
    weights: Floats


@dataclass(frozen=True)
class Past:
    """What the sums hold of users whose items, or whose items' degrees, have changed since; by position.

    For a user in neither part, the sums hold the present items under the present degrees.
    """

    counted: dict[int, Ints] = field(default_factory=dict)  # what the degrees hold: items
    pushed: dict[int, Edges] = field(default_factory=dict)  # what the latents hold

    def take(self, users: Ints) -> "Past":
        places = list(enumerate(users.tolist()))
        return Past(
            {place: self.counted[user] for place, user in places if user in self.counted},
            {place: self.pushed[user] for place, user in places if user in self.pushed},
        )

    def settle(self, part: str, users: Ints) -> None:
        """This part of the sums now holds what these users have."""
        for user in users.tolist() if part else ():
            getattr(self, part).pop(user, None)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """What the latents hold of users who have not sent their changes; degrees are recounted before any round."""
        if not self.pushed:
            return {}
        users = sorted(self.pushed)
        edges = [self.pushed[user] for user in users]
        return {
            "past.users": np.array(users, np.int64),
            "past.indptr": np.concatenate([[0], np.cumsum([len(part.items) for part in edges])]).astype(np.int64),
            "past.items": np.concatenate([part.items for part in edges]),
            "past.weights": np.concatenate([part.weights for part in edges]),
        }

    @staticmethod
    def restored(tensors: Mapping[str, NDArray[Any]]) -> "Past | None":
        """The same, back from tensors; None if there is none among them."""
        if "past.users" not in tensors:
            return None
        ends = tensors["past.indptr"][1:-1]
        edges = map(Edges, np.split(tensors["past.items"], ends), np.split(tensors["past.weights"], ends))
        return Past(pushed=dict(zip(tensors["past.users"].tolist(), edges, strict=True)))


def with_items(users: Cohort, indptr: Ints, items: Ints, weights: Weights, targets: Floats | None = None) -> Cohort:
    """The same users with these items; those whose items change remember what they sent."""
    past, sent = users.past or Past(), weights(users)
    for user in range(len(users)):
        before, now = users.items_of(user), items[indptr[user] : indptr[user + 1]]
        if not np.array_equal(before, now):
            mine = slice(users.indptr[user], users.indptr[user + 1])
            past.counted.setdefault(user, before.copy())
            past.pushed.setdefault(user, Edges(before.copy(), sent[mine].copy()))
    return replace(users, indptr=np.array(indptr), items=np.array(items), targets=targets, past=past)


def before_recount(users: Cohort, weights: Weights) -> Cohort:
    """Degrees are about to change: all users remember the weights under which they sent their latents."""
    past, sent = users.past or Past(), weights(users)
    for user in range(len(users)):
        if user not in past.pushed and users.state.sent[user].any():
            mine = slice(users.indptr[user], users.indptr[user + 1])
            past.pushed[user] = Edges(users.items_of(user).copy(), sent[mine].copy())
    return replace(users, past=past)


def recounted(cohort: Cohort) -> Rows:
    """Counts of the items that users have now, minus those already counted; unchanged users add nothing."""
    changed = sorted(cohort.past.counted) if cohort.past else []
    now = [cohort.items_of(user) for user in changed]
    before = [cohort.past.counted[user] for user in changed] if cohort.past else []
    items = np.concatenate([np.zeros(0, np.int64), *now, *before]).astype(np.int64)
    signs = np.repeat([1, -1], [sum(map(len, now)), sum(map(len, before))])
    index, place = np.unique(items, return_inverse=True)
    counts = np.zeros((len(index), 1), np.int64)
    np.add.at(counts[:, 0], place, signs)
    return Rows(index, counts)


def moved(push: Callable[..., tuple[Rows, int]], cohort: Cohort, weights: Floats, spec: UploadSpec, N: int) -> Rows:
    """Rows that move what these users have sent from their old items and weights to the new ones."""
    pushed = cohort.past.pushed if cohort.past else {}
    leaf, stale = spec.leaf("latents"), np.array(sorted(pushed), np.int64)
    if not len(stale):
        return Rows(stale, np.zeros((0, leaf.width), spec.dtype))
    edges = [pushed[user] for user in stale.tolist()]
    now, mine = cohort.take(stale), np.isin(cohort.owner, stale)
    indptr = np.concatenate([[0], np.cumsum([len(part.items) for part in edges])])
    before = replace(now, indptr=indptr, items=np.concatenate([part.items for part in edges]))
    sent = now.state.sent
    nothing: Any = np.zeros_like(sent)
    old = np.concatenate([part.weights for part in edges])
    out, _ = push(before, old, sent, nothing, leaf, spec.dtype, N)
    into, _ = push(now, weights[mine], nothing, sent, leaf, spec.dtype, N)
    return out + into


def joined(users: Cohort, newcomers: Cohort) -> Cohort:
    """The users, then the newcomers, whom no sum has counted yet."""
    past, n = users.past or Past(), len(users)
    past.counted.update({n + place: newcomers.items[:0] for place in range(len(newcomers))})
    rated = users.targets is not None and newcomers.targets is not None
    return Cohort(
        np.concatenate([users.keys, newcomers.keys]),
        np.concatenate([users.indptr, users.indptr[-1] + newcomers.indptr[1:]]),
        np.concatenate([users.items, newcomers.items]),
        type(users.state).joined([users.state, newcomers.state]),
        np.concatenate([users.targets, newcomers.targets]) if rated else None,
        past=past,
    )
