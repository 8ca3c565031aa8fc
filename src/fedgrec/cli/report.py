"""`fedgrec report`: the page of a finished run, written again."""

import argparse
from pathlib import Path
from typing import Any

from fedgrec.cli.asked import add_item_names


def register(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="write a run's report again",
        description="Write report.html and its pictures into the folder of a finished run, as `fedgrec train` does.",
    )
    report.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run")
    add_item_names(report)
    report.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    from fedgrec.report import write_report

    print(f"report: {write_report(arguments.run, item_names=arguments.item_names)}")
    return 0
