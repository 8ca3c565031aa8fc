"""What lying users do to the model: they want one item recommended to everybody.

A server sees sums alone, so a lying user may send any words that its checks let pass. Two lies:

    profile   the user claims to have the target and popular items, and keeps to all rules
    bounds    in training sums the target's rows also get the largest words that are allowed, towards the mean user
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Broadcast, Cohort, Floats, Ints, Leaf, Pending, Rows, Stage, Upload
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset
from fedgrec.errors import ConfigError
from fedgrec.methods.contract import DEGREES, Method
from fedgrec.models.ranking import Judging, top_k
from fedgrec.runs.machine import judged
from fedgrec.runs.simulation import Simulation
from fedgrec.runs.sums import Sums


@dataclass(frozen=True)
class Lie:
    """What every lying user sends."""

    target: int  # the item to promote
    profile: Ints  # items that the user claims to have, sorted
    within_bounds: bool = False  # else the profile is the whole lie
    strength: float = 1.0  # the largest word, over the leaf's bound; above 1 the user breaks its own clip
    begins: int = 0  # the first round of these words: a subspace gives a row that stays too long a direction of its own
    suppress: tuple[int, ...] = ()  # items whose rows get the opposite
    invented: int = 0  # how many more people have the target, as the user counts

    def upload(self, method: Method, stage: Stage, broadcast: Broadcast) -> Upload:
        """The strongest upload for a training sum."""
        spec, toward = method.spec(stage), mean_user(method, broadcast)
        filled = (method.contents.updates, method.contents.latents)
        leaves = {
            leaf.name: self._rows(leaf, toward, broadcast.n_items, self.strength if leaf.name in filled else 0)
            for leaf in spec.leaves
        }
        return Upload({name: Rows(r.index, r.values.astype(spec.dtype)) for name, r in leaves.items()}, 1)

    def _rows(self, leaf: Leaf, toward: Floats, n_items: int, strength: float) -> Rows:
        """The target's row in every table of the leaf, and the rows to suppress: each word as large as it may be."""
        items, tables = np.union1d(self.suppress, [self.target]).astype(np.int64), leaf.rows // n_items
        words = np.outer(np.where(items == self.target, 1, -1), np.trunc(strength * leaf.bound) * np.sign(toward))
        return Rows(
            (np.arange(tables)[:, None] * n_items + items).ravel(), np.tile(words.astype(np.int64), (tables, 1))
        )

    def counted(self, method: Method) -> Upload:
        """What the user adds to the sum of counts."""
        leaf = method.spec(DEGREES).leaves[0]
        return Upload({leaf.name: Rows(np.array([self.target]), np.array([[self.invented]]))}, 0)


def mean_user(method: Method, broadcast: Broadcast) -> Floats:
    """The direction of most users: the items' rows, each weighted by its number of users. All of it is public."""
    tables = broadcast.tables
    if not len(tables):  # the first sum of a subspace begins from what everybody draws
        tables = getattr(method, "spectral", method).start
    return np.asarray(broadcast.degrees.astype(np.float64) @ tables[0].astype(np.float64))


class Liars(Sums):
    """Adds up as `inner` does; users with these keys send the lie instead of their own upload."""

    def __init__(self, inner: Sums, keys: NDArray[np.uint64], lie: Lie) -> None:
        super().__init__(inner.options, inner.threads)
        self.inner, self.keys, self.lie = inner, keys, lie

    def total(
        self, method: Method, stage: Stage, cohort: Cohort, broadcast: Broadcast, arrived: Ints | None = None
    ) -> tuple[Upload, Pending]:
        cohort = disguised(cohort, np.isin(cohort.keys, self.keys), self.lie.profile)
        total, pending = self.inner.total(method, stage, cohort, broadcast, arrived)
        present = cohort if arrived is None else cohort.take(arrived)
        lying = np.flatnonzero(np.isin(present.keys, self.keys))
        if not self.lie.within_bounds or not len(lying):
            return total, pending
        if stage is DEGREES:
            return total + times(self.lie.counted(method), len(lying)), pending
        if not method.trains(stage) or broadcast.round < self.lie.begins:
            return total, pending
        usual, _ = method.local_update(present.take(lying), stage, broadcast)
        return total + times(usual, -1) + times(self.lie.upload(method, stage, broadcast), len(lying)), pending


def times(upload: Upload, factor: int) -> Upload:
    """The sum of `factor` users who send the same; −1 removes an upload from a sum."""
    return Upload({name: Rows(r.index, factor * r.values) for name, r in upload.leaves.items()}, factor * upload.users)


def disguised(cohort: Cohort, lying: NDArray[np.bool_], profile: Ints) -> Cohort:
    """The cohort, in which lying users have the items of the profile."""
    if not lying.any():
        return cohort
    if cohort.targets is not None or cohort.around is not None:
        raise ConfigError("an invented profile has no ratings or neighbours: leave out keep_ratings or fedgnn")
    parts = [profile if lying[user] else cohort.items_of(user) for user in range(len(cohort))]
    indptr = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    return replace(cohort, indptr=indptr, items=np.concatenate(parts).astype(cohort.items.dtype))


class Guarded(Simulation):
    """A simulation whose server puts degrees and latents back into their range, as a deployed one does."""

    def train(self) -> None:
        with np.errstate(over="ignore"):  # liars can drive the server's moments to infinity; `harm` says so
            self.warm_up()
            while self.server.round < self.config.run.rounds:
                self._round()

    def _exchange(self, stage: Stage, users: Ints, arrived: Ints | None = None, level: int = 0) -> None:
        super()._exchange(stage, users, arrived, level)
        self.method.keep_possible(self.server)


def poisoned(config: Config, dataset: Dataset, liars: Ints, lie: Lie) -> Simulation:
    """A finished training in which users at these positions lie."""
    simulation = Guarded(config.changed({"device": "cpu"}, "the attack"), dataset)
    simulation.sums = Liars(simulation.sums, simulation.users.keys[liars], lie)
    simulation.train()
    return simulation


def harm(simulation: Simulation, target: int, liars: Ints, k: int = 20, **ranking: Any) -> dict[str, Any]:
    """For honest users: the share of those without the target to whom it is recommended, and the recall of all.

    `ranking`: options with which people rank, other than those of the training.
    """
    options = replace(simulation.method.options, **ranking)
    method, server, split = replace(simulation.method, options=options), simulation.server, simulation.dataset.split
    found: dict[str, Any] = {"finite": bool(np.isfinite(server.moment2).all())}  # else a deployed server loses the sum
    honest = np.setdiff1d(np.arange(len(simulation.users)), liars)
    asked = simulation.users.take(honest[[target not in split.known.of(user) for user in honest.tolist()]])
    own, items = method.represent_users(server, asked), method.represent_items(server)
    seen = asked.indptr.astype(np.int64), asked.items.astype(np.int32)
    top, _ = top_k(own.astype(np.float32), items.astype(np.float32), k, *seen)
    found["exposure"] = float((top == target).any(axis=1).mean())
    popular = np.argsort(-split.train.degrees(), kind="stable")[:k]
    found["popular"] = float(np.isin(top, popular).mean())  # of the places in lists
    if split.test is not None:
        result = judged(method, server, simulation.users, split.before_test, split.test, Judging((k,)))
        found["recall"] = float(result.per_user[f"recall@{k}"][np.isin(result.user_ids, honest)].mean())
    return found
