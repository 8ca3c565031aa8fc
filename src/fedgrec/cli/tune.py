"""`fedgrec tune`: a search for options on validation items."""

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedgrec.cli.compare import DEVICES
from fedgrec.cli.configured import add_set, assigned, command, configuration, flags, whole_number
from fedgrec.config.checking import bare, checked, find, options_of
from fedgrec.config.configuration import Config, options, presets
from fedgrec.errors import ConfigError, nearest
from fedgrec.studies.compare.names import CENTRALIZED, known


def register(commands: Any) -> None:
    tune = command(commands, "tune", run, "search for a method's options on validation items")
    add = tune.add_argument
    add("--data", default="demo", metavar="WORD", help="a data set's name, a folder, or a file (default: demo)")
    add("--method", default="fedgrec", help=f"{', '.join(known())} (default: fedgrec)")
    add(
        "--search",
        action="append",
        default=[],
        metavar="KEY=VALUES",
        help="an option and its values: KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=a,b,c; once for each option",
    )
    add("--trials", default="20", metavar="N", help="in all, finished ones included (default: 20)")
    add("--rounds", metavar="N", help="of a trial; epochs of methods that are not federated")
    add("--metric", default="recall@20", help="recall@k, ndcg@k, hitrate@k, mrr@k or map@k (default: recall@20)")
    add("--seed", default="0", metavar="N", help="of the search, of all trials and of their data's split (default: 0)")
    add("--preset", help=f"where fedgrec starts: {', '.join(presets())} (default: best)")
    add("--config", type=Path, metavar="TOML", help="a file of options of a federated method")
    add_set(tune, "an option that all trials have in common")
    add("--device", default="auto", choices=DEVICES, help="where to train (default: auto, a GPU if there is one)")
    add("--out", type=Path, metavar="FOLDER", help="(default: runs/tune-DATA-METHOD)")
    add("--quiet", action="store_true", help="nothing but the table")
    tune.set_defaults(options=["data", "seed", "protocol", "device", "rounds"], protocol="honest")


def run(arguments: argparse.Namespace) -> int:
    """Train a method with one set of options after the other and keep the best, judged on validation items alone:
    test items are not loaded into a trial. Finished trials are kept: the same command, or one with more --trials,
    goes on.
    """
    from fedgrec.cli.progress import Lines
    from fedgrec.data.files import check_writable
    from fedgrec.data.readers import stem
    from fedgrec.studies.tune.files import BEST, PAGE, grid, write
    from fedgrec.studies.tune.study import tune

    out: Path = arguments.out or Path("runs") / f"tune-{stem(Path(arguments.data))}-{arguments.method}"
    check_writable(out)
    request = request_of(arguments)
    watcher = Lines(arguments.quiet)
    with watcher.watching():
        found = tune(request, out, watcher)
    write(found, out)
    print()
    watcher.table(grid(found))
    watcher.say(f"charts and all trials: {out / PAGE}")
    if found.stopped:
        return watcher.stopped(arguments.words, "finished trials are")
    if found.best is None:
        print("fedgrec: no trial finished: see trials.csv, and search other values", file=sys.stderr)
        return 1
    command = "compare" if arguments.method in CENTRALIZED else "train"
    watcher.say(f"The best options:\n  {shlex.join(['fedgrec', command, '--config', str(out / BEST)])}")
    return 0


def request_of(arguments: argparse.Namespace) -> Any:
    """What the words of the command line mean."""
    from fedgrec.kernels.devices import place
    from fedgrec.studies.tune.search import parse
    from fedgrec.studies.tune.study import Request, list_length

    if arguments.method not in known():
        raise ConfigError(
            f"there is no method {arguments.method!r}.{nearest(arguments.method, known())} "
            f"Methods: {', '.join(known())}"
        )
    if not arguments.search:
        raise ConfigError("name what to search, such as  --search server_rate=0.001..0.1:log")
    searches = [parse(text, arguments.method) for text in arguments.search]
    keys = [search.key for search in searches]
    if len(set(keys)) < len(keys):
        raise ConfigError(f"--search names {', '.join(sorted({k for k in keys if keys.count(k) > 1}))} twice")
    trials = whole_number(arguments.trials, "--trials")
    k = list_length(arguments.metric)
    make = _centralized if arguments.method in CENTRALIZED else _federated
    subject = make(arguments, keys, k)
    if subject.config.run.device == "cuda":
        place("cuda")  # raises where there is no GPU
    if k >= (items := subject.dataset.split.train.n_items):
        raise ConfigError(
            f"--metric {arguments.metric}: there are {items:,} items, so a list of {k:,} holds them all: choose a "
            "smaller k"
        )
    return Request(subject, searches, arguments.metric, trials, subject.config.run.seed)


def _named(arguments: argparse.Namespace, keys: list[str]) -> dict[str, Any]:
    """The options of --set. An option that is searched cannot be fixed too, and the protocol is always honest."""
    named = {bare(key): value for key, value in assigned(arguments).items()}
    for key in named:
        if key in keys:
            raise ConfigError(f"--set {key}: it is searched: leave out one of the two")
    if named.get("protocol", "honest") != "honest":
        raise ConfigError("--set protocol: options are chosen on validation items, so the protocol is honest")
    return named


def _listing(config: Config, k: int) -> Config:
    """The metric's list length first: the first one selects a run's round."""
    return config.changed({"topk": tuple(dict.fromkeys([k, *config.run.topk]))}, "--metric")


def _federated(arguments: argparse.Namespace, keys: list[str], k: int) -> Any:
    from fedgrec.studies.tune.search import Federated

    if arguments.preset and arguments.method != "fedgrec":
        raise ConfigError(f"--preset {arguments.preset}: presets are of fedgrec, not of {arguments.method}")
    _named(arguments, keys)
    return Federated(_listing(configuration(arguments), k))


def _centralized(arguments: argparse.Namespace, keys: list[str], k: int) -> Any:
    """--set may name options of the data, of the run and of the model."""
    from fedgrec.centralized import model_class
    from fedgrec.studies.compare.plan import pick_device
    from fedgrec.studies.tune.search import Centralized

    if arguments.preset or arguments.config:
        raise ConfigError(
            f"--preset and --config are of federated methods: name options of {arguments.method} by --set"
        )
    kind, own, shared = model_class(arguments.method), {}, {}
    if not kind.trains and arguments.rounds is not None:
        raise ConfigError(f"--rounds: {arguments.method} is not trained")
    given = _named(arguments, keys) | ({"epochs": arguments.rounds} if arguments.rounds is not None else {})
    mine = options_of(kind.Options)
    others = [option for option in options() if option.part != "model" and option.name not in {o.name for o in mine}]
    for key, value in given.items():
        found = find(key, [*mine, *others], "--set", arguments.method)
        if found in mine:
            own[found.name] = checked(found, value, f"--set {key}")
        else:
            shared[found.name] = value
    config = Config().layered((shared, "--set"), (flags(arguments, "data", "seed", "protocol"), "command line"))
    config = _listing(config, k)
    run = replace(config.run, device=pick_device(arguments.device, kind.devices))
    return Centralized(Config(config.data, kind.Options(**own), run, arguments.method))
