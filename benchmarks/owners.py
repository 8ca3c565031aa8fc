"""What it would do to keep rows closed that fewer than m people of a round touch.

isolated   the share of people, of those alone in three rows or more, whom a server isolates by the rows' directions
closed     the share of touched rows, and of rows of people's own items, that fewer than m of 400 people touch

The round is the first of a training. A federation would count the owners of rows by a secure sum before every round;
this benchmark counts them in the clear.
"""

from typing import Any

import numpy as np

from benchmarks.common import gowalla
from fedgrec.config.configuration import Config
from fedgrec.studies.audit import clusters
from fedgrec.studies.audit.recording import record
from fedgrec.studies.audit.scores import Finding

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


def one_round(data: str, options: dict[str, Any]) -> dict[str, Any]:
    """Who is in which row of the first round, of 400 people."""
    view, truth = record(Config().changed({"data": data, "users_per_round": 400, "rounds": 1, **options}))
    owners = np.bincount(truth.contributions.rows, minlength=view.n_items)
    own = np.concatenate([truth.people.of(person) for person in view.sums[-1].people.tolist()])
    touched, found = owners[owners > 0], clusters.audit(view, truth)[0]
    return {
        "isolated": found.attack.value if isinstance(found, Finding) else 0.0,
        "closed": {least: [float((touched < least).mean()), float((owners[own] < least).mean())] for least in LEAST},
    }


def bench(quick: bool) -> dict[str, Any]:
    data = "gowalla" if not quick and gowalla()[0] == "gowalla" else "demo"  # where its files are
    return {"data": data, "rounds": {name: one_round(data, options) for name, options in SETTINGS.items()}}


def summary(result: dict[str, Any]) -> list[str]:
    lines = []
    for name, found in result["rounds"].items():
        shares = ", ".join(f"m = {m}: {100 * a:.1f} ({100 * b:.1f})" for m, (a, b) in found["closed"].items())
        lines.append(f"{name}: {100 * found['isolated']:.0f} % isolated; % of rows (of own items) closed, {shares}")
    return lines
