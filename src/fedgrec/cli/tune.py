"""`fedgrec tune`: a search for options on validation items."""

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from fedgrec.cli.compare import DEVICES
from fedgrec.compare.names import CENTRALIZED, known
from fedgrec.config import Config, checked, find, parse_assignment, preset, presets, read_toml
from fedgrec.errors import ConfigError, nearest


def register(commands: Any) -> None:
    tune = commands.add_parser(
        "tune",
        help="search for a method's options on validation items",
        description="Train a method with one set of options after the other and keep the best, judged on validation "
        "items alone: test items are not loaded into a trial. Finished trials are kept: the same command, or one with "
        "more --trials, goes on.",
    )
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
    add("--rounds", default=None, metavar="N", help="of a trial; epochs of methods that are not federated")
    add("--metric", default="recall@20", help="recall@k, ndcg@k, hitrate@k, mrr@k or map@k (default: recall@20)")
    add("--seed", default="0", metavar="N", help="of the search, of all trials and of their data's split (default: 0)")
    add("--preset", default=None, help=f"where fedgrec starts: {', '.join(presets())} (default: best)")
    add("--config", type=Path, metavar="TOML", help="a file of options of a federated method")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="an option that all trials have in common")
    add("--device", default="auto", choices=DEVICES, help="where to train (default: auto, a GPU if there is one)")
    add("--out", type=Path, metavar="FOLDER", help="(default: runs/tune-DATA-METHOD)")
    add("--quiet", action="store_true", help="nothing but the table")
    tune.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    from fedgrec.cli.tune_lines import Lines
    from fedgrec.data.readers import stem
    from fedgrec.files import check_writable
    from fedgrec.tables import terminal
    from fedgrec.tune import tune
    from fedgrec.tune.files import BEST, PAGE, grid, write

    out: Path = arguments.out or Path("runs") / f"tune-{stem(Path(arguments.data))}-{arguments.method}"
    check_writable(out)
    request = asked(arguments)
    watcher = Lines(arguments.quiet)
    with watcher.watching():
        found = tune(request, out, watcher)
    write(found, out)
    print(f"\n{terminal(grid(found), shutil.get_terminal_size((80, 24)).columns)}")
    watcher.say(f"charts and all trials: {out / PAGE}")
    if found.stopped:
        print(f"Stopped; finished trials are saved. Go on with:\n  {again(arguments)}", file=sys.stderr)
        return 130
    if found.best is None:
        print("fedgrec: no trial finished: see trials.csv, and search other values", file=sys.stderr)
        return 1
    command = "compare" if arguments.method in CENTRALIZED else "train"
    watcher.say(f"The best options:\n  {shlex.join(['fedgrec', command, '--config', str(out / BEST)])}")
    return 0


def asked(arguments: argparse.Namespace) -> Any:
    """What the words of the command line mean."""
    from fedgrec.tune import Request, parse
    from fedgrec.tune.study import list_length

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
    if not arguments.trials.isdecimal() or int(arguments.trials) < 1:
        raise ConfigError(f"--trials cannot be {arguments.trials!r}: it is a whole number, at least 1")
    k = list_length(arguments.metric)
    make = _centralized if arguments.method in CENTRALIZED else _federated
    subject = make(arguments, keys, k)
    if k >= (items := subject.dataset.split.train.n_items):
        raise ConfigError(
            f"--metric {arguments.metric}: there are {items:,} items, so a list of {k:,} holds them all: choose a "
            "smaller k"
        )
    return Request(subject, searches, arguments.metric, int(arguments.trials), subject.config.run.seed)


def _named(arguments: argparse.Namespace, keys: list[str]) -> dict[str, Any]:
    """The options of --set. An option that is searched cannot be fixed too, and the protocol is always honest."""
    named = {key.replace("-", "_"): v for key, v in (parse_assignment(text) for text in arguments.set)}
    for key in named:
        if key in keys:
            raise ConfigError(f"--set {key}: it is searched: leave out one of the two")
    if named.get("protocol", "honest") != "honest":
        raise ConfigError("--set protocol: options are chosen on validation items, so the protocol is honest")
    return named


def _common(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"data": arguments.data, "seed": arguments.seed, "protocol": "honest"}


def _listing(config: Config, k: int) -> Config:
    """The metric's list length first: the first one selects a run's round."""
    return config.changed({"topk": tuple(dict.fromkeys([k, *config.run.topk]))}, "--metric")


def _federated(arguments: argparse.Namespace, keys: list[str], k: int) -> Any:
    from fedgrec.devices import place
    from fedgrec.tune import Federated

    if arguments.preset and arguments.method != "fedgrec":
        raise ConfigError(f"--preset {arguments.preset}: presets are of fedgrec, not of {arguments.method}")
    file = [(read_toml(arguments.config), str(arguments.config))] if arguments.config else []
    flags = (
        _common(arguments)
        | {"device": arguments.device}
        | ({"rounds": arguments.rounds} if arguments.rounds is not None else {})
    )
    named = {**_named(arguments, keys), "method": arguments.method}
    config = preset(arguments.preset or "best").layered(*file, (named, "--set"), (flags, "command line"))
    if config.run.device == "cuda":
        place("cuda")  # raises where there is no GPU
    return Federated.of(_listing(config, k))


def _centralized(arguments: argparse.Namespace, keys: list[str], k: int) -> Any:
    """--set may name options of the data, of the run and of the model."""
    from fedgrec.centralized import model_class
    from fedgrec.compare.plan import pick_device
    from fedgrec.devices import place
    from fedgrec.tune import Centralized
    from fedgrec.tune.search import option

    if arguments.preset or arguments.config:
        raise ConfigError(
            f"--preset and --config are of federated methods: name options of {arguments.method} by --set"
        )
    kind, own, shared = model_class(arguments.method), {}, {}
    if not kind.trains and arguments.rounds is not None:
        raise ConfigError(f"--rounds: {arguments.method} is not trained")
    given = _named(arguments, keys) | ({"epochs": arguments.rounds} if arguments.rounds is not None else {})
    names = set(vars(kind.Options()))
    for key, value in given.items():
        if key in names:
            own[key] = checked(*option(key, "--set", arguments.method), value, f"--set {key}")
        else:
            found = find(key, "--set")
            if found[0] == "model":
                option(key, "--set", arguments.method)  # raises: the model has no such option
            shared[key] = value
    config = Config().layered((shared, "--set"), (_common(arguments), "command line"))
    device = pick_device(arguments.device, kind.devices)
    if device == "cuda":
        place(device)
    return Centralized.of(arguments.method, _listing(config, k), kind.Options(**own), device)


def again(arguments: argparse.Namespace) -> str:
    """The command that was given."""
    words, usual = ["fedgrec", "tune"], {("method", "fedgrec"), ("metric", "recall@20"), ("device", "auto")}
    names = ("data", "method", "trials", "rounds", "metric", "seed", "preset", "config", "device", "out")
    for name in names:
        value = getattr(arguments, name)
        if value is not None and (name, value) not in usual:
            words += [f"--{name}", str(value)]
    for flag in ("search", "set"):
        for text in getattr(arguments, flag):
            words += [f"--{flag}", text]
    return shlex.join(words)
