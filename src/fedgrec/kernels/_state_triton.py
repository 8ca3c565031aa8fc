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


class Server(NamedTuple):
    """The server's tables."""

    items: Any  # [K+1, N, d]
    moment1: Any  # [N, d]
    moment2: Any  # [N, d]
    a: Any  # [N, d]: a_t
    f: Any  # [N, d]: f_t = p·e_t^0 + a_t
    sums: Any  # [K+1, N, D/2], two words in one
    touched: Any  # [N]: whether a latent of the item changes


class Scratch(NamedTuple):
    """What the users of a cohort remember between launches."""

    rows: Any  # [S, M]: items that train, positives first
    edges: Any  # [S, C]: which of the user's items the positives are
    scores: Any  # [S, C]: of the positives; for the MSE their slopes
    gathered: Any  # [S, C]: what the slopes of a positive's negatives add up to
    positives: Any  # [S, C, 4, D]: f, how far x moved, and its two moments
    slopes: Any  # [S, τ+1, n]: of the negatives
    partners: Any  # [S, τ, n]: the positive that a negative meets in each step
    f: Any  # [S, τ+1, D]: f_u by step
    parts: Any  # [S, splits, D]: of ∂L/∂f_u
    moments: Any  # [S, 2, D]: Adam's of the user, where they start fresh


class Numbers(NamedTuple):
    """Options. Real ones in arrays keep their precision; whole ones in arrays need no compilation of their own."""

    real: Any  # p, live, λ, item rate, user rate, β1, β2, ε, steps to 1 and bound of items and of latents, 1/half-life
    whole: Any  # N, negatives, the most positives, the last bias correction, feedback
    alphas: Any  # [K+1]
    rates: Any  # [τ+1]: of the items' Adam, by step
    epsilons: Any  # [τ+1]
    unbias1: Any
    unbias2: Any
    server: Any  # server rate, latent rate · step, step of the items, β1, β2, ε


class User(NamedTuple):
    """The user of a slot, and how many rows of each kind train."""

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
def find_user(F, users, numbers, slot, S: tl.constexpr, EXCLUDE: tl.constexpr):
    turn = tl.load(F.counter) - tl.load(F.first_round)
    u = tl.load(F.sampled + turn * S + slot).to(tl.int64)
    start = tl.load(users.indptr + u)
    degree = (tl.load(users.indptr + u + 1) - start).to(tl.int32)
    P = tl.minimum(degree, tl.load(numbers.whole + 2).to(tl.int32))
    free = tl.load(numbers.whole).to(tl.int32)
    if EXCLUDE:
        free -= degree
    N = tl.minimum(tl.load(numbers.whole + 1).to(tl.int32), free)
    return User(u, start, degree, P, tl.where(P > 0, N, 0))


@triton.jit
def decays(numbers, user, LOSS: tl.constexpr, MEAN: tl.constexpr, PER_ROW: tl.constexpr):
    l2 = tl.load(numbers.real + 2)
    whole = l2
    positive = l2
    negative = l2
    scale = l2 * 0 + 1
    terms = user.N  # pairs, or rows
    if LOSS > 0:
        terms += user.P
    if not PER_ROW:
        if not MEAN:
            whole = l2 * terms
        positive = whole / tl.maximum(user.P, 1)
        negative = whole / tl.maximum(user.N, 1)
    if MEAN:
        scale /= tl.maximum(terms, 1)
    return Decay(whole, positive, negative, scale)


@triton.jit
def row_of(table, t, ok, col, inside, DIM: tl.constexpr):
    """Rows of a table, zero where there is none."""
    return tl.load(table + t[:, None] * DIM + col[None, :], mask=ok[:, None] & inside[None, :], other=0.0)
