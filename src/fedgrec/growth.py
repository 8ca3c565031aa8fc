"""A run that goes on with more users, items and clicks; people without items have left.

The sums are those of a living federation (methods/change.py): one recount of what has changed, then rounds, each of
which brings the latents of its users up to date. A GPU's loops know one graph, so there everybody sends its latents
again at once.
"""

from dataclasses import replace
from typing import cast

import numpy as np

from fedgrec.core import Cohort, Floats, ServerState
from fedgrec.data import Dataset, Interactions
from fedgrec.errors import ConfigError
from fedgrec.machine import make_method
from fedgrec.methods import change
from fedgrec.methods.fedgrec import RECOUNT, RESEND, FedGRecMethod
from fedgrec.population import Before, population
from fedgrec.selection import Progress
from fedgrec.simulation import Simulation

SEASON = 5  # the first training is so many times as long as a season


def season(run: Simulation) -> int:
    """The default length of a season: that of the last season; for the first one, a fifth of the training."""
    begun, rounds = run.progress.begun, run.config.run.rounds
    return rounds - begun if begun else -(-rounds // SEASON)


def grow(run: Simulation, dataset: Dataset, rounds: int = 0) -> None:
    """Take in the data as it is now; the run then has `rounds` more to train, a season."""
    method, rounds = run.method, rounds or season(run)
    if not isinstance(method, FedGRecMethod) or run.ranks.size > 1:
        raise ConfigError("only fedgrec, fedmf and federank go on with other data, and only in one process: train anew")
    if run.config.run.noisy:
        raise ConfigError("under dp_epsilon all sums are planned before the first: a run cannot go on with other data")
    if method.options.latent_rate != 1:
        raise ConfigError("with latent_rate other than 1 the latents are not what users sent: train anew")
    before, now, seed = run.dataset.split.train, dataset.split.train, run.config.run.seed
    _check_ids(before, now)
    made = cast(FedGRecMethod, make_method(run.config, now.n_items, now.n_users, run.ranks))
    if method.options.layers and made.latents.step != method.latents.step:
        raise ConfigError("with so many users latents are counted in another step: train anew")
    run._settle()
    server, users, n = run.server, run.users, before.n_users
    if server.standing is None:
        server.standing = _standing(method, server, users)
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
        return method.edge_weights(cohort, run.server.degrees)[1]

    users = change.with_items(users, everyone.indptr[part], everyone.items[:end], weights, targets)
    if now.n_users > n:
        users = change.joined(users, everyone.take(np.arange(n, now.n_users)))
    run.server = made.grown(server, seed)
    run.users = change.before_recount(users, weights)
    for stage in (RECOUNT, *([RESEND] if run.gpu and method.options.layers else [])):
        run._exchange(stage, np.arange(len(run.users)))
        run._count(run.method.traffic(stage, run.degrees))
    run.selected, run.finished = None, False


def _standing(
    method: FedGRecMethod, server: ServerState, users: Cohort
) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    """The latents in steps, from what users sent: a GPU's loops do not count steps."""
    o, sent = method.options, users.state.sent
    leaf = replace(method.latents, rows=o.layers * method.n_items)
    _, push = method.edge_weights(users, server.degrees)
    rows, _ = method.kernel.push(users, push, np.zeros_like(sent), sent, leaf, np.dtype(np.int64), method.n_items)
    steps = np.zeros((leaf.rows, o.dim), np.int64)
    steps[rows.index] = rows.values
    return steps.reshape(o.layers, method.n_items, o.dim)


def _check_ids(before: Interactions, now: Interactions) -> None:
    for old, new in ((before.user_ids, now.user_ids), (before.item_ids, now.item_ids)):
        if len(new) < len(old) or [*new][: len(old)] != [*old]:
            raise ConfigError(
                f"the {old.kind}s of before must come first, in their order: extend the data, do not sort"
            )
