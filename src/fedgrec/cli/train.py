"""`fedgrec train`: from data to a run folder."""

import argparse
import dataclasses
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgrec.cli.asked import (
    add_item_names,
    asks_more,
    changes_of,
    configuration,
    final_configuration,
    resumed_configuration,
)
from fedgrec.config import Config, options, presets
from fedgrec.errors import ConfigError, FedgrecError, RunError
from fedgrec.options import METHODS

if TYPE_CHECKING:
    from fedgrec.cli.progress import Bar
    from fedgrec.data import Dataset, Split
    from fedgrec.distributed import Ranks
    from fedgrec.simulation import Simulation

SECTIONS = {"data": "data", "model": "the method", "run": "the run"}


def register(commands: Any) -> None:
    train = commands.add_parser(
        "train",
        help="train a federated recommender",
        description="Train a federated recommender on one machine. Options: preset, --config, --set, then flags.",
    )
    train.add_argument(
        "--method", default=None, help=f"{', '.join(METHODS)} (default: fedgrec). Options of the others: --set"
    )
    train.add_argument("--preset", default=None, help=f"where to start: {', '.join(presets())} (default: best)")
    train.add_argument("--config", type=Path, metavar="TOML", help="a file of options")
    train.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set any option by its name")
    train.add_argument("--out", type=Path, metavar="RUN", help="the run's folder (default: runs/DATA-PRESET-SEED)")
    train.add_argument("--resume", action="store_true", help="go on with the run in --out from its last checkpoint")
    train.add_argument(
        "--grown",
        action="store_true",
        help="with --resume: go on with the data as it is now, in the same file or in another that --data=FILE "
        "names. People, items and clicks may have come and gone; held-out items stay held out. The run gets a fifth "
        "of its rounds more, or N rounds in all with --rounds=N",
    )
    train.add_argument(
        "--final",
        type=Path,
        metavar="RUN",
        help="learn from everything, RUN's held-out items included, with RUN's options and for as many rounds as it "
        "chose (default --out: RUN-final)",
    )
    add_item_names(train)
    train.add_argument("--quiet", action="store_true", help="no progress bar and no table")
    groups = {section: train.add_argument_group(title) for section, title in SECTIONS.items()}
    for section, field, kind in options():
        _add_option(groups[section], field, kind)
    train.set_defaults(command=run)


def _add_option(group: Any, field: "dataclasses.Field[Any]", kind: Any) -> None:
    flag, default = "--" + field.name.replace("_", "-"), field.default
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    text = f"{field.metadata['help']} (default: {'none' if shown in (None, '') else shown})".replace("%", "%%")
    if kind is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
    elif bare := field.metadata["bare"]:
        group.add_argument(flag, nargs="?", const=bare, default=None, choices=field.metadata["choices"], help=text)
    else:
        names = {int: "N", float: "X", str: "WORD"}
        choices = "{" + ",".join(field.metadata["choices"]) + "}" if field.metadata["choices"] else None
        group.add_argument(flag, default=None, metavar=choices or names.get(kind, "X"), help=text)


def run(arguments: argparse.Namespace) -> int:
    from fedgrec.distributed import launched

    with launched() as ranks:
        return _run(arguments, ranks)


def _run(arguments: argparse.Namespace, ranks: "Ranks") -> int:
    """With several processes, only the first one writes files and prints; the others compute."""
    from fedgrec.cli.progress import Bar
    from fedgrec.data.datasets import describe
    from fedgrec.files import check_writable, claimed
    from fedgrec.grown_run import end_growth
    from fedgrec.item_names import keep, read_names
    from fedgrec.loading import load_for
    from fedgrec.record import is_same_data, recorded_checksums
    from fedgrec.resolve import resolved

    folder: Path | None = arguments.out
    names = _item_names(arguments)
    if arguments.grown and not arguments.resume:
        raise ConfigError("--grown is for a run that goes on: add --resume and --out RUN, or leave it out")
    if arguments.resume:
        if folder is None:
            raise ConfigError("--resume needs --out RUN: which run shall go on?")
        if ranks.first:
            end_growth(folder)
        folder = ranks.shown(folder)
        config = resumed_configuration(arguments, folder)
        if names and ranks.first:
            keep(names, folder)  # now, because a complete run ends below; its later reports use the names
        if not arguments.grown and not asks_more(config, folder):
            return _say_complete(folder, ranks)
    else:
        config = final_configuration(arguments) if arguments.final else configuration(arguments)
        folder = folder or _usual_folder(arguments, config)
    if ranks.first:
        check_writable(folder)
        if not arguments.resume:
            _refuse_used(folder)
    before = _split_before(arguments, folder)
    dataset = ranks.in_turn(lambda: load_for(config, before))
    config = resolved(config, dataset)
    grows = arguments.grown and not is_same_data(folder, dataset)
    if arguments.grown and not grows and not asks_more(config, folder):
        return _say_complete(folder, ranks)
    notes = read_names(names, dataset.split.train.item_ids).note if names else ""
    ranks.agree(f"{config.method} {config.model} {config.run} {describe(dataset)}")
    bar = Bar(quiet=arguments.quiet or not ranks.first)
    if arguments.final and recorded_checksums(arguments.final) != dataset.checksums:
        bar.say(f"  The data is not what {arguments.final} was trained on: this run learns from it as it is now.")
    with claimed(folder) if ranks.first else nullcontext():
        simulation = (_grown if grows else _opened)(arguments, config, folder, dataset, bar, ranks)
        bar.describe(simulation.config, dataset)
        if notes:
            bar.say(f"  {notes}")
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


