"""`fedgrec audit`: what a server can find out although it sees only sums."""

import argparse
from pathlib import Path
from typing import Any

from fedgrec.errors import ConfigError
from fedgrec.options import METHODS

FILE, PAGE = "audit.json", "audit.html"


def register(commands: Any) -> None:
    audit = commands.add_parser(
        "audit",
        help="what a server finds out although it sees only sums",
        description="Train on this machine, write down what a server would see (sums, who took part, the model), "
        "attack that, and say how often the attacks are right: beside chance and beside a guess by popularity. A tenth "
        "of the people stays out of all sums, to compare with.",
    )
    add = audit.add_argument
    add("--data", default="demo", metavar="WORD", help="a data set's name, a folder, or a file (default: demo)")
    add("--method", default="fedgrec", help=f"{', '.join(METHODS)} (default: fedgrec)")
    add("--preset", default="best", help="where fedgrec starts: see `fedgrec presets` (default: best)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="set any option of `fedgrec train` by its name")
    add("--rounds", default=None, metavar="N", help="training rounds (default: as `fedgrec train`)")
    add("--sums", default="10", metavar="N", help="how many of the last sums the server looks at (default: 10)")
    add("--out", type=Path, metavar="FOLDER", help=f"write {FILE} and the page {PAGE} there")
    add("--quiet", action="store_true", help="nothing but the table")
    audit.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    from fedgrec.audit.audit import audit
    from fedgrec.cli.progress import Bar
    from fedgrec.files import check_writable, write_json, write_text
    from fedgrec.report.audit_page import render

    config = asked(arguments)
    if not arguments.sums.isdecimal():
        raise ConfigError(f"--sums cannot be {arguments.sums!r}: it is a whole number, at least 1")
    if arguments.out:
        check_writable(arguments.out)
    bar = Bar(arguments.quiet)
    with bar.watching():
        found = audit(config, sums=int(arguments.sums), observer=bar)
    bar.say(
        f"{config.data.data}, {found.method}: {found.users:,} people trained on {found.items:,} items; the server "
        f"looks at {found.sums:,} sums of {found.cohort:,} people\n"
    )
    print(found.table())
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        write_json(arguments.out / FILE, found.to_json())
        write_text(arguments.out / PAGE, render(found, config.data.data))
        bar.say(f"\nfigures and intervals: {arguments.out / FILE}\nthe same with pictures: {arguments.out / PAGE}")
    return 0


def asked(arguments: argparse.Namespace) -> Any:
    """What the words of the command line mean."""
    from fedgrec.config import parse_assignment, preset

    named = dict(parse_assignment(text) for text in arguments.set)
    flags = {"data": arguments.data, "method": arguments.method, "rounds": arguments.rounds}
    given = {key: value for key, value in flags.items() if value is not None}
    return preset(arguments.preset).layered((named, "--set"), (given, "command line"))
