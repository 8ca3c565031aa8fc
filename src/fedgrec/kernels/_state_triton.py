"""What the loops for the GPU work on, and what all of them need."""

from typing import Any, NamedTuple

import triton
import triton.language as tl


@triton.jit
def rounded(x):
    """The nearest whole number, ties to even."""
    r = tl.floor(x + 0.5)
    odd = r != 2 * tl.floor(0.5 * r)
    return tl.where((r - x > 0.5) | ((r - x == 0.5) & odd), r - 1, r)


class Federation(NamedTuple):
    """Where training stands, and who takes part in each round of a stretch."""

    counter: Any  # the next round
    now: Any  # the round that runs
    first_round: Any  # of the stretch
    sampled: Any  # [stretch, S]
    counts: Any  # [stretch]
    cut: Any  # words that a clip cut


class Users(NamedTuple):
    """The population: everybody's key, items with their weights and targets, state."""

    keys: Any  # [M]
    indptr: Any  # [M+1]
    items: Any  # [nnz]
    gather: Any  # [nnz]
    push: Any  # [nnz]
    targets: Any  # [nnz]
    embeddings: Any  # [M, K+1, d]
    sent: Any  # [M, K, d]
    moment1: Any  # [M, d]
    moment2: Any  # [M, d]
    steps: Any  # [M]
    ranked: Any  # [nnz]: places in `order` of the items that cannot be negatives, sorted
    taken: Any  # [M, B+1]: where those of each shelf begin
    begins: Any  # [M, B+1]: where the negatives from each shelf begin; the last is their number


class Server(NamedTuple):
    items: Any  # [K+1, N, d]
    moment1: Any  # [N, d]
    moment2: Any  # [N, d]
    a: Any  # [N, d]: a_t
    f: Any  # [N, d]: f_t = p·e_t^0 + a_t, as it travels
    rest: Any  # [N, d]: Σ α_k e_t^{k−1} over k ≥ 2, where tables travel combined
    c: Any  # [N, d]: Σ α_k e_t^{k−1}, as it travels
    steps: Any  # [N]: of the rows of updates
    step_scales: Any  # [N]: see FedGRecMethod
    sums: Any  # [K+1, N, D/2], two words in one
    touched: Any  # [N]: whether a latent of the item changes
    order: Any  # [N]: see draws.Shelves
    first: Any  # [B+1]


class Scratch(NamedTuple):
    """What the users of a cohort remember between launches."""

    rows: Any  # [S, M]: items that train, positives first
    edges: Any  # [S, C]: which of the user's items the positives are
    scores: Any  # [S, C]: of the positives; for the MSE their slopes
    gathered: Any  # [S, C]: what the slopes of a positive's negatives add up to
    positives: Any  # [S, C, 4, D]: f, how far x moved, and its two moments
    slopes: Any  # [S, τ+1, n]: of the negatives; for softmax their scores
    partners: Any  # [S, τ, n]: the positive that a negative meets in each step
    f: Any  # [S, τ+1, D]: f_u by step; for cosines its direction
    B: Any  # [S, D]: Σ α_k e_u^k of the latents, where tables travel combined
    norms: Any  # [S, τ+1]: |f_u|, or 1
    logs: Any  # [S, τ+1]: log Σ exp(s/T) over the negatives
    parts: Any  # [S, splits, D]: of ∂L/∂f_u
    leans: Any  # [S, splits]: of Σ g·s
    tops: Any  # [S, splits]: the highest s/T of a part
    totals: Any  # [S, splits]: Σ exp(s/T − top)
    moments: Any  # [S, 2, D]: Adam's of the user, where they start fresh


class Numbers(NamedTuple):
    """Options, in arrays: so real ones keep their precision, and whole ones need no compilation for each value."""

    real: Any  # Reals
    whole: Any  # Wholes
    alphas: Any  # [K+1]
    rates: Any  # [τ+1]: of the items' Adam, by step
    epsilons: Any  # [τ+1]
    unbias1: Any
    unbias2: Any


class Tensors(NamedTuple):
    """All that the loops read and write."""

    federation: Any
    users: Any
    server: Any
    scratch: Any
    numbers: Any


class Reals(NamedTuple):
    """Real options, one word each."""

    share: Any  # p = α_0, the part of e^0 in f
    live_share: Any  # α_1 where latents follow the local items, else 0
    l2: Any
    item_rate: Any
    user_rate: Any
    beta1: Any
    beta2: Any
    epsilon: Any
    to_item_steps: Any  # fixed-point steps in 1
    item_bound: Any  # steps at most
    to_latent_steps: Any
    latent_bound: Any
    fall: Any  # halvings of the rates in a round
    server_rate: Any
    latent_rate: Any  # of a fixed-point step
    item_step: Any  # a fixed-point step
    levels: Any  # steps at most, once each row has its own
    per_temperature: Any
    negative_weight: Any


class Wholes(NamedTuple):
    """Whole numbers, one word each."""

    n_items: Any
    most_positives: Any  # of a user
    unbiased_after: Any  # the last bias correction that is listed
    feedback_bound: Any  # see draws.feedback
    latents_every: Any  # rounds
    sampled: Any  # users of a round
    n_users: Any
    fine_rounds: Any  # before each row has its own step
    untouched: Any  # the step of a row that nobody has touched, as a power of two
    coarsest: Any  # the largest step of a row, likewise
    begun: Any  # the round in which the season began


