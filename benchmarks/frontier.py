"""The cost of privacy: Recall@20 against ε and against what attacks find, for FedGRec and Spectral.

unit         interaction: decoys; user: noise in the secure sums
recall       on test items, of the round that validation items chose; a few seeds
attacks      of `fedgrec audit`, with the first seed: the share of items that they name or link, beside popularity

`python -m benchmarks.frontier` draws docs/privacy-frontier.png from the kept result.
"""

import json
import multiprocessing
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS
from benchmarks.drawing import BLUE, RED, legend_below, new_figure, png, set_frame
from fedgrec.config.configuration import Config, preset
from fedgrec.errors import FedgrecError
from fedgrec.kernels.devices import gpu_is_there
from fedgrec.runs.simulation import Simulation
from fedgrec.studies.audit import clusters, membership
from fedgrec.studies.audit.recording import record
from fedgrec.studies.audit.scores import Finding

EPSILONS = {"interaction": (12.0, 10.0, 8.0, 7.0, 6.0, 5.0, 4.0), "user": (32.0, 16.0, 8.0, 4.0, 2.0, 1.0)}
METHODS, SEEDS = ("fedgrec", "spectral"), 3
TOGETHER = 6  # runs that share a GPU
ATTACKS = (clusters.TIED, membership.FROM_SUMS, membership.FROM_MODEL, membership.STRANGERS)
WIDTH = 9
COLUMNS = "".join(f"{name:>{WIDTH}}" for name in ("latents", "sums", "model", "strange"))  # the same, in short
HOLLOW = {"markerfacecolor": "white", "linewidth": 0.6}  # people who were in no sum
Job = tuple[str, str, str, float, int, bool]  # data, method, unit, ε (0: no promise), seed, whether it is attacked


def bench(quick: bool) -> dict[str, Any]:
    names, seeds = (("demo",), 1) if quick else (("gowalla", "yelp2018"), SEEDS)
    return {"seeds": seeds, "rows": list(measured(jobs(names, seeds)))}


def jobs(names: Iterable[str], seeds: int) -> list[Job]:
    """Every run. The first seed of all settings comes first, so that a benchmark stopped early has a whole frontier."""
    settings = [("", 0.0), *((unit, epsilon) for unit, values in EPSILONS.items() for epsilon in values)]
    return [
        (data, method, unit, epsilon, seed, attacked)
        for seed in range(seeds)
        for attacked in ((False, True) if seed == 0 else (False,))
        for data in names
        for unit, epsilon in settings
        for method in METHODS
    ]


def measured(todo: list[Job]) -> Iterable[dict[str, Any]]:
    if not gpu_is_there():
        yield from map(measure, todo)
        return
    with multiprocessing.get_context("spawn").Pool(TOGETHER) as pool:
        yield from pool.imap_unordered(measure, todo)


def measure(job: Job) -> dict[str, Any]:
    """One run, measured or attacked."""
    *setting, attacked = job
    line: dict[str, Any] = dict(zip(("data", "method", "unit", "epsilon", "seed"), setting, strict=True))
    started = time.perf_counter()
    try:
        line |= {"attacks": found(config_of(job))} if attacked else judged(config_of(job))
    except FedgrecError as error:
        line["error"] = str(error)
    return line | {"seconds": round(time.perf_counter() - started, 1)}


def config_of(job: Job) -> Config:
    data, method, unit, epsilon, seed, _ = job
    values: dict[str, Any] = {"method": method, "data": data, "seed": seed, "checkpoint_every": 0}
    return preset("best").changed(values | ({"dp_epsilon": epsilon, "dp_unit": unit} if unit else {}), "the frontier")


def judged(config: Config) -> dict[str, Any]:
    run = Simulation(config)
    run.run()
    result = run.result()
    validation = max(line["recall@20"] for line in run.metrics if line["split"] == "validation")
    return {"recall": result["recall@20"], "ndcg": result["ndcg@20"], "validation": validation}


def found(config: Config) -> dict[str, Any]:
    """The share of items that attacks name or link, beside that of a guess by popularity."""
    view, truth = record(config)
    lines = (
        clusters.audit_latents(view, truth),
        membership.audit_sums(view, truth),
        membership.audit_model(view, truth, strangers=False),
        membership.audit_model(view, truth, strangers=True),
    )
    return {
        line.name: [line.attack.value, line.popularity.value if line.popularity else None]
        for line in lines
        if isinstance(line, Finding)
    }


