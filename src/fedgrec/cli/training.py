"""`fedgrec finish` and `fedgrec grow`, and what they share with `train`: load, train with a bar, say what is next."""

import os
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgrec.cli.configured import add_item_names, add_set, assigned, command, flags
from fedgrec.config.checking import bare
from fedgrec.config.configuration import Config, named, recorded
from fedgrec.errors import AGAIN, ConfigError, DiskError, FedgrecError, RunError

if TYPE_CHECKING:
    from fedgrec.data import Dataset, Split
    from fedgrec.runs.simulation import Observer, Simulation

LENGTH = {"rounds", "patience", "checkpoint_every", "threads"}  # what a run that goes on may change
Start = Callable[[Config, "Dataset", "Observer"], "Simulation"]


def register(commands: Any) -> None:
    finish = command(commands, "finish", run_finish, "learn from everything, held-out items included")
    finish.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run")
    finish.add_argument("--out", type=Path, metavar="FOLDER", help="the new run's folder (default: RUN-final)")
    add_names_and_quiet(finish)
    grow = command(commands, "grow", run_grow, "go on with a run on data that has grown")
    grow.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    grow.add_argument("--data", metavar="FILE", help="where the data is now (default: where it was)")
    grow.add_argument("--rounds", metavar="N", help="rounds in all (default: a fifth more)")
    add_set(grow, "patience, checkpoint_every or threads from now on")
    add_names_and_quiet(grow)
    grow.set_defaults(options=["data", "rounds"])


def add_names_and_quiet(command: ArgumentParser, text: str = "") -> None:
    add_item_names(command, text)
    command.add_argument("--quiet", action="store_true", help="no progress bar and no table")


def run_finish(arguments: Namespace) -> int:
    """Train on all of a finished run's data, its held-out items included, with the run's options and for as many
    rounds as it chose.
    """
    from fedgrec.data.item_names import KEPT
    from fedgrec.models.model import run_config
    from fedgrec.runs.record import chosen_round, recorded_about
    from fedgrec.runs.resolve import final, on_todays_machine

    before: Path = arguments.run
    config = final(on_todays_machine(run_config(before)), chosen_round(before))
    named = before.resolve() if before.name in ("", "..") else before
    folder: Path = arguments.out or named.with_name(f"{named.name}-final")
    check_new(folder)
    config, dataset = loaded(config, folder)
    note = f"The data is not what {before} was trained on: this run learns from it as it is now."
    changed = recorded_about(before, "checksums") != dataset.checksums
    arguments.item_names = arguments.item_names or ((before / KEPT) if (before / KEPT).exists() else None)
    return trained(arguments, config, dataset, folder, simulated(folder), note if changed else "")


def run_grow(arguments: Namespace) -> int:
    """Go on with a run on its data as it is now, in the same file or in another. People, items and clicks may have
    come and gone; held-out items stay held out. The run gets a fifth of its rounds more.
    """
    from fedgrec.runs.growth import grown_run, split_of
    from fedgrec.runs.record import is_same_data, recorded_about

    folder: Path = arguments.run
    config = going_on(arguments, folder, LENGTH | {"data"})
    # the split that `auto` chose when the run began
    config = config.changed({"split": recorded_about(folder, "split")}, str(folder))
    config, dataset = loaded(config, folder, split_of(folder))
    if not is_same_data(folder, dataset):
        asked = {bare(key) for key in assigned(arguments) | flags(arguments)}
        rounds = config.run.rounds if "rounds" in asked else 0
        begin = lambda config, dataset, bar: grown_run(config, folder, dataset, rounds, bar)  # noqa: E731
    elif asks_more(config, folder):
        begin = simulated(folder, resumes=True)
    else:
        return say_complete(folder)
    return trained(arguments, config, dataset, folder, begin)


def check_new(folder: Path) -> None:
    """A new run never writes into a folder that holds anything else."""
    from fedgrec.data.files import check_writable

    check_writable(folder)
    if folder.exists() and any(not path.name.endswith(".part") for path in folder.iterdir()):
        raise RunError(f"{folder} is not empty: add --resume to go on with that run, or choose another --out")


def going_on(arguments: Namespace, folder: Path, allowed: set[str] = LENGTH) -> Config:
    """The options of a run that goes on; an interrupted growth is ended first."""
    from fedgrec.data.item_names import keep
    from fedgrec.runs.growth import end_growth
    from fedgrec.runs.resolve import on_todays_machine

    end_growth(folder)
    config = on_todays_machine(resumed_configuration(arguments, folder, allowed))
    if arguments.item_names:
        keep(arguments.item_names, folder)  # now, because a complete run ends early; its later reports use the names
    return config


