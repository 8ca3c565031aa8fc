"""The time of exact full ranking relative to the bare matrix product, at Gowalla's size, both in one run.

Seen and held-out pairs are Gowalla's own where $FEDGREC_DATA holds them, else random ones of the same number.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedgrec.models.ranking import evaluate

USERS, ITEMS, D = 29_858, 40_981, 64
TRAIN_PAIRS, TEST_PAIRS = 810_128, 217_242
BARE_BLOCKS = (256, 384, 1024)  # the bare product uses its fastest block size


class Pairs(NamedTuple):
    indptr: npt.NDArray[np.int64]
    items: npt.NDArray[np.int32]


def bench(repeats: int = 3) -> dict[str, object]:
    """Median seconds of the bare product and of the whole evaluation, taken in turns, and their ratio."""
    rng = np.random.default_rng(0)
    users, items = (rng.normal(0, 0.1, (n, D)).astype(np.float32) for n in (USERS, ITEMS))
    folder = Path(os.environ.get("FEDGREC_DATA", "")) / "gowalla"
    real = (folder / "train.txt").is_file()
    train = _read(folder / "train.txt") if real else _random(rng, TRAIN_PAIRS)
    test = _read(folder / "test.txt") if real else _random(rng, TEST_PAIRS)

    evaluate(users[:1], items, _first(train), _first(test))  # compiles, if nothing is cached yet
    columns = np.ascontiguousarray(items.T)
    block = min(BARE_BLOCKS, key=lambda b: min(_seconds(lambda: _product(users, columns, b)) for _ in range(2)))
    bare, full = [], []
    for _ in range(repeats):
        bare.append(_seconds(lambda: _product(users, columns, block)))
        full.append(_seconds(lambda: evaluate(users, items, train, test)))
    return {
        "data": "gowalla" if real else "random pairs of gowalla's size",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "bare_block": block,
        "bare_seconds": statistics.median(bare),
        "evaluate_seconds": statistics.median(full),
        "ratio": statistics.median(full) / statistics.median(bare),
        "ratio_of_best": min(full) / min(bare),  # least affected by other load on the machine
    }


def _product(users: npt.NDArray[np.float32], columns: npt.NDArray[np.float32], block: int) -> None:
    """Compute all scores; each block overwrites the one before."""
    buffer = np.empty((block, columns.shape[1]), np.float32)
    for lo in range(0, len(users), block):
        part = users[lo : lo + block]
        np.matmul(part, columns, out=buffer[: len(part)])


def _seconds(work: Callable[[], object]) -> float:
    time.sleep(0.5)  # BLAS's threads spin after a product and would slow the next measurement
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _read(path: Path) -> Pairs:
    """Lines of `user item item …`, users in order."""
    rows = [np.array(line.split()[1:], np.int32) for line in path.read_text().splitlines()]
    return Pairs(np.cumsum([0, *map(len, rows)], dtype=np.int64), np.concatenate(rows))


def _random(rng: np.random.Generator, pairs: int) -> Pairs:
    indptr = np.linspace(0, pairs, USERS + 1).astype(np.int64)
    return Pairs(indptr, rng.integers(0, ITEMS, pairs, dtype=np.int32))


def _first(pairs: Pairs) -> Pairs:
    """The first user alone."""
    return Pairs(pairs.indptr[:2], pairs.items[: pairs.indptr[1]])


if __name__ == "__main__":
    print(json.dumps(bench(), indent=2))
