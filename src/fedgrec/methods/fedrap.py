"""FedRAP (Li et al. 2024, "Federated Recommendation with Additive Personalization"): items have two tables that add up.

    s_ui = w_uᵀ(D_ui + C_i) + b_u
    L_u = mean BCE(σ(s_ui), y_ui) − λ_r·mean (D_ui − C_i)² + μ_r·mean |C_i|,  both means over the user's examples and d

D_u, a table of the whole catalogue, stays with its user, who trains w_u, b_u, D_u and C for some epochs. C goes up as
PFedRec's items do, and the server takes the mean. λ_r = λ·tanh(r/10) in round r, and so μ_r; rates fall by round
and by epoch. Negatives are drawn once. Whatever is told apart from a common start begins at 0.

    symbol   name                   symbol   name                              symbol   name
    C_i      server.items[0, i]     D_ui     personal + state.embeddings[1:]   w_u      start + state.embeddings[0]
    λ        options.apart          μ        options.sparse                    b_u      start + state.bias
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Broadcast, Cohort, Floats, Ints, ServerState, Stage, Traffic
from fedgrec.config.options import in_optimizer, option
from fedgrec.methods.contract import WORD
from fedgrec.methods.pfedrec import Home, MeanOptions, PFedRec, slopes


@dataclass(frozen=True)
class Options(MeanOptions):
    """FedRAP with the values that its authors' program has for MovieLens-100K."""

    apart: float = option(0.1, "λ: how strongly the two tables are kept apart", least=0)
    sparse: float = option(1e-3, "μ: how strongly the shared table is kept sparse", least=0)
    local_steps: int = in_optimizer(10, "the most epochs of a user in a round", least=1, most=1000)
    tolerance: float = in_optimizer(1e-4, "a user stops once its loss changes by less than this share", least=0)
    rate: float = in_optimizer(1e-4, "rate of the user's scoring layer", least=0)
    item_rate: float = in_optimizer(1e3, "rate of both tables", least=0)
    decay: float = in_optimizer(0.97, "what rates are multiplied by after a round", least=0, most=1)
    local_decay: float = in_optimizer(0.95, "what rates are multiplied by after an epoch", least=0, most=1)


@dataclass(frozen=True)
class FedRAP(PFedRec):
    """The verbs over `n_items` items and at most `n_users` users."""

    name = "fedrap"

    def init(self, seed: int) -> ServerState:
        """Both tables from N(0, 1): the personal one, too, begins alike for everybody."""
        server = super().init(seed)
        server.more["personal"] = super().init(seed + 1).items[0]
        return server

    def init_users(self, keys: NDArray[np.uint64], indptr: Ints, items: Ints, targets: Floats | None = None) -> Cohort:
        tables = np.zeros((len(keys), 1 + self.n_items, self.options.dim), np.float32)
        return Cohort(keys, np.array(indptr), np.array(items), Home(tables, np.zeros(len(keys), np.float32)))

    @np.errstate(over="ignore", invalid="ignore")  # where training diverges, `quantize` says so
    def trained(self, cohort: Cohort, state: Any, u: int, broadcast: Broadcast) -> tuple[Ints, Floats]:
        """One user's round: updates its part in `state`, returns the items whose C moved and how far."""
        o, start = self.options, broadcast.more["start"]
        mine, place, wanted = self.examples(cohort, u, 0)  # drawn once
        y, share = np.zeros(len(mine), np.float32), np.bincount(place).astype(np.float32) / len(place)
        y[place] = wanted
        ramp, fall, before = math.tanh(broadcast.round / 10), o.decay**broadcast.round, math.inf
        w, b = start[:-1] + state.embeddings[u, 0], start[-1] + state.bias[u]
        C, D = broadcast.tables[0, mine], broadcast.more["personal"][mine] + state.embeddings[u, 1 + mine]
        each = (share / o.dim)[:, None]
        for _ in range(o.local_steps):
            x, apart, errors = C + D, each * (D - C), slopes(C + D, y, w, b) * len(y)
            loss = share @ -np.log(np.maximum(1 - np.abs(errors), 1e-9)) - o.apart * ramp * (apart * (D - C)).sum()
            loss += o.sparse * ramp * (each * np.abs(C)).sum()
            g, push = np.outer(share * errors, w), np.float32(2 * o.apart * ramp) * apart
            rate, item_rate = np.float32(o.rate * fall), np.float32(o.item_rate * fall)
            w, b = w - rate * ((share * errors) @ x), b - rate * (share @ errors)
            C = C - item_rate * (g + push + np.float32(o.sparse * ramp) * each * np.sign(C))
            D = D - item_rate * (g - push)
            fall *= o.local_decay
            if abs(loss - before) < o.tolerance * abs(before) < math.inf:
                break
            before = loss
        state.embeddings[u, 0], state.bias[u] = w - start[:-1], b - start[-1]
        state.embeddings[u, 1 + mine] = D - broadcast.more["personal"][mine]
        return mine, C - broadcast.tables[0, mine]

    def scores(self, server: ServerState, cohort: Cohort) -> Floats:
        start, both, own = server.more["start"], server.items[0] + server.more["personal"], cohort.state
        scores = np.empty((len(cohort), self.n_items), np.float32)
        for u, (bias, mine) in enumerate(zip(own.bias, own.embeddings, strict=True)):
            scores[u] = (both + mine[1:]) @ (start[:-1] + mine[0]) + start[-1] + bias
        return scores

    def traffic(self, stage: Stage, degrees: Ints, lost: int = 0) -> Traffic:
        """As PFedRec's, and down the start of the personal table."""
        usual, start = super().traffic(stage, degrees, lost), len(degrees) * WORD * self.n_items * self.options.dim
        return usual._replace(down=usual.down + start, down_secure=usual.down_secure + start)


make = FedRAP
