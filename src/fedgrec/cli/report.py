"""`fedgrec report`: write the page of a finished run again, with chosen people on it."""

import argparse
from pathlib import Path
from typing import Any

from fedgrec.cli.asked import add_item_names
from fedgrec.errors import ConfigError


def register(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="write a run's page again, with the people you choose",
        description="Write RUN/report.html again. `fedgrec train` has written it once; here you choose the people "
        "whose items and recommendations the page shows.",
    )
    add = report.add_argument
    add("run", type=Path, metavar="RUN", help="the folder of a finished run")
    add("--user", action="append", default=[], metavar="ID", help="a user to show; may be given again")
    add("--people", default="200", metavar="N", help="how many other users, evenly spaced (default: 200)")
    add_item_names(report)
    report.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    from fedgrec.report import write_report

    if not arguments.people.isdecimal():
        raise ConfigError(f"--people cannot be {arguments.people!r}: it is a whole number, at least 0")
    names, people = arguments.item_names, int(arguments.people)
    print(f"report: {write_report(arguments.run, users=arguments.user, people=people, item_names=names)}")
    return 0
