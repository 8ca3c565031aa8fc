"""`fedgrec audit`: what a server can find out although it sees only sums."""

import argparse
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedgrec.cli.configured import add_set, command, configuration, whole_number
from fedgrec.config.options import METHODS
from fedgrec.errors import ConfigError

FILE, PAGE = "audit.json", "audit.html"
WIDTH = 80
UNKNOWN = (
    "Whether these links are right is unknown: to check them takes the users' items.\n"
    "If you may read all nodes' folders, name them with --nodes."
)


def register(commands: Any) -> None:
    audit = command(commands, "audit", run, "what a server finds out although it sees only sums")
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
    add_set(audit, "set any option of `fedgrec train` by its name")
    add("--rounds", metavar="N", help="training rounds (default: as `fedgrec train`)")
    add("--sums", default="10", metavar="N", help="how many of the last sums the server looks at (default: 10)")
    add("--shadows", default="0", metavar="N", help="pairs of models to compare with; 3 or more (default: none)")
    add("--out", type=Path, metavar="FOLDER", help=f"write {FILE} and the page {PAGE} there")
    add("--quiet", action="store_true", help="nothing but the table")
    audit.set_defaults(options=["data", "rounds"], config=None)


def run(arguments: argparse.Namespace) -> int:
    """Train on this machine, write down what a server would see (sums, who took part, the model), attack that, and
    say how often the attacks are right: beside chance and beside a guess by popularity. A tenth of the people stays
    out of all sums, to compare with. With FOLDER: look at a federation's recorded sums.
    """
    from fedgrec.data.files import check_writable

    arguments.sums = whole_number(arguments.sums, "--sums")
    arguments.shadows = whole_number(arguments.shadows, "--shadows", 0)
    if arguments.out:
        check_writable(arguments.out)
    if arguments.recordings:
        return of_recordings(arguments)
    if arguments.nodes:
        raise ConfigError("--nodes are those of a federation: name its server's folder, too")
    return of_training(arguments)


def of_training(arguments: argparse.Namespace) -> int:
    """Train here, and attack what a server would see."""
    from fedgrec.cli.progress import Bar
    from fedgrec.studies.audit.audit import audit

    config = configuration(arguments)
    bar = Bar(arguments.quiet)
    with bar.watching():
        found = audit(config, sums=arguments.sums, observer=bar, pairs=arguments.shadows)
    bar.say(
        f"{config.data.data}, {found.method}: {found.users:,} people trained on {found.items:,} items; the server "
        f"looks at {found.sums:,} sums of {found.cohort:,} people\n"
    )
    print(found.table())
    written(arguments, asdict(found), found, config.data.data)
    return 0


def of_recordings(arguments: argparse.Namespace) -> int:
    """What a federation's sums let the server link; with the nodes' folders, also how often the links are right."""
    from fedgrec.runs.recorded_sums import read_sums
    from fedgrec.studies.audit.links import linked, scored

    if arguments.set or arguments.rounds:
        raise ConfigError("--set and --rounds are for an audit that trains: leave them out, or leave FOLDER out")
    sums = read_sums(arguments.recordings, arguments.sums)
    found = linked(sums)
    print(f"{arguments.recordings}, {found.method}: {found.sums:,} recorded sums\n\nWhat can be linked:")
    for number, sentence in enumerate(found.sentences(), 1):
        print(textwrap.fill(f"{number}. {sentence}", WIDTH, subsequent_indent="   ", break_long_words=False))
    score = None
    if arguments.nodes:
        from fedgrec.federation.setup.known_users import known_users

        score = scored(sums, known_users(arguments.nodes))
        print(f"\n{score.table()}")
    else:
        print(f"\n{UNKNOWN}")
    written(arguments, (asdict(score) if score else {}) | {"linked": asdict(found)}, score, "a federation")
    return 0


def written(arguments: argparse.Namespace, figures: dict[str, Any], found: Any, data: str) -> None:
    """Write the figures, and a page if the attacks were scored."""
    from fedgrec.data.files import write_json, write_text
    from fedgrec.studies.audit.audit import render

    if not arguments.out:
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / FILE, figures)
    if found:
        write_text(arguments.out / PAGE, render(found, data))
    if not arguments.quiet:
        print(f"\nfigures and intervals: {arguments.out / FILE}")
        print(f"the same with pictures: {arguments.out / PAGE}" if found else "no page: nothing was scored")
