"""FCF: federated collaborative filtering (Ammad-ud-din et al. 2019), implicit feedback by alternating minimisation of

    J = Σ_u Σ_i c_ui (p_ui − x_uᵀy_i)² + λ (Σ_u ‖x_u‖² + Σ_i ‖y_i‖²)      c_ui = 1 + α r_ui,  p_ui = 1 where r_ui > 0

A user solves its own vector exactly. The sum over all items that it needs is the same for everybody, YᵀY, and comes
down with the items; only its few positives are its own:

    x_u = (YᵀY + Yᵀ(C_u − I)Y + λI)⁻¹ YᵀC_u p_u

The server descends along the gradient in every item. For this a user sends a row for each positive, and a d × d matrix
in place of rows for all other items:

    ∂J/∂y_i = −2 [Σ_{u∋i} (c_ui − (c_ui − 1) x_uᵀy_i) x_u − (Σ_u x_u x_uᵀ) y_i] + 2λ y_i
                  `items`, row i                            `gram`

    symbol   name                       symbol   name                        symbol   name
    y_i      server.items[0, i]         x_u      state.embeddings[u, 0]      r_ui     1, or the rating where kept
    λ        options.l2                 α        options.alpha               YᵀY      server.more["gram"]
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from fedgrec.config.options import AdamOptions, option
from fedgrec.kernels import reference
from fedgrec.methods.contract import WORD, Contents, Method


@dataclass(frozen=True)
class Options(AdamOptions):
    """FCF, with every choice that its paper leaves open."""

    dim: int = option(64, "d, the size of an embedding", least=1, most=1024)
    alpha: float = option(60.0, "α of the confidence c = 1 + α r in a positive", least=0)
    l2: float = option(100.0, "λ, the L2 penalty", least=1e-9)
    server_optimizer: str = option("adam", "how the server descends along the gradient", choices=("sgd", "adam"))
    server_rate: float = option(0.001, "the server's rate", least=0)
    item_clip: float = option(
        2.0, "largest absolute number in a row that one user may send, in units of 1 + α", least=1e-6
    )
    gram_clip: float = option(
        2.0, "largest absolute number in x_u x_uᵀ that one user may send", least=1e-6, group="wire"
    )
    precision: str = option(
        "float32", "what is kept and broadcast; users solve in float64", choices=("float32", "float64")
    )


@dataclass
class Home(State):
    """What a user remembers, and could solve for again at any time."""

    embeddings: Floats  # [n, 1, d]: x_u


def solve(cohort: Cohort, c: Floats, Y: Floats, gram: Floats, l2: float) -> Floats:
    """x_u of every user, in float64: products of embeddings square the condition number.  # [n, d]"""
    X = np.zeros((len(cohort), Y.shape[1]))
    everyone = gram.astype(np.float64) + l2 * np.eye(Y.shape[1])  # YᵀY + λI
    for u in range(len(cohort)):
        mine = slice(cohort.indptr[u], cohort.indptr[u + 1])
        Y_u, c_u = Y[cohort.items[mine]].astype(np.float64), c[mine]  # [P, d], [P]
        X[u] = np.linalg.solve(everyone + Y_u.T @ ((c_u - 1)[:, None] * Y_u), c_u @ Y_u)
    return X


def contributions(
    cohort: Cohort, c: Floats, Y: Floats, X: Floats, items: Leaf, gram: Leaf, dtype: np.dtype[Any]
) -> tuple[Rows, Rows, int]:
    """What the users send, each user's numbers rounded before they are added; and how many words the clips cut."""
    parts, square, cut = [], np.zeros((gram.rows, gram.width), dtype), 0
    for u, x in enumerate(X):
        mine = slice(cohort.indptr[u], cohort.indptr[u + 1])
        weights = c[mine] - (c[mine] - 1) * (Y[cohort.items[mine]].astype(np.float64) @ x)  # [P]
        rows, over = quantize(np.outer(weights, x), items, dtype)
        outer, over_too = quantize(np.outer(x, x), gram, dtype)
        parts.append(Rows(cohort.items[mine], rows))
        square += outer
        cut += over + over_too
    return reference.total(parts, items.width, dtype), Rows(np.arange(gram.rows), square), cut


