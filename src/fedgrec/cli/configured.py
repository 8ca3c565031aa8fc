"""From the words of a command to a run's configuration: new, resumed or final; and the flags that commands share."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedgrec.config.configuration import Config, named, parse_assignment, preset, read_toml, recorded
from fedgrec.errors import ConfigError, RunError

LENGTH = {"rounds", "patience", "checkpoint_every", "threads"}  # what a run that goes on may change


def configuration(arguments: argparse.Namespace) -> Config:
    """Preset, then file, then --set, then flags."""
    file = [(read_toml(arguments.config), str(arguments.config))] if arguments.config else []
    by_set = assigned(arguments)
    if arguments.method:
        by_set["method"] = arguments.method
    return preset(arguments.preset or "best").layered(*file, (by_set, "--set"), (flags(arguments), "command line"))


def assigned(arguments: argparse.Namespace) -> dict[str, Any]:
    """The values of --set."""
    return dict(map(parse_assignment, arguments.set))


def flags(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options, all or those of these names, that were given as flags."""
    found = {name: getattr(arguments, name) for name in names or arguments.options}
    return {name: value for name, value in found.items() if value is not None}


def resumed_configuration(arguments: argparse.Namespace, folder: Path, allowed: set[str] = LENGTH) -> Config:
    """The options that a run has kept, with changes to those that may change."""
    from fedgrec.models.model import CONFIG

    if not (folder / CONFIG).exists():
        raise RunError(f"{folder} holds no run to resume: start one with  fedgrec train")
    before = recorded(folder / CONFIG)
    given = assigned(arguments) | flags(arguments)
    changes = {named(key, before.method, "--resume").name: value for key, value in given.items()}
    differ = [
        key
        for key in sorted(changes)
        if key not in allowed and before.changed({key: changes[key]}, "--resume") != before
    ]
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


def command(commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    """A command with its line in the help; what runs it describes it."""
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=run.__doc__)
    made.set_defaults(command=run)
    return made


def add_set(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)


def whole_number(text: str, flag: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{flag} cannot be {text!r}: it is a whole number, at least {least}")
    return int(text)


def add_item_names(command: argparse.ArgumentParser, text: str = "") -> None:
    """Items' names do not affect training, so this flag is not an option of a run's configuration."""
    command.add_argument(
        "--item-names",
        type=Path,
        metavar="CSV",
        help=text
        or "what items are called: a file with the columns item and title, and perhaps latitude and longitude, or x "
        "and y (default: what the run was trained with)",
    )
