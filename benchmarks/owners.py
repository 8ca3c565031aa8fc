"""What it would do to keep rows closed that fewer than m people of a round touch.

isolated   the share of people, of those alone in three rows or more, whom a server isolates by the rows' directions
closed     the share of touched rows, and of rows of people's own items, that fewer than m of 400 people touch
recall     on validation items, with such rows closed in every round

A federation would count the owners of rows by a secure sum before every round. This benchmark counts them in the clear.
"""

from typing import Any

import numpy as np

from fedgrec.audit import clusters
from fedgrec.audit.recording import ITEMS, contributions, record
from fedgrec.audit.scores import Finding
from fedgrec.config import Config
from fedgrec.core import Broadcast, Cohort, Ints, Pending, Rows, Stage, Upload
from fedgrec.methods.contract import Method
from fedgrec.simulation import Simulation
from fedgrec.sums import Sums

LEAST = (2, 3, 5)  # owners of an open row
PLAIN = {
    "loss": "bpr", "similarity": "inner", "item_levels": 0, "latents_every": 1, "popular_negatives": 0, "half_life": 0,
    "live": False,
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "32 negatives": PLAIN | {"negatives": 32},
    "128 negatives": PLAIN | {"negatives": 128},
    "the defaults": {},
}
ROUNDS = 100


class Closing(Sums):
    """Adds up as `inner` does, and closes rows of item updates with fewer than `least` owners."""

    def __init__(self, inner: Sums, least: int) -> None:
        super().__init__(inner.options, inner.threads)
        self.inner, self.least = inner, least

    def total(
        self, method: Method, stage: Stage, cohort: Cohort, broadcast: Broadcast, arrived: Ints | None = None
    ) -> tuple[Upload, Pending]:
        total, pending = self.inner.total(method, stage, cohort, broadcast, arrived)
        if ITEMS not in total.leaves:
            return total, pending
        present = cohort if arrived is None else cohort.take(arrived)
        owners = np.bincount(contributions(method, stage, present, broadcast).rows, minlength=method.n_items)
        rows = total.leaves[ITEMS]
        kept = owners[rows.index] >= self.least
        return Upload(total.leaves | {ITEMS: Rows(rows.index[kept], rows.values[kept])}, total.users), pending


def looked_at(data: str, options: dict[str, Any]) -> dict[str, Any]:
    """One round of 400 people."""
    view, truth = record(Config().changed({"data": data, "users_per_round": 400, "rounds": 1, **options}))
    owners = np.bincount(truth.contributions.rows, minlength=view.n_items)
    own = np.concatenate([truth.people.of(person) for person in view.sums[-1].people.tolist()])
    touched, found = owners[owners > 0], clusters.audit(view, truth)[0]
    return {
        "isolated": found.attack.value if isinstance(found, Finding) else 0.0,
        "closed": {least: [float((touched < least).mean()), float((owners[own] < least).mean())] for least in LEAST},
    }


def recall(data: str, least: int) -> float:
    """On validation items, after few rounds of plain steps."""
    few = {"data": data, "rounds": ROUNDS, "checkpoint_every": 0}
    simulation = Simulation(Config().changed(SETTINGS["32 negatives"] | few))
    if least > 1:
        simulation.sums = Closing(simulation.sums, least)
    simulation.run()
    return float(max(line["recall@20"] for line in simulation.metrics if line["split"] == "validation"))


def bench(quick: bool) -> dict[str, Any]:
    data = "demo" if quick else "gowalla"
    rounds = {name: looked_at(data, options) for name, options in SETTINGS.items()}
    return {"data": data, "rounds": rounds, "recall": {least: recall(data, least) for least in (1, *LEAST)}}


def summary(result: dict[str, Any]) -> list[str]:
    lines = []
    for name, found in result["rounds"].items():
        shares = ", ".join(f"m = {m}: {100 * a:.1f} ({100 * b:.1f})" for m, (a, b) in found["closed"].items())
        lines.append(f"{name}: {100 * found['isolated']:.0f} % isolated; % of rows (of own items) closed, {shares}")
    values = ", ".join(f"m = {m}: {value:.4f}" for m, value in result["recall"].items())
    return [*lines, f"Recall@20 after {ROUNDS} rounds with 32 negatives, {values}"]
