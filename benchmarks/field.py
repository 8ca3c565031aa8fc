"""The federated field's protocol: each user's last item among 99 that the user never had; and what lets it leak.

closed     negatives are drawn from all that is not among a user's training items: what this product always does
open       as published programs draw them: a user's validation and test items are never negatives

With the leak open, of a user's 100 candidates the test item alone is sure never to have been pushed down. The leak can
be opened here alone: this module replaces the draws of the readable kernels while a run trains and ranks.

The split is that of those programs: a user's last item is test, the one before validation, and of items with equal
times the one that comes first in the file counts as the later one.

    python -m benchmarks field                                                            all rows, kept as they come
    python -m benchmarks field --data ml-100k --method pfedrec --leak open                one of them
"""

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import common
from benchmarks.markdown import figure, section, table
from fedgrec import centralized
from fedgrec.cable import draws
from fedgrec.cable.core import Cohort, Ints
from fedgrec.config.configuration import Config
from fedgrec.config.options import METHODS
from fedgrec.data import Dataset, Interactions
from fedgrec.data.datasets import load_for
from fedgrec.data.registry import digest
from fedgrec.errors import DataError
from fedgrec.models.ranking import Judging, Result
from fedgrec.runs.simulation import Simulation
from fedgrec.runs.trained import measured

CHECKSUMS = {
    "ml-100k": "807b9ab64929525bfeac2a9045cf91df7017239b301fee472e4b47a69b6d6daf",
    "amazon-video": "a1292e4a4dba6c37be6ae5dc83d4404af96bf3eace4c8954e2f4e8360a3cdd76",
}
K, CANDIDATES, SAMPLES = 10, 99, 2_000
LEAKS = ("closed", "open")
Settings = dict[str, Any]


def grid(**values: Sequence[Any]) -> list[Settings]:
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


# What is tried; validation items choose. Trained methods have their own defaults alone.
DRAW: dict[str, list[Settings]] = {  # negatives: they have a row for each leak
    "pfedrec": [{}],
    "fedrap": grid(apart=(0.1, 0.0)),
    "fedmf": [{}],
    "fedncf": [{}],
    "fedgrec": [{}],
    "two-parts": grid(directions=(16, 64, 1024)),
    "federank": [{}],
    "alone": [{"rounds": 20}],
}
DRAW_NONE: dict[str, list[Settings]] = {
    "fcf": [{}],
    "spectral": grid(dim=(8, 16, 32, 64, 128, 256), exponent=(0.2, 0.35, 0.5), rounds=(4, 12)),
    "ordered": grid(dim=(64, 512), exponent=(0.2, 0.4, 0.6)),
    "ordered-parts": [
        {"rounds": sums + 4, **others}
        for sums in (4, 12)
        for others in grid(sums=(sums,), dim=(16, 64, 256), blend=(0.4, 1.0, 2.5))
    ],
    "popularity": [{}],
    "ease": grid(l2=(25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1600.0)),
    "itemknn": grid(neighbours=(5, 10, 20, 50, 100, 200), shrinkage=(0.0, 10.0, 100.0)),
}
ROWS = [(name, leak) for name in DRAW for leak in LEAKS] + [(name, "closed") for name in DRAW_NONE]
# Without a federation a user holds a table of all items, as in FedRAP: on Amazon-Video 12 GB for all.
LARGE = {("amazon-video", "fedrap"), ("amazon-video", "alone")}


@contextmanager
def leak(users: Cohort, known: Interactions) -> Iterator[None]:
    """Within this block these users draw no negative that is `known`: what they have in any part of the data."""
    had = {int(key): known.of(u).astype(np.int64) for u, key in enumerate(users.keys)}
    one, shelved = draws.negatives, draws.negatives_from

    def negatives(key: int, round_: int, count: int, positives: Ints, n_items: int, step: int = 0) -> Ints:
        """A shelf of items has a numbering of its own, and `negatives_from` has seen to it."""
        return one(key, round_, count, had[int(key)] if n_items == known.n_items else positives, n_items, step)

    def negatives_from(key: int, round_: int, shelves: draws.Shelves, positives: Ints) -> Ints:
        return shelved(key, round_, shelves, had[int(key)])

    with mock.patch.multiple(draws, negatives=negatives, negatives_from=negatives_from):
        yield


