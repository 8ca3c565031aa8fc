"""The comparison itself: run every method with every seed, then write the files of results."""

import functools
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedgrec import __version__
from fedgrec.data import Dataset
from fedgrec.data.files import claimed, write_json, write_text
from fedgrec.errors import BusyError, DiskError, FedgrecError
from fedgrec.kernels.devices import place
from fedgrec.pages.tables import csv, latex, markdown
from fedgrec.runs.record import RunRecord
from fedgrec.runs.simulation import Observer
from fedgrec.studies.compare import results
from fedgrec.studies.compare.packed import unpack
from fedgrec.studies.compare.plan import Settings
from fedgrec.studies.compare.rows import figure, public_name, ranked, row
from fedgrec.studies.compare.runs import FAILURE, Run

BUSY, PAUSE = "another process is at it", 2.0  # PAUSE: seconds until we look again
Failures = dict[tuple[str, int], str]  # why a (label, seed) has no result


@dataclass(frozen=True)
class Comparison:
    table: results.Table
    runs: list[Run]
    failures: Failures
    stopped: bool


def compare(settings: Settings, out: Path, watcher: Observer | None = None, only_finished: bool = False) -> Comparison:
    """Run what is not finished yet (with `only_finished`, nothing), and write only run folders.

    Of several processes with one folder each does the runs that no other is at, then waits for the others' ends.
    """
    watcher = watcher or Observer()
    load = functools.lru_cache(1)(settings.load)  # load each seed's data once; one seed's is in memory at a time
    dataset = load(settings.seeds[0])
    unpack(out)
    runs = settings.runs(out, dataset)
    for run in runs:  # all of them now: a wrong option must not wait for hours behind the first run
        run.check_options()
    if any(run.config.run.device == "cuda" and not run.finished for run in runs) and not only_finished:
        place("cuda")  # raises where there is no GPU
    failures = _run([run for run in runs if run.finished or not only_finished], load, watcher)
    done = [run for run in runs if run.finished and (run.has_model or not only_finished)]
    # of methods with one finished run only the intervals are over users
    lonely = [run for run in done if sum(other.entry is run.entry and other.finished for other in runs) == 1]
    for run in [] if watcher.stop_wanted() else lonely:
        if why := _attempt(run, load(run.seed), watcher, alone=True):
            failures[run.entry.label, run.seed] = why
    return Comparison(_table(settings, runs, failures, dataset), runs, failures, watcher.stop_wanted())


def _run(runs: Sequence[Run], load: Callable[[int], Dataset], watcher: Observer) -> Failures:
    """Do the runs in turn, then try the busy ones again: the other process has ended them or left them unfinished."""
    failures, left, again = Failures(), list(enumerate(runs, 1)), False
    while left and not watcher.stop_wanted():
        busy = []
        for number, run in left:
            if watcher.stop_wanted():
                break
            RunRecord.check_same_data(run.folder, load(run.seed))
            before = run.finished
            watcher.run_started(number, len(runs), run.entry.label, f", seed {run.seed}")
            why = _attempt(run, load(run.seed), watcher)
            if why == BUSY:
                busy.append((number, run))
            elif why:
                failures[run.entry.label, run.seed] = why
            if why != BUSY or not again:  # report a busy run only once
                watcher.run_ended(why or _result(run, before))
        left, again = busy, True
        time.sleep(PAUSE if busy else 0)
    return failures


def _result(run: Run, before: bool) -> str:
    """What a run found, for a line; `before`: it was finished already."""
    if not run.finished:
        return "not finished"
    values = [f"{key} {value:.4f}" for key, value in run.result().items() if key.startswith(("recall@", "ndcg@"))]
    return f"{', '.join(values)}{' (finished before)' if before else ''}"


def _attempt(run: Run, dataset: Dataset, watcher: Observer, alone: bool = False) -> str:
    """Train a run; returns why it has no result, or "". A failure of one method must not end the others."""
    try:
        if not run.finished:
            with claimed(run.folder):
                if not run.finished:  # another process may just have finished it
                    run.train(dataset, watcher)
        if run.finished and alone:
            with claimed(run.folder, wait=True):
                run.write_interval_over_users(dataset)
    except BusyError:
        return BUSY
    except DiskError:  # the other runs would fail too
        raise
    except Exception as error:
        run.folder.mkdir(parents=True, exist_ok=True)
        write_text(run.folder / FAILURE, traceback.format_exc())
        what = str(error) if isinstance(error, FedgrecError) else f"{type(error).__name__}: {error}"
        return f"failed: {' '.join(what.split())}"
    (run.folder / FAILURE).unlink(missing_ok=True)
    return ""


def _table(settings: Settings, runs: list[Run], failures: Failures, dataset: Dataset) -> results.Table:
    config = settings.common
    k, name, protocol = config.run.topk[0], public_name(dataset), config.run.protocol
    rows, sizes = [], (dataset.split.train.n_users, dataset.split.train.n_items)
    for entry in settings.entries:
        mine = [run for run in runs if run.entry is entry]
        theirs = figure(name, entry.method, mine[0].config.model) if k == 20 else None
        rows.append(row(entry, mine, protocol, k, sizes, theirs, failures, settings.metrics))
    return results.Table(name or dataset.name, protocol, k, ranked(rows), sizes[0], settings.metrics)


def write(comparison: Comparison, out: Path) -> None:
    """Write table, charts and numbers into the folder."""
    table = comparison.table
    grid, html = results.grid(table), results.render(table, comparison.runs)
    with claimed(out, wait=True):
        write_json(out / "compare.json", numbers(comparison))
        write_text(out / "compare.csv", csv(results.records(table)))
        write_text(out / "compare.md", markdown(grid))
        write_text(out / "compare.tex", latex(grid, f"compare-{table.data}"))
        write_text(out / "compare.html", html)


def numbers(comparison: Comparison) -> dict[str, Any]:
    """All numbers of the table, unrounded, and the runs behind them."""
    table = comparison.table
    about = {"fedgrec": __version__, "data": table.data, "protocol": table.protocol, "k": table.k}
    runs = []
    for run in comparison.runs:
        found = {"label": run.entry.label, "seed": run.seed, "folder": f"runs/{run.folder.name}"}
        found |= {"options": dict(run.settings()), "result": run.result() if run.finished else None}
        runs.append(found | {"failure": comparison.failures.get((run.entry.label, run.seed))})
    return about | {"notes": results.notes(table), "rows": [asdict(row) for row in table.rows], "runs": runs}
