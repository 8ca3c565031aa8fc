"""What crosses the network cable, and what stays on each side of it.

    server ──Broadcast──▶ user            what travels down, the same to everybody
    user   ──Upload─────▶ Σ ──▶ server    what travels up: the server only ever sees the SUM

An Upload is integers. Each user's row is finished, clipped and rounded, *then* added, so a sum has the same
bits for any order, split, number of threads, and under real masks. Symbols: N items, M users, n users of a
cohort, K latent embeddings, d dimensions.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedgrec.errors import FedgrecError

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
Source = Callable[[float, int], Ints]  # of noise: (variance, count) → so many whole numbers

# A ring has room for so many standard deviations of noise, plus so many steps. A Skellam number of variance V is
# a sum of jumps by ±1, so by Bernstein's inequality it exceeds t with a chance below 2·exp(−t²/(2V + 2t/3)). At
# t = 10√V + 34 that is below 2·exp(−50) < 2⁻⁷¹: of 2³⁰ words some word wraps with a chance below 2⁻⁴⁰.
DEVIATIONS, JUMPS = 10, 34


# ---------------------------------------------------------------------------------------------- uploads


@dataclass(frozen=True)
class Leaf:
    """One named table of an upload: `rows` × `width` numbers, each at most `clip`, counted in `step`s.

    The step is a power of two, so scaling by it loses nothing and equal numbers give equal integers in every
    stage and on every machine.
    """

    name: str
    rows: int
    width: int
    clip: float
    step: float
    norm: float = 0.0  # the largest Euclidean norm, in steps, of all that one user adds to this leaf; 0: no bound
    noise: float = 0.0  # the least variance, in steps², of the noise in every word of the sum
    most: Ints | None = field(default=None, compare=False)  # [rows] the most users that add to a row; None: all users

    @property
    def bound(self) -> int:
        """The largest integer that one user may add to one word."""
        by_word = int(self.clip / self.step)
        return min(by_word, int(self.norm)) if self.norm else by_word

    def steps(self, dtype: Any) -> Floats:
        """The step of every row: one for all.  # [rows]"""
        return np.full(self.rows, self.step, dtype)