def loaded(name: str, config: Config) -> Dataset:
    """The data with a validation and a test item for every user who has three, by those programs' rule of ties."""
    path = Path(os.environ.get("FEDGREC_DATA", ".")) / name / "ratings.dat"
    if not path.is_file() or digest(path) != CHECKSUMS[name]:
        raise DataError(f"{path} is not PFedRec's copy of {name}: set FEDGREC_DATA to the folder that holds {name}/")
    with tempfile.TemporaryDirectory() as folder:
        backwards = Path(folder) / "ratings.dat"  # of equal times the product takes the last line
        backwards.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
        return load_for(config.changed({"data": str(backwards)}, "field"), order=True)


def row(name: str, method: str, open_: bool) -> dict[str, Any]:
    """The settings that validation items chose, and the test items measured with them once."""
    started, about = time.perf_counter(), common.about()
    federated, tried = method in METHODS or method == "alone", []
    base = {"split": "last", "topk": (K,), "candidates": CANDIDATES, "device": "cpu"}
    base |= {"kernel": "reference"} if open_ else {}
    with mock.patch.dict(METHODS, alone="benchmarks.alone"):
        dataset = loaded(name, Config().changed(base, "field"))
        for settings in (DRAW | DRAW_NONE)[method]:
            config = Config().changed({**base, **({"method": method, **settings} if federated else {})}, "field")
            found = trained(config, dataset, open_) if federated else made(method, settings, dataset)
            tried.append((found[0], settings, found[1:]))
        best, settings, (sampled, everything, rounds) = max(tried, key=lambda one: one[0])
    return {
        "data": name, "method": method, "leak": "open" if open_ else "closed", "settings": settings,
        "validation": best, "rounds": rounds, **figures("", sampled), **figures("all_", everything),
        "seconds": round(time.perf_counter() - started, 1), "users": sampled.users,
        "machine": f"{about['machine']['cores']} cores of an {about['machine']['cpu']}",
        "commit": about["commit"], "dirty": about["dirty"], "date": about["date"],
    }  # fmt: skip


def trained(config: Config, dataset: Dataset, open_: bool) -> tuple[float, Result, Result, int]:
    """Validation's HR@10, the test items among candidates and among all, and the round that counts."""
    run = Simulation(config, dataset)
    with leak(run.users, dataset.split.known) if open_ else nullcontext():
        model = run.run()
        validation = max(line[f"recall@{K}"] for line in run.metrics if line["split"] == "validation")
        seen, test = dataset.split.before_test, dataset.split.test
        assert test is not None
        among = (run.config.run, run.config.changed({"candidates": 0}, "field").run)
        sampled, everything = (measured(model, options, seen, test) for options in among)
    return validation, sampled, everything, model.round


def made(method: str, settings: Settings, dataset: Dataset) -> tuple[float, Result, Result, int]:
    """The same for a model without training."""
    split = dataset.split
    assert split.test is not None
    assert split.validation is not None
    model = centralized.make(method, split.train, **settings)
    how = Judging((K,), candidates=CANDIDATES, known=split.known)
    validation = centralized.evaluate_model(model, split.train, split.validation, how)
    sampled, everything = (
        centralized.evaluate_model(model, split.before_test, split.test, among) for among in (how, Judging((K,)))
    )
    return validation.metrics[f"recall@{K}"], sampled, everything, 0


