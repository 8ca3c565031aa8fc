"""`fedgrec grow`: a run goes on with its data as it is now."""

import argparse
from pathlib import Path
from typing import Any

from fedgrec.cli.configured import (
    LENGTH,
    add_item_names,
    add_set,
    asks_more,
    assigned,
    command,
    flags,
    resumed_configuration,
)
from fedgrec.cli.training import add_quiet, loaded, opened, say_complete, simulated, trained
from fedgrec.config.checking import bare


def register(commands: Any) -> None:
    grow = command(commands, "grow", run, "go on with a run on data that has grown")
    grow.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    grow.add_argument("--data", metavar="FILE", help="where the data is now (default: where it was)")
    grow.add_argument("--rounds", metavar="N", help="rounds in all (default: a fifth more)")
    add_set(grow, "patience, checkpoint_every or threads from now on")
    add_item_names(grow)
    add_quiet(grow)
    grow.set_defaults(options=["data", "rounds"])


def run(arguments: argparse.Namespace) -> int:
    """Go on with a run on its data as it is now, in the same file or in another.

    People, items and clicks may have come and gone; held-out items stay held out. The run gets a fifth of its rounds
    more.
    """
    from fedgrec.data.item_names import keep
    from fedgrec.runs.distributed import launched
    from fedgrec.runs.growth import grown_run, split_of
    from fedgrec.runs.record import is_same_data, recorded_about

    with launched() as ranks:
        folder, names = opened(arguments.run, ranks), arguments.item_names
        config = resumed_configuration(arguments, folder, LENGTH | {"data"})
        # the split that `auto` chose when the run began
        config = config.changed({"split": recorded_about(folder, "split")}, str(folder))
        if names and ranks.first:
            keep(names, folder)  # now, because a complete run ends below; its later reports use the names
        config, dataset = loaded(config, folder, ranks, split_of(folder))
        if not is_same_data(folder, dataset):
            asked = {bare(key) for key in assigned(arguments) | flags(arguments)}
            rounds = config.run.rounds if "rounds" in asked else 0
            begin = lambda config, dataset, bar: grown_run(config, folder, dataset, rounds, bar, ranks)  # noqa: E731
        elif asks_more(config, folder):
            begin = simulated(folder, ranks, resumes=True)
        else:
            return say_complete(folder, ranks)
        return trained(config, dataset, folder, begin, ranks, names, arguments.quiet)
