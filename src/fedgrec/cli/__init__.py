"""The command line: thin. Each command parses, calls, and says what happened.

It may import everything, and nothing imports it. Nothing heavy is imported before a command needs it, so `--help` is
quick.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from fedgrec import __version__
from fedgrec.errors import FedgrecError, system_trouble

EXAMPLES = """\
examples:
  fedgrec train --data demo --out runs/first      train on the built-in data
  fedgrec train --data clicks.csv --out runs/mine train on a file, measure
  fedgrec finish runs/mine                        train on the whole file
  fedgrec recommend runs/mine-final --user alice  what Alice should see next
  fedgrec recommend runs/mine-final --items 12,31 for a person new to the model
  fedgrec export runs/mine-final --page page      a page that recommends
  fedgrec evaluate runs/mine --topk 10,20,50      rank again, other list lengths
  fedgrec compare --methods fedgrec,popularity    methods side by side
  fedgrec audit --data clicks.csv                 what a server would find out
  fedgrec federation up --nodes 3                 server and nodes, really apart
"""


# The files of the commands, in the order of the help.
MODULES = ("train", "training", "inspect", "recommend", "pages", "compare", "reproduce", "tune", "audit", "serve",
           "federation", "demo")  # fmt: skip


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The whole command line. The words that it will parse say which method's options `train` has."""
    top = argparse.ArgumentParser(
        prog="fedgrec",
        description="Federated graph recommenders: people's clicks stay on their devices.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"fedgrec {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in MODULES:
        more = (words,) if name == "train" else ()
        importlib.import_module(f"fedgrec.cli.{name}").register(commands, *more)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. A mistake that the user can correct prints one sentence and ends with the error's exit code."""
    words = sys.argv[1:] if argv is None else [*argv]
    top = parser(words)
    arguments, unknown = top.parse_known_args(words)
    arguments.words = ["fedgrec", *words]  # the command, for whoever has to give it again
    if unknown and not hasattr(arguments, "unknown"):
        top.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        if unknown:
            arguments.unknown(arguments, unknown)
        code = int(arguments.command(arguments) or 0)
        sys.stdout.flush()  # here, where a closed pipe is expected, not when the interpreter ends
        return code
    except FedgrecError as error:
        from fedgrec.cable.core import printable

        print("\n".join(map(printable, f"fedgrec: {error}".splitlines())), file=sys.stderr)
        return error.code
    except MemoryError as error:
        why = f" ({error})" if str(error) else ""
        print(f"fedgrec: there is not enough memory{why}: make what was asked for smaller", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fedgrec: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `fedgrec ... | head`
        _drop_output()
        return 0
    except OSError as error:  # a folder that may not be written, a full disk
        if not error.errno:
            raise
        where = f"{error.filename}: " if error.filename is not None else ""
        print(f"fedgrec: {where}{system_trouble(error.errno)}", file=sys.stderr)
        _drop_output()
        return 2


def _drop_output() -> None:
    """Discard output that could not be printed, so that Python does not try again when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