# -------------------------------------------------------------------------------------------- what is shown


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The mean recall over seeds, its share of the recall without a promise, and what attacks name or link, in %."""
    lines = [f"{'data':<10}{'method':<10}{'unit':<13}{'ε':>5}{'recall@20':>11}{'share':>8}{COLUMNS}"]
    for data, method in sorted({(row["data"], row["method"]) for row in rows}):
        exact = mean(rows, data, method, "", 0.0)
        for unit, values in {"": (0.0,), **EPSILONS}.items():
            for epsilon in values:
                recall = mean(rows, data, method, unit, epsilon)
                if recall is not None and exact:
                    share = f"{recall:>11.4f}{100 * recall / exact:>7.1f}%"
                    found = [successes(rows, data, method, unit, epsilon).get(name) for name in ATTACKS]
                    attacks = "".join(f"{'–' if one is None else f'{100 * one:.1f}':>{WIDTH}}" for one in found)
                    lines.append(f"{data:<10}{method:<10}{unit or '–':<13}{epsilon or '–':>5}{share}{attacks}")
    return lines


def successes(rows: list[dict[str, Any]], data: str, method: str, unit: str, epsilon: float) -> dict[str, float]:
    """What each attack names or links, where it was measured."""
    found = kept_of(rows, "attacks", data, method, unit, epsilon)
    return {name: shares[0] for name, shares in (found[0] if found else {}).items()}


def mean(rows: list[dict[str, Any]], data: str, method: str, unit: str, epsilon: float) -> float | None:
    values = kept_of(rows, "recall", data, method, unit, epsilon)
    return statistics.mean(values) if values else None


def kept_of(rows: list[dict[str, Any]], what: str, data: str, method: str, unit: str, epsilon: float) -> list[Any]:
    """This value of every run of a setting that has it."""
    wanted = {"data": data, "method": method, "unit": unit, "epsilon": epsilon}
    return [row[what] for row in rows if what in row and wanted.items() <= row.items()]


def picture(rows: list[dict[str, Any]]) -> bytes:
    """Recall against ε, and against what the model tells: a column for each data set, a line for a method and unit."""
    names = sorted({row["data"] for row in rows})
    figure = new_figure(4.2 * len(names), 6.6)
    panels = figure.subplots(2, len(names), squeeze=False, sharey="col")
    for (above, below), data in zip(panels.T, names, strict=True):
        for method, colour in (("spectral", BLUE), ("fedgrec", RED)):
            above.axhline(mean(rows, data, method, "", 0.0), color=colour, linewidth=0.8, linestyle=":")
            for unit, style in (("interaction", "-"), ("user", "--")):
                points = {e: r for e in EPSILONS[unit] if (r := mean(rows, data, method, unit, e)) is not None}
                look: dict[str, Any] = {"linestyle": style, "color": colour, "marker": "o", "markersize": 3}
                above.plot([*points], [*points.values()], label=f"{method}, ε for each {unit}", **look)
                for attack, more in ((membership.FROM_MODEL, {}), (membership.STRANGERS, HOLLOW)):
                    named = {e: successes(rows, data, method, unit, e).get(attack) for e in points}
                    told = {e: 100 * share for e, share in named.items() if share is not None}
                    below.plot([*told.values()], [points[e] for e in told], **look | more)
        recall = "Recall@20" if above is panels[0, 0] else ""
        above.set_xscale("log", base=2)
        above.set_xticks([1, 2, 4, 8, 16, 32], [1, 2, 4, 8, 16, 32])
        set_frame(above, data, "ε", recall)
        set_frame(below, "", "% of a person's other items that the model names\n(hollow: people in no sum)", recall)
        above.set_ylim(bottom=0)
        below.set_xlim(left=0)
    legend_below(figure, panels[0, 0], 2)
    return png(figure)


if __name__ == "__main__":
    kept = json.loads((RESULTS / "frontier.json").read_text())["result"]["rows"]
    print(*table(kept), sep="\n")
    Path("docs/privacy-frontier.png").write_bytes(picture(kept))
