"""PFedRec (Zhang et al. 2023, "Dual Personalization on Federated Recommendation"): everybody has a scoring layer.

    s_ui = w_uᵀe_i + b_u       L_u = mean BCE(σ(s_ui), y_ui) over a batch of the user's items (y = 1) and drawn ones (0)
    user:   w_u, b_u ← … − β ∂L_u, then, with the new layer, e_i ← e_i − β·η·N ∂L_u/∂e_i       batch after batch
    upload: how far each e_i moved, summed                                                     server: adds the mean

A user ranks with its own view of the items: it takes the broadcast table, makes the step that it would make in the next
round, and scores with what comes out. So nothing is remembered of that view; what it draws for that step ranks low.

    symbol   name                       symbol   name                          symbol   name
    e_i      server.items[0, i]         w_u      start + state.embeddings      β        options.rate
    N        n_items                    b_u      start + state.bias            η        options.item_boost
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable import draws
from fedgrec.cable.core import (
    Broadcast,
    Cohort,
    Floats,
    Ints,
    Leaf,
    Pending,
    Rows,
    ServerState,
    Stage,
    State,
    Traffic,
    Upload,
    UploadSpec,
    finest_step,
    quantize,
)
from fedgrec.config.options import MethodOptions, in_optimizer, in_run, in_wire, option
from fedgrec.kernels import reference
from fedgrec.methods.contract import TRAIN, WORD, Contents, Method


@dataclass(frozen=True)
class MeanOptions(MethodOptions):
    """What methods share whose server takes the mean of all users' items."""

    turns: ClassVar[int] = 100

    dim: int = option(32, "d, the size of an embedding", least=1, most=1024)
    users_per_round: int = in_run(2**31 - 1, "S, users sampled in a round; the authors take everybody", least=1)
    negatives_each: int = option(4, "negatives drawn for each of a user's items", least=1)
    item_clip: float = in_wire(2.0**13, "largest absolute item update that one user may send", least=1e-6)


@dataclass(frozen=True)
class Options(MeanOptions):
    """PFedRec with the values of its authors' program."""

    batch: int = in_optimizer(256, "items in a local step", least=1)
    rate: float = in_optimizer(0.1, "β, rate of the user's scoring layer", least=0)
    item_boost: float = in_optimizer(80.0, "η: items' rate is η times their number times that of the layer", least=0)


@dataclass
class Home(State):
    """What users remember: how far their scoring layer is from everybody's start."""

    embeddings: Floats  # [n, 1, d]
    bias: Floats  # [n]


def slopes(x: Floats, y: Floats, w: Floats, b: float) -> Floats:
    """∂L/∂s of each item of a batch: (σ(s) − y)/m.  # [m]"""
    with np.errstate(over="ignore"):  # exp(large) = inf gives the σ = 0 that is meant
        g: Floats = (1 / (1 + np.exp(-(x @ w + b))) - y) / np.float32(len(y))
    return g


