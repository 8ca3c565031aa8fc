"""PFedRec with the federation off: users keep their own items, and no item of the server ever moves."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Broadcast, Cohort, Floats, Ints, ServerState, Stage, Upload
from fedgrec.methods.contract import TRAIN
from fedgrec.methods.pfedrec import Home, Options, PFedRec

__all__ = ["Options", "make"]


class Alone(PFedRec):
    """Behind the layer a user's state has how far each of its items is from the start."""

    name = "alone"

    def init_users(self, keys: NDArray[np.uint64], indptr: Ints, items: Ints, targets: Floats | None = None) -> Cohort:
        own = np.zeros((len(keys), 1 + self.n_items, self.options.dim), np.float32)
        return Cohort(keys, np.array(indptr), np.array(items), Home(own, np.zeros(len(keys), np.float32)))

    def trained(self, cohort: Cohort, state: Any, u: int, broadcast: Broadcast) -> tuple[Ints, Floats]:
        own = replace(broadcast, tables=broadcast.tables + state.embeddings[u, 1:])
        mine, moved = super().trained(cohort, state, u, own)
        state.embeddings[u, 1 + mine] += moved
        return mine, moved

    def apply(self, server: ServerState, stage: Stage, total: Upload, level: int = 0) -> ServerState:
        server.round += 1
        return server

    def scores(self, server: ServerState, cohort: Cohort) -> Floats:
        start, state, broadcast = server.more["start"], cohort.state.copy(), self.broadcast(server, TRAIN)
        scores = np.empty((len(cohort), self.n_items), np.float32)
        for u in range(len(cohort)):
            self.trained(cohort, state, u, broadcast)
            layer, items = start[:-1] + state.embeddings[u, 0], server.items[0] + state.embeddings[u, 1:]
            scores[u] = items @ layer + start[-1] + state.bias[u]
        return scores


make = Alone
