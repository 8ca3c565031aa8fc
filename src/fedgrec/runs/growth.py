"""A run that goes on with more users, items and clicks; people without items have left.

The sums are those of a living federation (methods/change.py): one recount of what has changed, then rounds, each of
which brings the latents of its users up to date. A GPU's loops know one graph, so there everybody sends its latents
again at once.

A run's folder takes the grown data in whole, or not at all. The grown run is written as a run folder inside the old
one, `grown.part`. Once it is renamed to `grown`, it counts: its files replace the old ones. If that is interrupted, the
next --resume finishes it.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedgrec.cable.core import Cohort, Floats
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.data.datasets import MATRIX
from fedgrec.data.files import Checkpoints, claimed, said, whole
from fedgrec.data.split import read_split
from fedgrec.errors import ConfigError, RunError
from fedgrec.methods import change
from fedgrec.models.model import GROWN, Model
from fedgrec.models.selection import RESULT, Observer
from fedgrec.runs.machine import make_method
from fedgrec.runs.population import Before, population
from fedgrec.runs.record import RunRecord, is_finished
from fedgrec.runs.simulation import Simulation

SEASON = 5  # the first training is so many times as long as a season


def season(run: Simulation) -> int:
    """The default length of a season: that of the last season; for the first one, a fifth of the training."""
    begun, rounds = run.progress.begun, run.config.run.rounds
    return rounds - begun if begun else -(-rounds // SEASON)


def continued(model: Model) -> Simulation:
    """A run that can grow, from a model alone: the server's optimizer has forgotten its moments."""
    known, users = model.known, model.users
    if known.n_pairs != len(users.items):
        raise ConfigError("partial_fit learns from everything: this model was trained with validation or test items")
    train = Interactions(known.user_ids, known.item_ids, *model.trained_on, users.targets)
    run = Simulation(model.config, Dataset(MATRIX, Split(train, None)))
    run.server = replace(model.server, moment1=run.server.moment1, moment2=run.server.moment2)
    run.users = users.with_state(users.state.copy())
    return run


def grow(run: Simulation, dataset: Dataset, rounds: int = 0) -> None:
    """Take in the data as it is now; the run then has `rounds` more to train, a season."""
    method, rounds = run.method, rounds or season(run)
    if run.config.run.noisy:
        raise ConfigError("under dp_epsilon all sums are planned before the first: a run cannot go on with other data")
    before, now, seed = run.dataset.split.train, dataset.split.train, run.config.run.seed
    made = make_method(run.config, now.n_items, now.n_users)
    method.check_grows(made)
    for old, new in ((before.user_ids, now.user_ids), (before.item_ids, now.item_ids)):
        if len(new) < len(old) or [*new][: len(old)] != [*old]:
            raise ConfigError(
                f"the {old.kind}s of before must come first, in their order: extend the data, do not sort"
            )
    run._settle()
    users, n = run.users, before.n_users
    server = run.server = method.recovered(run.server, users)
    run.config = replace(run.config, run=replace(run.config.run, rounds=server.round + rounds))
    run.dataset = dataset
    run.progress = replace(run.progress, best=(), best_round=-1, stale=0, begun=server.round)
    run.begin_season(made)
    everyone = population(run.config, made, now, Before(before, users, server.round))
    run.degrees = everyone.degrees
    # Old users get their present items; new users come with all of theirs.
    part, end = slice(0, n + 1), everyone.indptr[n]
    targets = None if everyone.targets is None else everyone.targets[:end]

    def weights(cohort: Cohort) -> Floats:
        return method.push_weights(cohort, run.server.degrees)

    users = change.with_items(users, everyone.indptr[part], everyone.items[:end], weights, targets)
    if now.n_users > n:
        users = change.joined(users, everyone.take(np.arange(n, now.n_users)))
    run.server = made.grown(server, seed)
    run.users = change.before_recount(users, weights)
    for stage in filter(None, (made.recount, made.resend if run.engine else None)):
        run._exchange(stage, np.arange(len(run.users)))
        run._count(run.method.traffic(stage, run.degrees))
    run.selected, run.finished = None, False


# ----------------------------------------------------------------------------------------- its folder


def split_of(folder: Path) -> Split:
    """The split of a run."""
    kept = read_split(folder)
    if kept is None:
        raise RunError(f"{folder} did not write down what it held out, so it cannot go on with other data: train anew")
    return kept


def grown_run(config: Config, folder: Path, dataset: Dataset, rounds: int, observer: Observer) -> Simulation:
    """The run in the folder, grown to this data, there and in memory; `rounds` in all, 0: as `growth.season` says."""
    run = Simulation(config, Dataset(dataset.name, split_of(folder)), observer=observer)
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
