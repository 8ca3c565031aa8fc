"""A layer of NGCF on a GPU: `ngcf.mixed` and its gradient, with all that stands between two products in one launch.

activate    leaky ReLUs, their sum, dropout
slopes      back through these
spread      back to N and E
"""

from typing import Any

import torch
import triton
import triton.language as tl

WORDS = 1024  # that a program holds at a time


@triton.jit
def activate(Z1, Z2, kept, out, n, slope, KEPT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n
    z1 = tl.load(Z1 + at, mask=ok)
    z2 = tl.load(Z2 + at, mask=ok)
    y = tl.where(z1 > 0, z1, slope * z1) + tl.where(z2 > 0, z2, slope * z2)
    if KEPT:
        y *= tl.load(kept + at, mask=ok)
    tl.store(out + at, y, mask=ok)


@triton.jit
def slopes(G, Z1, Z2, kept, dZ1, dZ2, n, slope, KEPT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n
    g = tl.load(G + at, mask=ok)
    if KEPT:
        g *= tl.load(kept + at, mask=ok)
    tl.store(dZ1 + at, tl.where(tl.load(Z1 + at, mask=ok) > 0, g, slope * g), mask=ok)
    tl.store(dZ2 + at, tl.where(tl.load(Z2 + at, mask=ok) > 0, g, slope * g), mask=ok)


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


class Mixed(torch.autograd.Function):
    """`ngcf.mixed` with its gradient."""

    @staticmethod
    def forward(
        ctx: Any, N: Any, E: Any, W1: Any, b1: Any, W2: Any, b2: Any, kept: Any, slope: float, symmetric: bool
    ) -> Any:
        Z1, Z2 = torch.addmm(b1, N + E if symmetric else N, W1), torch.addmm(b2, N * E, W2)
        ctx.save_for_backward(N, E, W1, W2, Z1, Z2, kept)
        ctx.slope, ctx.symmetric, out, n = slope, symmetric, torch.empty_like(E), E.numel()
        activate[(triton.cdiv(n, WORDS),)](Z1, Z2, kept, out, n, slope, KEPT=kept is not None, BLOCK=WORDS)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        N, E, W1, W2, Z1, Z2, kept = ctx.saved_tensors
        n, G = E.numel(), gradients[0].contiguous()
        grid, (dZ1, dZ2, dN, dE) = (triton.cdiv(n, WORDS),), (torch.empty_like(E) for _ in range(4))
        slopes[grid](G, Z1, Z2, kept, dZ1, dZ2, n, ctx.slope, KEPT=kept is not None, BLOCK=WORDS)
        spread[grid](dZ1 @ W1.T, dZ2 @ W2.T, N, E, dN, dE, n, SYMMETRIC=ctx.symmetric, BLOCK=WORDS)
        near, both = N + E if ctx.symmetric else N, N * E
        of_weights = near.T @ dZ1, dZ1.sum(0, keepdim=True), both.T @ dZ2, dZ2.sum(0, keepdim=True)
        return dN, dE, *of_weights, None, None, None
