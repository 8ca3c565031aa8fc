"""`fedgrec train`: from data to a run folder."""

import argparse
import dataclasses
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgrec.config import Config, find, options, parse_assignment, preset, presets, read_toml, recorded
from fedgrec.errors import ConfigError, FedgrecError, RunError
from fedgrec.options import METHODS

if TYPE_CHECKING:
    from fedgrec.cli.progress import Bar
    from fedgrec.data import Dataset
    from fedgrec.distributed import Ranks

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
        "--final",
        type=Path,
        metavar="RUN",
        help="learn from everything, what RUN held out included, with RUN's options and for as many rounds as it chose "
        "(default --out: RUN-final)",
    )
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


def configuration(arguments: argparse.Namespace) -> Config:
    """Preset, then file, then --set, then flags."""
    file = [(read_toml(arguments.config), str(arguments.config))] if arguments.config else []
    named = dict(parse_assignment(text) for text in arguments.set)
    if arguments.method:
        named["method"] = arguments.method
    return preset(arguments.preset or "best").layered(*file, (named, "--set"), (_flags(arguments), "command line"))


def _flags(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {field.name: getattr(arguments, field.name) for _, field, _ in options()}
    return {name: value for name, value in given.items() if value is not None}


def resumed_configuration(arguments: argparse.Namespace, folder: Path) -> Config:
    """A resumed run keeps its configuration; only how long it runs and how it is watched may change."""
    from fedgrec.model import CONFIG

    if not (folder / CONFIG).exists():
        raise RunError(f"{folder} holds no run to resume: start one without --resume")
    given = dict(parse_assignment(text) for text in arguments.set) | _flags(arguments)
    before = recorded(folder / CONFIG)
    changes = {find(key, "--resume", before.method)[1].name: value for key, value in given.items()}
    allowed = {"rounds", "patience", "checkpoint_every", "threads"}
    differ = [
        key
        for key in sorted(changes)
        if key not in allowed and before.changed({key: changes[key]}, "--resume") != before
    ]
    if arguments.method not in (None, before.method):
        differ.append("the method")
    if differ or arguments.preset or arguments.config:
        what = ", ".join(differ) or "the preset or configuration file"
        raise ConfigError(
            f"a resumed run keeps its options, so {what} cannot change: start a new run, or leave that out"
        )
    config = before.changed({key: value for key, value in changes.items() if key in allowed}, "--resume")
    if config.run.rounds < before.run.rounds:
        raise ConfigError(
            f"a resumed run can only get longer: rounds is {before.run.rounds} and cannot become {config.run.rounds}"
        )
    return config


def final_configuration(arguments: argparse.Namespace) -> Config:
    """What a finished run chose, for a run that holds nothing out."""
    from fedgrec.model import run_config
    from fedgrec.record import chosen_round
    from fedgrec.resolve import final

    named = sorted(dict(parse_assignment(text) for text in arguments.set) | _flags(arguments))
    if named or arguments.method or arguments.preset or arguments.config or arguments.resume:
        raise ConfigError(
            f"--final takes all options from {arguments.final}: leave out {', '.join(named) or 'the other options'}"
        )
    return final(run_config(arguments.final), chosen_round(arguments.final))


def goes_no_further(config: Config, folder: Path) -> bool:
    """Whether these options ask no more of a finished run than it has done."""
    from fedgrec.model import CONFIG

    before = recorded(folder / CONFIG).run
    return (config.run.rounds, config.run.patience) == (before.rounds, before.patience)


def run(arguments: argparse.Namespace) -> int:
    from fedgrec.distributed import launched

    with launched() as ranks:
        return _run(arguments, ranks)


def _run(arguments: argparse.Namespace, ranks: "Ranks") -> int:
    """Of several processes the first one writes and speaks; the others compute."""
    from fedgrec.cli.progress import Bar
    from fedgrec.data.datasets import describe
    from fedgrec.files import check_writable, claimed
    from fedgrec.loading import load_for
    from fedgrec.record import is_finished, recorded_checksums
    from fedgrec.resolve import resolved
    from fedgrec.simulation import Simulation

    folder: Path | None = arguments.out
    if arguments.resume:
        if folder is None:
            raise ConfigError("--resume needs --out RUN: which run shall go on?")
        folder = ranks.shown(folder)
        config = resumed_configuration(arguments, folder)
        if is_finished(folder) and goes_no_further(config, folder):
            if ranks.first:
                print(f"{folder} is complete; --rounds N or --patience N with a larger N goes on.")
            return 0
    else:
        config = final_configuration(arguments) if arguments.final else configuration(arguments)
        folder = folder or _usual_folder(arguments, config)
    if ranks.first:
        check_writable(folder)
        if not arguments.resume:
            _refuse_used(folder)
    dataset = ranks.in_turn(lambda: load_for(config))
    config = resolved(config, dataset)
    ranks.agree(f"{config.method} {config.model} {config.run} {describe(dataset)}")
    bar = Bar(quiet=arguments.quiet or not ranks.first)
    bar.describe(config, dataset)
    if arguments.final and recorded_checksums(arguments.final) != dataset.checksums:
        bar.say(f"  The data is not what {arguments.final} was trained on: this run learns from it as it is now.")
    with claimed(folder) if ranks.first else nullcontext():
        simulation = Simulation(config, dataset, folder if ranks.first or arguments.resume else None, bar, ranks)
        if arguments.resume:
            simulation.resume()
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


def _say_next(folder: Path, dataset: "Dataset", bar: "Bar") -> None:
    """What was held out, how to get a model of everything, how to use it."""
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
    """A run never writes into a folder of something else."""
    if folder.exists() and any(not path.name.endswith(".part") for path in folder.iterdir()):
        raise RunError(f"{folder} is not empty: add --resume to go on with that run, or choose another --out")


def _usual_folder(arguments: argparse.Namespace, config: Config) -> Path:
    """Where a run goes that was given no folder: its name says the data, the preset or method, and the seed."""
    if arguments.final:
        run: Path = arguments.final.resolve() if arguments.final.name in ("", "..") else arguments.final
        return run.with_name(f"{run.name}-final")
    kind = arguments.preset or ("best" if config.method == "fedgrec" else config.method)
    return Path("runs") / f"{Path(config.data.data).stem}-{kind}-{config.run.seed}"


def _report(folder: Path, bar: Any) -> None:
    """The report is a convenience: without matplotlib a run is still complete."""
    try:
        from fedgrec.report import write_report

        bar.say(f"report: {write_report(folder)}")
    except FedgrecError as error:
        bar.say(f"no report: {error}")
