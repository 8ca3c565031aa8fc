"""What a federated method is: the verbs between which the network cable runs.

    broadcast → local_update → (secure) sum → apply → commit

A method declares its stages in order: what everybody does once, then, last, the training round that is repeated with a
sample of users. A simulation, a secure simulation and a deployed federation call the same verbs. To add a method write
one file with a subclass and a dataclass `Options`, and name it in `fedgrec.config.options.METHODS` (docs/methods.md).

What a method can do beyond its verbs it declares. The other folders ask; none of them knows a method by its name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import (
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
    travelling,
)
from fedgrec.cable.noise import NO_NOISE
from fedgrec.config.options import METHODS, MethodOptions, method_module
from fedgrec.errors import ConfigError, FedgrecError

WORD = 4  # bytes of a number or of a row's name, as it is sent in the clear
# The stages that put users' items into the degrees. Servers and nodes know them by these names.
DEGREES = Stage("degrees", everyone=True)
RECOUNT = Stage("recount", everyone=True)  # of what has changed since the users were counted
TRAIN = Stage("train", everyone=False)  # of methods whose training rounds are all alike


class Contents(NamedTuple):
    """What the leaves of a method's uploads hold, by their names; "" if it sends no such thing."""

    updates: str = ""  # what a training round sends: in one table or more, a row for each item
    own_items: bool = False  # whether a user's updates are of its own items alone; else it draws others, too
    counts: str = ""  # how many users have each item
    latents: str = ""  # other rows of a user's own items alone


class Part(NamedTuple):
    """A part of a score. Everybody standardises the part over all items, then parts are added by their weights."""

    weight: float
    gives: Floats  # [N, D] what each item adds to the vector of a person who has it
    ranks: Floats  # [N, D] the items' vectors, of mean 0
    recency: float = 1.0  # how much less an item gives with every later one


