"""The users of a simulation: the items that they tell and train on, and those that they have at home."""

from typing import NamedTuple

import numpy as np

from fedgrec.cable.core import Cohort, Ints
from fedgrec.cable.decoys import next_told_items
from fedgrec.config.configuration import Config
from fedgrec.data import Interactions
from fedgrec.errors import ConfigError
from fedgrec.methods.contract import Method

USERS_STREAM, DECOYS_STREAM = 1, 23


def population(config: Config, method: Method, own: Interactions, before: "Before | None" = None) -> Cohort:
    """All users, with keys drawn from the seed and the items that each one trains on.

    `before`: what they had and told until now, where a run goes on with other data. Nothing older is known here: a
    click that was taken back and returns is new again, and answered twice. Nodes remember such clicks.
    """
    seed = config.run.seed
    keys = np.random.Generator(np.random.Philox(key=[seed, USERS_STREAM]))
    drawn = keys.integers(0, 2**64, own.n_users, dtype=np.uint64)
    if config.data.weight_ceiling:
        if not method.takes_weights:
            raise ConfigError(f"{config.method} with these options knows no weights: leave out weight_ceiling")
    elif own.ratings is not None and not (loss := getattr(config.model, "loss", "")).startswith("mse"):
        why = f"the loss {loss!r} of {config.method}" if loss else f"the loss of {config.method}"
        raise ConfigError(f"{why} takes no ratings: leave out keep_ratings, or set loss = mse where a method has it")
    if not config.run.decoys_epsilon:
        users = method.init_users(drawn, own.indptr, own.items, own.ratings)
        return users if own.times is None or not method.options.takes_order else users.ordered_by(own.times)
    method.check_decoys()
    if own.ratings is not None:
        raise ConfigError("decoys have no ratings: leave out keep_ratings and weight_ceiling")
    told = [_answers(config, own, user, before) for user in range(own.n_users)]
    indptr = np.concatenate([[0], np.cumsum([len(items) for items in told])])
    items = np.concatenate([np.zeros(0, np.int64), *told]).astype(own.items.dtype)
    return method.init_users(drawn, indptr, items)


class Before(NamedTuple):
    """What users had, and what they told, when a season began in this round."""

    own: Interactions
    users: Cohort
    round: int


def _answers(config: Config, own: Interactions, user: int, before: Before | None) -> Ints:
    had: Ints = own.items[:0]
    told, season = had, before.round if before else 0
    if before and user < len(before.users):
        had, told = before.own.of(user), before.users.items_of(user)
    key = [config.run.seed, DECOYS_STREAM]
    draw = np.random.Generator(np.random.Philox(key=key, counter=[0, user, season, 0]))
    return next_told_items(told, np.setdiff1d(own.of(user), had), own.n_items, config.run.dp_epsilon, draw)
