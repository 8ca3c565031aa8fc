"""Peak memory of a whole run at Amazon-Book's size: warm-up, 50 rounds of `best`, evaluation, checkpoint.

The run has its own process. The pairs are invented, as many and as unevenly spread as Amazon-Book's.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import heavy_tailed
from fedgrec.config.configuration import preset
from fedgrec.data import Dataset, Split
from fedgrec.data.split import ratio
from fedgrec.runs.simulation import Observer, Simulation

USERS, ITEMS, PAIRS = 52_643, 91_599, 2_984_108  # a fifth of the pairs is held out for test
ROUNDS, LIMIT_GB = 50, 3.0


def bench(rounds: int = ROUNDS) -> dict[str, Any]:
    """Seconds and peak memory of the run, phase by phase."""
    root = Path(__file__).parent.parent
    command = [sys.executable, "-m", "benchmarks.memory", str(rounds)]
    output = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout
    phases = json.loads(output)
    peak = phases["finish"]["peak_gb"]
    return {
        "rounds": rounds,
        "phases": phases,
        "peak_gb": peak,
        "limit_gb": LIMIT_GB,
        "within": peak < LIMIT_GB,
    }


def peak_gb() -> float:
    """The most memory that this process and its largest child ever held."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would include the parent's memory at our start
        own = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    else:
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024 / 1e9


class Phases(Observer):
    """Notes seconds and peak memory at the end of each phase."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[str, float]] = {}
        self.since = time.perf_counter()

    def end(self, phase: str) -> None:
        now = time.perf_counter()
        self.seen[phase] = {"seconds": round(now - self.since, 2), "peak_gb": round(peak_gb(), 3)}
        self.since = now

    def started(self, done: int, rounds: int) -> None:
        self.last = rounds
        self.end("warm-up")

    def round_done(self, done: int) -> None:
        if done == self.last - 1:
            self.end("rounds")
        elif done == self.last:
            self.end("checkpoint")

    def evaluated(self, line: dict[str, Any]) -> None:
        self.end("evaluation")


def run(rounds: int) -> dict[str, dict[str, float]]:
    """The run itself."""
    phases = Phases()
    phases.end("start")
    dataset = Dataset("invented", Split(*ratio(heavy_tailed(USERS, ITEMS, PAIRS), 0.2, 0)))
    phases.end("data")
    values = {"rounds": rounds, "evaluate_every": rounds, "checkpoint_every": rounds, "protocol": "paper"}
    config = preset("best").changed(values, "benchmark")
    with tempfile.TemporaryDirectory() as folder:
        Simulation(config, dataset, Path(folder) / "run", phases).run()
        phases.end("finish")
    return phases.seen


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)))
