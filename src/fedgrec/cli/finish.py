"""`fedgrec finish`: a finished run again, on everything, its held-out items included."""

import argparse
from pathlib import Path
from typing import Any

from fedgrec.cli.configured import add_item_names, command
from fedgrec.cli.training import add_quiet, check_new, loaded, simulated, trained


def register(commands: Any) -> None:
    finish = command(commands, "finish", run, "learn from everything, held-out items included")
    finish.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run")
    finish.add_argument("--out", type=Path, metavar="FOLDER", help="the new run's folder (default: RUN-final)")
    add_item_names(finish)
    add_quiet(finish)


def run(arguments: argparse.Namespace) -> int:
    """Train on all of a finished run's data, its held-out items included, with the run's options and for as many
    rounds as it chose.
    """
    from fedgrec.data.item_names import KEPT
    from fedgrec.models.model import run_config
    from fedgrec.runs.distributed import launched
    from fedgrec.runs.record import chosen_round, recorded_about
    from fedgrec.runs.resolve import final

    before: Path = arguments.run
    with launched() as ranks:
        config = final(run_config(before), chosen_round(before))
        named = before.resolve() if before.name in ("", "..") else before
        folder: Path = arguments.out or named.with_name(f"{named.name}-final")
        check_new(folder, ranks)
        config, dataset = loaded(config, folder, ranks)
        changed = recorded_about(before, "checksums") != dataset.checksums
        note = f"The data is not what {before} was trained on: this run learns from it as it is now."
        names = arguments.item_names or ((before / KEPT) if (before / KEPT).exists() else None)
        begin = simulated(folder, ranks)
        return trained(config, dataset, folder, begin, ranks, names, arguments.quiet, note if changed else "")