@dataclass(frozen=True)
class UploadSpec:
    """The leaves that a stage sends up, for at most `users` users in one sum. Adding a leaf is a privacy decision."""

    leaves: tuple[Leaf, ...]
    users: int
    fewest_bits: int = 8  # of a ring; more where noise is added to the users' numbers

    def largest(self, leaf: Leaf, users: int) -> int:
        """The largest integer that a word of a sum over so many users can have, noise included."""
        if not leaf.noise:
            return leaf.bound * users
        # A user's share allows for the fewest users that may be left: at worst one, so each adds all of the noise.
        return leaf.bound * users + math.ceil(DEVIATIONS * math.sqrt(leaf.noise * users)) + JUMPS

    def bits_of(self, largest: int) -> int:
        """The bits b of a ring Z_2ᵇ: the smallest even number with which no signed sum wraps."""
        if largest >= 2**63:
            raise FedgrecError(f"{self.users} users at these clips overflow 64 bits: lower the clip or raise the step")
        return max((largest.bit_length() + 2) // 2 * 2, self.fewest_bits)

    def groups(self, leaf: Leaf) -> list[tuple[Ints | slice, int, int]]:
        """A leaf's rows that share a ring, how many these are, and its bits. Rows of few users have few bits."""
        if leaf.most is None:
            return [(slice(None), leaf.rows, self.bits_of(self.largest(leaf, self.users)))]
        few, where = np.unique(np.minimum(leaf.most, self.users), return_inverse=True)
        bits = np.array([self.bits_of(self.largest(leaf, users)) for users in few.tolist()])[where]
        return [(np.flatnonzero(bits == b), int((bits == b).sum()), b) for b in np.unique(bits).tolist()]

    @property
    def rings(self) -> tuple[tuple[int, int], ...]:
        """What a masked vector consists of: the words that share a ring, and its bits."""
        return tuple((rows * leaf.width, bits) for leaf in self.leaves for _, rows, bits in self.groups(leaf))

    def wrapped(self, words: Ints) -> Ints:
        """The dense vector with each word in its ring.

        A word is too large if a server lied about degrees. An error would tell the server who has the item.
        """
        at, wrapped = 0, words.copy()
        for count, bits in self.rings:
            here, above, at = wrapped[at : at + count], 8 * words.itemsize - bits, at + count
            here[:] = here << above >> above
        return wrapped

    @property
    def bits(self) -> int:
        """Bits of the words in which kernels add, before anything is masked: 32 if every ring fits, else 64."""
        return 32 if all(bits <= 32 for _, bits in self.rings) else 64

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(f"int{self.bits}")

    @property
    def size(self) -> int:
        """Words in the dense vector that secure aggregation hides."""
        return sum(leaf.rows * leaf.width for leaf in self.leaves)

    @property
    def noisy(self) -> bool:
        return any(leaf.noise for leaf in self.leaves)

    def noise(self, share: float, source: Source) -> Ints:
        """This share of every leaf's noise, for the dense vector.  # [size]"""
        parts = [source(leaf.noise * share, leaf.rows * leaf.width) for leaf in self.leaves]
        return np.concatenate(parts).astype(self.dtype)

    def leaf(self, name: str) -> Leaf:
        return next(leaf for leaf in self.leaves if leaf.name == name)


def finest_step(clip: float, users: int, bits: int = 32) -> float:
    """The smallest power of two in which `users` numbers of size `clip` still sum without wrapping."""
    return float(2.0 ** np.ceil(np.log2(clip * users / (2 ** (bits - 1) - 1))))


@dataclass(frozen=True, eq=False)
class Rows:
    """Integer rows of one leaf: `values[i]` belongs to row `index[i]`; rows not named are zero."""

    index: Ints  # [r], sorted, unique
    values: Ints  # [r, width]

    def __add__(self, other: "Rows") -> "Rows":
        index = np.union1d(self.index, other.index)
        values = np.zeros((len(index), self.values.shape[1]), np.result_type(self.values, other.values))
        for part in (self, other):
            values[np.searchsorted(index, part.index)] += part.values
        return Rows(index, values)


@dataclass(frozen=True)
class Upload:
    """What travels up, in the clear: rows of integers and the number of users in them. Closed under +.

    One user's message, a gateway's sum and the sum of a whole cohort are the same type.
    """

    leaves: Mapping[str, Rows]
    users: int

    def __add__(self, other: "Upload") -> "Upload":
        return Upload({name: rows + other.leaves[name] for name, rows in self.leaves.items()}, self.users + other.users)

    def to_ring(self, spec: UploadSpec) -> NDArray[Any]:
        """The dense vector of signed integers that masks hide: it does not show which rows were touched."""
        if self.users > spec.users:
            raise FedgrecError(f"an upload of {self.users} users does not fit a sum that was sized for {spec.users}")
        parts = []
        for leaf in spec.leaves:
            dense = np.zeros((leaf.rows, leaf.width), spec.dtype)
            rows = self.leaves[leaf.name]
            dense[rows.index] = rows.values
            parts += [dense[group].ravel() for group, _, _ in spec.groups(leaf)]
        return np.concatenate(parts)

    @staticmethod
    def from_ring(words: NDArray[Any], spec: UploadSpec, users: int) -> "Upload":
        """A summed, unmasked vector as an upload."""
        if users > spec.users:
            raise FedgrecError(f"a sum of {users} users may have wrapped: it was sized for {spec.users}")
        leaves, at = {}, 0
        for leaf in spec.leaves:
            values = np.empty((leaf.rows, leaf.width), words.dtype)
            for group, count, _ in spec.groups(leaf):
                here, at = words[at : at + count * leaf.width], at + count * leaf.width
                values[group] = here.reshape(count, leaf.width)
            leaves[leaf.name] = Rows(np.arange(leaf.rows), values)
        return Upload(leaves, users)


def quantize(
    values: Floats, leaf: Leaf, dtype: np.dtype[Any], row_steps: Floats | None = None, shift: Floats | None = None
) -> tuple[Ints, int]:
    """Finished rows → integers, clipped and rounded; and how many words the clip cut.

    `row_steps` [r]: each row has a step of its own. `shift`, uniform in ±½, makes the rounding random and its
    expectation the value itself.
    """
    if not np.isfinite(values).all():
        raise FedgrecError(f"the update of {leaf.name!r} is not finite: training diverged; lower the learning rates")
    steps = values / leaf.step if row_steps is None else values / row_steps[:, None]
    steps = np.rint(steps if shift is None else steps + shift)
    return np.clip(steps, -leaf.bound, leaf.bound).astype(dtype), int((np.abs(steps) > leaf.bound).sum())


def fitting(lengths: Floats, words: Any, norm: float) -> Floats:
    """Factors for vectors of so many words and of these lengths, with which none exceeds `norm` after rounding.

    Rounding adds at most ½ to a word, so at most ½√words to a length; float32's arithmetic adds far less than 2⁻¹⁶.
    """
    room = np.maximum(norm - 0.5 * np.sqrt(words), 0) * (1 - 2.0**-16)
    factors: Floats = room / np.maximum(lengths, np.maximum(room, np.finfo(np.float64).tiny))
    return factors


def travelling(tables: Floats, kind: str) -> Floats:
    """Tables as they arrive: bfloat16 keeps the upper half of a float32, int8 has 255 levels a row, int4 has 15."""
    if kind == "bfloat16":
        bits = tables.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32).astype(tables.dtype)
    if kind in LEVELS:
        exponents = row_exponents(tables, LEVELS[kind])
        whole: Floats = np.ldexp(np.rint(np.ldexp(tables, -exponents)), exponents)
        return whole + 0  # −0 does not travel
    return tables


