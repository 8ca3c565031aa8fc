"""How users that lie change the model: how many people are recommended the item that the liars promote.

The item is rare, and without liars nobody is recommended it; the liars want it in everybody's list of 20.
`benchmarks.lying_users` has the lies. Measurements are over users who do not lie. Gowalla is measured with few
rounds, if its files are here.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.lying_users import Lie, harm, poisoned
from fedgrec.cable.core import Ints
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, Interactions
from fedgrec.data.datasets import load_for
from fedgrec.errors import DataError

SHARES = (0.0025, 0.01, 0.04)  # of all users: 1, 4 and 16 of a cohort of 400, on average
STRENGTHS = (1, 1 / 4, 1 / 16)  # of the bound, for spectral: too long a row becomes a separate direction
SUPPRESSED = 20  # the most popular items
FEW_ROUNDS = 200  # of Gowalla
LIARS_STREAM = 9


@dataclass(frozen=True)
class Case:
    """One training with liars."""

    method: str
    lie: str
    liars: int
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method
    about: Mapping[str, Any] = field(default_factory=dict)  # fields of the lie


def on_demo(users: int, quick: bool) -> Iterator[Case]:
    """Both methods under both lies; then one liar under different bounds, to see which bounds matter."""
    many = [round(share * users) for share in SHARES]
    few = {"rounds": 30} if quick else {}
    for method, options in (("spectral", {}), ("fedgrec", few)):
        yield Case(method, "none", 0, options)
        for liars in (1, *many):
            if liars >= many[1]:  # fewer liars have no visible effect
                yield Case(method, "profile", liars, options)
            for about in lies_within_bounds(method):
                yield Case(method, "bounds", liars, options, about)
    if quick:
        return
    yield Case("spectral", "bounds, capped norm", many[1], {}, {"signs": False, "capped": True})
    for capped in (False, True):
        name = ", capped norm" if capped else ""
        yield Case("fedgrec", f"items{name}", 1, {}, {"leaves": ("items",), "capped": capped})
        yield Case("fedgrec", f"items{name}", 1, {"item_levels": 0}, {"leaves": ("items",), "capped": capped})
        yield Case("fedgrec", f"latents{name}", 1, {}, {"leaves": ("latents",), "capped": capped})
    yield Case("fedgrec", "latents", 1, {"latent_clip": 0.25}, {"leaves": ("latents",)})
    yield Case("fedgrec", "bounds, popular items suppressed", 1, {}, {"suppress": SUPPRESSED})
    yield Case("fedgrec", "none", 0, {"ranking": "cosine"})
    yield Case("fedgrec", "bounds", 1, {"ranking": "cosine"})


def on_gowalla(users: int) -> Iterator[Case]:
    """Only FedGRec, with few rounds and few cases."""
    few = {"rounds": FEW_ROUNDS}
    yield Case("fedgrec", "none", 0, few)
    yield Case("fedgrec", "profile", round(SHARES[1] * users), few)
    yield Case("fedgrec", "items", 1, few, {"leaves": ("items",)})
    yield Case("fedgrec", "bounds", 1, few)
    yield Case("fedgrec", "bounds", round(SHARES[0] * users), few)


def lies_within_bounds(method: str) -> list[dict[str, Any]]:
    """The server's Adam uses only signs, so one lie is enough; for a subspace the best length of a lie varies."""
    if method == "fedgrec":
        return [{}]
    return [{"signs": False, "strength": strength} for strength in STRENGTHS]


def choose_target(data: Interactions) -> int:
    """A rare item: the first of those with the fewest users, but at least one."""
    degrees = data.degrees()
    return int(np.argmin(np.where(degrees > 0, degrees, degrees.max() + 1)))


def popular_profile(data: Interactions, target: int) -> Ints:
    """The target and the most popular items, as many as a user has on average."""
    size = max(round(data.n_pairs / max(data.n_users, 1)), 2)
    popular = np.argsort(-data.degrees(), kind="stable")
    return np.sort(np.append(popular[popular != target][: size - 1], target))


def choose_liars(n_users: int, liars: int, seed: int) -> Ints:
    """Positions of the liars; a larger number of liars includes those of a smaller one."""
    rng = np.random.Generator(np.random.Philox(key=[seed, LIARS_STREAM]))
    return rng.permutation(n_users)[:liars]


def measure(case: Case, name: str, dataset: Dataset) -> dict[str, Any]:
    """Train with the case's liars, and measure their effect."""
    train, started = dataset.split.train, time.perf_counter()
    target = choose_target(train)
    about = dict(case.about)
    if "suppress" in about:
        about["suppress"] = tuple(np.argsort(-train.degrees(), kind="stable")[: about["suppress"]].tolist())
    within_bounds = case.lie not in ("none", "profile")
    lie = Lie(target, popular_profile(train, target), within_bounds, **about)
    liars = choose_liars(train.n_users, case.liars, seed=0)
    config = Config().changed({"method": case.method, "data": name, **case.options})
    found = harm(poisoned(config, dataset, liars, lie), target, liars)
    return {
        "method": case.method,
        "lie": case.lie,
        "liars": case.liars,
        "options": dict(case.options),
        "about": dict(case.about),
        **found,
        "seconds": round(time.perf_counter() - started, 1),
    }


def bench(quick: bool) -> dict[str, Any]:
    """All cases on the demo, and on Gowalla if it is here."""
    result: dict[str, Any] = {}
    for name in ("demo",) if quick else ("demo", "gowalla"):
        try:
            dataset = load_for(Config().changed({"data": name}))
        except DataError:
            continue
        train = dataset.split.train
        cases = on_demo(train.n_users, quick) if name == "demo" else on_gowalla(train.n_users)
        target = choose_target(train)
        result[name] = {
            "users": train.n_users,
            "items": train.n_items,
            "target_degree": int(train.degrees()[target]),
            "profile": len(popular_profile(train, target)),
            "trainings": [measure(case, name, dataset) for case in cases],
        }
    return result


def summary(result: dict[str, Any]) -> list[str]:
    """The table: exposure and recall in %."""
    lines = []
    for name, found in result.items():
        lines.append(f"{name}: {found['users']:,} users, the target has {found['target_degree']}")
        lines.append(f"{'method':<10}{'lie':<34}{'liars':>6}{'exposed %':>11}{'recall %':>10}  options")
        for one in found["trainings"]:
            options = ", ".join(f"{key}={value}" for key, value in (one["options"] | one["about"]).items())
            lines.append(
                f"{one['method']:<10}{one['lie']:<34}{one['liars']:>6}{100 * one['exposure']:>11.1f}"
                f"{100 * one['recall']:>10.1f}  {options}{'' if one['finite'] else '  MOMENTS ARE INFINITE'}"
            )
    return lines


if __name__ == "__main__":
    print(json.dumps(bench(quick=True), indent=2))
