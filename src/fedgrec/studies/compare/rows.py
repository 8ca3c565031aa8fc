"""The rows of the table: each method's finished runs, with intervals, beside the figures that others published.

Published are Recall@20 and NDCG@20, all items ranked, on LightGCN's split. All of them are the best round on test, so
compare them with results under the protocol `paper`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Literal

import numpy as np

from fedgrec.data import Dataset
from fedgrec.data.datasets import describe
from fedgrec.data.registry import SOURCES
from fedgrec.runs.cost import cost
from fedgrec.studies.compare.names import Entry
from fedgrec.studies.compare.runs import Run, half_width

SOURCE = {
    "T2": "Li and Huang 2022, Table 2",
    "T34": "Li and Huang 2022, Tables 3 and 4",
    "BARS": "the BARS leaderboard",
    "Turbo": "Park et al. 2024",
}
DATA = ("gowalla", "yelp2018", "amazon-book")


@dataclass(frozen=True)
class Figure:
    """What was published for a method."""

    recall: float | None
    ndcg: float | None
    source: str


@dataclass(frozen=True)
class Estimate:
    """A mean, and half the width of its 95 % interval; None where there is only one value."""

    mean: float
    half: float | None
    over: Literal["seeds", "users"]  # what the interval is over
    n: int  # how many seeds or users


@dataclass(frozen=True)
class Row:
    """The results of one method. Bytes are those of an average user over a whole run; costs are means over seeds."""

    label: str
    method: str
    federated: bool
    protocol: str
    seeds: tuple[int, ...]  # finished
    recall: Estimate | None = None
    ndcg: Estimate | None = None
    published: Figure | None = None
    chosen: tuple[int, ...] = ()  # the selected round or epoch of each seed
    length: int = 0  # rounds or epochs that the longest seed ran; patience may end a run early
    up: float | None = None
    up_secure: float | None = None
    down: float | None = None
    seconds: float | None = None
    note: str = ""  # what went wrong
    turns: float | None = None  # rounds in which an average user takes part
    more: Mapping[str, Estimate | None] = field(default_factory=dict)  # further metrics; None where a record has none

    @property
    def kind(self) -> str:
        return "federated" if self.federated else "centralized"

    @property
    def unit(self) -> str:
        return "round" if self.federated else "epoch"


def row(
    entry: Entry,
    runs: Sequence[Run],
    protocol: str,
    k: int,
    sizes: tuple[int, int],
    published: Figure | None,
    failures: Mapping[tuple[str, int], str],
    metrics: Sequence[str] = (),
) -> Row:
    """The row of one method on so many users and items; `failures` says why a (label, seed) has no result."""
    done, note = [run for run in runs if run.finished], _note(runs, failures)
    seeds = tuple(run.seed for run in done)
    found = Row(entry.label, entry.method, entry.federated, protocol, seeds, published=published, note=note)
    if not done:
        return found
    results, lines = [run.result() for run in done], [run.metrics() for run in done]
    found = replace(
        found,
        recall=estimate(done, results, f"recall@{k}"),
        ndcg=estimate(done, results, f"ndcg@{k}"),
        chosen=tuple(int(result["round"]) for result in results),
        more={name: estimate(done, results, f"{name}@{k}") for name in metrics},
    )
    if done[0].length:
        seconds = float(np.mean([mine[-1]["seconds"] for mine in lines]))
        found = replace(found, length=max(line["round"] for mine in lines for line in mine), seconds=seconds)
    if not entry.federated:
        return found
    paid = [cost(run.config, mine, *sizes) for run, mine in zip(done, lines, strict=True)]
    each = [(one.whole.up, one.whole.up_secure, one.whole.down, one.turns) for one in paid]
    up, up_secure, down, turns = (float(np.mean(values)) for values in zip(*each, strict=True))
    return replace(found, up=up, up_secure=up_secure, down=down, turns=turns)


def estimate(runs: Sequence[Run], results: Sequence[Mapping[str, Any]], metric: str) -> Estimate | None:
    """The mean and its interval over seeds. With one seed, the interval is over users and is marked as such."""
    if not all(metric in result for result in results):
        return None
    values = [float(result[metric]) for result in results]
    if len(runs) > 1:
        return over_seeds(values)
    return Estimate(values[0], runs[0].halves_over_users().get(metric), "users", int(results[0]["users"]))


def over_seeds(values: Sequence[float]) -> Estimate:
    return Estimate(float(np.mean(values)), half_width(values), "seeds", len(values))


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Best recall first; rows without a result come last, in the order in which they were named."""
    return sorted(rows, key=lambda row: -row.recall.mean if row.recall else np.inf)


def _note(runs: Sequence[Run], failures: Mapping[tuple[str, int], str]) -> str:
    """Why seeds have no result or an incomplete one."""
    why: dict[str, list[str]] = {}
    for run in runs:
        reason = failures.get((run.entry.label, run.seed), "" if run.finished else "not finished")
        if reason:
            why.setdefault(reason, []).append(str(run.seed))
    if len(why) == 1 and len(next(iter(why.values()))) == len(runs):
        return next(iter(why))
    return "; ".join(f"seed {' and '.join(seeds)}: {reason}" for reason, seeds in why.items())


# ---------------------------------------------------------------------------------------------- published


def published_lines() -> list[list[str]]:
    """The lines of published.txt, its head first: method, K, combine, recall and NDCG on each of DATA, source."""
    text = (resources.files("fedgrec.studies.compare") / "published.txt").read_text("utf-8")
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def public_name(dataset: Dataset) -> str | None:
    """The data set's public name, if this is the whole data set in the split that others report on."""
    sizes = describe(dataset)["sizes"]
    ours = sizes["users"], sizes["items"], sizes["train"] + sizes["validation"], sizes["test"]
    for name, source in SOURCES.items() if dataset.split_kind == "given" else ():
        if ours == (source.users, source.items, source.train_pairs, source.test_pairs):
            return name
    return None


def figure(data: str | None, method: str, options: Any) -> Figure | None:
    """What was published for a method with these options on a public data set."""
    if data not in DATA:
        return None
    at = 3 + 2 * DATA.index(data)
    for words in published_lines():
        asked = [method, *(str(getattr(options, name, "-")) for name in ("layers", "combine"))]
        # A '-' in the table fits any value: FedGNN and matrix factorisation have no choice of layers.
        if all(word in (said, "-") for word, said in zip(words[:3], asked, strict=True)):
            recall, ndcg = (None if word == "-" else float(word) for word in words[at : at + 2])
            return Figure(recall, ndcg, SOURCE[words[-1]]) if recall is not None else None
    return None
