"""`fedgrec options`: every option with its default, its bounds and its group."""

import argparse
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from fedgrec.cli.configured import command
from fedgrec.config.checking import Option, options_of
from fedgrec.config.options import GROUPS, METHODS
from fedgrec.errors import ConfigError, nearest

WIDTH = 80
FEDERATION = "federation"


def register(commands: Any) -> None:
    options = command(commands, "options", run, "list every option of a method")
    options.add_argument("method", nargs="?", default="fedgrec", metavar="METHOD",
                         help="a method, federated or not, or `federation` (default: fedgrec)")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Every option of a method with its default, bounds and group.

    A group is a section of a TOML file and may stand before a name: --set wire.item_levels=20.
    """
    for title, known in sections(arguments.method):
        print(title)
        for option in known:
            print("\n".join(described(option)))
        print()
    others = f"Others: {', '.join(name for name in _known() if name != arguments.method)}"
    print(textwrap.fill(others, WIDTH, break_on_hyphens=False))
    return 0


def sections(method: str) -> Iterator[tuple[str, list[Option]]]:
    """Titles, and the options below them."""
    if method not in _known():
        raise ConfigError(f"there is no method {method!r}.{nearest(method, _known())} Known: {', '.join(_known())}")
    if method == FEDERATION:
        from fedgrec.federation.common.options import Agreement, FederationOptions

        yield "agreement.toml: what all have agreed on", options_of(Agreement)
        yield "federation.toml: how the server drives the nodes", options_of(FederationOptions)
        return
    known = list(_of(method))
    for group, text in GROUPS.items():
        if mine := [option for option in known if option.group == group]:
            yield f"[{group}] {text}", mine


def described(option: Option) -> list[str]:
    """The lines about an option."""
    about = option.field.metadata
    limits = f"one of {', '.join(about['choices'])}" if about["choices"] else option.bounds or option.describes
    lines = textwrap.wrap(f"{option.name} = {option.default}  ({limits})", WIDTH, initial_indent="  ",
                          subsequent_indent="      ")  # fmt: skip
    return lines + textwrap.wrap(about["help"], WIDTH, initial_indent="      ", subsequent_indent="      ")


def _known() -> list[str]:
    from fedgrec.studies.compare.names import known

    return [*known(), FEDERATION]


def _of(method: str) -> Iterable[Option]:
    from fedgrec.config.configuration import options

    if method in METHODS:
        return options(method)
    from fedgrec.centralized import model_class

    return options_of(model_class(method).Options)
