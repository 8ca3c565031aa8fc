"""How users that lie change the model: how many people are recommended the item that the liars promote.

The item is rare, and without liars nobody is recommended it; the liars want it in everybody's list of 20.
`benchmarks.lying_users` has the lies. Measurements are over users who do not lie, with the bound on items' lengths (the
option `longest`) and without it: one training gives both, because the bound holds where lists are made. Each lie is
told for three targets, with three seeds. Gowalla is measured with few rounds, if its files are here.
"""

import json
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from benchmarks.lying_users import Lie, harm, poisoned
from fedgrec.cable.core import Ints
from fedgrec.config.configuration import Config
from fedgrec.data import Interactions
from fedgrec.data.datasets import load_for
from fedgrec.errors import DataError

METHODS = ("fedgrec", "two-parts", "spectral")
WAYS = ("all", "usual")  # how long items' vectors may be: as long as they are, or as the method's `longest` says
SHARES = (0.01, 0.04)  # of all users
SEEDS = (0, 1, 2)
MANY = 50  # times the clip: what a liar may send who breaks it, in the cohorts of 400
INVENTED = 60  # people
SUPPRESSED = 20  # the most popular items
FEW_ROUNDS = 200  # of Gowalla
LIARS_STREAM = 9


@dataclass(frozen=True)
class Case:
    """One kind of training with liars."""

    method: str
    lie: str
    liars: int
    about: Mapping[str, Any] = field(default_factory=dict)  # fields of the lie


def cases(users: int, quick: bool) -> Iterator[Case]:
    """The lies within the clips by one, by few and by many; then what else a single liar may try."""
    few, many = (round(share * users) for share in SHARES)
    for method in METHODS:
        yield Case(method, "none", 0)
        yield Case(method, "profile", few)
        for liars in (1, few, many):
            yield Case(method, "bounds", liars)
            if method == "spectral":
                yield Case(method, "half the bound, in the last sum", liars, {"strength": 0.5, "begins": 3})
        if not quick:
            yield Case(method, "beyond the clip", 1, {"strength": MANY})
            yield Case(method, "bounds, invented people", 1, {"invented": INVENTED})
            yield Case(method, "bounds, popular items suppressed", 1, {"suppress": SUPPRESSED})


def on_gowalla(users: int) -> Iterator[Case]:
    for method in METHODS:
        for liars in (0, 1, round(SHARES[0] * users)):
            yield Case(method, "bounds" if liars else "none", liars)


def choose_target(data: Interactions, which: int = 0) -> int:
    """A rare item: one of those with the fewest users, but at least one; three of them lie far apart."""
    degrees = data.degrees()
    rare = np.flatnonzero(degrees == degrees[degrees > 0].min())
    return int(rare[which * len(rare) // len(SEEDS)])


def popular_profile(data: Interactions, target: int) -> Ints:
    """The target and the most popular items, as many as a user has on average."""
    size = max(round(data.n_pairs / max(data.n_users, 1)), 2)
    popular = np.argsort(-data.degrees(), kind="stable")
    return np.sort(np.append(popular[popular != target][: size - 1], target))


def choose_liars(n_users: int, liars: int, seed: int) -> Ints:
    """Positions of the liars; a larger number of liars includes those of a smaller one."""
    rng = np.random.Generator(np.random.Philox(key=[seed, LIARS_STREAM]))
    return rng.permutation(n_users)[:liars]


def measure(case: Case, data: str, options: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Train with the case's liars, and measure their effect on both kinds of lists."""
    config = Config().changed({"method": case.method, "data": data, "seed": seed, **options})
    dataset = load_for(config)
    train, about = dataset.split.train, dict(case.about)
    target, liars = choose_target(train, seed), choose_liars(train.n_users, case.liars, seed)
    if "suppress" in about:
        about["suppress"] = tuple(np.argsort(-train.degrees(), kind="stable")[: about["suppress"]].tolist())
    lie = Lie(target, popular_profile(train, target), case.lie not in ("none", "profile"), **about)
    found = poisoned(config, dataset, liars, lie)
    bounds = dict(zip(WAYS, (1.0, config.model.longest), strict=True))
    return {way: harm(found, target, liars, longest=longest) for way, longest in bounds.items()}


def together(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all seeds: the highest exposure, and means."""
    found: dict[str, Any] = {}
    for way in WAYS:
        one = [run[way] for run in runs]
        means = {name: float(np.mean([run[name] for run in one])) for name in ("exposure", "recall", "popular")}
        most = max(run["exposure"] for run in one)
        found[way] = {**means, "most": most, "finite": all(run["finite"] for run in one)}
    return found


def bench(quick: bool) -> dict[str, Any]:
    """All cases on the demo, and on Gowalla if it is here; processes side by side."""
    os.environ |= {"NUMBA_NUM_THREADS": "2", "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    workers = max((os.cpu_count() or 2) // 2, 1)
    result: dict[str, Any] = {}
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name in ("demo",) if quick else ("demo", "gowalla"):
            try:
                train = load_for(Config().changed({"data": name})).split.train
            except DataError:
                continue
            here = list(cases(train.n_users, quick) if name == "demo" else on_gowalla(train.n_users))
            rounds = 30 if quick else FEW_ROUNDS if name == "gowalla" else 0
            waiting = [
                [
                    pool.submit(
                        measure, case, name, {"rounds": rounds} if rounds and case.method != "spectral" else {}, s
                    )
                    for s in SEEDS
                ]
                for case in here
            ]
            result[name] = {
                "users": train.n_users,
                "items": train.n_items,
                "trainings": [
                    {**asdict(case), **together([run.result() for run in runs])}
                    for case, runs in zip(here, waiting, strict=True)
                ],
            }
    return result


def summary(result: dict[str, Any]) -> list[str]:
    """The table, in %: exposure (the mean and the highest of three), recall and what popular items hold of lists."""
    lines = []
    for name, found in result.items():
        lines.append(f"{name}: {found['users']:,} users")
        lines.append(
            f"{'method':<10}{'lie':<34}{'liars':>6}" + "".join(f"{way + ': exposed':>22}{'recall':>8}" for way in WAYS)
        )
        for one in found["trainings"]:
            cells = "".join(
                f"{100 * one[way]['exposure']:>14.1f} ({100 * one[way]['most']:>4.1f}){100 * one[way]['recall']:>9.2f}"
                for way in WAYS
            )
            lines.append(f"{one['method']:<10}{one['lie']:<34}{one['liars']:>6}{cells}")
    return lines


if __name__ == "__main__":
    print(json.dumps(bench(quick=True), indent=2))
