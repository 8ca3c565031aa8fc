"""`fedgrec train`: from data to a run folder."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from fedgrec.cli import training
from fedgrec.cli.configured import add_set, configuration, shortened
from fedgrec.config.checking import Option
from fedgrec.config.configuration import USUAL_METHOD, USUAL_PRESET, Config, named, options, preset, read_toml
from fedgrec.config.options import METHODS
from fedgrec.errors import ConfigError, FedgrecError

LINES, WIDTH = 11, 54  # of options in the help, so that all of it is 25 lines of 80 columns
NOW_COMMANDS = {"--final": "fedgrec finish RUN", "--grown": "fedgrec grow RUN"}


def register(commands: Any, words: Sequence[str] = ()) -> None:
    """The flags are the options of the method that the words name; the help shows those that people set."""
    method = named_method(words)
    train = commands.add_parser(
        "train",
        help="train a federated recommender",
        usage="fedgrec train [--OPTION VALUE] ...",
        description=f"Train on one machine. Every option is a flag:  fedgrec options {method}",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=25),
        add_help=False,
    )
    add = train.add_argument
    add("-h", "--help", action="help", help=argparse.SUPPRESS)
    add("--method", metavar="WORD", help=f"see  fedgrec options --help  (default: {USUAL_METHOD})")
    add("--preset", metavar="WORD", help=f"where to start, see  fedgrec presets  (default: {USUAL_PRESET})")
    add("--config", type=Path, metavar="TOML", help="a file of options, over those of the preset")
    add_set(train, "any option by its name; flags win over this")
    add("--out", type=Path, metavar="RUN", help="the run's folder (default: runs/DATA-PRESET-SEED)")
    add("--resume", action="store_true", help="go on with the run in --out from its checkpoint")
    training.add_names_and_quiet(train, "items' titles and places, for the report's eye")
    known = options(method) if not words or words[0] == "train" else ()  # other commands need none of them
    shown = common(known)
    for option in [*shown, *(option for option in known if option not in shown)]:
        _add_flag(train, option, option in shown)
    train.set_defaults(command=run, options=[option.name for option in known], unknown=unknown)


def named_method(words: Sequence[str]) -> str:
    """The method that a command line names, itself, by its configuration file or by its preset; or the usual one."""
    if not words or words[0] != "train":
        return "fedgrec"
    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    peek.add_argument("--method")
    peek.add_argument("--preset")
    peek.add_argument("--config", type=Path)
    try:
        found = peek.parse_known_args(words[1:])[0]
        base = preset(found.preset or ("best" if found.config else USUAL_PRESET)).method
        method = found.method or (read_toml(found.config).get("method", base) if found.config else base)
    except (FedgrecError, argparse.ArgumentError):
        return USUAL_METHOD  # the command itself says what is wrong
    return method if method in METHODS else USUAL_METHOD


def common(known: Sequence[Option]) -> Sequence[Option]:
    """The options that people set, in the order of their parts; the method's own fill what is left of the lines."""
    usual = {option.name: option.field.metadata["common"] for option in options()}
    often = [option for option in known if usual.get(option.name)]
    own = [option for option in known if option.name not in usual]
    return sorted([*often, *own[: max(LINES - len(often), 0)]], key=known.index)


def _add_flag(train: argparse.ArgumentParser, option: Option, is_shown: bool) -> None:
    flag, about = "--" + option.name.replace("_", "-"), option.field.metadata
    default = f" (default: {option.default})"
    text = shortened(about["common"] or about["help"], WIDTH - len(default)) + default
    given: dict[str, Any] = {"default": None, "help": text.replace("%", "%%") if is_shown else argparse.SUPPRESS}
    if option.kind is bool:
        train.add_argument(flag, action=argparse.BooleanOptionalAction, **given)
    elif about["bare"]:
        train.add_argument(flag, nargs="?", const=about["bare"], metavar="WORD", **given)
    else:
        train.add_argument(flag, metavar={int: "N", str: "WORD"}.get(option.kind, "X"), **given)


def unknown(arguments: argparse.Namespace, words: Sequence[str]) -> NoReturn:
    """Say what is wrong with words that are no flags of the method."""
    word = words[0].partition("=")[0]
    if word in NOW_COMMANDS:
        raise ConfigError(f"{word} is a command of its own now: {NOW_COMMANDS[word]}")
    if word.startswith("--"):
        method = arguments.method if arguments.method in METHODS else USUAL_METHOD
        named(word.removeprefix("--").removeprefix("no-"), method, "command line")
    raise ConfigError(f"{words[0]}: `fedgrec train` takes flags and their values alone, and this is neither")


def run(arguments: argparse.Namespace) -> int:
    return (_resumed if arguments.resume else _new)(arguments)


def _new(arguments: argparse.Namespace) -> int:
    config = configuration(arguments, USUAL_PRESET)
    folder = arguments.out or _usual_folder(arguments, config)
    training.check_new(folder)
    known = training.loaded(config, folder)
    return training.trained(arguments, *known, folder, training.simulated(folder))


def _resumed(arguments: argparse.Namespace) -> int:
    from fedgrec.data.split import read_split

    if arguments.out is None:
        raise ConfigError("--resume needs --out RUN: which run shall go on?")
    config, folder = training.going_on(arguments, arguments.out), arguments.out
    if not training.asks_more(config, folder):
        return training.say_complete(folder)
    known = training.loaded(config, folder, read_split(folder))
    return training.trained(arguments, *known, folder, training.simulated(folder, resumes=True))


def _usual_folder(arguments: argparse.Namespace, config: Config) -> Path:
    """The folder of a run that was given none: its name says the data, the preset or method, and the seed."""
    from fedgrec.data.readers import stem

    kind = arguments.preset or ("best" if config.method == "fedgrec" else config.method)
    return Path("runs") / f"{stem(Path(config.data.data))}-{kind}-{config.run.seed}"
