"""`fedgrec compare`: methods side by side, in one table."""

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from fedgrec.compare.names import known
from fedgrec.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda")


def register(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="several methods, federated or not, in one table",
        description="Train several methods with several seeds on the same data and write one table. Finished runs are "
        "kept, interrupted ones go on: give the same command again.",
    )
    add = compare.add_argument
    add("--data", default=None, metavar="WORD", help="a data set's name, a folder, or a file (default: demo)")
    add(
        "--methods",
        default=None,
        metavar="A,B,...",
        help=f"{', '.join(known())}; options follow a colon: fedgrec:layers=1,rounds=4000 (default: all sections of "
        "--config)",
    )
    add("--seeds", default="3", metavar="N|A,B,...", help="how many, from 0 on, or which ones (default: 3)")
    add("--rounds", default=None, metavar="N", help="of every federated method (default: 110 turns for every user)")
    add("--epochs", default=None, metavar="N", help="of every other method that is trained (default: its own)")
    add(
        "--protocol",
        default=None,
        choices=("honest", "paper"),
        help="honest: validation items choose the round; paper: the best round on test counts (default: honest)",
    )
    add(
        "--evaluate-every",
        default=None,
        metavar="ROUNDS[,EPOCHS]",
        help="between evaluations (default: twenty in every run)",
    )
    add("--metrics", default=None, metavar="A,B,...", help="further columns, such as map,novelty; or all")
    add(
        "--device",
        default="auto",
        choices=DEVICES,
        help="where to train what can run there (default: auto, a GPU if there is one)",
    )
    add("--config", type=Path, metavar="TOML", help="options of all in [data] and [run], of one in [compare.NAME]")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="an option of the data or of all runs")
    add("--out", type=Path, metavar="FOLDER", help="(default: compare/DATA)")
    add("--quiet", action="store_true", help="nothing but the table")
    compare.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    from fedgrec.cli.compare_lines import Lines
    from fedgrec.compare import compare, write
    from fedgrec.compare.tables import grid
    from fedgrec.data.readers import stem
    from fedgrec.files import check_writable
    from fedgrec.tables import terminal

    settings = asked(arguments)
    out: Path = arguments.out or Path("compare") / stem(Path(settings.common.data.data))
    check_writable(out)
    watcher = Lines(arguments.quiet)
    with watcher.watching():
        comparison = compare(settings, out, watcher)
    write(comparison, out)
    watcher.say("")
    print(terminal(grid(comparison.table), shutil.get_terminal_size((80, 24)).columns))
    watcher.say(f"charts and tables: {out / 'compare.html'}")
    if comparison.stopped and not all(run.finished for run in comparison.runs):
        print(f"Stopped; everything is saved. Go on with:\n  {again(arguments)}", file=sys.stderr)
        return 130
    return 1 if comparison.failures else 0


def asked(arguments: argparse.Namespace) -> Any:
    """What the words of the command line mean."""
    from fedgrec.compare import File, Settings, entries, read_file
    from fedgrec.config import parse_assignment
    from fedgrec.metrics import named as metrics_named

    metrics = metrics_named(arguments.metrics) if arguments.metrics is not None else ()
    file = read_file(arguments.config) if arguments.config else File()
    rounds, _, epochs = (arguments.evaluate_every or "").partition(",")
    flags = {"data": arguments.data, "protocol": arguments.protocol, "rounds": arguments.rounds}
    flags |= {"evaluate_every": rounds or None}
    others = {"epochs": arguments.epochs, "evaluate_every": epochs or None}
    return Settings(
        entries(arguments.methods, file),
        seeds(arguments.seeds),
        file,
        dict(parse_assignment(text) for text in arguments.set),
        {key: value for key, value in flags.items() if value is not None},
        {key: value for key, value in others.items() if value is not None},
        arguments.device,
        tuple(name for name in metrics if name not in ("recall", "ndcg")),  # these two are always there
    )


def seeds(text: str) -> tuple[int, ...]:
    """'3' → 0, 1, 2; '0,3,7' → these; '7,' → 7 alone."""
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if "," not in text and len(found) == 1:
        found = list(range(found[0]))
    if not found or min(found) < 0 or len(set(found)) < len(found):
        raise ConfigError(f"--seeds {text}: give how many (3), or which ones (0,3,7), each once")
    return tuple(found)


def again(arguments: argparse.Namespace) -> str:
    """The command that was given."""
    words = ["fedgrec", "compare"]
    for name in (
        "data",
        "methods",
        "seeds",
        "rounds",
        "epochs",
        "protocol",
        "evaluate_every",
        "metrics",
        "device",
        "config",
    ):
        value = getattr(arguments, name)
        if value is not None and (name, value) not in {("seeds", "3"), ("device", "auto")}:
            words += [f"--{name.replace('_', '-')}", str(value)]
    for text in arguments.set:
        words += ["--set", text]
    words += ["--out", str(arguments.out)] if arguments.out else []
    return shlex.join([*words, *(["--quiet"] if arguments.quiet else [])])
