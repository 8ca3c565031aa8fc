"""A federation of 10,000, of 100,000 and of a million users: 50 rounds of `best`, an evaluation, a checkpoint.

Everybody has 20 of 100,000 invented items; 10,000 people are evaluated. Each size has its own process. A round has a
cohort of 400 however many users there are, so its time must hardly grow; memory may grow with the users' states.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import Phases
from fedgrec.config.configuration import preset
from fedgrec.data import Dataset, IdMap, Interactions, Split
from fedgrec.runs.simulation import Simulation

SIZES, ITEMS, ITEMS_OF_A_USER = (10**4, 10**5, 10**6), 100_000, 20
JUDGED, HELD_OUT, ROUNDS = 10_000, 4, 50
LIMIT_GB, LIMIT_RATIO = 12.0, 1.2
BLOCK = 50_000  # users that are invented at a time


def bench(sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Seconds and peak memory for each number of users, and how much longer a round takes with the most users."""
    found = {}
    for users in sizes:
        command = [sys.executable, "-m", "benchmarks.scale", str(users)]
        root = Path(__file__).parent.parent
        output = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout
        found[str(users)] = json.loads(output)
    first, last = found[str(sizes[0])], found[str(sizes[-1])]
    return {
        "users": found,
        "round_ratio": last["round_ms"] / first["round_ms"],
        "limit_ratio": LIMIT_RATIO,
        "peak_gb": max(size["peak_gb"] for size in found.values()),
        "limit_gb": LIMIT_GB,
    }


def invented(n_users: int, seed: int = 0) -> Split:
    """20 distinct items for everybody, some items far more popular than others."""
    rng = np.random.default_rng(seed)
    popularity = (np.arange(ITEMS) + 20.0) ** -0.8
    upto = np.cumsum(popularity / popularity.sum())[:-1]
    items = np.empty((n_users, ITEMS_OF_A_USER), np.int32)
    for lo in range(0, n_users, BLOCK):
        rows = items[lo : lo + BLOCK]
        rows[:] = np.sort(np.searchsorted(upto, rng.random(rows.shape)), axis=1)
        while len(again := np.flatnonzero((np.diff(rows, axis=1) == 0).any(axis=1))):
            rows[again] = np.sort(np.searchsorted(upto, rng.random((len(again), ITEMS_OF_A_USER))), axis=1)
    ids = IdMap.range(n_users, "user"), IdMap.range(ITEMS, "item")
    whole = Interactions(*ids, np.arange(n_users + 1) * ITEMS_OF_A_USER, items.ravel())
    held = np.zeros(items.shape, bool)
    held[rng.choice(n_users, min(JUDGED, n_users), replace=False), :HELD_OUT] = True
    return Split(whole.select(~held.ravel()), whole.select(held.ravel()))


class Rounds(Phases):
    """Also notes how long each round took."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self.begun = 0.0

    def started(self, done: int, rounds: int) -> None:
        super().started(done, rounds)
        self.begun = time.perf_counter()

    def round_done(self, done: int) -> None:
        super().round_done(done)
        now = time.perf_counter()
        if done < self.last:  # the time of the last round includes evaluation and checkpoint
            self.times.append(now - self.begun)
        self.begun = now


def run(n_users: int) -> dict[str, Any]:
    phases = Rounds()
    dataset = Dataset("invented", invented(n_users))
    phases.end("data")
    values = {"rounds": ROUNDS, "evaluate_every": ROUNDS, "checkpoint_every": ROUNDS, "protocol": "paper"}
    with tempfile.TemporaryDirectory() as folder:
        Simulation(preset("best").changed(values), dataset, Path(folder) / "run", phases).run()
        phases.end("finish")
    return {
        "round_ms": round(1e3 * statistics.median(phases.times), 2),
        "peak_gb": phases.seen["finish"]["peak_gb"],
        "phases": phases.seen,
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]))))