def resumed_configuration(arguments: Namespace, folder: Path, allowed: set[str] = LENGTH) -> Config:
    """The options that a run has kept, with changes to those that may change."""
    from fedgrec.models.model import CONFIG

    if not (folder / CONFIG).exists():
        raise RunError(f"{folder} holds no run to resume: start one with  fedgrec train")
    before = recorded(folder / CONFIG)
    given = assigned(arguments) | flags(arguments)
    changes = {named(key, before.method, "--resume").name: value for key, value in given.items()}
    fixed = (key for key in sorted(changes) if key not in allowed)
    differ = [key for key in fixed if before.changed({key: changes[key]}, "--resume") != before]
    if getattr(arguments, "method", None) not in (None, before.method):
        differ.append("the method")
    file = getattr(arguments, "preset", None) or getattr(arguments, "config", None)
    if differ or file:
        what = ", ".join(differ) or "the preset or configuration file"
        grown = f"; if the data has grown, go on with  fedgrec grow {folder}" if "data" in differ else ""
        raise ConfigError(
            f"a resumed run keeps its options, so {what} cannot change: start a new run, or leave that out{grown}"
        )
    return before.changed({key: value for key, value in changes.items() if key in allowed}, "--resume")


def asks_more(config: Config, folder: Path) -> bool:
    """Whether a run is unfinished or is asked to run longer. A run on the same data cannot get shorter."""
    from fedgrec.models.model import CONFIG
    from fedgrec.runs.record import is_finished

    before, now = recorded(folder / CONFIG).run, config.run
    if now.rounds < before.rounds:
        raise ConfigError(
            f"a resumed run can only get longer: rounds is {before.rounds} and cannot become {now.rounds}"
        )
    return not is_finished(folder) or (now.rounds, now.patience) != (before.rounds, before.patience)


def loaded(config: Config, folder: Path, before: "Split | None" = None) -> tuple[Config, "Dataset"]:
    """The configuration with everything decided, and the data, split as `before` if that is given."""
    from fedgrec.data.datasets import load_for
    from fedgrec.data.files import check_writable
    from fedgrec.runs.resolve import resolved

    if "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("one process trains, on all cores or on a GPU: start it without torchrun")
    check_writable(folder)
    dataset = load_for(config, before)
    return resolved(config, dataset), dataset


def simulated(folder: Path, resumes: bool = False) -> Start:
    """Begins a run, or goes on with it on the same data."""
    from fedgrec.runs.simulation import Simulation

    def begin(config: Config, dataset: "Dataset", bar: "Observer") -> "Simulation":
        simulation = Simulation(config, dataset, folder, bar)
        if resumes:
            simulation.resume()
        return simulation

    return begin


def trained(
    arguments: Namespace, config: Config, dataset: "Dataset", folder: Path, begin: Start, note: str = ""
) -> int:
    """Train to the end, or until somebody stops it; then print the result and the next commands."""
    from fedgrec.cli.progress import Bar
    from fedgrec.data.files import claimed
    from fedgrec.data.item_names import keep, read_names

    names = arguments.item_names
    notes = [note, read_names(names, dataset.split.train.item_ids).note if names else ""]
    bar = Bar(quiet=arguments.quiet)
    with claimed(folder):
        simulation = begin(config, dataset, bar)
        bar.describe(simulation.config, dataset)
        for line in filter(None, notes):
            bar.say(f"  {line}")
        if names:
            keep(names, folder)
        go_on = shlex.join(["fedgrec", "train", "--out", str(folder), "--resume"])
        try:
            with bar.watching():
                simulation.run()
        except DiskError as error:
            raise DiskError(str(error).replace(AGAIN, f"go on with  {go_on}")) from error
    if not simulation.finished:
        has = f" ({folder} recommends as of round {simulation.selected.round:,})" if simulation.selected else ""
        said = f"\nStopped after round {simulation.server.round:,}; everything is saved{has}. Go on with:\n  {go_on}"
        print(said, file=sys.stderr)
        return 130
    bar.summary(simulation)
    _report(folder, bar)
    _say_next(folder, dataset, bar)
    return 0


def say_complete(folder: Path) -> int:
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