LEVELS = {"int8": 127, "int4": 7}


def row_exponents(tables: Floats, most: int) -> Ints:
    """The powers of two in which no entry of a row is more than `most`."""
    fraction, exponents = np.frexp((np.abs(tables).max(axis=-1, keepdims=True) / most).astype(np.float32))
    clipped: Ints = np.clip(exponents - (fraction == 0.5), -100, 100)
    return clipped


def clamp(values: NDArray[Any], low: Any, high: Any) -> int:
    """Put every entry between the two, in place; returns how many were outside."""
    outside = int(((values < low) | (values > high)).sum())
    if outside:
        np.clip(values, low, high, out=values)
    return outside


# -------------------------------------------------------------------------------------------- broadcasts


@dataclass(frozen=True)
class Broadcast:
    """What travels down: degrees, and item tables with all their rows: asking for some rows would tell which."""

    round: int
    n_items: int
    tables: Floats  # [L, N, d]: the method's stage says which ones
    degrees: Ints  # [N]
    level: int = 0  # in warm-up: the k of Eqs. (6) to (8)
    more: Mapping[str, Floats] = field(default_factory=dict)  # what else a method hands out, the same to everybody
    kind: str = "float32"  # how the tables travel, see `travelling`

    @property
    def row_steps(self) -> Floats | None:
        """The public step of every row's updates, [N], where each has its own."""
        return self.more.get("steps")

    def fingerprint(self) -> bytes:
        """A hash of all that was broadcast: masks cancel only between users who got the same model."""
        about = hashlib.sha256(f"{self.round} {self.n_items} {self.level} {self.tables.shape} {self.kind}".encode())
        for part in (self.tables, self.degrees, *(self.more[name] for name in sorted(self.more))):
            about.update(np.ascontiguousarray(part).data)
        return about.digest()


# ----------------------------------------------------------------------------------- state on each side


