"""`fedgrec audit`: what a server can find out although it sees only sums."""

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgrec.errors import ConfigError
from fedgrec.options import METHODS

if TYPE_CHECKING:
    from fedgrec.audit.audit import Audit

FILE, PAGE = "audit.json", "audit.html"
WIDTH = 80
UNKNOWN = (
    "Whether these links are right is unknown: to check them takes the users' items.\n"
    "If you may read all nodes' folders, name them with --nodes."
)


def register(commands: Any) -> None:
    audit = commands.add_parser(
        "audit",
        help="what a server finds out although it sees only sums",
        description="Train on this machine, write down what a server would see (sums, who took part, the model), "
        "attack that, and say how often the attacks are right: beside chance and beside a guess by popularity. A tenth "
        "of the people stays out of all sums, to compare with. With FOLDER: look at a federation's recorded sums.",
    )
    add = audit.add_argument
    add(
        "recordings",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="a federation's server, or the recordings in its folder (`record` in federation.toml): audit these sums, "
        "and train nothing",
    )
    add("--nodes", nargs="+", default=[], type=Path, metavar="NODE", help="with FOLDER: all nodes' folders, to score")
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
    from fedgrec.files import check_writable

    if not arguments.sums.isdecimal() or not int(arguments.sums):
        raise ConfigError(f"--sums cannot be {arguments.sums!r}: it is a whole number, at least 1")
    if arguments.out:
        check_writable(arguments.out)
    if arguments.recordings:
        return of_recordings(arguments)
    if arguments.nodes:
        raise ConfigError("--nodes are those of a federation: name its server's folder, too")
    return of_training(arguments)


def of_training(arguments: argparse.Namespace) -> int:
    """Train here, and attack what a server would see."""
    from fedgrec.audit.audit import audit
    from fedgrec.cli.progress import Bar

    config = asked(arguments)
    bar = Bar(arguments.quiet)
    with bar.watching():
        found = audit(config, sums=int(arguments.sums), observer=bar)
    bar.say(
        f"{config.data.data}, {found.method}: {found.users:,} people trained on {found.items:,} items; the server "
        f"looks at {found.sums:,} sums of {found.cohort:,} people\n"
    )
    print(found.table())
    written(arguments, found.to_json(), found, config.data.data)
    return 0


def of_recordings(arguments: argparse.Namespace) -> int:
    """What a federation's sums let the server link; with the nodes' folders, also how often the links are right."""
    from fedgrec.audit.links import linked, scored
    from fedgrec.recorded_sums import read_sums

    if arguments.set or arguments.rounds:
        raise ConfigError("--set and --rounds are for an audit that trains: leave them out, or leave FOLDER out")
    sums = read_sums(arguments.recordings, int(arguments.sums))
    found = linked(sums)
    print(f"{arguments.recordings}, {found.method}: {found.sums:,} recorded sums\n\nWhat can be linked:")
    for number, sentence in enumerate(found.sentences(), 1):
        print(textwrap.fill(f"{number}. {sentence}", WIDTH, subsequent_indent="   ", break_long_words=False))
    score = None
    if arguments.nodes:
        from fedgrec.federation.in_process.truth import known_users

        score = scored(sums, known_users(arguments.nodes))
        print(f"\n{score.table()}")
    else:
        print(f"\n{UNKNOWN}")
    written(arguments, (score.to_json() if score else {}) | {"linked": found.to_json()}, score, "a federation")
    return 0


def written(arguments: argparse.Namespace, figures: dict[str, Any], found: "Audit | None", data: str) -> None:
    """Write the figures, and a page if the attacks were scored."""
    from fedgrec.files import write_json, write_text
    from fedgrec.report.audit_page import render

    if not arguments.out:
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / FILE, figures)
    if found:
        write_text(arguments.out / PAGE, render(found, data))
    if not arguments.quiet:
        print(f"\nfigures and intervals: {arguments.out / FILE}")
        print(f"the same with pictures: {arguments.out / PAGE}" if found else "no page: nothing was scored")


def asked(arguments: argparse.Namespace) -> Any:
    """What the words of the command line mean."""
    from fedgrec.config import parse_assignment, preset

    named = dict(parse_assignment(text) for text in arguments.set)
    flags = {"data": arguments.data, "method": arguments.method, "rounds": arguments.rounds}
    given = {key: value for key, value in flags.items() if value is not None}
    return preset(arguments.preset).layered((named, "--set"), (given, "command line"))