def descend(server: ServerState, rows: Rows, step: float, gram: Floats, many: float, o: Options) -> None:
    """One step of the server along ∂J/∂y_i; each user in the sum counts as `many` users."""
    Y = server.items[0]
    pull = -(Y @ gram.astype(Y.dtype))  # [N, d]
    pull[rows.index] += (rows.values * step).astype(Y.dtype)
    grad = -2 * many * pull + 2 * o.l2 * Y
    if o.server_optimizer == "sgd":
        Y -= o.server_rate * grad
        return
    moved, server.moment1[:], server.moment2[:] = reference.adam(
        grad, server.moment1, server.moment2, server.round + 1, o.server_rate, o
    )
    Y += moved


def square(Y: Floats) -> Floats:
    """YᵀY, added up in float64.  # [d, d]"""
    exact = Y.astype(np.float64)
    return np.asarray(exact.T @ exact, Y.dtype)


@dataclass(frozen=True)
class FCF(Method):
    """The verbs of FCF over `n_items` items and at most `n_users` users."""

    name = "fcf"
    engine = "fedgrec.kernels.fcf_torch"
    takes_decoys = True
    knows_strangers = True  # x_u needs only their items
    contents = Contents("items", own_items=True)
    State = Home
    options: Options

    def spec(self, stage: Stage) -> UploadSpec:
        """Rows of the user's positives, and its x_u x_uᵀ: outside a sum, this would tell x_u except for its sign."""
        o, S = self.options, self.sampled
        clip = o.item_clip * (1 + o.alpha)
        items = Leaf("items", self.n_items, o.dim, clip, finest_step(clip, S))
        return UploadSpec((items, Leaf("gram", o.dim, o.dim, o.gram_clip, finest_step(o.gram_clip, S))), S)

    def init(self, seed: int) -> ServerState:
        o, shape = self.options, (self.n_items, self.options.dim)
        Y = (o.init_std * np.random.Generator(np.random.Philox(key=seed)).standard_normal(shape)).astype(o.precision)
        zeros = np.zeros((2, *shape), o.precision)
        more = {"gram": square(Y)}
        return ServerState(Y[None], np.zeros(self.n_items, np.int64), zeros[0], zeros[1], more=more)

    def init_users(self, keys: NDArray[np.uint64], indptr: Ints, items: Ints, targets: Floats | None = None) -> Cohort:
        """Users start with nothing: their first turn solves for x_u."""
        nothing = Home(np.zeros((len(keys), 1, self.options.dim), self.options.precision))
        return Cohort(keys, np.array(indptr), np.array(items), nothing, targets)

    def local_update(self, cohort: Cohort, stage: Stage, broadcast: Broadcast) -> tuple[Upload, Pending]:
        o, spec, Y = self.options, self.spec(stage), broadcast.tables[0]
        c = self.confidence(cohort)
        X = solve(cohort, c, Y, broadcast.more["gram"], o.l2)
        items, gram, cut = contributions(cohort, c, Y, X, spec.leaf("items"), spec.leaf("gram"), spec.dtype)
        pending = Home(X[:, None].astype(o.precision))
        return Upload({"items": items, "gram": gram}, len(cohort)), Pending(pending, cut)

    def confidence(self, cohort: Cohort) -> Floats:
        """c_ui of every positive.  # [nnz]"""
        r = np.ones(len(cohort.items)) if cohort.targets is None else cohort.targets.astype(np.float64)
        return 1 + self.options.alpha * r

    def apply(self, server: ServerState, stage: Stage, total: Upload, level: int = 0) -> ServerState:
        """A sample of users stands for all of them, so that λ weighs the same for any number of users in a round."""
        o, spec, gram = self.options, self.spec(stage), total.leaves["gram"]
        outer = np.zeros((o.dim, o.dim))
        outer[gram.index] = gram.values * spec.leaf("gram").step
        many = self.n_users / total.users
        descend(server, total.leaves["items"], spec.leaf("items").step, outer, many, o)
        server.more["gram"] = square(server.items[0])
        server.round += 1
        return server

    def represent_users(self, server: ServerState, cohort: Cohort) -> Floats:
        """x_u, solved again at home with the present items.  # [n, d]"""
        Y, gram = server.items[0], server.more["gram"]
        X = solve(cohort, self.confidence(cohort), Y, gram, self.options.l2)
        return X.astype(server.items.dtype)

    def traffic(self, stage: Stage, degrees: Ints, lost: int = 0) -> Traffic:
        """Down: the items and YᵀY. Up: a row for each positive with its number, and the square."""
        n, row, square = len(degrees), WORD * self.options.dim, WORD * self.options.dim**2
        sent = degrees[: n - lost]
        up, down = int(sent.sum()) * (WORD + row) + len(sent) * square, n * (self.n_items * row + square)
        return Traffic(up, down, self.secure_upload(stage, n - lost), down)


make = FCF
