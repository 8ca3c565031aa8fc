"""What `train`, `finish` and `grow` share: load the data, train with a bar, say what came of it and what is next.

With several processes, only the first one writes files and prints; the others compute.
"""

import argparse
import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgrec.config.configuration import Config
from fedgrec.errors import FedgrecError, RunError

if TYPE_CHECKING:
    from fedgrec.data import Dataset, Split
    from fedgrec.runs.distributed import Ranks
    from fedgrec.runs.simulation import Observer, Simulation

Start = Callable[[Config, "Dataset", "Observer"], "Simulation"]


def add_quiet(command: argparse.ArgumentParser) -> None:
    command.add_argument("--quiet", action="store_true", help="no progress bar and no table")


def check_new(folder: Path, ranks: "Ranks") -> None:
    """A new run never writes into a folder that holds anything else."""
    from fedgrec.data.files import check_writable

    if ranks.first:
        check_writable(folder)
        if folder.exists() and any(not path.name.endswith(".part") for path in folder.iterdir()):
            raise RunError(f"{folder} is not empty: add --resume to go on with that run, or choose another --out")


def opened(folder: Path, ranks: "Ranks") -> Path:
    """The folder of a run that goes on; an interrupted growth is ended first."""
    from fedgrec.runs.growth import end_growth

    if ranks.first:
        end_growth(folder)
    return ranks.shown(folder)


def loaded(config: Config, folder: Path, ranks: "Ranks", before: "Split | None" = None) -> tuple[Config, "Dataset"]:
    """The configuration with everything decided, and the data, split as `before` if that is given."""
    from fedgrec.data.datasets import load_for
    from fedgrec.data.files import check_writable
    from fedgrec.runs.resolve import resolved

    if ranks.first:
        check_writable(folder)
    dataset = ranks.in_turn(lambda: load_for(config, before))
    return resolved(config, dataset), dataset


def simulated(folder: Path, ranks: "Ranks", resumes: bool = False) -> Start:
    """Begins a run, or goes on with it on the same data."""
    from fedgrec.runs.simulation import Simulation

    def begin(config: Config, dataset: "Dataset", bar: "Observer") -> "Simulation":
        simulation = Simulation(config, dataset, folder if ranks.first or resumes else None, bar, ranks)
        if resumes:
            simulation.resume()
        return simulation

    return begin


def trained(
    config: Config,
    dataset: "Dataset",
    folder: Path,
    begin: Start,
    ranks: "Ranks",
    names: Path | None,
    quiet: bool,
    note: str = "",
) -> int:
    """Train to the end, or until somebody stops it; then print the result and the next commands."""
    from fedgrec.cli.progress import Bar
    from fedgrec.data.datasets import describe
    from fedgrec.data.files import claimed
    from fedgrec.data.item_names import keep, read_names

    notes = [note, read_names(names, dataset.split.train.item_ids).note if names else ""]
    ranks.agree(f"{config.method} {config.model} {config.run} {describe(dataset)}")
    bar = Bar(quiet=quiet or not ranks.first)
    with claimed(folder) if ranks.first else nullcontext():
        simulation = begin(config, dataset, bar)
        bar.describe(simulation.config, dataset)
        for line in filter(None, notes):
            bar.say(f"  {line}")
        if names and ranks.first:
            keep(names, folder)
        if not ranks.first:
            simulation.record = None
        with bar.watching():
            simulation.run()
    if not ranks.first:
        return 0 if simulation.finished else 130
    if not simulation.finished:
        print(
            f"\nStopped after round {simulation.server.round:,}; everything is saved. Go on with:\n"
            f"  {shlex.join(['fedgrec', 'train', '--out', str(folder), '--resume'])}",
            file=sys.stderr,
        )
        return 130
    bar.summary(simulation)
    _report(folder, bar)
    _say_next(folder, dataset, bar)
    return 0


def say_complete(folder: Path, ranks: "Ranks") -> int:
    if ranks.first:
        print(f"{folder} is complete; --rounds N or --patience N with a larger N goes on.")
    return 0


def _say_next(folder: Path, dataset: "Dataset", bar: Any) -> None:
    """Print the next commands: train on everything, held-out items included, and recommend."""
    bar.say(f"\nThe run is in {folder}. Next:")
    if held := [f"{count:,} {name}" for name, count in dataset.split.held_out.items() if count]:
        bar.say(f"  {shlex.join(['fedgrec', 'finish', str(folder)])}")
        bar.say(f"    learns from all of it, the {' and '.join(held)} items included")
    somebody = str(dataset.split.train.user_ids[0])
    bar.say(f"  {shlex.join(['fedgrec', 'recommend', str(folder), '--user', somebody])}")


def _report(folder: Path, bar: Any) -> None:
    """The report is a convenience: without it a run is still complete."""
    try:
        from fedgrec.pages.report import write_report

        bar.say(f"report: {write_report(folder)}")
    except FedgrecError as error:
        bar.say(f"no report: {error}")