@dataclass(frozen=True)
class PFedRec(Method):
    """The verbs over `n_items` items and at most `n_users` users."""

    name = "pfedrec"
    contents = Contents("items")
    inner_product = False
    State = Home
    options: Any

    def spec(self, stage: Stage) -> UploadSpec:
        o, S = self.options, self.sampled
        return UploadSpec((Leaf("items", self.n_items, o.dim, o.item_clip, finest_step(o.item_clip, S)),), S)

    def init(self, seed: int) -> ServerState:
        """Items from N(0, 1); and one start for all scoring layers, so that users' first steps agree."""
        d, rng = self.options.dim, np.random.Generator(np.random.Philox(key=seed))
        items = rng.standard_normal((1, self.n_items, d)).astype(np.float32)
        start = rng.uniform(-(d**-0.5), d**-0.5, d + 1).astype(np.float32)  # w and, last, b
        nothing = np.zeros((0, d), np.float32)
        return ServerState(items, np.zeros(self.n_items, np.int64), nothing, nothing, more={"start": start})

    def init_users(self, keys: NDArray[np.uint64], indptr: Ints, items: Ints, targets: Floats | None = None) -> Cohort:
        state = Home(np.zeros((len(keys), 1, self.options.dim), np.float32), np.zeros(len(keys), np.float32))
        return Cohort(keys, np.array(indptr), np.array(items), state)

    def local_update(self, cohort: Cohort, stage: Stage, broadcast: Broadcast) -> tuple[Upload, Pending]:
        spec, state, parts, cut = self.spec(stage), cohort.state.copy(), [], 0
        for u in np.flatnonzero(cohort.degrees).tolist():
            mine, moved = self.trained(cohort, state, u, broadcast)
            words, over = quantize(moved, spec.leaf("items"), spec.dtype)
            parts.append(Rows(mine, words))
            cut += over
        total = reference.total(parts, self.options.dim, spec.dtype)
        return Upload({"items": total}, len(cohort)), Pending(state, cut)

    def examples(self, cohort: Cohort, u: int, round_: int) -> tuple[Ints, Ints, Floats]:
        """What a user trains with in a round, in a mixed order: its items and those that it draws, some repeatedly.

        The items, each once, [m]; which of them each example is, [k]; and what its score shall be, [k].
        """
        key, positives = int(cohort.keys[u]), cohort.items_of(u)
        P, count = len(positives), self.options.negatives_each * len(positives)
        random = draws.words(key, count, 0, round_, draws.Purpose.PAIRS)
        _, which = np.unique(draws.below(random, max(self.n_items - P, 1)), return_inverse=True)
        drawn = draws.negatives(key, round_, len(set(which.tolist())), positives, self.n_items)
        examples = np.concatenate([positives, drawn[which % len(drawn)] if len(drawn) else drawn])
        mixed = draws.permuted(len(examples), len(examples), key, round_, draws.Purpose.POSITIVES)
        mine, place = np.unique(examples[mixed], return_inverse=True)
        return mine, place, (mixed < P).astype(np.float32)

    def trained(self, cohort: Cohort, state: Any, u: int, broadcast: Broadcast) -> tuple[Ints, Floats]:
        """One user's round: updates its layer in `state`, returns the items that moved and how far.  # [m], [m, d]"""
        o, start = self.options, broadcast.more["start"]
        mine, place, y = self.examples(cohort, u, broadcast.round)
        w, b = start[:-1] + state.embeddings[u, 0], start[-1] + state.bias[u]
        moved, rate = np.zeros((len(mine), o.dim), np.float32), np.float32(o.rate)
        for at in range(0, len(y), o.batch):
            rows, wanted = place[at : at + o.batch], y[at : at + o.batch]
            x = broadcast.tables[0, mine[rows]] + moved[rows]
            g = slopes(x, wanted, w, b)
            w, b = w - rate * (g @ x), b - rate * g.sum()
            pull = np.bincount(rows, slopes(x, wanted, w, b), len(mine)).astype(np.float32)
            moved -= np.float32(o.rate * o.item_boost * self.n_items) * np.outer(pull, w)
        state.embeddings[u, 0], state.bias[u] = w - start[:-1], b - start[-1]
        return mine, moved

    def apply(self, server: ServerState, stage: Stage, total: Upload, level: int = 0) -> ServerState:
        """The mean of all users' tables; whoever did not move an item still has the server's."""
        reference.add_rows(server.items[0], total.leaves["items"], self.spec(stage).leaf("items"), 1 / total.users)
        server.round += 1
        return server

    def scores(self, server: ServerState, cohort: Cohort) -> Floats:
        broadcast, state = self.broadcast(server, TRAIN), cohort.state.copy()
        moves = {u: self.trained(cohort, state, u, broadcast) for u in np.flatnonzero(cohort.degrees).tolist()}
        w = server.more["start"][:-1] + state.embeddings[:, 0]
        scores: Floats = w @ server.items[0].T + (server.more["start"][-1] + state.bias)[:, None]
        for u, (mine, moved) in moves.items():
            scores[u, mine] += moved @ w[u]
        return scores

    def traffic(self, stage: Stage, degrees: Ints, lost: int = 0) -> Traffic:
        """Down: the table and the start. Up: a row and its number for each item trained with."""
        o, n, N = self.options, len(degrees), self.n_items
        trained = np.minimum((1 + o.negatives_each) * degrees, N)[: n - lost]  # at most: some are drawn twice
        down = n * WORD * (N * o.dim + o.dim + 1)
        return Traffic(int(trained.sum()) * WORD * (1 + o.dim), down, self.secure_upload(stage, n - lost), down)


make = PFedRec
