"""The triples (user, positive, negative) of an epoch: a function of (seed, epoch) and of nothing else."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.data import Interactions
from fedgrec.errors import DataError

Ints = NDArray[np.int64]
INIT_STREAM, EPOCH_STREAM = 11, 12  # Philox keys: draws for different purposes never coincide


def generator(seed: int, stream: int, epoch: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, epoch, 0, 0]))


class Triples:
    """A uniform user, a uniform item of the user's train items, a uniform item outside of them.

    With `by_pair`, a uniform train pair: a user is then drawn as often as it has items. Negatives exclude train items
    only: nobody can know test items while training.
    """

    def __init__(self, train: Interactions, by_pair: bool = False) -> None:
        self.train, self.degrees = train, train.user_degrees()
        self.users = np.flatnonzero((self.degrees > 0) & (self.degrees < train.n_items))
        if not self.users.size:
            raise DataError(
                "nobody has both an item and one still to find, so there is nothing to rank: check the data"
            )
        if by_pair:
            self.users = np.repeat(self.users, self.degrees[self.users])
        self._ready: tuple[tuple[int, int, int], Ints] | None = None

    def draw(self, seed: int, epoch: int, count: int) -> Ints:
        """[3, count]"""
        ready, self._ready = self._ready, None
        return ready[1] if ready and ready[0] == (seed, epoch, count) else self._drawn(seed, epoch, count)

    def draw_ahead(self, seed: int, epoch: int, count: int) -> None:
        """Draw now, while the host waits for a GPU anyway, so that `draw` has it at once."""
        self._ready = (seed, epoch, count), self._drawn(seed, epoch, count)

    def _drawn(self, seed: int, epoch: int, count: int) -> Ints:
        rng, train = generator(seed, EPOCH_STREAM, epoch), self.train
        users = self.users[rng.integers(len(self.users), size=count)]
        degrees, first = self.degrees[users], train.indptr[users]
        positives = train.items[first + _below(rng, degrees)]
        negatives = skip_positives(train, users, _below(rng, train.n_items - degrees))
        return np.stack([users, positives.astype(np.int64), negatives])


def skip_positives(train: Interactions, users: Ints, ranks: Ints) -> Ints:
    """The items with these ranks among those that the users do not have: exact, so no draw is rejected."""
    from fedgrec.centralized._compiled import skip_positives as compiled

    out = np.empty_like(ranks)
    compiled(len(users), train.indptr, train.items, users, ranks, out)
    return out


def _below(rng: np.random.Generator, bounds: NDArray[Any]) -> Ints:
    """Uniform in 0 … bound − 1 for each bound."""
    drawn: Ints = (rng.random(len(bounds)) * bounds).astype(np.int64)
    return drawn
