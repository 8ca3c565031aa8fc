"""Seconds and memory of a CSV of clicks on its way to a split data set, against pandas, which only makes columns of it.

The files are invented: ids as numbers or as words, ratings and times beside them. Each reading has its own process.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import peak_gb

USERS, ITEMS, PAIRS = 60_000, 40_000, 1_000_000
LINES = {"numbers": "{},{},{},{}\n", "words": "user-{},item-{},{},{}\n"}
WAYS = ("fedgrec", "fedgrec without pyarrow", "pandas")


def bench(repeats: int = 3, pairs: int = PAIRS) -> dict[str, Any]:
    """Medians of each way, taken in turns, and our seconds over those of pandas."""
    found: dict[str, Any] = {"pairs": pairs}
    with tempfile.TemporaryDirectory() as folder:
        for kind, line in LINES.items():
            path = Path(folder) / f"{kind}.csv"
            rng = np.random.default_rng(0)
            users, items = rng.integers(0, USERS, pairs).tolist(), (ITEMS * rng.random(pairs) ** 2).astype(int).tolist()
            rows = (line.format(u, i, (u + i) % 10 / 2, n) for n, (u, i) in enumerate(zip(users, items, strict=True)))
            path.write_text("user,item,rating,time\n" + "".join(rows))
            ways = [way for way in WAYS if find_spec(way.split()[-1])]
            runs = [{way: _apart(way, path) for way in ways} for _ in range(repeats)]
            about = {
                way: {key: statistics.median(run[way][key] for run in runs) for key in runs[0][way]} for way in ways
            }
            ratio = about["fedgrec"]["seconds"] / about["pandas"]["seconds"] if "pandas" in about else None
            found[kind] = {"megabytes": path.stat().st_size / 1e6, "ways": about, "ratio": ratio}
    return found


def _apart(way: str, path: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.reading", way, str(path)]
    root = Path(__file__).parent.parent
    return dict(json.loads(subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout))


def run(way: str, path: Path) -> dict[str, float]:
    """One reading, once its libraries are imported."""
    if way == "pandas":
        import pandas

        work: Any = pandas.read_csv
    else:
        if way != "fedgrec":
            sys.modules["pyarrow"] = None  # type: ignore[assignment]
        elif find_spec("pyarrow"):
            import pyarrow.csv  # noqa: F401
        from fedgrec.data import load as work
    before, start = peak_gb(), time.perf_counter()
    work(path)
    return {"seconds": time.perf_counter() - start, "gb": peak_gb() - before}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], Path(sys.argv[2]))))
