"""A method of somebody else that declares no ability, has an option of its own, and whose scores are no inner products.

Users are points among the items' points, and the nearest items are recommended: s_t = −|e_u ∘ g_u − x_t|^power.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from examples import own_method

from fedgrec.cable.core import Cohort, Floats, ServerState
from fedgrec.config.options import option
from fedgrec.methods.contract import Contents


@dataclass(frozen=True)
class Options(own_method.Options):
    power: float = option(2.0, "the power of a distance in a score", least=0.5, most=4)


@dataclass(frozen=True)
class Bare(own_method.OwnMethod):
    name = "bare"
    inner_product = False
    contents = Contents()

    def represent_users(self, server: ServerState, cohort: Cohort) -> Floats:
        raise NotImplementedError

    def represent_items(self, server: ServerState) -> Floats:
        raise NotImplementedError

    def scores(self, server: ServerState, cohort: Cohort) -> Floats:
        users: Any = cohort.state.embeddings[:, 0] * cohort.state.weights
        distances = np.linalg.norm(users[:, None] - server.items[0], axis=2)
        return -(distances**self.options.power)


def make(options: Options, n_items: int, n_users: int, kernel: Any = None) -> Bare:
    return Bare(options, n_items, n_users)
