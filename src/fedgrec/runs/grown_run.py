"""A run folder that goes on with grown data: it takes the data in whole, or not at all.

The grown run is written as a run folder inside the old one, `grown.part`. Once it is renamed to `grown`, it counts: its
files replace the old ones. If that is interrupted, the next --resume finishes it.
"""

import shutil
from pathlib import Path

from fedgrec.config.configuration import Config, recorded
from fedgrec.data import Dataset, Split
from fedgrec.data.datasets import load_for
from fedgrec.data.files import Checkpoints, claimed, said, whole
from fedgrec.data.split import read_split
from fedgrec.errors import ConfigError, FedgrecError, RunError
from fedgrec.models.model import CONFIG, GROWN
from fedgrec.models.selection import RESULT
from fedgrec.runs.distributed import Ranks
from fedgrec.runs.growth import grow
from fedgrec.runs.record import RunRecord, is_finished
from fedgrec.runs.simulation import Observer, Simulation


def split_of(folder: Path) -> Split:
    """The split of a run; earlier releases did not write it down, so it is made again from their data."""
    kept = read_split(folder)
    if kept is not None:
        return kept
    try:
        dataset = load_for(recorded(folder / CONFIG))
        RunRecord.check_same_data(folder, dataset)
    except FedgrecError:
        raise RunError(
            f"{folder} is of an earlier release, which did not write down what it held out: restore the data that it "
            f"was trained on, and name the grown data with --data"
        ) from None
    return dataset.split


def grown_run(
    config: Config, folder: Path, dataset: Dataset, rounds: int, observer: Observer, ranks: Ranks
) -> Simulation:
    """The run in the folder, grown to this data, there and in memory; `rounds` in all, 0: as `growth.season` says."""
    run = Simulation(config, Dataset(dataset.name, split_of(folder)), observer=observer, ranks=ranks)
    ended_without = is_finished(folder) and not config.run.checkpoint_every
    if ended_without or not run.restore(Checkpoints(folder / "checkpoints")):
        raise RunError(f"{folder} has no checkpoint of its last round, so it cannot go on with other data: train anew")
    done = run.server.round
    if 0 < rounds <= done:
        raise ConfigError(f"{folder} has trained {done:,} rounds: --rounds is how many it shall have in all, so more")
    grow(run, dataset, rounds and rounds - done)
    _save(run, folder)
    return run


def _save(run: Simulation, folder: Path) -> None:
    part = folder / f"{GROWN}.part"
    try:
        with whole(folder / GROWN):
            run.record = RunRecord(part, run.config, run.dataset)
            run.progress.write(part)
            run.model().save_tensors(part)
            run._checkpoint()
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    _put_in_place(folder)
    run.record.folder = folder


def end_growth(folder: Path) -> None:
    """Put the files of an interrupted growth in their places; if it was not whole, the run stays as it was."""
    if (folder / GROWN).exists() or (folder / f"{GROWN}.part").exists():
        with claimed(folder):
            shutil.rmtree(folder / f"{GROWN}.part", ignore_errors=True)
            _put_in_place(folder)


def _put_in_place(folder: Path) -> None:
    grown = folder / GROWN
    if not grown.exists():
        return
    with said(folder):
        (folder / RESULT).unlink(missing_ok=True)  # of the season before
        for path in sorted(grown.iterdir()):
            place = folder / path.name
            if place.is_dir():
                shutil.rmtree(place)
            path.replace(place)
        grown.rmdir()