@dataclass(frozen=True)
class Method(ABC):
    """The verbs over `n_items` items and at most `n_users` users. A method holds no state: values in, values out."""

    name: ClassVar[str]
    # Whether a score is the inner product of `represent_users` and `represent_items`; otherwise `scores` gives it.
    inner_product: ClassVar[bool] = True
    # What a user remembers: a core.State that has at least `embeddings` [n, L, d].
    State: ClassVar[type[Any]] = UserState
    options: Any
    n_items: int
    n_users: int
    # How many users have each item, once they are counted: sums of few users take few bits.  # [N]
    item_degrees: Ints | None = field(default=None, compare=False, repr=False, kw_only=True)

    def counted(self, degrees: Ints | None) -> Self:
        """The method since the count with this result."""
        return replace(self, item_degrees=degrees)

    @property
    def sampled(self) -> int:
        """S: users of a round."""
        return min(int(self.options.users_per_round), self.n_users)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What everybody does once, in order, and last the round that is repeated; here that round alone."""
        return (TRAIN,)

    def training(self, round_: int) -> Stage:
        """The stage of a training round: the last one, unless a method sends something in some rounds only."""
        return self.stages[-1]

    def trains(self, stage: Stage) -> bool:
        """Whether this is a training round, of a sample or of everybody."""
        return stage.name == self.stages[-1].name

    def prepares(self, round_: int) -> bool:
        """Whether a training round is one of the first of a season that make a model before any user trains.

        Once the last of these is done, the model is judged, and in a federation served.
        """
        return False

    def prepared(self, done: int) -> bool:
        """Whether the last of these is what was done after so many rounds."""
        return self.prepares(done - 1) and not self.prepares(done)

    def sums_items(self, stage: Stage) -> bool:
        """Whether users send rows of their own items alone, so that two sums differ by somebody's items exactly."""
        own = {self.contents.counts, self.contents.latents, self.contents.updates * self.contents.own_items}
        return not self.trains(stage) or any(leaf.name in own for leaf in self.spec(stage).leaves)

    @abstractmethod
    def spec(self, stage: Stage) -> UploadSpec:
        """The leaves of a stage: all that ever leaves a device, and only inside a sum."""

    @abstractmethod
    def init(self, seed: int) -> ServerState:
        """What the server starts with."""

    @abstractmethod
    def init_users(self, keys: NDArray[np.uint64], indptr: Ints, items: Ints, targets: Floats | None = None) -> Cohort:
        """What users start with; each draws under its own key."""

    def broadcast(self, server: ServerState, stage: Stage, level: int = 0) -> Broadcast:
        """What the server sends down; here all that it has but its optimizer's moments."""
        return Broadcast(server.round, self.n_items, server.items, server.degrees, level, dict(server.more))

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

    # ---------------------------------------------------------------------------------------- abilities

    # Kernels that `make` takes: reference (or none), cpu.
    kernels: ClassVar[tuple[str, ...]] = ("reference",)
    # The module whose `Engine` runs training rounds on a GPU, and the package that it needs; "": a GPU only ranks. One
    # that needs PyTorch alone runs them on a CPU too, where the method has no kernel `cpu`.
    engine: ClassVar[str] = ""
    engine_needs: ClassVar[str] = "torch"
    # Whether sums may hold `noise`: it is a field of the method then, and users keep to norms.
    takes_noise: ClassVar[bool] = False
    noise = NO_NOISE
    # Whether users may tell items that they do not have.
    takes_decoys: ClassVar[bool] = False
    # Parts of `ServerState.more` that devices need to rank, and not to train.
    to_rank: ClassVar[tuple[str, ...]] = ()
    # What the audit of its sums reads.
    contents: ClassVar[Contents] = Contents()

    @property
    def fits_engine(self) -> bool:
        """Whether the engine knows these options."""
        return True

    @property
    def takes_weights(self) -> bool:
        """Whether a cohort's `targets` may be how much each click counts: above 0, at most 1."""
        return False

    def check_decoys(self) -> None:
        """`ConfigError` if users cannot tell items that they do not have."""
        if not self.takes_decoys:
            others = able(lambda method: method.takes_decoys)
            raise ConfigError(f"users of {self.name} have no decoys: set dp_unit to user, or choose one of {others}")

    def leaning(self, broadcast: Broadcast) -> Floats | None:
        """What items' updates are at a right angle to, if a score's scale does not count: public vectors.  # [N, d]"""
        return None

    # Growth. A method with a recount has `grown`, `push_weights` and a field of states, `sent`; see change.py.

    @property
    def recount(self) -> Stage | None:
        """The stage in which users report how their items changed; None: a run cannot go on with other data."""
        return None

    @property
    def resend(self) -> Stage | None:
        """The stage in which all send at once what a recount changed; None: later rounds do all of it."""
        return None

    def check_grows(self, later: "Method") -> None:
        """`ConfigError` if a run cannot go on as `later`, which is the same method for other items and users."""
        others = able(lambda method: method.recount is not None)
        raise ConfigError(f"{self.name} does not go on with other data, only {others} do: train anew")

    def season(self, begun: int, most_users: int = 0) -> Self:
        """The method since this round, with which a season began; `most_users`: the most ever, if that is known."""
        return self

    def push_weights(self, cohort: Cohort, degrees: Ints) -> Floats:
        """The weights under which a cohort sends latents to its items.  # [nnz]"""
        raise NotImplementedError

    def grown(self, server: ServerState, seed: int) -> ServerState:
        """The server with a row for every item of a longer catalogue."""
        raise NotImplementedError

    def recovered(self, server: ServerState, users: Cohort) -> ServerState:
        """The server with all that it keeps, from what users hold as sent, where an engine has not kept it."""
        return server

    # ---------------------------------------------------------------------------------------- ranking

    @property
    def knows_strangers(self) -> bool:
        """Whether a person's items are enough to represent somebody who never took part."""
        return False

    @property
    def share(self) -> str:
        """How a stranger's vector is a sum over its n items: sum, root (over √n) or mean (over n); "": it is none."""
        return ""

    @property
    def recency(self) -> float:
        """How much less a stranger's item counts in that sum with every later one; 1: their order does not count."""
        return 1.0

    def explained(self, server: ServerState, person: Cohort) -> tuple[Floats, Floats]:
        """A person's representation as a sum: what is its own, [1, D], and a row for each of its items, [n, D]."""
        raise FedgrecError(f"a score of {self.name} is no sum over the person's items: there is nothing to explain")

    def strangers(self, indptr: Ints, items: Ints) -> Cohort:
        """People who never took part: their items, and no embedding of their own."""
        cohort = self.init_users(np.zeros(len(indptr) - 1, np.uint64), indptr, items)
        cohort.state.embeddings[:] = 0
        return cohort

    def served(self, server: ServerState) -> Broadcast:
        """What a device ranks with, as it travels."""
        return self.broadcast(server, self.stages[-1])

    def judged(self, server: ServerState, stage: Stage) -> Broadcast:
        """What nodes judge after a round: what they trained on, and beside it what only ranking needs."""
        return self.with_ranking(self.broadcast(server, stage), server)

    def with_ranking(self, broadcast: Broadcast, server: ServerState) -> Broadcast:
        """With tables that have as few bits as the others."""
        more = {name: server.more[name] for name in self.to_rank}
        more = {name: travelling(part, broadcast.kind) if part.ndim > 1 else part for name, part in more.items()}
        return replace(broadcast, more={**broadcast.more, **more})

    def trained_on(self, judged: Broadcast) -> Broadcast:
        """The part of it that they trained on."""
        return replace(judged, more={name: part for name, part in judged.more.items() if name not in self.to_rank})

    def as_ranked(self, server: ServerState) -> ServerState:
        """The part of the server that a device ranks with; making it once saves making it for every user."""
        return server

    def represent_users(self, server: ServerState, cohort: Cohort) -> Floats:
        """Users' final representations, [n, D]; computed at home and never stored."""
        raise NotImplementedError

    def represent_items(self, server: ServerState) -> Floats:
        """Items' final representations, [N, D]."""
        items: Floats = server.items[0]
        return items

    def scores(self, server: ServerState, cohort: Cohort) -> Floats:
        """Every item's score for every user of the cohort, [n, N]."""
        return self.represent_users(server, cohort) @ self.represent_items(server).T

    def parts(self, server: ServerState) -> list[Part]:
        """The parts of a newcomer's score, if it is no sum over the newcomer's items (`share`)."""
        return []

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


def make_method(
    name: str, options: MethodOptions | None = None, n_items: int = 1, n_users: int = 1, *kernel: Any
) -> Method:
    """A method by its name, with these options or its defaults, on this kernel or the readable one."""
    module = method_module(name)
    found: Method = module.make(options or module.Options(), n_items, n_users, *kernel)
    return found


def able(can: Callable[[Method], bool]) -> str:
    """The names of the methods that can do something with their default options."""
    return ", ".join(name for name in METHODS if can(make_method(name)))
