"""The Python interface: fit a matrix of who liked what, ask for recommendations."""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgrec.config import preset as load_preset
from fedgrec.core import Floats, Ints
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.data.split import hold_out_validation
from fedgrec.errors import ConfigError, FedgrecError
from fedgrec.growth import grow
from fedgrec.model import Model
from fedgrec.simulation import Observer, Simulation


class FedGRec:
    """A federated graph recommender, trained in simulation.

    Any option of `fedgrec train` can be given by name: FedGRec(layers=2, rounds=500, seed=1, preset="paper").
    Users and items are named as in the data: by row and column number for a matrix, by their ids for a DataFrame.
    """

    def __init__(self, *, preset: str = "best", **options: Any) -> None:
        self.config = load_preset(preset).changed({"validation": 0.0} | options, "FedGRec()")
        self.model: Model | None = None
        self.metrics: list[dict[str, Any]] = []
        self._run: Simulation | None = None

    def fit(self, user_items: Any, test: Any = None, observer: Observer | None = None) -> "FedGRec":
        """Train on a SciPy sparse matrix [users, items] or a DataFrame with the columns user and item (and rating).

        Everything trains, for all rounds. FedGRec(validation=0.1) holds a tenth of everybody's items out and returns
        the round that ranks them best. `test` is measured where it is given; it decides nothing, except under the
        protocol `paper`, where it chooses the round.
        """
        keep = self.config.data.keep_ratings
        train = Interactions.from_matrix(user_items, keep_ratings=keep)
        held_out = None if test is None else self._aligned(test, train)
        split = Split(train, held_out)
        if self.config.run.protocol == "honest" and self.config.run.validation:
            split = hold_out_validation(split, self.config.run.validation, self.config.run.seed)
        dataset = Dataset("matrix", split)
        self._run = Simulation(self.config.changed({"data": dataset.name}, "fit"), dataset, observer=observer)
        self.model, self.metrics = self._run.run(), self._run.metrics
        return self

    def partial_fit(self, new_user_items: Any, rounds: int = 0, observer: Observer | None = None) -> "FedGRec":
        """Go on with what came since `fit`: new clicks of known users, new users, new items.

        A matrix may have more rows and columns than the one before; a DataFrame may name anybody and anything. What
        was known stays known. `rounds` are those of this season; 0: as many as the last one had, at first a
        fifth of those of `fit`.
        """
        run = self._run
        if run is None:
            raise FedgrecError("partial_fit goes on where fit has ended in this process: call fit first")
        if run.dataset.split.validation is not None or run.dataset.split.test is not None:
            raise ConfigError("partial_fit learns from everything: fit without validation and test items first")
        more = Interactions.from_matrix(new_user_items, keep_ratings=self.config.data.keep_ratings)
        whole = Split(run.dataset.split.train.extended(more), None)
        run.observer = observer or Observer()
        grow(run, Dataset("matrix", whole), rounds)
        self.model, self.metrics = run.run(), run.metrics
        return self

    @staticmethod
    def _aligned(test: Any, train: Interactions) -> Interactions:
        held_out = Interactions.from_matrix(test)
        if (held_out.user_ids, held_out.item_ids) == (train.user_ids, train.item_ids):
            return held_out
        users = [held_out.user_ids[u] for u in held_out.users()]
        items = [held_out.item_ids[t] for t in held_out.items]
        return Interactions.from_pairs(users, items, user_ids=train.user_ids, item_ids=train.item_ids)[0]

    def recommend(self, userid: Hashable, user_items: Any = None, N: int = 10) -> tuple[Any, Floats]:
        """The N best items for a user, and their scores; never one that the user is known to have.

        Known is what `fit` was given, for training, validation or test. `user_items` adds to it: the user's row of a
        matrix, or any collection of item ids.
        """
        model = self._fitted()
        user = model.user_ids.index(userid)
        seen = model.seen(user)
        if user_items is not None:
            seen = np.union1d(seen, self._item_indices(user_items))
        return self._named(model.recommend_to(user, seen, N))

    def recommend_new(self, items: Any, N: int = 10) -> tuple[Any, Floats]:
        """For a person the model has never met: Eq. (6) needs only their items."""
        model, seen = self._fitted(), self._item_indices(items)
        return self._named(model.recommend(model.new_user_vector(seen), seen, N))

    def similar_items(self, itemid: Hashable, N: int = 10) -> tuple[Any, Floats]:
        """The N items most like this one, by cosine."""
        model = self._fitted()
        return self._named(model.similar_items(model.item_ids.index(itemid), N))

    def save(self, path: str | Path) -> None:
        """Write the model's folder (see docs/run-folder.md)."""
        self._fitted().save(path)

    @staticmethod
    def load(path: str | Path) -> "FedGRec":
        """Read a folder that `save` or `fedgrec train` wrote."""
        loaded = FedGRec()
        loaded.model = Model.load(path)
        loaded.config = loaded.model.config
        return loaded

    def _fitted(self) -> Model:
        if self.model is None:
            raise FedgrecError("this recommender has not been trained: call fit first, or FedGRec.load")
        return self.model

    def _item_indices(self, items: Any) -> Ints:
        """Indices from a sparse matrix row or from a collection of ids."""
        if hasattr(items, "tocsr"):
            row = items.tocsr() if items.ndim == 2 else items
            if row.ndim == 2 and row.shape[0] != 1:
                raise ConfigError(
                    f"user_items has {row.shape[0]} rows: give the one row of this user, user_items[user]"
                )
            return np.asarray(row.indices if row.ndim == 2 else row.coords[0], np.int32)
        return np.array([self._fitted().item_ids.index(item) for item in items], np.int32)

    def _named(self, ranked: tuple[Ints, Floats]) -> tuple[Any, Floats]:
        ids, scores = ranked
        names: Sequence[Any] = [self._fitted().item_ids[int(i)] for i in ids]
        return np.asarray(names), scores
