"""What a federated method is: the verbs between which the network cable runs.

    broadcast → local_update → (secure) sum → apply → commit

A method declares its stages in order: what everybody does once, then, last, the training round that is repeated with a
sample of users. A simulation, a secure simulation and a deployed federation call the same verbs. To add a method write
one file with a subclass and a dataclass `Options`, and name it in `fedgrec.options.METHODS` (docs/methods.md).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgrec.core import (
    Broadcast,
    Cohort,
    Floats,
    Ints,
    Pending,
    ServerState,
    Stage,
    Traffic,
    Upload,
    UploadSpec,
    UserState,
    clamp,
)
from fedgrec.noise import NO_NOISE, Multipliers

WORD = 4  # bytes of a number or of a row's name, as it is sent in the clear


class Method(ABC):
    """The verbs over `n_items` items and at most `n_users` users. A method holds no state: values in, values out."""

    name: ClassVar[str]
    # Whether a score is the inner product of `represent_users` and `represent_items`; otherwise `scores` gives it.
    inner_product: ClassVar[bool] = True
    # What a user remembers: a core.State that has at least `embeddings` [n, L, d].
    State: ClassVar[type[Any]] = UserState
    # Whether the method can add `noise`: users then keep to norms, and sums hold noise.
    takes_noise: ClassVar[bool] = False
    options: Any
    n_items: int
    n_users: int
    noise: Multipliers = NO_NOISE

    @property
    def recount(self) -> Stage | None:
        """The stage in which users report how their items changed; None: a run cannot go on with other data."""
        return None

    @property
    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """What everybody does once, in order, and last the round that is repeated."""

    def training(self, round_: int) -> Stage:
        """The stage of a training round: the last one, unless a method sends something in some rounds only."""
        return self.stages[-1]

    @abstractmethod
    def spec(self, stage: Stage) -> UploadSpec:
        """The leaves of a stage: all that ever leaves a device, and only inside a sum."""

    @abstractmethod
    def init(self, seed: int) -> ServerState:
        """What the server starts with."""

    def push_weights(self, cohort: Cohort, degrees: Ints) -> Floats:
        """The weights under which a cohort sends latents to its items, [nnz]; only methods with a recount need them."""
        raise NotImplementedError

    def grown(self, server: ServerState, seed: int) -> ServerState:
        """The server with a row for every item of a longer catalogue."""
        raise NotImplementedError

    @abstractmethod
    def init_users(self, keys: NDArray[np.uint64], indptr: Ints, items: Ints, targets: Floats | None = None) -> Cohort:
        """What users start with; each draws under its own key."""

    @abstractmethod
    def broadcast(self, server: ServerState, stage: Stage, level: int = 0) -> Broadcast:
        """What the server sends down."""

    @abstractmethod
    def local_update(self, cohort: Cohort, stage: Stage, broadcast: Broadcast) -> tuple[Upload, Pending]:
        """What users compute at home: the summed upload of the cohort, and its pending state."""

    @abstractmethod
    def apply(self, server: ServerState, stage: Stage, total: Upload, level: int = 0) -> ServerState:
        """The server's half; it consumes `server` and sees nothing of the users but their sum."""

    def keep_possible(self, server: ServerState, late: int = 0) -> int:
        """Clamp what users send once to the range that it can have; returns how many entries were outside.

        Degrees do not count `late` users yet: these joined, or changed their items, after the count. If all users keep
        to the rules, nothing changes.
        """
        return clamp(server.degrees, 0, self.n_users)

    def match(self, users: Cohort, round_: int, seed: int) -> tuple[Cohort, Traffic]:
        """A stage that combines by `match`: what users tell each other through a third party, never the server."""
        raise NotImplementedError

    def rematch(self, round_: int) -> bool:
        """Whether users are matched again before this round."""
        return False

    @staticmethod
    def commit(population: Cohort, users: Ints, pending: Pending, arrived: NDArray[np.bool_] | None = None) -> None:
        """Users whose upload was in the sum make their pending state their own; all others forget it."""
        new = pending.state
        if arrived is not None:
            users, new = users[arrived], new.take(np.flatnonzero(arrived))
        population.state.put(users, new)
        if population.past is not None:
            population.past.settle(pending.settles, users)

    # ---------------------------------------------------------------------------------------- ranking

    @property
    def knows_strangers(self) -> bool:
        """Whether a person's items are enough to represent somebody who never took part."""
        return False

    def strangers(self, indptr: Ints, items: Ints) -> Cohort:
        """People who never took part: their items, and no embedding of their own."""
        cohort = self.init_users(np.zeros(len(indptr) - 1, np.uint64), indptr, items)
        cohort.state.embeddings[:] = 0
        return cohort

    def as_ranked(self, server: ServerState) -> ServerState:
        """The part of the server that a device ranks with; making it once saves making it for every user."""
        return server

    def represent_users(self, server: ServerState, cohort: Cohort) -> Floats:
        """Users' final representations, [n, D]; computed at home and never stored."""
        raise NotImplementedError

    def represent_items(self, server: ServerState) -> Floats:
        """Items' final representations, [N, D]."""
        raise NotImplementedError

    def scores(self, server: ServerState, cohort: Cohort) -> Floats:
        """Every item's score for every user of the cohort, [n, N]."""
        return self.represent_users(server, cohort) @ self.represent_items(server).T

    def scorer(self, server: ServerState, users: Cohort, device: str) -> Callable[[Ints], Any] | None:
        """A function that scores users on a device, positions → tensor [n, N]; None: `scores` does it on the CPU."""
        return None

    # ---------------------------------------------------------------------------------------- traffic

    @abstractmethod
    def traffic(self, stage: Stage, degrees: Ints, lost: int = 0) -> Traffic:
        """Bytes of a stage for users with these degrees, of whom the last `lost` never upload."""

    def secure_upload(self, stage: Stage, users: int) -> int:
        """Bytes of these users' dense masked vectors."""
        return users * sum(-(-words * bits // 8) for words, bits in self.spec(stage).rings)
