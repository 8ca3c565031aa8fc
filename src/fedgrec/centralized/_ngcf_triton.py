"""NGCF on a GPU: `ngcf.mixed` and `ngcf.bpr` with their gradients, with all that stands between products in one launch.

activate    leaky ReLUs, their sum, dropout
slopes      back through these, and sums of the columns for b1 and b2
spread      back to N and E
rank        the loss, and ∂L/∂e of all levels' rows
"""

from typing import Any

import torch
import triton
import triton.language as tl

WORDS, ROWS, TRIPLES = 1024, 32, 16  # that a program holds at a time


@triton.jit
def activate(Z1, Z2, kept, out, n, slope, scale, KEPT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n
    z1 = tl.load(Z1 + at, mask=ok)
    z2 = tl.load(Z2 + at, mask=ok)
    y = tl.where(z1 > 0, z1, slope * z1) + tl.where(z2 > 0, z2, slope * z2)
    if KEPT:
        y = tl.where(tl.load(kept + at, mask=ok), scale * y, 0.0)
    tl.store(out + at, y, mask=ok)


@triton.jit
def slopes(
    G, Z1, Z2, kept, dZ1, dZ2, sums, n, slope, scale,
    KEPT: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`sums` [2, programs, DIM] are of the rows of a program, for others to add up."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    col = tl.arange(0, D)
    ok = (i < n)[:, None] & (col < DIM)[None, :]
    at = i.to(tl.int64)[:, None] * DIM + col[None, :]
    g = tl.load(G + at, mask=ok, other=0.0)
    if KEPT:
        g = tl.where(tl.load(kept + at, mask=ok, other=0), scale * g, 0.0)
    g1 = tl.where(tl.load(Z1 + at, mask=ok, other=0.0) > 0, g, slope * g)
    g2 = tl.where(tl.load(Z2 + at, mask=ok, other=0.0) > 0, g, slope * g)
    tl.store(dZ1 + at, g1, mask=ok)
    tl.store(dZ2 + at, g2, mask=ok)
    mine = sums + tl.program_id(0) * DIM + col
    tl.store(mine, tl.sum(g1, axis=0), mask=col < DIM)
    tl.store(mine + tl.num_programs(0) * DIM, tl.sum(g2, axis=0), mask=col < DIM)


@triton.jit
def spread(dnear, dboth, N, E, dN, dE, n, SYMMETRIC: tl.constexpr, BLOCK: tl.constexpr):
    """`near` is N, with E where SYMMETRIC; `both` is N ⊙ E."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n
    near = tl.load(dnear + at, mask=ok)
    both = tl.load(dboth + at, mask=ok)
    tl.store(dN + at, near + both * tl.load(E + at, mask=ok), mask=ok)
    e = both * tl.load(N + at, mask=ok)
    if SYMMETRIC:
        e += near
    tl.store(dE + at, e, mask=ok)


@triton.jit
def level_of(levels, k, which, i, n, ok, col, DIM: tl.constexpr, EPSILON: tl.constexpr):
    """f of e^k: e⁰ as it is, the others normalised. Where its rows are, and by how much they were divided."""
    at = (k * 3 * n + which * n + i).to(tl.int64)[:, None] * DIM + col[None, :]
    e = tl.load(levels + at, mask=ok, other=0.0)
    norm = tl.where(k > 0, tl.sqrt(tl.sum(e * e, axis=1)), 1.0)
    divisor = tl.maximum(norm, EPSILON)[:, None]
    return at, e / divisor, divisor


@triton.jit
def slope_of(g, f, divisor, k, EPSILON: tl.constexpr):
    """∂L/∂e from g = ∂L/∂f. Of a row that is as good as 0 the divisor is a constant."""
    turns = (k > 0) & (divisor > EPSILON)
    return (g - tl.where(turns, tl.sum(f * g, axis=1)[:, None] * f, 0.0)) / divisor


@triton.jit
def rank(
    levels, slopes, losses, l2, n,
    LEVELS: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    col = tl.arange(0, D)
    ok = (i < n)[:, None] & (col < DIM)[None, :]
    x = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for k in range(LEVELS):
        _, u, _ = level_of(levels, k, 0, i, n, ok, col, DIM, EPSILON)
        _, p, _ = level_of(levels, k, 1, i, n, ok, col, DIM, EPSILON)
        _, q, _ = level_of(levels, k, 2, i, n, ok, col, DIM, EPSILON)
        x += tl.sum(u * (q - p), axis=1)
        squares += tl.sum(u * u + p * p + q * q, axis=1)
    softplus = tl.maximum(x, 0.0) + tl.log(1 + tl.exp(-tl.abs(x)))
    loss = tl.where(i < n, softplus + 0.5 * l2 * squares, 0.0) / n
    tl.store(losses + tl.program_id(0), tl.sum(loss, axis=0))
    slope = (1 / (1 + tl.exp(-x)) / n)[:, None]
    decay = l2 / n
    for k in range(LEVELS):
        at_u, u, of_u = level_of(levels, k, 0, i, n, ok, col, DIM, EPSILON)
        at_p, p, of_p = level_of(levels, k, 1, i, n, ok, col, DIM, EPSILON)
        at_q, q, of_q = level_of(levels, k, 2, i, n, ok, col, DIM, EPSILON)
        tl.store(slopes + at_u, slope_of(slope * (q - p) + decay * u, u, of_u, k, EPSILON), mask=ok)
        tl.store(slopes + at_p, slope_of(-slope * u + decay * p, p, of_p, k, EPSILON), mask=ok)
        tl.store(slopes + at_q, slope_of(slope * u + decay * q, q, of_q, k, EPSILON), mask=ok)


class Bpr(torch.autograd.Function):
    """`ngcf.bpr` with its gradient."""

    @staticmethod
    def forward(ctx: Any, levels: Any, l2: float) -> Any:
        (many, rows, dim), slopes = levels.shape, torch.empty_like(levels)
        programs = triton.cdiv(rows // 3, TRIPLES)
        losses = levels.new_empty(programs)
        rank[(programs,)](
            levels.contiguous(), slopes, losses, l2, rows // 3,
            LEVELS=many, DIM=dim, D=triton.next_power_of_2(dim), BLOCK=TRIPLES, EPSILON=1e-12,
        )  # fmt: skip
        ctx.save_for_backward(slopes)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        return ctx.saved_tensors[0] * gradients[0], None


class Mixed(torch.autograd.Function):
    """`ngcf.mixed` with its gradient."""

    @staticmethod
    def forward(
        ctx: Any, N: Any, E: Any, W1: Any, b1: Any, W2: Any, b2: Any, kept: Any, scale: float, slope: float, symm: bool
    ) -> Any:
        near, both = N + E if symm else N, N * E
        Z1, Z2 = torch.addmm(b1, near, W1), torch.addmm(b2, both, W2)
        ctx.save_for_backward(N, E, near, both, W1, W2, Z1, Z2, kept)
        ctx.numbers, ctx.symmetric, out, n = (slope, scale), symm, torch.empty_like(Z1), Z1.numel()
        activate[(triton.cdiv(n, WORDS),)](Z1, Z2, kept, out, n, slope, scale, KEPT=kept is not None, BLOCK=WORDS)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        N, E, near, both, W1, W2, Z1, Z2, kept = ctx.saved_tensors
        (n, dim), programs = Z1.shape, triton.cdiv(len(Z1), ROWS)
        dZ1, dZ2, dN, dE = (torch.empty_like(Z1) for _ in range(4))
        sums = Z1.new_empty(2, programs, dim)
        slopes[(programs,)](
            gradients[0].contiguous(), Z1, Z2, kept, dZ1, dZ2, sums, n, *ctx.numbers,
            KEPT=kept is not None, DIM=dim, D=triton.next_power_of_2(dim), BLOCK=ROWS,
        )  # fmt: skip
        of_b1, of_b2 = sums.sum(1, keepdim=True)
        spread[(triton.cdiv(n * dim, WORDS),)](
            dZ1 @ W1.T, dZ2 @ W2.T, N, E, dN, dE, n * dim, SYMMETRIC=ctx.symmetric, BLOCK=WORDS
        )
        return dN, dE, near.T @ dZ1, of_b1, both.T @ dZ2, of_b2, None, None, None, None
