"""A run that goes on with more users, items and clicks; people without items have left.

The sums are those of a living federation (methods/change.py): one recount of what has changed, then rounds, each of
which brings the latents of its users up to date. A GPU's loops know one graph, so there everybody sends its latents
again at once.
"""

from dataclasses import replace

import numpy as np

from fedgrec.cable.core import Cohort, Floats
from fedgrec.data import Dataset, Interactions
from fedgrec.errors import ConfigError
from fedgrec.methods import change
from fedgrec.models.selection import Progress
from fedgrec.runs.machine import make_method
from fedgrec.runs.population import Before, population
from fedgrec.runs.simulation import Simulation

SEASON = 5  # the first training is so many times as long as a season


def season(run: Simulation) -> int:
    """The default length of a season: that of the last season; for the first one, a fifth of the training."""
    begun, rounds = run.progress.begun, run.config.run.rounds
    return rounds - begun if begun else -(-rounds // SEASON)


def grow(run: Simulation, dataset: Dataset, rounds: int = 0) -> None:
    """Take in the data as it is now; the run then has `rounds` more to train, a season."""
    method, rounds = run.method, rounds or season(run)
    if run.ranks.size > 1:
        raise ConfigError("a run goes on with other data in one process alone: leave out torchrun")
    if run.config.run.noisy:
        raise ConfigError("under dp_epsilon all sums are planned before the first: a run cannot go on with other data")
    before, now, seed = run.dataset.split.train, dataset.split.train, run.config.run.seed
    made = make_method(run.config, now.n_items, now.n_users, run.ranks)
    method.check_grows(made)
    _check_ids(before, now)
    run._settle()
    users, n = run.users, before.n_users
    server = run.server = method.recovered(run.server, users)
    run.config = replace(run.config, run=replace(run.config.run, rounds=server.round + rounds))
    run.dataset = dataset
    told = run.progress
    run.progress = Progress(
        told.metrics, seconds=told.seconds, traffic=told.traffic, clipped=told.clipped, begun=server.round
    )
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
    for stage in filter(None, (made.recount, made.resend if run.gpu else None)):
        run._exchange(stage, np.arange(len(run.users)))
        run._count(run.method.traffic(stage, run.degrees))
    run.selected, run.finished = None, False


def _check_ids(before: Interactions, now: Interactions) -> None:
    for old, new in ((before.user_ids, now.user_ids), (before.item_ids, now.item_ids)):
        if len(new) < len(old) or [*new][: len(old)] != [*old]:
            raise ConfigError(
                f"the {old.kind}s of before must come first, in their order: extend the data, do not sort"
            )
