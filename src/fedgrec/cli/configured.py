"""What commands share: a run's configuration from their words, flags, and lines that fit the terminal."""

import argparse
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedgrec.config.configuration import NOISY_PRESET, Config, parse_assignment, preset, read_toml
from fedgrec.errors import ConfigError

LABEL = 18  # the longest name of a method beside its bar


def configuration(arguments: argparse.Namespace, usual: str = "best") -> Config:
    """Preset, then file, then --set, then flags. `usual`: the preset where no word says what to train."""
    file = [(read_toml(arguments.config), str(arguments.config))] if arguments.config else []
    by_set = assigned(arguments)
    if arguments.method:
        by_set["method"] = arguments.method
    layers = *file, (by_set, "--set"), (flags(arguments), "command line")
    if arguments.preset or file or "method" in by_set:
        return preset(arguments.preset or "best").layered(*layers)
    config = preset(usual).layered(*layers)
    return preset(NOISY_PRESET).layered(*layers) if config.run.noisy else config


def assigned(arguments: argparse.Namespace) -> dict[str, Any]:
    """The values of --set."""
    return dict(map(parse_assignment, arguments.set))


def flags(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options, all or those of these names, that were given as flags."""
    found = {name: getattr(arguments, name) for name in names or arguments.options}
    return {name: value for name, value in found.items() if value is not None}


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


def fitted(text: str, indent: str = "  ") -> str:
    """The text in lines as wide as the terminal, the later ones indented; in one line without one: programs read it."""
    width = shutil.get_terminal_size((10_000, 24)).columns
    lines = textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    return "\n".join(lines)


def shortened(text: str, most: int = LABEL) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