LOWEST = tl.constexpr(-1e30)  # lower than every score
TINY = tl.constexpr(1.1754943508222875e-38)  # see reference.length
BPR, SOFTMAX = tl.constexpr(0), tl.constexpr(3)  # of LOSSES


# ----------------------------------------------------------------------------- what the loops are compiled for


class Sizes(NamedTuple):
    """Shapes, and what travels."""

    S: Any  # users of a cohort
    K: Any
    D: Any  # columns: a power of 2
    DIM: Any  # columns that are not zero
    M: Any  # rows of a user
    C: Any  # positives of a user: a power of 2
    MANY: Any  # negatives of a user
    TAU: Any
    SHELVES: Any  # B
    PAIRED: Any  # whether negatives meet positives
    COMBINED: Any  # whether f and c are all that travels in most rounds
    KIND: Any  # of KINDS


class Rules(NamedTuple):
    """The loss and the optimizers at home."""

    LOSS: Any  # of LOSSES
    COSINE: Any
    MEAN: Any
    PER_ROW: Any  # λ is the same for every row
    CONCAT: Any
    LIVE: Any
    ITEM_ADAM: Any
    USER_ADAM: Any
    KEPT: Any  # the user's moments outlast a round
    WITHHELD: Any  # some positives' updates stay at home
    FAST: Any  # see adam_step
    NARROW: Any  # whether rows have steps of their own, after the first rounds


def constants(given: Any) -> Any:
    """Sizes or Rules for a loop: Triton compiles the loop for the tuple's constexpr values."""
    return type(given)(*map(tl.constexpr, given))


# ------------------------------------------------------------------------------------- the user of a program


class User(NamedTuple):
    """The user of a slot, and how many rows of each kind train."""

    slot: Any
    u: Any
    start: Any
    degree: Any
    P: Any
    N: Any


class Decay(NamedTuple):
    """λ of the user, of a positive and of a negative; and the factor that makes a sum the mean, if wanted."""

    user: Any
    positive: Any
    negative: Any
    scale: Any


@triton.jit
def takes_part(F, slot):
    return slot < tl.load(F.counts + (tl.load(F.counter) - tl.load(F.first_round)))


@triton.jit
def find_user(at, slot, size):
    F = at.federation
    turn = tl.load(F.counter) - tl.load(F.first_round)
    u = tl.load(F.sampled + turn * size.S + slot).to(tl.int64)
    start = tl.load(at.users.indptr + u)
    degree = (tl.load(at.users.indptr + u + 1) - start).to(tl.int32)
    P = tl.minimum(degree, tl.load(at.numbers.whole.most_positives).to(tl.int32))
    N = tl.load(at.users.begins + u * (size.SHELVES + 1) + size.SHELVES)
    return User(slot, u, start, degree, P, tl.where(P > 0, N, 0))


@triton.jit
def decays(numbers, user, rules):
    l2 = tl.load(numbers.real.l2)
    whole = l2
    positive = l2
    negative = l2
    scale = l2 * 0 + 1
    terms = user.N  # pairs, or rows
    if rules.LOSS == SOFTMAX:
        terms = user.P
    elif rules.LOSS > 0:
        terms += user.P
    if not rules.PER_ROW:
        if not rules.MEAN:
            whole = l2 * terms
        positive = whole / tl.maximum(user.P, 1)
        negative = whole / tl.maximum(user.N, 1)
    if rules.LOSS == SOFTMAX:
        if not rules.MEAN:
            scale *= terms
    elif rules.MEAN:
        scale /= tl.maximum(terms, 1)
    return Decay(whole, positive, negative, scale)


# ----------------------------------------------------------------------------------------------------- rows


@triton.jit
def rows_of(table, t, ok, size):
    """Rows of a table, zero where there is none. [len(t), D]"""
    col = tl.arange(0, size.D)
    there = ok[:, None] & (col < size.DIM)[None, :]
    return tl.load(table + t[:, None] * size.DIM + col[None, :], mask=there, other=0.0)


KINDS = {"float32": 0, "bfloat16": 1, "int8": 2}


@triton.jit
def power_of_two(exponent):
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def travelled(rows, KIND: tl.constexpr):
    """core.travelling. [n, D]"""
    if KIND == 1:
        bits = rows.to(tl.float32).to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        rows = bits.to(tl.float32, bitcast=True).to(rows.dtype)
    elif KIND == 2:
        bits = (tl.max(tl.abs(rows), axis=1) / 127).to(tl.float32).to(tl.int32, bitcast=True)
        exponent = (bits >> 23) - 126 - ((bits & 0x7FFFFF) == 0).to(tl.int32)
        exponent = tl.minimum(tl.maximum(exponent, -100), 100)[:, None]
        rows = rounded(rows * power_of_two(-exponent).to(rows.dtype)) * power_of_two(exponent).to(rows.dtype)
    return rows


@triton.jit
def lengths(rows):
    """|f| of each row."""
    return tl.sqrt(tl.sum(rows * rows, axis=1) + TINY)


@triton.jit
def items_at(scratch, user, i, ok, size):
    """Items of a user's training rows, positives first."""
    return tl.load(scratch.rows + user.slot * size.M + i, mask=ok, other=0).to(tl.int64)


# The state of a positive, D words each: f, how far x moved, and its two moments.
MOVED, FIRST, SECOND = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


@triton.jit
def positives_at(scratch, user, i, size):
    """Where the state of positives i begins. [len(i), D]"""
    mine = scratch.positives + user.slot.to(tl.int64) * size.C * 4 * size.D + tl.arange(0, size.D)[None, :]
    return mine + i[:, None] * (4 * size.D)