def figures(prefix: str, found: Result) -> dict[str, Any]:
    """HR@10 (one item is held out, so it is the recall) and NDCG@10, with 95 % of the means of users drawn again."""
    rng, n, about = np.random.default_rng(0), found.users, {}
    drawn = rng.multinomial(n, np.full(n, 1 / n), SAMPLES) / n  # [samples, users]
    for name, metric in (("hr", f"recall@{K}"), ("ndcg", f"ndcg@{K}")):
        about[prefix + name] = float(found.per_user[metric].mean())
        about[f"{prefix}{name}_interval"] = np.quantile(drawn @ found.per_user[metric], (0.025, 0.975)).tolist()
    return about


def kept() -> list[dict[str, Any]]:
    path = common.RESULTS / "field.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["result"]["rows"] if path.exists() else []
    return rows


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m benchmarks field")
    found.add_argument("--data", choices=list(CHECKSUMS), action="append")
    found.add_argument("--method", choices=[*DRAW, *DRAW_NONE], action="append")
    found.add_argument("--leak", choices=LEAKS)
    return found


def main(words: Sequence[str], quick: bool) -> None:
    chosen, about = parser().parse_args(words), common.about()
    for name, (method, which) in itertools.product(chosen.data or CHECKSUMS, ROWS):
        asked = (not chosen.method or method in chosen.method) and chosen.leak in (None, which)
        if not asked or (not chosen.method and (name, method) in LARGE):
            continue
        found = row(name, method, which == "open")
        print(line(found), flush=True)
        if not quick:
            others = [one for one in kept() if (one["data"], one["method"], one["leak"]) != (name, method, which)]
            common.write("field", {"rows": [*others, found]}, about)


def line(row: dict[str, Any]) -> str:
    among = f"{row['hr']:.4f} / {row['ndcg']:.4f}, all items {row['all_hr']:.4f} / {row['all_ndcg']:.4f}"
    return f"{row['data']:<14}{row['method']:<12}{row['leak']:<8}{among}  {row['seconds']:>8.1f} s  {row['settings']}"


# --------------------------------------------------------------------------------------------- the page

HEAD = """# The federated field: measured

`python -m benchmarks tables` makes this page from [benchmarks/results](../../benchmarks/results).
[The federated field](../field.md) says what the columns mean. HR@10 / NDCG@10 of one test item for each user; ± is half
of the 95 % interval when users are drawn again. Validation items chose settings and rounds."""
NOT_FEDERATED = {"popularity": "popularity", "ease": "EASE", "itemknn": "ItemKNN"}
TITLES = {"ml-100k": "MovieLens-100K", "amazon-video": "Amazon-Video"}


def page() -> str:
    parts = [HEAD]
    for name, title in TITLES.items():
        rows = {(one["method"], one["leak"]): one for one in kept() if one["data"] == name}
        methods = [method for method in (*DRAW, *DRAW_NONE) if (method, "closed") in rows]
        head = ("method", "99 candidates, leak open", "leak closed", "leak closed, all items ranked")
        body = [
            (
                named(method),
                cell(rows.get((method, "open"))),
                cell(rows[method, "closed"]),
                cell(rows[method, "closed"], "all_"),
            )
            for method in sorted(methods, key=lambda method: -rows[method, "closed"]["hr"])
        ]
        parts.append(section(title, table(head, body)))
    return "\n\n".join(parts) + "\n"


def named(method: str) -> str:
    alone = "`pfedrec`, federation off, 20 rounds"
    return alone if method == "alone" else NOT_FEDERATED.get(method, f"`{method}`")


def cell(row: dict[str, Any] | None, prefix: str = "") -> str:
    """Of a method that draws no negatives the leak shows nothing."""
    if row is None:
        return "–"
    intervals = {name: row[f"{prefix}{name}_interval"] for name in ("hr", "ndcg")}
    halves = {name: (high - low) / 2 for name, (low, high) in intervals.items()}
    return " / ".join(f"{figure(row[prefix + name], 3)} ± {figure(half, 3)}" for name, half in halves.items())
