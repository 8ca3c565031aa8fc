"""From the words of a command to a run's configuration (new, resumed or final), and the flag for items' names."""

import argparse
from pathlib import Path
from typing import Any

from fedgrec.config import Config, find, options, parse_assignment, preset, read_toml, recorded
from fedgrec.errors import ConfigError, RunError


def configuration(arguments: argparse.Namespace) -> Config:
    """Preset, then file, then --set, then flags."""
    file = [(read_toml(arguments.config), str(arguments.config))] if arguments.config else []
    named = dict(parse_assignment(text) for text in arguments.set)
    if arguments.method:
        named["method"] = arguments.method
    return preset(arguments.preset or "best").layered(*file, (named, "--set"), (flags(arguments), "command line"))


def flags(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {field.name: getattr(arguments, field.name) for _, field, _ in options()}
    return {name: value for name, value in given.items() if value is not None}


def resumed_configuration(arguments: argparse.Namespace, folder: Path) -> Config:
    """A resumed run keeps its options, except its length, checkpoints and threads, and its data with --grown."""
    from fedgrec.model import CONFIG
    from fedgrec.record import recorded_split_kind

    if not (folder / CONFIG).exists():
        raise RunError(f"{folder} holds no run to resume: start one without --resume")
    before = recorded(folder / CONFIG)
    changes = changes_of(arguments, before)
    allowed = {"rounds", "patience", "checkpoint_every", "threads"} | ({"data"} if arguments.grown else set())
    differ = [
        key
        for key in sorted(changes)
        if key not in allowed and before.changed({key: changes[key]}, "--resume") != before
    ]
    if arguments.method not in (None, before.method):
        differ.append("the method")
    if differ or arguments.preset or arguments.config:
        what = ", ".join(differ) or "the preset or configuration file"
        grown = "; if the data has grown, add --grown" if "data" in differ else ""
        raise ConfigError(
            f"a resumed run keeps its options, so {what} cannot change: start a new run, or leave that out{grown}"
        )
    kept = {key: value for key, value in changes.items() if key in allowed}
    if arguments.grown:
        kept["split"] = recorded_split_kind(folder)  # the split that `auto` chose when the run began
    return before.changed(kept, "--resume")


def changes_of(arguments: argparse.Namespace, before: Config) -> dict[str, Any]:
    """The options that a resumed run was given."""
    given = dict(parse_assignment(text) for text in arguments.set) | flags(arguments)
    return {find(key, "--resume", before.method)[1].name: value for key, value in given.items()}


def asks_more(config: Config, folder: Path) -> bool:
    """Whether a run is unfinished or is asked to run longer. A run on the same data cannot get shorter."""
    from fedgrec.model import CONFIG
    from fedgrec.record import is_finished

    before, now = recorded(folder / CONFIG).run, config.run
    if now.rounds < before.rounds:
        raise ConfigError(
            f"a resumed run can only get longer: rounds is {before.rounds} and cannot become {now.rounds}"
        )
    return not is_finished(folder) or (now.rounds, now.patience) != (before.rounds, before.patience)


def final_configuration(arguments: argparse.Namespace) -> Config:
    """The options and the chosen round of a finished run, for a run that holds nothing out."""
    from fedgrec.model import run_config
    from fedgrec.record import chosen_round
    from fedgrec.resolve import final

    named = sorted(dict(parse_assignment(text) for text in arguments.set) | flags(arguments))
    if named or arguments.method or arguments.preset or arguments.config or arguments.resume:
        raise ConfigError(
            f"--final takes all options from {arguments.final}: leave out {', '.join(named) or 'the other options'}"
        )
    return final(run_config(arguments.final), chosen_round(arguments.final))


def add_item_names(command: argparse.ArgumentParser) -> None:
    """Items' names do not affect training, so this flag is not an option of a run's configuration."""
    command.add_argument(
        "--item-names",
        type=Path,
        metavar="CSV",
        help="what items are called: a file with the columns item and title, and perhaps latitude and longitude, or x "
        "and y (default: what the run was trained with)",
    )
