"""`fedgrec compare`: methods side by side, in one table."""

import argparse
from pathlib import Path
from typing import Any

from fedgrec.cli.configured import add_set, assigned, command, flags
from fedgrec.errors import ConfigError
from fedgrec.studies.compare.names import known

DEVICES = ("auto", "cpu", "cuda")


def register(commands: Any) -> None:
    compare = command(commands, "compare", run, "several methods, federated or not, in one table")
    add = compare.add_argument
    add("--data", metavar="WORD", help="a data set's name, a folder, or a file (default: demo)")
    add(
        "--methods",
        metavar="A,B,...",
        help=f"{', '.join(known())}; options follow a colon: fedgrec:layers=1,rounds=4000 (default: all sections of "
        "--config)",
    )
    add("--seeds", default="3", metavar="N|A,B,...", help="how many, from 0 on, or which ones (default: 3)")
    add("--rounds", metavar="N", help="of every federated method (default: 110 turns for every user)")
    add("--epochs", metavar="N", help="of every other method that is trained (default: its own)")
    add(
        "--protocol",
        choices=("honest", "paper"),
        help="honest: validation items choose the round; paper: the best round on test counts (default: honest)",
    )
    add("--evaluate-every", metavar="ROUNDS[,EPOCHS]", help="between evaluations (default: twenty in every run)")
    add("--metrics", metavar="A,B,...", help="further columns, such as map,novelty; or all")
    add("--device", default="auto", choices=DEVICES, help="where to train (default: auto, a GPU if there is one)")
    add("--config", type=Path, metavar="TOML", help="options of all in [data] and [run], of one in [compare.NAME]")
    add_set(compare, "an option of the data or of all runs")
    add("--out", type=Path, metavar="FOLDER", help="(default: compare/DATA)")
    add("--quiet", action="store_true", help="nothing but the table")
    compare.set_defaults(options=["data", "protocol", "rounds"])


def run(arguments: argparse.Namespace) -> int:
    """Train several methods with several seeds on the same data and write one table. Finished runs are kept,
    interrupted ones go on: give the same command again.
    """
    from fedgrec.cli.progress import Lines
    from fedgrec.data.files import check_writable
    from fedgrec.data.readers import stem
    from fedgrec.studies.compare.comparison import compare, write
    from fedgrec.studies.compare.results import grid

    settings = settings_of(arguments)
    out: Path = arguments.out or Path("compare") / stem(Path(settings.common.data.data))
    check_writable(out)
    watcher = Lines(arguments.quiet)
    with watcher.watching():
        comparison = compare(settings, out, watcher)
    write(comparison, out)
    watcher.say("")
    watcher.table(grid(comparison.table))
    watcher.say(f"charts and tables: {out / 'compare.html'}")
    if comparison.stopped and not all(run.finished for run in comparison.runs):
        return watcher.stopped(arguments.words)
    return 1 if comparison.failures else 0


def settings_of(arguments: argparse.Namespace) -> Any:
    """What the words of the command line mean."""
    from fedgrec.models.metrics import named as metrics_named
    from fedgrec.studies.compare.names import File, entries, read_file
    from fedgrec.studies.compare.plan import Settings

    metrics = metrics_named(arguments.metrics) if arguments.metrics is not None else ()
    file = read_file(arguments.config) if arguments.config else File()
    rounds, _, epochs = (arguments.evaluate_every or "").partition(",")
    given = flags(arguments) | ({"evaluate_every": rounds} if rounds else {})
    others = {"epochs": arguments.epochs, "evaluate_every": epochs or None}
    others = {key: value for key, value in others.items() if value is not None}
    shared = seeds(arguments.seeds), file, assigned(arguments), given, others, arguments.device
    more = tuple(name for name in metrics if name not in ("recall", "ndcg"))  # these two are always there
    return Settings(entries(arguments.methods, file), *shared, more)


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
