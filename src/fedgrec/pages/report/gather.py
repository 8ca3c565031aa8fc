"""What a report shows, read from a run's folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Ints
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset
from fedgrec.data.datasets import MATRIX, load_for
from fedgrec.data.files import read_json, understood
from fedgrec.data.item_names import ItemNames, names_of
from fedgrec.data.split import Split, read_split
from fedgrec.data.synthetic import Places
from fedgrec.errors import FedgrecError, RunError
from fedgrec.models import metrics
from fedgrec.models.model import Model
from fedgrec.models.ranking import Judging, evaluate
from fedgrec.models.recommender import Seen
from fedgrec.models.selection import RESULT
from fedgrec.runs.record import DATA, RunRecord, check_finished, read_metrics

BASELINES = "baselines.json"
MEND = "restore it, or train again"
POPULARITY = "popularity"
SHOWN = 10  # recommendations of a person
READABLE = 40  # more seen items than this make a crowded map
MOST_USERS = 2_000  # users whose lists the report examines one by one
PEOPLE = 200  # people that the page can show


@dataclass(frozen=True, eq=False)
class Survey:
    """The lists of all users, or of evenly spaced users where there are very many."""

    users: Ints  # [n]
    seen: Sequence[Ints]  # n times: train and validation items, which are never recommended
    hidden: Sequence[Ints]  # n times: test items
    lists: Ints  # [n, k], −1 where no item is left
    hits: NDArray[np.bool_]  # [n, k]
    everyone: bool

    def recall(self, k: int) -> NDArray[np.float64]:
        return metrics.recall(self.hits[:, :k], [len(items) for items in self.hidden])  # [n]


@dataclass(frozen=True, eq=False)
class People:
    """The people that the page can show, and the one whom it shows first."""

    survey: Survey
    first: int  # an index into the survey
    why: str  # how the first one was chosen, which an example must say


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    folder: Path
    config: Config
    about: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any]
    model: Model
    baselines: dict[str, dict[str, float]]
    survey: Survey | None  # None where the data is gone
    people: People | None  # None also where nobody is to be shown
    names: ItemNames
    places: Places | None  # the demo's towns and homes
    missing: str  # why there is no survey

    @property
    def k(self) -> int:
        """The list length that selected the round."""
        return self.config.run.topk[0]


def read_run(
    folder: Path,
    baselines: Mapping[str, Mapping[str, float]] | None = None,
    asked: Sequence[str] = (),
    sample: int = PEOPLE,
    item_names: Path | None = None,
) -> Run:
    """Read a run; the page shows the users whose ids are in `asked`, and `sample` others."""
    model = Model.load(folder)
    if model.config.data.data == MATRIX:
        raise RunError(f"{folder} was saved in Python and holds a model alone: reports are of runs of `fedgrec train`")
    check_finished(folder)
    wanted = [model.user_ids.parse(text) for text in asked]
    if baselines is None and (folder / BASELINES).exists():
        baselines = read_json(folder / BASELINES, MEND)
    with understood(folder / BASELINES, MEND):
        kept = {name: {key: float(line[key]) for key in line} for name, line in (baselines or {}).items()}
    dataset, missing = _data(folder, model.config)
    survey = people = None
    if dataset:
        kept |= popularity(dataset.split, model.config)
        survey = look_at_users(model, dataset.split)
        people = choose(model, dataset.split, survey, wanted, sample)
    about, result = read_json(folder / DATA, MEND, "name", "sizes", "split"), read_json(folder / RESULT, MEND, "split")
    return Run(
        folder, model.config, about, read_metrics(folder), result, model, kept,
        survey, people, names_of(model, folder, item_names), dataset.places if dataset else None, missing,
    )  # fmt: skip


def popularity(split: Split, config: Config) -> dict[str, dict[str, float]]:
    """Recommend the most popular items to everybody: a personal recommender must do better than this."""
    if split.test is None or not split.test.n_pairs:
        return {}
    one_each, degrees = np.ones((split.train.n_users, 1), np.float32), split.train.degrees()[:, None]
    scores = one_each, degrees.astype(np.float32)  # the same for everybody: how many have the item
    how = Judging.of(config.run, config.run.seed, split.known)
    return {POPULARITY: evaluate(*scores, split.before_test, split.test, how).metrics}


def look_at_users(model: Model, split: Split) -> Survey:
    """All users who can be judged, or evenly spaced ones."""
    judged = split.test if split.test is not None and split.test.n_pairs else split.train
    users = np.flatnonzero(judged.user_degrees())
    return look_at(model, split, _evenly(users, MOST_USERS), len(users) <= MOST_USERS)


def _evenly(users: Ints, most: int) -> Ints:
    return users if len(users) <= most else users[np.linspace(0, len(users) - 1, most).astype(int)]


def look_at(model: Model, split: Split, users: Ints, everyone: bool = False) -> Survey:
    """Rank for each user as the evaluation on test does."""
    each, none = users.tolist(), np.zeros(0, np.int32)
    hidden = [split.test.of(u) if split.test is not None else none for u in each]
    seen = [split.before_test.of(u) for u in each]
    lists, _ = model.lists(users, max(*model.config.run.topk, SHOWN), Seen.of(seen))
    hits = np.array([np.isin(row, items) for row, items in zip(lists, hidden, strict=True)])
    return Survey(users, seen, hidden, lists, hits, everyone)


def choose(model: Model, split: Split, survey: Survey, asked: Sequence[int], sample: int) -> People | None:
    """Evenly spaced users and those asked for. The page starts with the first one asked for, else a good example."""
    if not asked and not sample:
        return None
    first, why = (asked[0], "") if asked else _best(survey)
    users = np.unique([first, *asked, *(_evenly(survey.users, sample) if sample else [])])
    return People(look_at(model, split, users), int(np.searchsorted(users, first)), why)


def _best(survey: Survey) -> tuple[int, str]:
    """The best example (of equals the first), and how it was chosen."""
    degrees = np.array([len(items) for items in survey.seen])
    few = degrees <= READABLE
    few = few if few.any() else np.ones_like(few)
    if not survey.hits.any():
        n = int(np.argsort(degrees, kind="stable")[len(degrees) // 2])
        return int(survey.users[n]), "This is a user with the median number of known items."
    found = survey.hits[:, :SHOWN].sum(axis=1)  # [n]
    n = int(np.lexsort((-survey.recall(SHOWN), -found, ~few))[0])
    return int(survey.users[n]), (
        f"Of the users with at most {READABLE} known items, this is the one with the most hits among "
        f"{SHOWN} recommendations: a good case, not a typical one. The average over "
        f"{len(found):,} users is {found.mean():.1f} hits."
    )


def _data(folder: Path, config: Config) -> tuple[Dataset | None, str]:
    """The run's data, or why it cannot be loaded: a run has a report even without its data."""
    try:
        dataset = load_for(config, read_split(folder))
        RunRecord.check_same_data(folder, dataset)
    except FedgrecError as error:
        return None, str(error)
    return dataset, ""
