"""Everybody gets the most popular items: the floor that every system has to beat."""

import numpy as np

from fedgrec.centralized.contract import Matrix, Model, Scorer
from fedgrec.centralized.options import PopularityOptions


class Popularity(Model):
    """s_t = |N_t|."""

    name, Options, trains, devices = "popularity", PopularityOptions, False, ("cpu",)

    def embeddings(self) -> tuple[Matrix, Matrix]:
        degrees = self.train.degrees().astype(np.float32)
        return np.ones((self.train.n_users, 1), np.float32), degrees[:, None]

    def scorer(self) -> Scorer:
        users, items = self.embeddings()
        return lambda chosen: users[chosen] @ items.T