def _item_names(arguments: argparse.Namespace) -> Path | None:
    """The file of item names; a final run takes the one that the run before it keeps."""
    from fedgrec.item_names import KEPT

    before: Path | None = arguments.final / KEPT if arguments.final else None
    given: Path | None = arguments.item_names or (before if before and before.exists() else None)
    return given


def _split_before(arguments: argparse.Namespace, folder: Path) -> "Split | None":
    """The split of the run so far, if it is resumed."""
    from fedgrec.grown_run import split_of
    from fedgrec.kept_split import read_split

    if not arguments.resume:
        return None
    return split_of(folder) if arguments.grown else read_split(folder)


def _opened(
    arguments: argparse.Namespace, config: Config, folder: Path, dataset: "Dataset", bar: "Bar", ranks: "Ranks"
) -> "Simulation":
    """A new run, or a resumed one on the same data."""
    from fedgrec.simulation import Simulation

    simulation = Simulation(config, dataset, folder if ranks.first or arguments.resume else None, bar, ranks)
    if arguments.resume:
        simulation.resume()
    return simulation


def _grown(
    arguments: argparse.Namespace, config: Config, folder: Path, dataset: "Dataset", bar: "Bar", ranks: "Ranks"
) -> "Simulation":
    """A run that is resumed on grown data."""
    from fedgrec.grown_run import grown_run

    rounds = config.run.rounds if "rounds" in changes_of(arguments, config) else 0
    return grown_run(config, folder, dataset, rounds, bar, ranks)


def _say_complete(folder: Path, ranks: "Ranks") -> int:
    if ranks.first:
        print(f"{folder} is complete; --rounds N or --patience N with a larger N goes on.")
    return 0


def _say_next(folder: Path, dataset: "Dataset", bar: "Bar") -> None:
    """Print the next commands: train on everything, held-out items included, and recommend."""
    bar.say(f"\nThe run is in {folder}. Next:")
    held = [
        f"{part.n_pairs:,} {name}"
        for name, part in (("validation", dataset.split.validation), ("test", dataset.split.test))
        if part is not None and part.n_pairs
    ]
    if held:
        bar.say(f"  {shlex.join(['fedgrec', 'train', '--final', str(folder)])}")
        bar.say(f"    learns from all of it, the {' and '.join(held)} items included")
    somebody = str(dataset.split.train.user_ids[0])
    bar.say(f"  {shlex.join(['fedgrec', 'recommend', str(folder), '--user', somebody])}")


def _refuse_used(folder: Path) -> None:
    """A new run never writes into a folder that holds anything else."""
    if folder.exists() and any(not path.name.endswith(".part") for path in folder.iterdir()):
        raise RunError(f"{folder} is not empty: add --resume to go on with that run, or choose another --out")


def _usual_folder(arguments: argparse.Namespace, config: Config) -> Path:
    """The folder of a run that was given none: its name says the data, the preset or method, and the seed."""
    if arguments.final:
        run: Path = arguments.final.resolve() if arguments.final.name in ("", "..") else arguments.final
        return run.with_name(f"{run.name}-final")
    from fedgrec.data.readers import stem

    kind = arguments.preset or ("best" if config.method == "fedgrec" else config.method)
    return Path("runs") / f"{stem(Path(config.data.data))}-{kind}-{config.run.seed}"


def _report(folder: Path, bar: Any) -> None:
    """The report is a convenience: without it a run is still complete."""
    try:
        from fedgrec.report import write_report

        bar.say(f"report: {write_report(folder)}")
    except FedgrecError as error:
        bar.say(f"no report: {error}")
