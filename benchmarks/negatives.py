"""Three ways to draw negatives, after whole trainings.

fresh    each user draws others in every round: the product's way
fixed    each user draws once, and keeps them
common   all users of a round have the same, drawn in public; a user trains on those of its own items that are among
         them. So every row of a sum is of nearly everybody, and nobody sends anything about other items

Item updates have 32 bits in all three, because random rounding is drawn with the negatives.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.common import gowalla
from fedgrec.cable import draws
from fedgrec.cable.core import Broadcast, Cohort, Ints, Pending, Rows, Stage, Upload
from fedgrec.config.configuration import Config
from fedgrec.config.options import METHODS, FedGRecOptions, option
from fedgrec.data.datasets import load_for
from fedgrec.kernels import Kernel, reference
from fedgrec.methods.fedgrec import FedGRecMethod
from fedgrec.runs.simulation import Simulation
from fedgrec.studies.audit.recording import record

WAYS = ("fresh", "fixed", "common")
NAME = "fedgrec-negatives"  # as which the method below is known while this benchmark runs
PUBLIC = 0  # the key of what is drawn in public


@dataclass(frozen=True)
class Options(FedGRecOptions):
    item_levels: int = option(0, "32 bits")
    way: str = option("fresh", "how negatives are drawn", choices=WAYS)


@dataclass(frozen=True)
class Negatives(FedGRecMethod):
    name = NAME

    def _train(self, cohort: Cohort, broadcast: Broadcast, stage: Stage) -> tuple[Upload, Pending]:
        """With the default options but for `way`."""
        o, spec = self.options_of(broadcast.round, broadcast.degrees), self.spec(stage)
        if o.way == "fresh":
            return super()._train(cohort, broadcast, stage)
        gather, _ = self.edge_weights(cohort, broadcast.degrees)
        latents = self.kernel.refresh(cohort, gather, broadcast.tables[1:2], cohort.items)
        if o.way == "fixed":
            ids, seen = np.arange(self.n_items), replace(broadcast, round=0)
        else:
            shelves = draws.shelves(broadcast.degrees, o.negatives, o.popular_negatives)
            ids = np.sort(draws.negatives_from(PUBLIC, broadcast.round, shelves, np.zeros(0, np.int64)))
            tables, degrees = broadcast.tables[:, ids].copy(), broadcast.degrees[ids]
            seen = replace(broadcast, n_items=len(ids), tables=tables, degrees=degrees)
            o = replace(o, negatives=len(ids), popular_negatives=0.0)
        cohort, there = among(ids, cohort, self.n_items)
        leaf = spec.leaf("items")
        items, state, cut = self.kernel.train(cohort, gather[there], seen, latents, o, leaf, spec.dtype)
        return Upload({"items": Rows(ids[items.index], items.values)}, len(cohort)), Pending(state, cut)


def among(ids: Ints, cohort: Cohort, n_items: int) -> tuple[Cohort, Any]:
    """The users with their items among these, numbered as these are; and which of their items that are."""
    place = np.full(n_items, -1)
    place[ids] = np.arange(len(ids))
    there = place[cohort.items] >= 0
    indptr = np.concatenate([[0], np.cumsum(there)])[cohort.indptr]
    return replace(cohort, indptr=indptr, items=place[cohort.items[there]].astype(cohort.items.dtype)), there


def make(options: Options, n_items: int, n_users: int, kernel: Kernel = reference) -> Negatives:
    return Negatives(options, n_items, n_users, kernel)


def measured(data: str, way: str, rounds: int) -> dict[str, float]:
    """Recall, and how many of a first round's rows are one person's."""
    config = Config().changed({"data": data, "method": NAME, "way": way, "rounds": rounds, "device": "cpu"})
    run = Simulation(config, load_for(config))
    run.run()
    truth = record(config.changed({"rounds": 1}))[1]
    owners = np.bincount(truth.contributions.rows)
    chosen = max(line["recall@20"] for line in run.metrics if line["split"] == "validation")
    found = {"validation recall@20": chosen, "recall@20": run.result()["recall@20"]}
    return found | {"rows of one person": float((owners == 1).sum() / (owners > 0).sum())}


def bench(quick: bool) -> dict[str, Any]:
    data = "gowalla" if not quick and gowalla()[0] == "gowalla" else "demo"  # where its files are
    METHODS[NAME] = __name__
    try:
        return {"data": data, "ways": {way: measured(data, way, 20 if quick else 0) for way in WAYS}}
    finally:
        del METHODS[NAME]


def summary(result: dict[str, Any]) -> list[str]:
    lines = [f"data: {result['data']}", f"{'negatives':<12}{'validation':>12}{'test':>10}{'rows of one':>14}"]
    for way, found in result["ways"].items():
        validation, test, alone = found.values()
        lines.append(f"{way:<12}{validation:>12.4f}{test:>10.4f}{100 * alone:>12.1f} %")
    return lines
