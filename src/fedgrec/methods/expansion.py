"""FedGNN's graph expansion: users find those who have the same items, through a third party that learns no item.

    users ──Offer──▶ third party ──Reply──▶ users        the server has no part in it and sees none of it

A user sends a keyed hash of each of its items and its embedding. The third party groups equal hashes and answers, for
each hash, with the embeddings of others who sent it. Only users know the key. This matters: a catalogue is small, so
anybody could open a hash without a key, or a name under a public key, by trying every item. In a federation one user
draws the key from its operating system and seals it for every other user's X25519 key; the server relays these sealed
letters, as it relays the shares of secure aggregation, and can open none. In a simulation the key is derived from a
user's secret.

Users sort their hashes by value. In the order of the items, hashes would tell the third party which of two is the
smaller item, and over many users the order of all items.

What the third party does learn: which users share items and how many (so it may guess an item that everybody is known
to have), and every user's embedding. What a user learns: embeddings without names, and which of its items somebody
shares with it. A third party in league with one user has the key and with it every user's items.
"""

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Cohort, Floats, Ints, Traffic

HASH_BYTES = 16
WORD = 4  # bytes of a number
ROWS = 1 << 15  # embeddings of replies that a simulation holds at a time


@dataclass(frozen=True, eq=False)
class Offer:
    """What users send to the third party, and all that it ever sees. Adding a field is a privacy decision."""

    indptr: Ints  # [n+1]
    hashes: NDArray[np.uint64]  # [nnz, 2]: 16 bytes each, sorted within a user
    embeddings: Floats  # [n, d]


@dataclass(frozen=True, eq=False)
class Reply:
    """What the third party answers: for each hash, in the order of the offer, embeddings of others who sent it."""

    counts: Ints  # [nnz]
    embeddings: Floats  # [Σ counts, d]


# --------------------------------------------------------------------------------------------------- users


def shared_key(keys: NDArray[np.uint64]) -> bytes:
    """The key of a simulation's users: drawn by the first of them."""
    return hashlib.blake2b(int(keys[0]).to_bytes(8, "little"), digest_size=32, person=b"expansion key").digest()


def keyed_hashes(items: Ints, key: bytes) -> NDArray[np.uint64]:
    """16 bytes for each item.  # [nnz, 2]"""
    different, place = np.unique(items, return_inverse=True)
    hashes = [
        hashlib.blake2b(item.to_bytes(8, "little"), key=key, digest_size=HASH_BYTES).digest()
        for item in different.tolist()
    ]
    return np.frombuffer(b"".join(hashes), np.uint64).reshape(-1, 2)[place]


def offer(users: Cohort, key: bytes) -> tuple[Offer, Ints]:
    """What users send; and the item behind each hash, which users keep to themselves.  # [nnz]"""
    hashes = keyed_hashes(users.items, key)
    order = np.lexsort((hashes[:, 1], hashes[:, 0], users.owner))
    return Offer(users.indptr, hashes[order], users.state.embeddings[:, 0].copy()), order


def accept(reply: Reply) -> Floats:
    """The mean of the embeddings for each hash, 0 where there are none: linear messages need no more.  # [r, d]"""
    counts, first = reply.counts, np.cumsum(reply.counts) - reply.counts
    means = np.zeros((len(counts), reply.embeddings.shape[1]), reply.embeddings.dtype)
    for k in range(counts.max(initial=0)):
        more = np.flatnonzero(counts > k)
        means[more] += reply.embeddings[first[more] + k]
    means /= np.maximum(counts, 1)[:, None].astype(means.dtype)
    return means


# --------------------------------------------------------------------------------------------- third party


class ThirdParty:
    """Answers each hash with up to `neighbours` others who sent it, drawn by the third party itself."""

    def __init__(self, neighbours: int, rng: np.random.Generator) -> None:
        self.neighbours, self.rng = neighbours, rng

    def match(self, offer: Offer) -> None:
        """Find equal hashes; users who share a hash form a circle, in random order."""
        self.offer, nnz = offer, len(offer.hashes)
        self.owner = np.repeat(np.arange(len(offer.embeddings)), np.diff(offer.indptr))
        self.circle = np.lexsort((self.rng.random(nnz), offer.hashes[:, 1], offer.hashes[:, 0]))
        sorted_ = offer.hashes[self.circle]
        first = np.flatnonzero(np.r_[True, (sorted_[1:] != sorted_[:-1]).any(axis=1)][:nnz])
        sizes = np.diff(np.append(first, nnz))
        self.place, self.first, self.size = np.empty((3, nnz), np.int64)
        self.place[self.circle] = np.arange(nnz)
        self.first[self.circle], self.size[self.circle] = np.repeat(first, sizes), np.repeat(sizes, sizes)

    def counts(self, some: slice = slice(None)) -> Ints:
        """How many embeddings answer each hash.  # [nnz]"""
        return np.minimum(self.size[some] - 1, self.neighbours)

    def reply(self, some: slice) -> Reply:
        """The answer to these hashes: the next users in the circle, never the sender itself."""
        counts, first, size = self.counts(some), self.first[some], self.size[some]
        step = 1 + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        first, size, place = (np.repeat(part, counts) for part in (first, size, self.place[some]))
        others = self.circle[first + (place - first + step) % size]
        return Reply(counts, self.offer.embeddings[self.owner[others]])


# ---------------------------------------------------------------------------------------------- all of it


def means(third: ThirdParty) -> Floats:
    """What users keep of their replies, in the order of the offer.  # [nnz, d]"""
    counts, offer = third.counts(), third.offer
    told = np.zeros((len(counts), offer.embeddings.shape[1]), offer.embeddings.dtype)
    ends = np.searchsorted(np.cumsum(counts), np.arange(ROWS, int(counts.sum()) + ROWS, ROWS), side="right")
    start = 0
    for end in [*ends.tolist(), len(counts)]:  # in parts: the replies together may be larger than memory
        told[start:end] = accept(third.reply(slice(start, end)))
        start = end
    return told


def expand(users: Cohort, key: bytes, third: ThirdParty) -> tuple[Cohort, Traffic]:
    """The users with what they heard, and the bytes that this took."""
    sent, order = offer(users, key)
    third.match(sent)
    around = np.empty((len(order), sent.embeddings.shape[1]), sent.embeddings.dtype)
    around[order] = means(third)
    up = sent.hashes.nbytes + sent.embeddings.size * WORD
    down = (len(order) + int(third.counts().sum()) * around.shape[1]) * WORD
    return replace(users, around=around), Traffic(up, down, up, down)
