"""What the benchmarks share: a timer, data of a published size, and where a measurement was made."""

import datetime
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fedgrec import data
from fedgrec.data import Interactions
from fedgrec.data.ids import IdMap
from fedgrec.errors import DataError

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
RESULTS = Path(__file__).parent / "results"
LIBRARIES = ("fedgrec", "numpy", "numba", "scipy", "torch", "cryptography", "implicit")
PAUSE = 0.5  # seconds: threads of a library spin for a while after work and would slow the next measurement


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call, after a pause."""
    time.sleep(PAUSE)
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternate(functions: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each function; they take turns, so that a slow moment of the machine affects all."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            times[name].append(seconds(function))
    return {name: statistics.median(values) for name, values in times.items()}


def gowalla() -> tuple[str, Interactions]:
    """Gowalla's train pairs, or invented pairs of the same number where Gowalla is not available."""
    try:
        return "gowalla", data.load("gowalla").split.train
    except DataError:
        return "invented, of Gowalla's size", heavy_tailed(29_858, 40_981, 810_128)


def heavy_tailed(n_users: int, n_items: int, n_pairs: int, seed: int = 0) -> Interactions:
    """Distinct random pairs: log-normal activity of users, Zipf-like popularity of items."""
    rng = np.random.default_rng(seed)
    activity, popularity = rng.lognormal(0, 0.9, n_users) + 0.4, (np.arange(n_items) + 20.0) ** -0.8
    by_user, by_item = (np.cumsum(p / p.sum()) for p in (activity, popularity))
    keys = np.arange(n_users) * n_items + rng.integers(n_items, size=n_users)  # everybody has at least one item
    while len(keys) < n_pairs:
        random = rng.random((2, n_pairs))
        users, items = (np.searchsorted(c[:-1], r) for c, r in zip((by_user, by_item), random, strict=True))
        more = np.setdiff1d(users * n_items + items, keys)
        keys = np.concatenate([keys, rng.permutation(more)[: n_pairs - len(keys)]])
    users, items = np.divmod(keys, n_items)
    ids = IdMap.range(n_users, "user"), IdMap.range(n_items, "item")
    return Interactions.from_indices(users, items, user_ids=ids[0], item_ids=ids[1])


def machine() -> dict[str, object]:
    """The processor, its cores and memory, and the operating system."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores": CORES,
        "memory_gb": round(memory / 1e9, 1),
        "system": platform.platform(),
        "load": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Python and the libraries that were measured."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> dict[str, object]:
    """The commit that was measured, and whether files differed from it."""

    def git(*words: str) -> str:
        run = subprocess.run(["git", *words], cwd=RESULTS.parents[1], capture_output=True, text=True, check=False)
        return run.stdout.strip()

    return {
        "commit": git("rev-parse", "HEAD"),
        "dirty": bool(git("status", "--porcelain", "--", ":!benchmarks/results")),
    }


def write(name: str, result: dict[str, Any], about: dict[str, Any]) -> Path:
    """Write a result with all facts that a reader needs to judge it."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"benchmark": name, **about, "result": result}, indent=2) + "\n")
    return path


def about() -> dict[str, Any]:
    """When, where and on what a measurement was made."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"date": date, "machine": machine(), "versions": versions(), **commit()}
