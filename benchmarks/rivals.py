"""Centralized rivals under the protocols of docs/results: EASE, and implicit's ALS where it is installed.

Settings are chosen by Recall@20 on validation items (honest, seed 0). Then test items are measured once: under `honest`
for three splits, with validation items left out of training; under `paper` with all training items.

EASE wants a GPU on large data. ALS is no part of the project's environment: `pip install implicit`.
"""

import importlib.util
import itertools
import os
import time
from collections.abc import Iterable
from typing import Any

from fedgrec import centralized, data
from fedgrec.centralized import evaluate_model
from fedgrec.data import Interactions
from fedgrec.kernels.devices import gpu_is_there
from fedgrec.models.ranking import Csr, Result, evaluate

Settings = dict[str, Any]
GRID: dict[str, list[Settings]] = {
    "ease": [{"l2": l2} for l2 in (10.0, 25.0, 50.0, 100.0, 200.0, 400.0, 800.0)],
    "als": [
        {"factors": factors, "regularization": regularization, "alpha": alpha}
        for factors, regularization, alpha in itertools.product((128, 256, 512), (10.0, 50.0), (40.0, 100.0))
    ],
}
DATA, SEEDS, VALIDATION, ITERATIONS = ("gowalla", "yelp2018"), 3, 0.1, 15


def bench(quick: bool) -> dict[str, Any]:
    names = [name for name in GRID if name != "als" or importlib.util.find_spec("implicit")]
    return {"rows": [row for name in names for on in (("demo",) if quick else DATA) for row in measured(name, on)]}


def measured(name: str, on: str) -> Iterable[dict[str, Any]]:
    """The search, then the test."""
    tried = [judged(name, on, settings) for settings in GRID[name]]
    yield from tried
    best = max(tried, key=lambda row: row["recall"])["settings"]
    yield from (judged(name, on, best, "honest", seed) for seed in range(SEEDS))
    yield judged(name, on, best, "paper")


def judged(name: str, on: str, settings: Settings, protocol: str = "validation", seed: int = 0) -> dict[str, Any]:
    started = time.perf_counter()
    split = data.load(on, validation=0.0 if protocol == "paper" else VALIDATION, seed=seed).split
    seen, held_out = (split.train, split.validation) if protocol == "validation" else (split.before_test, split.test)
    assert held_out is not None
    found = FIT[name](settings, split.train, seen, held_out, seed).metrics
    about = {"method": name, "data": on, "settings": settings, "protocol": protocol, "seed": seed}
    seconds = round(time.perf_counter() - started, 1)
    return about | {"recall": found["recall@20"], "ndcg": found["ndcg@20"], "seconds": seconds}


def ease(settings: Settings, train: Interactions, seen: Csr, held_out: Csr, seed: int) -> Result:
    model = centralized.make("ease", train, seed, "cuda" if gpu_is_there() else "cpu", **settings)
    return evaluate_model(model, seen, held_out)


def als(settings: Settings, train: Interactions, seen: Csr, held_out: Csr, seed: int) -> Result:
    from implicit.als import AlternatingLeastSquares

    threads = os.cpu_count() or 1
    model = AlternatingLeastSquares(
        **settings, iterations=ITERATIONS, random_state=seed, num_threads=threads, use_gpu=False
    )
    model.fit(train.to_scipy(), show_progress=False)
    return evaluate(model.user_factors, model.item_factors, seen, held_out)


FIT = {"ease": ease, "als": als}


def lines(result: dict[str, Any]) -> list[str]:
    return [
        f"{row['method']:<6}{row['data']:<10}{row['protocol']:<12}{row['seed']:<3}"
        f"{row['recall']:.4f} / {row['ndcg']:.4f}  {row['seconds']:>7.1f} s  {row['settings']}"
        for row in result["rows"]
    ]
