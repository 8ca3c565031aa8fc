"""The Python interface: fit a matrix of who liked what, ask for recommendations."""

from collections.abc import Hashable, Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Floats, Ints
from fedgrec.config.configuration import Config
from fedgrec.config.configuration import preset as load_preset
from fedgrec.config.options import METHODS
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.data.datasets import MATRIX
from fedgrec.data.split import hold_out_validation
from fedgrec.errors import ConfigError, FedgrecError
from fedgrec.models.lookup import candidates, indices, is_one_person, joined, rows_of
from fedgrec.models.model import Model
from fedgrec.models.recommender import Explanation, Lists, Recommender, Seen, flat, named, without_empty
from fedgrec.runs.callbacks import Callbacks, Calls
from fedgrec.runs.growth import continued, grow
from fedgrec.runs.notebook import described
from fedgrec.runs.simulation import Simulation
from fedgrec.runs.trained import measured, open_run

PRESET = "best"


class FedGRec:
    """A federated graph recommender, trained in simulation.

    Any option of `fedgrec train` can be given by name: FedGRec(layers=2, rounds=500, seed=1, preset="paper").
    Users and items are named as in the data: by row and column number for a matrix, by their ids for a DataFrame.
    """

    def __init__(self, *, preset: str = PRESET, **options: Any) -> None:
        self.preset, self._asked = preset, {name: value for name, value in options.items() if value is not None}
        self.config = _configured(preset, self._asked)
        self.model: Recommender | None = None
        self.metrics: list[dict[str, Any]] = []
        self._run: Simulation | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle or a copy takes: not the run, which holds compiled code; `partial_fit` makes one."""
        return {**self.__dict__, "_run": None}

    # -------------------------------------------------------------------------------------- parameters

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Every option with its value, as scikit-learn expects."""
        values = _flat(self.config)
        return {"preset": self.preset, **values, "random_state": values["seed"], **self._asked}

    def set_params(self, **params: Any) -> Self:
        """Change options. The fitted model stays until the next `fit`."""
        before: dict[str, Any] = {"preset": self.preset, **self._changed()}
        if "random_state" in params:
            before.pop("seed", None)
        new = FedGRec(**before | params)
        self.preset, self._asked, self.config = new.preset, new._asked, new.config
        return self

    def _changed(self) -> dict[str, Any]:
        """The options that differ from the preset's, or from the defaults of another method."""
        usual = _flat(_configured(self.preset, {"method": self.config.method}))
        usual["method"] = load_preset(self.preset).method
        return {name: value for name, value in _flat(self.config).items() if value != usual[name]}

    def __repr__(self) -> str:
        shown = ({"preset": self.preset} if self.preset != PRESET else {}) | self._changed()
        return f"FedGRec({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def _repr_html_(self) -> str:
        return described(repr(self), self.model, self.metrics)

    # ---------------------------------------------------------------------------------------- training

    def fit(
        self, user_items: Any, test: Any = None, *, progress: bool | None = None, callbacks: Callbacks = None
    ) -> Self:
        """Train on a SciPy sparse matrix [users, items] or a DataFrame with the columns user and item (and rating).

        All pairs train, for all rounds. FedGRec(validation=0.1) holds out a tenth of everybody's items and keeps the
        round that ranks them best. `test`, if given, is measured; it chooses nothing, except under the protocol
        `paper`, where it chooses the round. `progress` draws a bar (None: if standard error is a terminal);
        `callbacks` are called after each round (see fedgrec.runs.callbacks).
        """
        data, calls = self.config.data, Calls(progress, callbacks)
        train = Interactions.from_matrix(user_items, keep_ratings=data.reads_ratings).weighted(data.weight_ceiling)
        held_out = None if test is None else self._aligned(test, train)
        split = Split(train, held_out)
        if self.config.run.protocol == "honest" and self.config.run.validation:
            split = hold_out_validation(split, self.config.run.validation, self.config.run.seed)
        dataset = Dataset(MATRIX, split)
        return self._trained(Simulation(self.config.changed({"data": dataset.name}, "fit"), dataset), calls)

    def partial_fit(
        self, new_user_items: Any, rounds: int = 0, *, progress: bool | None = None, callbacks: Callbacks = None
    ) -> Self:
        """Train on with new data: new clicks of known users, new users, new items.

        A matrix may have more rows and columns than the one before; a DataFrame may name new users and items. Earlier
        data is kept. `rounds` is how long to train; 0: as long as the last `partial_fit`, or at first a fifth of the
        rounds of `fit`. After `load` or a copy, the server's optimizer begins anew.
        """
        model, calls = self._fitted(), Calls(progress, callbacks)
        if not isinstance(model, Model):
            raise FedgrecError(f"{model.config.method} does not go on with other data: train anew")
        if not isinstance(rounds, int | np.integer) or rounds < 0:
            raise ConfigError(f"partial_fit: rounds cannot be {rounds!r}: it is a whole number, 0 for the usual season")
        run = self._run or continued(model)
        if run.dataset.split.validation is not None or run.dataset.split.test is not None:
            raise ConfigError("partial_fit learns from everything: fit without validation and test items first")
        data = run.config.data
        more = Interactions.from_matrix(new_user_items, keep_ratings=data.reads_ratings).weighted(data.weight_ceiling)
        whole = Split(run.dataset.split.train.extended(more), None)
        grow(run, Dataset(MATRIX, whole), int(rounds))
        return self._trained(run, calls)

    def _trained(self, run: Simulation, calls: Calls) -> Self:
        with closing(calls) as run.observer:
            self.model, self.metrics, self._run = run.run(), run.metrics, run
        return self

    def score(self, user_items: Any) -> float:
        """Recall@k of these pairs, but for those that were trained on; k is the first of `topk`."""
        model, run = self._fitted(), self.config.run
        given, known = self._aligned(user_items, model.known), model.known
        trained = Interactions(known.user_ids, known.item_ids, *model.trained_on)
        hidden = given.select(~np.isin(given.keys(), trained.keys()))
        seen = known.select(~np.isin(known.keys(), hidden.keys()))  # `fit` may have been told of held-out items
        return measured(model, run, seen, hidden).metrics[f"recall@{run.topk[0]}"]

    @staticmethod
    def _aligned(test: Any, train: Interactions) -> Interactions:
        held_out = Interactions.from_matrix(test)
        if (held_out.user_ids, held_out.item_ids) == (train.user_ids, train.item_ids):
            return held_out
        users = [held_out.user_ids[u] for u in held_out.users()]
        items = [held_out.item_ids[t] for t in held_out.items]
        return Interactions.from_pairs(users, items, user_ids=train.user_ids, item_ids=train.item_ids)

    # ----------------------------------------------------------------------------------------- answers

    def recommend(
        self,
        userid: Any = None,
        user_items: Any = None,
        N: int = 10,
        *,
        filter_already_liked_items: bool = True,
        filter_items: Iterable[Hashable] | None = None,
        items: Iterable[Hashable] | None = None,
        as_frame: bool = False,
    ) -> Any:
        """The N best items for one user, for several, or (None) for all users: their ids and scores, best first.

        One id gives two arrays of at most N entries; several ids give arrays [n, N], where an empty place has the id
        −1 (None unless all ids are integers) and the score −inf. An N beyond the number of items counts as that number.
        `as_frame` gives a pandas DataFrame of user, item, score and rank instead.

        Items that `fit` was told a user has, for training, validation or test, are not recommended to that user.
        `user_items` names more such items: a row of a matrix or a collection of ids for each user.
        `filter_already_liked_items=False` recommends these items too. `items` are the only candidates, `filter_items`
        are never recommended.
        """
        model = self._fitted()
        users, one = indices(userid, model.user_ids, "userid")
        seen = Seen.nothing(len(users))
        if filter_already_liked_items:
            seen = model.seen_by(users)
            if user_items is not None:
                seen = joined(seen, rows_of([user_items] if one else user_items, model.item_ids, len(users)))
        lists = model.lists(users, N, seen, candidates(items, filter_items, model.item_ids))
        return _frame(model, users, lists) if as_frame else _answer(lists, model.item_names, one)

    def recommend_new(
        self, items: Any, N: int = 10, *, filter_items: Iterable[Hashable] | None = None
    ) -> tuple[Any, Floats]:
        """For people whom the model has never met: Eq. (6) needs only their items.

        One person is a collection of item ids, or a row of a matrix; several are a list of such collections, or a
        matrix of several rows.
        """
        model, one = self._fitted(), is_one_person(items)
        rows = rows_of([items] if one else items, model.item_ids)
        vectors = model.new_user_vectors(*rows)
        lists = model.lists_for(vectors, N, rows, candidates(None, filter_items, model.item_ids))
        return _answer(lists, model.item_names, one)

    def similar_items(
        self,
        itemid: Any = None,
        N: int = 10,
        *,
        filter_items: Iterable[Hashable] | None = None,
        items: Iterable[Hashable] | None = None,
    ) -> tuple[Any, Floats]:
        """The N items most like one item, like each of several, or (None) of all: by cosine, never the item itself."""
        model = self._fitted()
        which, one = indices(itemid, model.item_ids, "itemid")
        lists = model.similar_lists(which, N, candidates(items, filter_items, model.item_ids))
        return _answer(lists, model.item_names, one)

    def similar_users(self, userid: Any = None, N: int = 10) -> tuple[Any, Floats]:
        """The N users most like one user, like each of several, or (None) of all: by cosine, never the user itself."""
        model = self._fitted()
        which, one = indices(userid, model.user_ids, "userid")
        return _answer(model.similar_user_lists(which, N), model.user_names, one)

    def explain(self, userid: Hashable, itemid: Hashable) -> Explanation:
        """A user's score for an item as a sum: what each of the user's items adds, and the user's own embedding."""
        model = self._fitted()
        found = model.explain(model.user_ids.index(userid), model.item_ids.index(itemid))
        return found._replace(ids=named(found.ids, model.item_names))

    @property
    def item_factors(self) -> Floats:
        """[items, D]: user_factors @ item_factors.T are the scores."""
        return self._fitted().item_vectors().astype(np.float32)

    @property
    def user_factors(self) -> Floats:
        """[users, D]"""
        model = self._fitted()
        return model.user_vectors(np.arange(len(model.user_ids))).astype(np.float32)

    # ------------------------------------------------------------------------------------------- files

    def save(self, path: str | Path) -> None:
        """Write the model's folder (see docs/run-folder.md)."""
        self._fitted().save(path)

    @staticmethod
    def load(path: str | Path) -> "FedGRec":
        """Read a folder that `save`, `fedgrec train` or `fedgrec compare` wrote."""
        loaded = FedGRec()
        loaded.model = open_run(path)
        if loaded.model.config.method in METHODS:  # only `fedgrec compare` trains the others
            loaded.config = loaded.model.config
        return loaded

    def _fitted(self) -> Recommender:
        if self.model is None:
            raise FedgrecError("this recommender has not been trained: call fit first, or FedGRec.load")
        return self.model


def _configured(preset: str, asked: dict[str, Any]) -> Config:
    options = {"validation": 0.0} | asked
    state = options.pop("random_state", None)  # scikit-learn's word for seed
    if state is not None and options.setdefault("seed", state) != state:
        raise ConfigError(
            f"FedGRec(): seed is {options['seed']!r} but random_state is {state!r}: they are one; give one"
        )
    return load_preset(preset).changed(options, "FedGRec()")


def _flat(config: Config) -> dict[str, Any]:
    """The options by name; of the data options those that `fit` uses."""
    keep = {"keep_ratings": config.data.keep_ratings, "weight_ceiling": config.data.weight_ceiling}
    return {"method": config.method, **keep, **asdict(config.model), **asdict(config.run)}


def _answer(lists: Lists, names: NDArray[Any], one: bool) -> tuple[Any, Floats]:
    places, scores = without_empty(lists) if one else lists
    return named(places, names), scores


def _frame(model: Recommender, users: Ints, lists: Lists) -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise FedgrecError("as_frame=True needs pandas: run  pip install pandas , or take the arrays") from None
    columns = flat(model.user_names[users], model.item_names, *lists)
    return pd.DataFrame(dict(zip(("user", "item", "score", "rank"), columns, strict=True)))
