"""The comparison itself: run every method with every seed, then write the files of results."""

import functools
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedgrec import __version__
from fedgrec.compare import page, tables
from fedgrec.compare.packed import unpack
from fedgrec.compare.plan import Settings
from fedgrec.compare.published import figure, public_name
from fedgrec.compare.rows import Row, ranked, row
from fedgrec.compare.runs import FAILURE, Run
from fedgrec.data import Dataset
from fedgrec.devices import place
from fedgrec.errors import BusyError, DiskError, FedgrecError
from fedgrec.files import claimed, write_json, write_text
from fedgrec.simulation import Observer
from fedgrec.tables import csv, latex, markdown

BUSY, PAUSE = "another process is at it", 2.0  # PAUSE: seconds until we look again


class Watcher(Observer):
    """Watches a comparison, and each of its runs as an Observer does."""

    def run_started(self, run: Run, number: int, total: int) -> None: ...
    def run_ended(self, run: Run, why: str) -> None: ...


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison. `failures` says why a (label, seed) has no result."""

    table: tables.Table
    runs: list[Run]
    failures: dict[tuple[str, int], str]
    stopped: bool

    @property
    def rows(self) -> Sequence[Row]:
        return self.table.rows


def compare(settings: Settings, out: Path, watcher: Watcher | None = None, only_finished: bool = False) -> Comparison:
    """Run what is not finished yet (with `only_finished`, nothing), and write only run folders.

    Several processes may compare into one folder: each does the runs that no other process is at, then waits for the
    others to end theirs.
    """
    watcher = watcher or Watcher()
    load = functools.lru_cache(1)(settings.load)  # load each seed's data once; one seed's is in memory at a time
    dataset = load(settings.seeds[0])
    unpack(out)
    runs = settings.runs(out, dataset)
    for run in runs:  # all of them now: a wrong option must not wait for hours behind the first run
        run.check_options()
    if any(run.runs_on == "cuda" and not run.finished for run in runs) and not only_finished:
        place("cuda")  # raises where there is no GPU
    failures = _run([run for run in runs if run.finished or not only_finished], load, watcher)
    lonely = [run for run in _lonely(runs) if run.has_model or not only_finished]
    for run in [] if watcher.stop_wanted() else lonely:
        if why := _attempt(run, load(run.seed), watcher, alone=True):
            failures[run.entry.label, run.seed] = why
    return Comparison(_table(settings, runs, failures, dataset), runs, failures, watcher.stop_wanted())


def _run(runs: Sequence[Run], load: Callable[[int], Dataset], watcher: Watcher) -> dict[tuple[str, int], str]:
    """Do the runs in turn, then try the busy ones again: the other process has ended them or left them unfinished."""
    failures, left, again = {}, list(enumerate(runs, 1)), False
    while left and not watcher.stop_wanted():
        busy = []
        for number, run in left:
            if watcher.stop_wanted():
                break
            run.check_data(load(run.seed))
            watcher.run_started(run, number, len(runs))
            why = _attempt(run, load(run.seed), watcher)
            if why == BUSY:
                busy.append((number, run))
            elif why:
                failures[run.entry.label, run.seed] = why
            if why != BUSY or not again:  # report a busy run only once
                watcher.run_ended(run, why)
        left, again = busy, True
        time.sleep(PAUSE if busy else 0)
    return failures


def _lonely(runs: Sequence[Run]) -> list[Run]:
    """The finished runs of methods with one finished run only: their intervals are over users."""
    done = [run for run in runs if run.finished]
    return [run for run in done if sum(other.entry is run.entry for other in done) == 1]


def _attempt(run: Run, dataset: Dataset, watcher: Watcher, alone: bool = False) -> str:
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


def _table(settings: Settings, runs: list[Run], failures: dict[tuple[str, int], str], dataset: Dataset) -> tables.Table:
    config = settings.common
    k, name, protocol = config.run.topk[0], public_name(dataset), config.run.protocol
    rows, n_users = [], dataset.split.train.n_users
    for entry in settings.entries:
        mine = [run for run in runs if run.entry is entry]
        theirs = figure(name, entry.method, mine[0].options) if k == 20 else None
        rows.append(row(entry, mine, protocol, k, n_users, theirs, failures, settings.metrics))
    return tables.Table(name or dataset.name, protocol, k, ranked(rows), n_users, settings.metrics)


def write(comparison: Comparison, out: Path) -> None:
    """Write table, charts and numbers into the folder."""
    table = comparison.table
    grid, html = tables.grid(table), page.render(table, comparison.runs)
    with claimed(out, wait=True):
        write_json(out / "compare.json", numbers(comparison))
        write_text(out / "compare.csv", csv(tables.records(table)))
        write_text(out / "compare.md", markdown(grid))
        write_text(out / "compare.tex", latex(grid, f"compare-{table.data}"))
        write_text(out / "compare.html", html)


def numbers(comparison: Comparison) -> dict[str, Any]:
    """All numbers of the table, unrounded, and the runs behind them."""
    table = comparison.table
    runs = [
        {
            "label": run.entry.label,
            "seed": run.seed,
            "folder": f"runs/{run.folder.name}",
            "options": dict(run.settings()),
            "result": run.result() if run.finished else None,
            "failure": comparison.failures.get((run.entry.label, run.seed)),
        }
        for run in comparison.runs
    ]
    return {
        "fedgrec": __version__,
        "data": table.data,
        "protocol": table.protocol,
        "k": table.k,
        "notes": tables.notes(table),
        "rows": [asdict(row) for row in table.rows],
        "runs": runs,
    }
