"""What a report shows, read from a run's folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec import metrics
from fedgrec.config import Config
from fedgrec.core import Ints
from fedgrec.data import Dataset
from fedgrec.data.split import Split
from fedgrec.data.synthetic import Places
from fedgrec.errors import FedgrecError, RunError
from fedgrec.evaluate import top_k, top_k_scores
from fedgrec.item_names import ItemNames, names_of
from fedgrec.kept_split import read_split
from fedgrec.loading import load_for
from fedgrec.model import Model
from fedgrec.record import DATA, RESULT, RunRecord, is_finished, read_metrics

BASELINES = "baselines.json"
SHOWN = 10  # recommendations of the sample user
READABLE = 40  # more seen items than this make a crowded map
MOST_USERS = 2_000  # whose lists are looked at one by one


@dataclass(frozen=True, eq=False)
class Survey:
    """The lists of all users, or of evenly spaced ones where there are very many."""

    users: Ints  # [n]
    seen: Sequence[Ints]  # n times: train and validation items, which are never recommended
    hidden: Sequence[Ints]  # n times: test items
    lists: Ints  # [n, k], −1 where no item is left
    hits: NDArray[np.bool_]  # [n, k]
    everyone: bool

    def recall(self, k: int) -> NDArray[np.float64]:
        return metrics.recall(self.hits[:, :k], [len(items) for items in self.hidden])  # [n]


@dataclass(frozen=True, eq=False)
class Sample:
    """One user, as an illustration."""

    user: int
    why: str  # this user: an illustration must say how it was chosen
    seen: Ints
    hidden: Ints
    shown: Ints  # best first
    hit: NDArray[np.bool_]


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
    sample: Sample | None
    names: ItemNames
    places: Places | None  # the demo's map
    missing: str  # why there is no survey

    @property
    def k(self) -> int:
        """The list length that selected the round."""
        return self.config.run.topk[0]

    @property
    def at(self) -> Ints:
        """[N] An item's id is its row in `places`, also after a k-core has renumbered the items."""
        return np.array(list(self.model.item_ids), np.int64)

    def name(self, item: int) -> str:
        """What a person calls an item."""
        return self.names.title(item)


def read_run(folder: Path, baselines: Mapping[str, Mapping[str, float]] | None, item_names: Path | None = None) -> Run:
    model = Model.load(folder)
    if not is_finished(folder):
        raise RunError(
            f"{folder} is not finished, so there is nothing to report yet: "
            f"`fedgrec train --out {folder} --resume` goes on"
        )
    if baselines is None and (folder / BASELINES).exists():
        baselines = _json(folder / BASELINES)
    kept = {name: {key: float(line[key]) for key in line} for name, line in (baselines or {}).items()}
    dataset, missing = _data(folder, model.config)
    survey = sample = None
    if dataset:
        survey = look_at_users(model, dataset.split)
        sample = choose(survey)
    return Run(
        folder, model.config, _json(folder / DATA), read_metrics(folder), _json(folder / RESULT), model, kept,
        survey, sample, names_of(model, folder, item_names), dataset.places if dataset else None, missing,
    )  # fmt: skip


def look_at_users(model: Model, split: Split) -> Survey:
    """Rank for each user as the evaluation on test does."""
    judged = split.test if split.test is not None and split.test.n_pairs else None
    users = np.flatnonzero((judged or split.train).user_degrees())
    everyone = len(users) <= MOST_USERS
    if not everyone:
        users = users[np.linspace(0, len(users) - 1, MOST_USERS).astype(int)]
    each = users.tolist()
    none = np.zeros(0, np.int32)
    hidden = [judged.of(u) if judged else none for u in each]
    seen = [split.before_test.of(u) for u in each]
    indptr = np.concatenate([[0], np.cumsum([len(items) for items in seen])])
    length, method, cohort = max(*model.config.run.topk, SHOWN), model.method, model.users.take(users)
    if method.inner_product:
        vectors = method.represent_users(model.server, cohort).astype(np.float32)  # [n, D]
        lists, _ = top_k(vectors, model.item_vectors().astype(np.float32), length, indptr, np.concatenate(seen))
    else:
        scores = method.scores(model.server, cohort).astype(np.float32)  # [n, N]
        lists, _ = top_k_scores(lambda some: scores[some], scores.shape[1], length, indptr, np.concatenate(seen))
    hits = np.array([np.isin(row, items) for row, items in zip(lists, hidden, strict=True)])
    return Survey(users, seen, hidden, lists, hits, everyone)


def choose(survey: Survey) -> Sample:
    """The user that shows best what recommendations are; of equals the first."""
    degrees = np.array([len(items) for items in survey.seen])
    few = degrees <= READABLE
    few = few if few.any() else np.ones_like(few)
    if survey.hits.any():
        found = survey.hits[:, :SHOWN].sum(axis=1)  # [n]
        n = int(np.lexsort((-survey.recall(SHOWN), -found, ~few))[0])
        why = (
            f"Of the users with at most {READABLE} known items, this is the one with the most hits among "
            f"{SHOWN} recommendations: a good case, not a typical one. The average over "
            f"{len(found):,} users is {found.mean():.1f} hits."
        )
    else:
        n = int(np.argsort(degrees, kind="stable")[len(degrees) // 2])
        why = "This is a user with the median number of known items."
    shown, hit = survey.lists[n, :SHOWN], survey.hits[n, :SHOWN]
    real = shown >= 0
    return Sample(int(survey.users[n]), why, survey.seen[n], survey.hidden[n], shown[real], hit[real])


def _data(folder: Path, config: Config) -> tuple[Dataset | None, str]:
    """The run's data, or why it cannot be had: without its data a run still has a report."""
    try:
        dataset = load_for(config, read_split(folder))
        RunRecord.check_same_data(folder, dataset)
    except FedgrecError as error:
        return None, str(error)
    return dataset, ""


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}): restore it, or train again") from None
