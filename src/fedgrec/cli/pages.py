"""`fedgrec report` and `fedgrec export`: the page of a finished run, and a page that recommends in the browser."""

import argparse
from pathlib import Path
from typing import Any

from fedgrec.cli.configured import add_item_names, command, fitted, whole_number


def register(commands: Any) -> None:
    report = command(commands, "report", run_report, "write a run's page again, with the people you choose")
    add = report.add_argument
    add("run", type=Path, metavar="RUN", help="the folder of a finished run")
    add("--user", action="append", default=[], metavar="ID", help="a user to show; may be given again")
    add("--people", default="200", metavar="N", help="how many other users, evenly spaced (default: 200)")
    add_item_names(report)
    export = command(commands, "export", run_export, "a page that recommends in the browser")
    export.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    export.add_argument("--page", type=Path, required=True, metavar="FOLDER", help="where the page goes")
    add_item_names(export)


def run_report(arguments: argparse.Namespace) -> int:
    """Write RUN/report.html again. `fedgrec train` has written it once; here you choose the people whose items and
    recommendations the page shows.
    """
    from fedgrec.pages.report import write_report

    names, people = arguments.item_names, whole_number(arguments.people, "--people", least=0)
    print(f"report: {write_report(arguments.run, users=arguments.user, people=people, item_names=names)}")
    return 0


def run_export(arguments: argparse.Namespace) -> int:
    """Write a page that recommends by itself: a person picks items, and the page ranks the others, from the run's
    item table in eight bits a number. It works from a disk and from any host, and connects to nothing. For every
    run whose items have vectors, of a federation's server too; turbocf, ease, multvae and fedncf have none.
    """
    from fedgrec.cable.core import size
    from fedgrec.pages.export import write_page

    page = write_page(arguments.run, arguments.page, arguments.item_names)
    if page.note:
        print(fitted(page.note))
    print(f"page: {page.path}  ({size(page.page_bytes)}, and {size(page.table_bytes)} for {page.items:,} items)")
    whom, to_whom = ("one of its users", " to a newcomer with the same items") if page.folds_in else ("a newcomer", "")
    print(
        fitted(
            f"Of 20 items that `fedgrec recommend` shows to {whom}, the page shows {page.shared:.2f}{to_whom}: "
            f"the mean over {page.people} people."
        )
    )
    return 0
