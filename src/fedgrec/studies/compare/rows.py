"""The rows of the table: one for each method, from its finished runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from fedgrec.runs.cost import cost
from fedgrec.studies.compare.names import Entry
from fedgrec.studies.compare.published import Figure
from fedgrec.studies.compare.runs import FederatedRun, Run
from fedgrec.studies.compare.statistics import Estimate, over_seeds


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
    done = [run for run in runs if run.finished]
    note = _note(runs, failures)
    if not done:
        return Row(entry.label, entry.method, entry.federated, protocol, (), published=published, note=note)
    results, lines = [run.result() for run in done], [run.metrics() for run in done]
    pairs = zip(done, lines, strict=True) if entry.federated else ()
    paid = [cost(cast(FederatedRun, run).config, mine, *sizes) for run, mine in pairs]

    def mean(values: Sequence[float]) -> float | None:
        return float(np.mean(values)) if values else None

    return Row(
        entry.label,
        entry.method,
        entry.federated,
        protocol,
        tuple(run.seed for run in done),
        estimate(done, results, f"recall@{k}"),
        estimate(done, results, f"ndcg@{k}"),
        published,
        tuple(int(result["round"]) for result in results),
        max(line["round"] for mine in lines for line in mine) if done[0].length else 0,
        mean([each.whole.up for each in paid]),
        mean([each.whole.up_secure for each in paid]),
        mean([each.whole.down for each in paid]),
        mean([mine[-1]["seconds"] for mine in lines]) if done[0].length else None,
        note,
        mean([each.turns for each in paid]),
        {
            name: estimate(done, results, f"{name}@{k}") if all(f"{name}@{k}" in result for result in results) else None
            for name in metrics
        },
    )


def estimate(runs: Sequence[Run], results: Sequence[Mapping[str, Any]], metric: str) -> Estimate:
    """The mean and its interval over seeds. With one seed, the interval is over users and is marked as such."""
    values = [float(result[metric]) for result in results]
    if len(runs) > 1:
        return over_seeds(values)
    return Estimate(values[0], runs[0].halves_over_users().get(metric), "users", int(results[0]["users"]))


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
