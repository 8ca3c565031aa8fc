"""`fedgrec report`: write the page of a finished run again, with chosen people on it."""

import argparse
from pathlib import Path
from typing import Any

from fedgrec.cli.configured import add_item_names, command, whole_number


def register(commands: Any) -> None:
    report = command(commands, "report", run, "write a run's page again, with the people you choose")
    add = report.add_argument
    add("run", type=Path, metavar="RUN", help="the folder of a finished run")
    add("--user", action="append", default=[], metavar="ID", help="a user to show; may be given again")
    add("--people", default="200", metavar="N", help="how many other users, evenly spaced (default: 200)")
    add_item_names(report)


def run(arguments: argparse.Namespace) -> int:
    """Write RUN/report.html again.

    `fedgrec train` has written it once; here you choose the people whose items and recommendations the page shows.
    """
    from fedgrec.pages.report import write_report

    names, people = arguments.item_names, whole_number(arguments.people, "--people", least=0)
    print(f"report: {write_report(arguments.run, users=arguments.user, people=people, item_names=names)}")
    return 0