@dataclass
class State:
    """Arrays with one row a user, so a cohort of 400 and a phone look alike. Methods subclass it with their fields."""

    def take(self, users: Ints) -> Self:
        return type(self)(*(getattr(self, f.name)[users] for f in fields(self)))

    def put(self, users: Ints, new: Self) -> None:
        for f in fields(self):
            getattr(self, f.name)[users] = getattr(new, f.name)

    def copy(self) -> Self:
        return type(self)(*(getattr(self, f.name).copy() for f in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The users of all parts, one after the other."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))


@dataclass
class UserState(State):
    """What users of an embedding method remember."""

    embeddings: Floats  # [n, K+1, d]: e_u^0 and the latent e_u^1 .. e_u^K
    sent: Floats  # [n, K, d]: e_u^0 .. e_u^{K−1} as the server's latent items hold them now
    moment1: Floats  # [n, d]: Adam's moments of e_u^0, kept at home
    moment2: Floats  # [n, d]
    steps: Ints  # [n]: Adam steps taken


class Pending(NamedTuple):
    """A cohort's new state, not yet its own: kept once the sum is known to hold its upload, else thrown away."""

    state: Any  # a State
    clipped: int = 0  # words of the upload that a clip cut; known at home, never sent
    settles: str = ""  # the part of the cohort's `past` that the upload brings up to date
    weights: Any = None  # Floats [nnz]: under which the cohort pushed something to its items, if it did


@dataclass(frozen=True)
class Cohort:
    """Users held together: their secret keys, their items, their state. A phone is a cohort of one."""

    keys: NDArray[np.uint64]  # [n]
    indptr: Ints  # [n+1]
    items: Ints  # [nnz], sorted within a user
    state: Any  # a State of the method
    targets: Floats | None = None  # [nnz]: ratings for MSE, or what items count; None: 1 for every item
    around: Floats | None = None  # [nnz, d]: what a `match` stage told the user about each of its items
    past: Any = None  # where the graph changes: what the method remembers of users whose items did, see methods.change
    order: Ints | None = None  # [nnz]: an item's place in its user's time, from 0; None: not known, or not asked for

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def degrees(self) -> Ints:
        """|N_u| of each user."""
        return np.diff(self.indptr)

    @property
    def owner(self) -> Ints:
        """For each item of the cohort the position of its user.  # [nnz]"""
        return np.repeat(np.arange(len(self)), self.degrees)

    @property
    def by_time(self) -> Ints:
        """Where each user's items are, one user after the other, in their order.  # [nnz]"""
        assert self.order is not None
        at = np.empty(len(self.items), np.int64)
        at[self.indptr[self.owner] + self.order] = np.arange(len(at))
        return at

    def items_of(self, user: int) -> Ints:
        return self.items[self.indptr[user] : self.indptr[user + 1]]

    def ordered_by(self, when: NDArray[Any]) -> "Cohort":
        """The same users, whose items came as these numbers rise.  # [nnz]"""
        by_time, order = np.lexsort((when, self.owner)), np.empty(len(self.items), np.int64)
        order[by_time] = np.arange(len(order)) - self.indptr[self.owner]
        return replace(self, order=order)

    def take(self, users: Ints) -> "Cohort":
        """The sub-cohort of these positions; its state is a copy."""
        counts = self.indptr[users + 1] - self.indptr[users]  # not of everybody: there may be millions
        indptr = np.concatenate([[0], np.cumsum(counts)])
        picked = np.arange(indptr[-1]) + np.repeat(self.indptr[users] - indptr[:-1], counts)
        of_items = self.targets, self.around, self.order
        targets, around, order = (None if part is None else part[picked] for part in of_items)
        past = self.past and self.past.take(users)
        state = self.state.take(users)
        return Cohort(self.keys[users], indptr, self.items[picked], state, targets, around, past, order)

    def with_state(self, state: Any) -> "Cohort":
        return replace(self, state=state)


@dataclass
class ServerState:
    """What the server holds: item embeddings with their K latents, degree counts, its optimizer's moments."""

    items: Floats  # [K+1, N, d]: e_t^0 and the latent e_t^1 .. e_t^K
    degrees: Ints  # [N]: |N_t|, as counted last
    moment1: Floats  # [N, d]
    moment2: Floats  # [N, d]
    round: int = 0  # training rounds applied
    more: dict[str, Floats] = field(default_factory=dict)  # what else a method keeps: a network's weights, moments
    arrived: bool = False  # whether this is a device's copy: `items` are the tables of a broadcast
    kept: dict[str, Ints] = field(default_factory=dict)  # what else, that neither travels nor is in a model


def as_server(broadcast: Broadcast) -> ServerState:
    """The server's half of the model, as a device has it."""
    nothing, more = np.zeros((0, 0), broadcast.tables.dtype), dict(broadcast.more)
    return ServerState(broadcast.tables, broadcast.degrees, nothing, nothing, broadcast.round, more, arrived=True)


class Traffic(NamedTuple):
    """Bytes of one round over all its users: as sent in the clear, and as dense secure uploads."""

    up: int = 0
    down: int = 0
    up_secure: int = 0
    down_secure: int = 0

    def plus(self, other: "Traffic") -> "Traffic":
        return Traffic(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Stage:
    """One kind of exchange: who takes part, and how its answers are combined. A method may subclass it."""

    name: str
    everyone: bool
    combine: str = "sum"


def printable(text: str) -> str:
    """Text without control characters: names of items and texts of other machines may hold anything."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def size(n: float) -> str:
    """A number of bytes as a person says it."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while n >= 999.5 and len(units) > 1:
        n, units = n / 1000, units[1:]
    return f"{n:.3g} {units[0]}" if n < 999.5 else f"{n:,.0f} {units[0]}"
