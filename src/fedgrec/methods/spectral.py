"""Spectral: no training; a few sums over everybody find the leading directions of the items' graph, which recommend.

    n_u = |N_u| + τ_u, n_t = |N_t| + τ_t      shifted degrees; τ: `shift` times the mean degree of users, and of items
    R̃_ut = 1/√(n_u n_t)                       LightGCN's weights, if nothing is shifted
    round    user: y_u = Σ_{t∈N_u} R̃_ut Q_t, and to each of its items y_u/√n_u        server: Z_t = Σ_u (…)/√n_t
             so Z = R̃ᵀR̃ Q, a step of subspace iteration: Q ← an orthonormal basis of Z, the strongest direction first
    score    s_ut = Σ_{s∈N_u} n_s^−e ⟨V_s, V_t⟩ n_t^e         V: the leading columns of Q, by √f_k each
    trust    f_k = 1/(1 + (θ/σ_k)⁸)           σ_k: the singular value of column k; θ: `chance` times `by_chance`

Without the shift the leading directions sit in small groups of users and items that hardly touch the others. A random
graph with the same degrees has directions as well, and what is no stronger than those tells nothing: dense data has few
directions that are trusted, sparse data many. Both rules follow from the counts, which everybody knows anyway.

Where clicks have weights, R̃_ut and a user's terms of the score are multiplied by them; degrees count people.

A round is FedGRec's propagation, then an orthonormalisation, so FedGRec's kernels compute it. The server applies the
factor 1/√n_t, so that users send numbers of about one size for popular and rare items.

Words are short: `item_levels` is about twice the usual number (`step`), and users round at random. What is larger is
cut: it comes from people whose few items hardly anybody else has, and with less of them the directions are better. With
`item_levels` = 0, and under noise, words have 32 bits. Columns of Q have length 1, so none of those is cut.

Under noise (`Method.noise`) fewer directions and fewer sums are better, only open items take part (noisy.py), and y_u
is scaled down to a norm. Since Σ_u |y_u|² is the sum of the squared singular values, of which each is at most 1,
√(directions/users) is as long as a y_u can be on average; most are less than half as long.

Everybody takes part in every round. A user who misses a round is missing from that step alone: its directions are those
of the others, and a later round has everybody again. A user needs only its items, so the method also recommends to
people who never took part.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
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
    as_server,
    travelling,
)
from fedgrec.cable.noise import NO_NOISE, Multipliers
from fedgrec.config.options import COUNT_ITEMS, LONGEST, MethodOptions, option
from fedgrec.errors import ConfigError
from fedgrec.kernels import Kernel, reference
from fedgrec.methods import degrees as counts
from fedgrec.methods import noisy
from fedgrec.methods.contract import DEGREES, TRAIN, WORD, Contents, Method
from fedgrec.methods.lengths import no_longer_than_usual

GROWTH = 0.7  # of the directions with the number of users or items, whichever is less
TRUST = "trust"  # f, in what the server holds and broadcasts  # [columns of Q]
REACH = 2.5  # times the usual number that users send is as large as words get
FINE = 12  # bits behind 1/√users, about the size of a number that a user sends
USUAL_NORM = 0.18  # times √(directions/users): less than half of the median |y_u| on Gowalla and on Yelp2018
NOISY_DIM, CLEAR = 32, 8.0  # directions under noise, for ε up to this; they grow with the power .8 of a larger ε
FEW_DECOYS = 9.0  # ε from which a user tells few false items
STEEP = 8  # how fast trust falls below θ: a direction of half its strength counts 1/257
NOTHING = 1e-12  # a direction with less than this part of the strongest one's share is not in the graph


@dataclass(frozen=True)
class Options(MethodOptions):
    """Options of Spectral."""

    rounds: ClassVar[int] = 4  # when `rounds` is left to us
    evaluations: ClassVar[int] = 1  # more rounds are not worse
    # Each direction and each sum adds noise: chosen on validation items of Gowalla and Yelp2018, for ε of 2 to 32.
    with_noise: ClassVar[dict[str, Any]] = {"spare": 8, "exponent": 0.3, "shift": 0.25, "chance": 0.0}
    noisy_rounds: ClassVar[int] = 3
    # False items make what is there by chance stronger, and true directions stand out of less: for ε of 4 to 8.
    with_decoys: ClassVar[dict[str, Any]] = {"shift": 1.0, "chance": 0.5}

    @classmethod
    def under_promise(cls, epsilon: float, unit: str) -> dict[str, Any]:
        if unit == "interaction":
            return cls.with_decoys if epsilon < FEW_DECOYS else {}
        return cls.with_noise | {"dim": round(NOISY_DIM * max(epsilon / CLEAR, 1) ** 0.8)}

    dim: int = option(
        512, "d, the most directions that recommend; fewer where users or items are few", least=1, most=8192
    )
    spare: int = option(
        16, "more directions that the sums carry, so that the last ones are exact", least=0, most=1024, group="wire"
    )
    breadth: float = option(
        1.0, f"no more directions than this times the users or items to the power {GROWTH}", least=0, before=0.38
    )
    shift: float = option(
        0.5, "τ: what is added to every degree, in mean degrees; 0: LightGCN's weights", least=0, most=100, before=0.0
    )
    chance: float = option(
        0.75,
        "directions count by how far they stand out of this times what a random graph has; 0: all count",
        least=0,
        most=10,
        group="ranking",
        before=0.0,
    )
    exponent: float = option(0.35, "e: how much popular items are put first, 0 to 1", least=0, most=1, group="ranking")
    longest: float = option(0.97, LONGEST, least=0, most=1, group="ranking", before=1.0)
    users_per_round: int = option(2**31 - 1, "users of a round; the default is everybody", least=1)
    item_levels: int = option(
        7,
        "users send whole numbers up to this, in units of a public step; 0, or noise: numbers of 32 bits",
        least=0,
        most=2**20,
        before=0,
    )
    download: str = option(
        "int4",
        "numbers of tables that travel down between the sums: 4 or 8 bits and a scale for each row, or float32; people "
        "rank with 8 bits, or float32; under noise always float32",
        choices=("int4", "int8", "float32"),
        before="float32",
    )
    count_items: int = option(30, COUNT_ITEMS, least=1)
    norm: float = option(
        0.0,
        "with noise: the largest Euclidean norm of what one user sends in a round; what is longer is scaled down; "
        f"0: {USUAL_NORM}·√(directions/users)",
        least=0,
        group="privacy",
    )
    precision: str = option("float32", "arithmetic of users", choices=("float32", "float64"))

    @property
    def levels(self) -> int:
        return self.item_levels


@dataclass(frozen=True)
class Sum(Stage):
    """A sum over everybody."""

    begins: bool = False  # with a table that everybody draws, so that none has to travel


FIRST = Sum(TRAIN.name, everyone=TRAIN.everyone, begins=True)
BYTES = {"int4": 0.5, "int8": 1, "float32": WORD}  # of a number that travels down


@dataclass
class Nothing(State):
    """What a user remembers."""

    embeddings: Floats  # [n, 1, 1]: zeros


@dataclass(frozen=True)
class SpectralMethod(Method):
    """Subspace iteration on what users and items have in common."""

    name = "spectral"
    kernels = ("reference", "cpu")
    engine = "fedgrec.kernels.spectral_torch"
    takes_noise = True
    takes_decoys = True
    contents = Contents("items", own_items=True, counts="degrees")
    knows_strangers = True
    share = "sum"
    State = Nothing
    options: Options
    kernel: Kernel = reference
    noise: Multipliers = NO_NOISE

    @property
    def takes_weights(self) -> bool:
        return True

    def check_grows(self, later: Method) -> None:
        raise ConfigError(
            f"{self.name} does not go on with other data: new sums cost as much as the first, so train anew"
        )

    @property
    def width(self) -> int:
        """Columns of Q. Few users or items have few directions in common; any more would be chance."""
        few = int(self.options.breadth * min(self.n_users, self.n_items) ** GROWTH + 0.5)
        return min(max(min(self.options.dim, few), 1) + self.options.spare, self.n_items)

    @property
    def stages(self) -> tuple[Stage, ...]:
        return DEGREES, TRAIN

    def training(self, round_: int) -> Stage:
        return FIRST if self.begins(round_) else TRAIN

    def begins(self, round_: int) -> bool:
        return round_ == 0 and self.download != "float32"

    @property
    def download(self) -> str:
        return "float32" if self.noise.rest else str(self.options.download)

    @property
    def levels(self) -> int:
        """`item_levels`; 0 under noise, which sets the step."""
        return 0 if self.noise.rest else self.options.item_levels

    def step(self, degrees: Ints, round_: int) -> float:
        """The public step of short words.

        The squares of what users hold of a column add up to that of its singular value: at first of a random column,
        then of directions that stand out of chance a little. A user sends y_u/√n_u to each of its |N_u| items.
        """
        edges, shift = max(float(degrees.sum()), 1.0), 1 + self.options.shift
        value = self.by_chance(degrees) if round_ else math.sqrt(self.n_users / edges) / shift
        return REACH * value / math.sqrt(edges * shift) / max(self.levels, 1)

    def spec(self, stage: Stage) -> UploadSpec:
        if stage is DEGREES:
            return counts.spec(self)
        if self.levels:
            n = self.item_degrees
            most = None if n is None else n + n // 4 + 2  # with room for people who come later
            items = Leaf("items", self.n_items, self.width, clip=self.levels, step=1, most=most)
            return UploadSpec((items,), self.sampled)
        step = 2.0 ** -(FINE + int(np.ceil(np.log2(self.n_users) / 2)))
        items = Leaf("items", self.n_items, self.width, 2.0, step)
        if self.noise.rest:
            norm = self.options.norm or USUAL_NORM * math.sqrt(self.width / self.n_users)
            items = noisy.bounded(items, norm, self.noise.rest)
        return UploadSpec((items,), self.sampled)

    def init(self, seed: int) -> ServerState:
        nothing = np.zeros((self.n_items, 0), self.options.precision)
        degrees = np.zeros(self.n_items, np.int64)
        more = {TRUST: np.ones(self.width, self.options.precision)}
        return ServerState(self.start.copy(), degrees, nothing, nothing.copy(), more=more)

    @property
    def start(self) -> Floats:
        """The table that everybody draws: random columns of length 1.  # [1, N, columns]"""
        table: Floats = signs(self.n_items, self.width).astype(self.options.precision)
        table /= math.sqrt(self.n_items)
        return table

    def broadcast(self, server: ServerState, stage: Stage, level: int = 0) -> Broadcast:
        """Q, where nobody can draw it."""
        if stage is DEGREES or (isinstance(stage, Sum) and stage.begins):
            return replace(super().broadcast(server, stage, level), tables=server.items[:0])
        return self._sent(server, self.download)

    def _sent(self, server: ServerState, kind: str) -> Broadcast:
        return replace(super().broadcast(server, TRAIN), tables=travelling(server.items, kind), kind=kind)

    def init_users(self, keys: NDArray[np.uint64], indptr: Ints, items: Ints, targets: Floats | None = None) -> Cohort:
        state = Nothing(np.zeros((len(keys), 1, 1), self.options.precision))
        return Cohort(keys, np.array(indptr), np.array(items), state, targets)

    def local_update(self, cohort: Cohort, stage: Stage, broadcast: Broadcast) -> tuple[Upload, Pending]:
        if stage is DEGREES:
            return counts.local_update(self, cohort)
        if noisy.OPEN in broadcast.more:
            cohort, broadcast, ids = noisy.compact(cohort, broadcast)
            rows, cut = self._pushed(cohort, stage, broadcast)
            return Upload({"items": noisy.expanded(rows, ids, self.n_items)}, len(cohort)), Pending(cohort.state, cut)
        rows, cut = self._pushed(cohort, stage, broadcast)
        return Upload({"items": rows}, len(cohort)), Pending(cohort.state, cut)

    def _pushed(self, cohort: Cohort, stage: Stage, broadcast: Broadcast) -> tuple[Rows, int]:
        """What the users send to their items, and how many words were clipped."""
        spec, dtype = self.spec(stage), self.options.precision
        items, shift = self.shifted(broadcast.degrees)
        tables = broadcast.tables if len(broadcast.tables) else self.start
        item, user = items[cohort.items], np.sqrt(np.repeat(cohort.degrees + shift, cohort.degrees))
        counted = 1 if cohort.targets is None else cohort.targets
        y = self.kernel.refresh(cohort, (counted / (np.sqrt(item) * user)).astype(dtype), tables, cohort.items)
        to_items, leaf = (counted / user).astype(dtype), spec.leaf("items")
        if self.levels:
            to_items /= self.step(broadcast.degrees, broadcast.round)
            return self.kernel.send(cohort, to_items, y, leaf, spec.dtype, broadcast.round)
        if leaf.norm:
            y = noisy.fitted(cohort, to_items, y, leaf.step, leaf.norm)
        return self.kernel.push(cohort, to_items, np.zeros_like(y), y, leaf, spec.dtype, broadcast.n_items)

    def apply(self, server: ServerState, stage: Stage, total: Upload, level: int = 0) -> ServerState:
        if stage is DEGREES:
            return counts.apply(self, server, total)
        server.items[0], shares = self.directions(self.summed(server, total))
        server.more[TRUST] = self.trust(shares, self.by_chance(server.degrees)).astype(server.items.dtype)
        server.round += 1
        return server

    def summed(self, server: ServerState, total: Upload) -> Floats:
        """Z_t of all items: the words of a round's sum in their unit, by 1/√n_t.  # [N, columns]"""
        sums, step = noisy.open_rows(total.leaves["items"], server.more), self.spec(TRAIN).leaf("items").step
        if self.levels:
            step = self.step(server.degrees, server.round)
        Z = np.zeros((self.n_items, self.width))
        Z[sums.index] = step * sums.values / np.sqrt(self.shifted(server.degrees)[0][sums.index])[:, None]
        return Z

    @staticmethod
    def directions(Z: Any, xp: Any = np) -> tuple[Any, Any]:
        """An orthonormal basis of the columns, the strongest direction first, and each one's share |Zv|², σ⁴.

        Directions that are not there are zeros. Either sign is right, and words rounded at random depend on it: so the
        cubes of a column add up to more than 0. `xp`: numpy or torch, as Z is: a GPU computes it too.
        """
        shares, turn = xp.linalg.eigh(Z.T @ Z)
        there = shares > NOTHING * xp.amax(shares) + np.finfo(float).tiny
        shares = xp.where(there, shares, 1.0)
        found = xp.flip(xp.where(there, Z @ turn / shares**0.5, 0.0), (1,))
        return found * xp.where((found * found * found).sum(0) < 0, -1.0, 1.0), xp.flip(shares, (0,))

    def shifted(self, degrees: Ints) -> tuple[Floats, float]:
        """n_t of every item, and τ_u."""
        shift = self.options.shift * float(degrees.sum())
        return np.maximum(degrees, 1) + shift / self.n_items, shift / self.n_users

    def by_chance(self, degrees: Ints) -> float:
        """The largest singular value, after the first, of a random graph of so many edges, each by its mean weight."""
        edges = max(float(degrees.sum()), 1.0)
        return (math.sqrt(self.n_items / edges) + math.sqrt(self.n_users / edges)) / (1 + self.options.shift)

    def trust(self, shares: Any, by_chance: float) -> Any:
        """f of each direction."""
        return 1 / (1 + (self.options.chance * by_chance) ** STEEP / shares ** (STEEP / 4))

    # -------------------------------------------------------------------------------------- ranking

    def represent_users(self, server: ServerState, cohort: Cohort) -> Floats:
        theirs, places = np.unique(cohort.items, return_inverse=True)  # one person needs few rows of a large table
        weights, leading = self._weights(server, cohort), np.ascontiguousarray(self.given(server, theirs))
        vectors = self.kernel.refresh(cohort, weights.astype(leading.dtype), leading[None], places)[:, 0]
        return noisy.as_users(vectors, server.more)

    def explained(self, server: ServerState, person: Cohort) -> tuple[Floats, Floats]:
        """Nothing is a person's own."""
        rows = self._weights(server, person)[:, None] * self.given(server, person.items)
        return np.zeros((1, rows.shape[1])), rows

    def _weights(self, server: ServerState, cohort: Cohort) -> Floats:
        """n_s^−e of each user's items, by what they count.  # [nnz]"""
        weights: Floats = self.shifted(server.degrees)[0][cohort.items] ** -self.options.exponent
        return weights if cohort.targets is None else weights * cohort.targets

    def represent_items(self, server: ServerState) -> Floats:
        rows = self.leading(server)
        vectors = rows * (self.shifted(server.degrees)[0] ** self.item_exponent).astype(rows.dtype)[:, None]
        return noisy.as_items(no_longer_than_usual(vectors, server.degrees, self.options.longest), server.more)

    @property
    def item_exponent(self) -> float:
        return self.options.exponent

    def given(self, server: ServerState, items: Ints | slice = slice(None)) -> Floats:
        """What these items add to the vector of a person who has them: here the rows that are ranked."""
        return self.leading(server, items)

    def leading(self, server: ServerState, items: Ints | slice = slice(None)) -> Floats:
        """These rows of V, as it travels; its number of directions follows from the table, not from who is here."""
        server = self.as_ranked(server)
        table = (server.items if len(server.items) else self.start)[0]
        count = max(table.shape[1] - self.options.spare, 1)
        by: Any = np.sqrt(server.more[TRUST][:count]) if TRUST in server.more else 1  # release 0.2 trusted all
        trusted: Floats = table[items, :count] * by
        return trusted

    def served(self, server: ServerState) -> Broadcast:
        return self._sent(server, "float32" if self.download == "float32" else "int8")

    def as_ranked(self, server: ServerState) -> ServerState:
        return server if server.arrived else as_server(self.served(server))

    # -------------------------------------------------------------------------------------- traffic

    def traffic(self, stage: Stage, degrees: Ints, lost: int = 0) -> Traffic:
        n, sent = len(degrees), int(degrees[: len(degrees) - lost].sum())
        up_secure = self.secure_upload(stage, n - lost)
        if stage is DEGREES:
            return Traffic(sent * WORD, 0, up_secure, 0)
        table = math.ceil(self.width * BYTES[self.download]) + (self.download != "float32")  # a row of it
        begins = isinstance(stage, Sum) and stage.begins
        down = n * (self.n_items * (WORD + (0 if begins else table)) + self.width * WORD)  # degrees, table, trust
        return Traffic(sent * (1 + self.width) * WORD, down, up_secure, down)


@lru_cache(maxsize=1)  # each of many users draws it
def signs(n_items: int, width: int) -> NDArray[np.int8]:
    """−1 and 1, the same for everybody.  # [1, N, columns]"""
    words = draws.philox(0, np.arange(-(-n_items * width // 128), dtype=np.uint64), 0, 0, draws.Purpose.INIT)
    bits = np.unpackbits(words.astype("<u4").view(np.uint8).ravel(), count=n_items * width)
    return 2 * bits.reshape(1, n_items, width).astype(np.int8) - 1


make = SpectralMethod
