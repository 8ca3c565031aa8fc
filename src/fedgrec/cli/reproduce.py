"""`fedgrec reproduce`: the paper's tables and figures."""

import argparse
import shlex
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

from fedgrec.cli.compare import DEVICES, seeds
from fedgrec.errors import ConfigError, nearest
from fedgrec.reproduce import NAMES

OUT, RUNS = Path("docs/results/reproduce"), Path("runs/reproduce")
FLAGS = ("data", "protocol", "seeds", "rounds", "epochs", "only", "reading", "device", "out", "runs")


def register(commands: Any) -> None:
    reproduce = commands.add_parser(
        "reproduce",
        help="the paper's tables and figures, beside its own numbers",
        description="Run what a table or figure of the paper needs, then write it with the paper's numbers beside it. "
        "Finished runs are kept and shared, interrupted ones go on: give the same command again.",
    )
    add = reproduce.add_argument
    add("targets", nargs="*", metavar="TARGET", help=f"{', '.join(NAMES)}, or all")
    add("--list", action="store_true", help="show the targets and how many runs each needs, and run nothing")
    add("--data", default=None, metavar="A,B,...", help="data sets (default: the target's own)")
    add(
        "--protocol",
        default="both",
        choices=("paper", "honest", "both"),
        help="paper: the best round on test counts; honest: validation items choose the round (default: both)",
    )
    add("--seeds", default=None, metavar="N|A,B,...", help="how many, or which ones (default: 3; with --quick 2)")
    add("--rounds", default=None, metavar="N", help="of every federated run (default: the paper's 100000)")
    add("--epochs", default=None, metavar="N", help="of every other run that is trained (default: its own)")
    add("--only", default=None, metavar="A,B,...", help="these runs alone, by the names in the table")
    add("--reading", default=None, metavar="NAME", help="FedGRec under another reading of the paper: --list names them")
    add("--quick", action="store_true", help="small runs on the demo: minutes to seconds, and no numbers to quote")
    add("--finished", action="store_true", help="run nothing: show the runs that are finished")
    add("--device", default="auto", choices=DEVICES, help="where to train (default: auto, a GPU if there is one)")
    add("--out", type=Path, default=OUT, metavar="FOLDER", help=f"for tables and pictures (default: {OUT})")
    add("--runs", type=Path, default=RUNS, metavar="FOLDER", help=f"for the runs (default: {RUNS})")
    add("--quiet", action="store_true", help="nothing but the tables")
    reproduce.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    from fedgrec.cli.compare_lines import Lines
    from fedgrec.files import check_writable
    from fedgrec.reproduce import reproduce
    from fedgrec.reproduce.running import folder
    from fedgrec.tables import terminal

    targets, asked = wanted(arguments)
    if arguments.list:
        print(listing(targets, asked), end="")
        return 0
    check_writable(arguments.out, "--out")
    if not arguments.finished:
        check_writable(arguments.runs, "--runs")
    watcher, failures, stopped = Lines(arguments.quiet), 0, False
    width = shutil.get_terminal_size((80, 24)).columns
    for target in targets:
        watcher.say(f"{target.title}\n")
        with watcher.watching():
            outcome = reproduce(target, asked, arguments.runs, arguments.out, again(arguments, [target.name]), watcher)
        for grid in outcome.grids:
            print(f"\n{terminal(grid, width)}")
        watcher.say(f"written: {arguments.out / folder(target, asked) / 'table.html'}\n")
        failures += outcome.failures
        if outcome.stopped:
            stopped = True
            break
    if stopped:
        print(f"Stopped; everything is saved. Go on with:\n  {again(arguments, arguments.targets)}", file=sys.stderr)
        return 130
    return 1 if failures else 0


def wanted(arguments: argparse.Namespace) -> tuple[list[Any], Any]:
    """What the words of the command line mean."""
    from fedgrec.reproduce import TARGETS, Asked
    from fedgrec.reproduce.plan import PROTOCOLS, check_labels, chosen

    names = (
        list(NAMES) if "all" in arguments.targets or (arguments.list and not arguments.targets) else arguments.targets
    )
    if not names:
        raise ConfigError(f"name a table or figure of {', '.join(NAMES)}, or all; --list says what each needs")
    for name in names:
        if name not in TARGETS:
            raise ConfigError(f"there is no target {name!r}.{nearest(name, list(NAMES))} Targets: {', '.join(NAMES)}")
    targets = [TARGETS[name] for name in dict.fromkeys(names)]
    asked = Asked(
        tuple(split(arguments.data)),
        PROTOCOLS if arguments.protocol == "both" else (arguments.protocol,),
        seeds(arguments.seeds) if arguments.seeds else (),
        length(arguments.rounds, "--rounds"),
        length(arguments.epochs, "--epochs"),
        arguments.quick,
        tuple(split(arguments.only)),
        arguments.device,
        arguments.reading or "",
        arguments.finished,
    )
    check_labels(targets, asked.only)
    if not (asked.only or asked.reading):
        return targets, asked
    targets = [target for target in targets if chosen(target, asked)]
    if not targets:
        raise ConfigError(f"--reading {asked.reading} changes nothing here: it is for runs of FedGRec as in the paper")
    return targets, asked


def split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def length(text: str | None, flag: str) -> int:
    """A number of rounds or epochs; 0 where none was given."""
    if text is None:
        return 0
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{flag} cannot be {text!r}: it is a whole number, at least 1")
    return int(text)


def listing(targets: list[Any], asked: Any) -> str:
    """Each target with its runs, for 80 columns."""
    from fedgrec.reproduce.plan import chosen, groups, run_count
    from fedgrec.reproduce.plan import seeds as seeds_of
    from fedgrec.reproduce.readings import READINGS

    lines = []
    for target in targets:
        parts, entries = groups(target, asked), chosen(target, asked)
        data, protocols = (list(dict.fromkeys(getattr(g, name) for g in parts)) for name in ("data", "protocol"))
        n_seeds, count = len(seeds_of(target, asked)), run_count(target, asked)
        said = [f"{count} runs on {', '.join(data)}"]
        if entries:
            what = f"{len(entries)} settings, {' and '.join(protocols)}, {n_seeds} seed{'s' if n_seeds > 1 else ''}"
            names = ", ".join(target.names.get(e.label, e.label).replace(" ", "\N{NO-BREAK SPACE}") for e in entries)
            said = [f"{said[0]}: {what}", names]
        lines.append(f"{target.name:<15}{target.title}")
        for part in said:
            lines += [f"{'':15}{line}" for line in textwrap.wrap(part, 80 - 15, break_on_hyphens=False)]
    lines += ["", "--reading NAME: what the paper leaves open, read otherwise"]
    lines += [f"  {name:<28}{each.what}" for name, each in READINGS.items()]
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ") + "\n"


def again(arguments: argparse.Namespace, targets: list[str]) -> str:
    """The command that was given, for these targets."""
    words = ["fedgrec", "reproduce", *targets]
    usual = {("protocol", "both"), ("device", "auto"), ("out", OUT), ("runs", RUNS)}
    for name in FLAGS:
        value = getattr(arguments, name)
        if value is not None and (name, value) not in usual:
            words += [f"--{name}", str(value)]
    words += [f"--{name}" for name in ("quick", "finished") if getattr(arguments, name)]
    return shlex.join(words)
