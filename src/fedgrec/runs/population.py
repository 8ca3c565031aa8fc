"""The users of a simulation: the items that they tell and train on, and those that they have at home."""

from dataclasses import replace

import numpy as np

from fedgrec.cable.core import Cohort, Ints
from fedgrec.cable.decoys import told_next
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
    if not tells_decoys(config):
        return method.init_users(drawn, own.indptr, own.items, own.ratings)
    method.check_decoys()
    if own.ratings is not None:
        raise ConfigError("decoys have no ratings: leave out keep_ratings")
    told = [_answers(config, own, user, before) for user in range(own.n_users)]
    indptr = np.concatenate([[0], np.cumsum([len(items) for items in told])])
    items = np.concatenate([np.zeros(0, np.int64), *told]).astype(own.items.dtype)
    return method.init_users(drawn, indptr, items)


class Before:
    """What users had, and what they told, when a season began in this round."""

    def __init__(self, own: Interactions, users: Cohort, round_: int) -> None:
        self.own, self.users, self.round = own, users, round_

    def had(self, user: int) -> Ints:
        return self.own.of(user) if user < self.own.n_users else self.own.items[:0]

    def answered(self, user: int) -> Ints:
        return self.users.items_of(user) if user < len(self.users) else self.users.items[:0]


def _answers(config: Config, own: Interactions, user: int, before: Before | None) -> Ints:
    season = before.round if before else 0
    key = [config.run.seed, DECOYS_STREAM]
    draw = np.random.Generator(np.random.Philox(key=key, counter=[0, user, season, 0]))
    told = before.answered(user) if before else own.items[:0]
    new = np.setdiff1d(own.of(user), before.had(user)) if before else own.of(user)
    return told_next(told, new, own.n_items, config.run.dp_epsilon, draw)


def tells_decoys(config: Config) -> bool:
    """Whether chance decides what users tell."""
    return config.run.decoys_epsilon > 0


def at_home(config: Config, users: Cohort, own: Interactions) -> Cohort:
    """The users with the items that they have: people rank with these, whatever they told."""
    return replace(users, indptr=own.indptr, items=own.items, past=None) if tells_decoys(config) else users
