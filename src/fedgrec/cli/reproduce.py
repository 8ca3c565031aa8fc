"""`fedgrec reproduce`: the paper's tables and figures."""

import argparse
import shlex
import textwrap
from pathlib import Path
from typing import Any

from fedgrec.cli.compare import DEVICES, seeds
from fedgrec.cli.configured import command, whole_number
from fedgrec.errors import ConfigError, nearest
from fedgrec.studies.reproduce import NAMES

OUT, RUNS = Path("docs/results/reproduce"), Path("runs/reproduce")


def register(commands: Any) -> None:
    reproduce = command(commands, "reproduce", run, "the paper's tables and figures, beside its own numbers")
    add = reproduce.add_argument
    add("targets", nargs="*", metavar="TARGET", help=f"{', '.join(NAMES)}, or all")
    add("--list", action="store_true", help="show the targets and how many runs each needs, and run nothing")
    add("--data", metavar="A,B,...", help="data sets (default: the target's own)")
    add(
        "--protocol",
        default="both",
        choices=("paper", "honest", "both"),
        help="paper: the best round on test counts; honest: validation items choose the round (default: both)",
    )
    add("--seeds", metavar="N|A,B,...", help="how many, or which ones (default: 3; with --quick 2)")
    add("--rounds", metavar="N", help="of every federated run (default: the paper's 100000)")
    add("--epochs", metavar="N", help="of every other run that is trained (default: its own)")
    add("--only", metavar="A,B,...", help="these runs alone, by the names in the table")
    add("--reading", metavar="NAME", help="FedGRec under another reading of the paper: --list names them")
    add("--quick", action="store_true", help="small runs on the demo: minutes to seconds, and no numbers to quote")
    add("--finished", action="store_true", help="run nothing: show the runs that are finished")
    add("--device", default="auto", choices=DEVICES, help="where to train (default: auto, a GPU if there is one)")
    add("--out", type=Path, default=OUT, metavar="FOLDER", help=f"for tables and pictures (default: {OUT})")
    add("--runs", type=Path, default=RUNS, metavar="FOLDER", help=f"for the runs (default: {RUNS})")
    add("--quiet", action="store_true", help="nothing but the tables")


def run(arguments: argparse.Namespace) -> int:
    """Run what a table or figure of the paper needs, then write it with the paper's numbers beside it. Finished runs
    are kept and shared, interrupted ones go on: give the same command again.
    """
    from fedgrec.cli.progress import Lines
    from fedgrec.data.files import check_writable
    from fedgrec.studies.reproduce.running import folder, reproduce

    targets, scope = wanted(arguments)
    if arguments.list:
        print(listing(targets, scope), end="")
        return 0
    check_writable(arguments.out, "--out")
    if not arguments.finished:
        check_writable(arguments.runs, "--runs")
    watcher, failures = Lines(arguments.quiet), 0
    flags = [word for word in arguments.words[2:] if word not in (*arguments.targets, "--quiet")]
    for target in targets:
        watcher.say(f"{target.title}\n")
        command = shlex.join(["fedgrec", "reproduce", target.name, *flags])
        with watcher.watching():
            outcome = reproduce(target, scope, arguments.runs, arguments.out, command, watcher)
        for grid in outcome.grids:
            print()
            watcher.table(grid)
        watcher.say(f"written: {arguments.out / folder(target, scope) / 'table.html'}\n")
        failures += outcome.failures
        if outcome.stopped:
            return watcher.stopped(arguments.words)
    return 1 if failures else 0


def wanted(arguments: argparse.Namespace) -> tuple[list[Any], Any]:
    """What the words of the command line mean."""
    from fedgrec.studies.reproduce.plan import PROTOCOLS, Scope, check_labels, chosen
    from fedgrec.studies.reproduce.targets import TARGETS

    every = "all" in arguments.targets or (arguments.list and not arguments.targets)
    names = list(NAMES) if every else arguments.targets
    if not names:
        raise ConfigError(f"name a table or figure of {', '.join(NAMES)}, or all; --list says what each needs")
    for name in names:
        if name not in TARGETS:
            raise ConfigError(f"there is no target {name!r}.{nearest(name, list(NAMES))} Targets: {', '.join(NAMES)}")
    targets = [TARGETS[name] for name in dict.fromkeys(names)]
    rounds, epochs = (
        whole_number(given, f"--{flag}") if (given := getattr(arguments, flag)) is not None else 0
        for flag in ("rounds", "epochs")
    )
    protocols = PROTOCOLS if arguments.protocol == "both" else (arguments.protocol,)
    lengths = seeds(arguments.seeds) if arguments.seeds else (), rounds, epochs, arguments.quick
    more = split(arguments.only), arguments.device, arguments.reading or "", arguments.finished
    scope = Scope(split(arguments.data), protocols, *lengths, *more)
    check_labels(targets, scope.only)
    if not (scope.only or scope.reading):
        return targets, scope
    targets = [target for target in targets if chosen(target, scope)]
    if not targets:
        raise ConfigError(f"--reading {scope.reading} changes nothing here: it is for runs of FedGRec as in the paper")
    return targets, scope


def split(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def listing(targets: list[Any], scope: Any) -> str:
    """Each target with its runs, for 80 columns."""
    from fedgrec.studies.reproduce.plan import chosen, groups, readings, run_count
    from fedgrec.studies.reproduce.plan import seeds as seeds_of

    lines = []
    for target in targets:
        parts, entries = groups(target, scope), chosen(target, scope)
        data, protocols = (list(dict.fromkeys(getattr(g, name) for g in parts)) for name in ("data", "protocol"))
        n_seeds, count = len(seeds_of(target, scope)), run_count(target, scope)
        said = [f"{count} runs on {', '.join(data)}"]
        if entries:
            what = f"{len(entries)} settings, {' and '.join(protocols)}, {n_seeds} seed{'s' if n_seeds > 1 else ''}"
            names = ", ".join(target.names.get(e.label, e.label).replace(" ", "\N{NO-BREAK SPACE}") for e in entries)
            said = [f"{said[0]}: {what}", names]
        lines.append(f"{target.name:<15}{target.title}")
        for part in said:
            lines += [f"{'':15}{line}" for line in textwrap.wrap(part, 80 - 15, break_on_hyphens=False)]
    lines += ["", "--reading NAME: what the paper leaves open, read otherwise"]
    lines += [f"  {name:<28}{each.what}" for name, each in readings().items()]
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ") + "\n"
