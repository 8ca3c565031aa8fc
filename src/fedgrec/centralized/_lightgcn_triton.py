"""LightGCN's loops on a GPU. A batch is a few launches, one after the other:

    product      (pieces)    Â x, or G + Â x; if x is 0 outside the batch's rows, it reads those rows alone
    join         (long rows) joins the pieces of Â x's long rows
    represent    (3 × batch) rows of F that the batch needs; the last of the K products is computed for them alone
    slopes       (batch)     the loss, and ∂L/∂F in place of these rows
    add_up       (3 × batch) adds rows of ∂L/∂F to their nodes, in a fixed order
    adam         (nodes)     with λ for the nodes of the batch

The backward pass takes K more products, by Horner. NGCF uses the same products, and some rows of one:

    product_at   (rows)      rows of Â x

`rows` of a batch are [3, m], as _torch.with_order makes them; a node that does not exist fills up a shorter batch.
"""

import triton
import triton.language as tl


@triton.jit
def weighed(at, ok, columns, values, x, col, inside, DIM: tl.constexpr):
    """Â_rj x_j of some edges. [edges, D]"""
    j = tl.load(columns + at, mask=ok, other=0).to(tl.int64)
    w = tl.load(values + at, mask=ok, other=0.0)
    return w[:, None] * tl.load(x + j[:, None] * DIM + col[None, :], mask=ok[:, None] & inside[None, :], other=0.0)


@triton.jit
def neighbours(
    first, last, columns, values, x, col, inside, DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Σ_j Â_rj x_j over edges `first` … `last` − 1 of a row, by several warps, whose sums are added at the end."""
    total = tl.zeros((BLOCK, D), x.dtype.element_ty)
    for start in range(first, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += weighed(at, at < last, columns, values, x, col, inside, DIM)
    return tl.sum(total, axis=0)


@triton.jit
def neighbours_alone(
    first, last, columns, values, x, col, inside, DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """`neighbours` by one warp, which has no room for sums of many rows."""
    total = tl.zeros((D,), x.dtype.element_ty)
    for start in range(first, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.sum(weighed(at, at < last, columns, values, x, col, inside, DIM), axis=0)
    return total


@triton.jit
def neighbours_in(
    first, last, columns, values, x, counts, col, inside,
    DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    """The same over the j with counts[j] > 0: find them among SCAN edges, then read BLOCK of them at a time."""
    total = tl.zeros((D,), x.dtype.element_ty)
    place = tl.arange(0, BLOCK)
    for start in range(first, last, SCAN):
        at = start + tl.arange(0, SCAN)
        j = tl.load(columns + at, mask=at < last, other=0)
        there = (tl.load(counts + j, mask=at < last, other=0) > 0).to(tl.int32)
        rank = tl.where(there > 0, tl.cumsum(there, axis=0) - 1, -1)
        many = tl.sum(there, axis=0)
        for done in range(0, many, BLOCK):
            found = tl.sum(tl.where(rank[None, :] == (done + place)[:, None], at[None, :], 0), axis=1)
            total += tl.sum(weighed(found, done + place < many, columns, values, x, col, inside, DIM), axis=0)
    return total


@triton.jit
def product(
    pieces, columns, values, x, more, counts, parts, out,
    SOME: tl.constexpr, ADD: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A piece is [row, first, last, part]: `join` adds up the parts of a long row; part −1 is a whole row."""
    piece = pieces + tl.program_id(0) * 4
    row = tl.load(piece).to(tl.int64)
    first = tl.load(piece + 1)
    last = tl.load(piece + 2)
    part = tl.load(piece + 3).to(tl.int64)
    col = tl.arange(0, D)
    inside = col < DIM
    if SOME:
        total = neighbours_in(first, last, columns, values, x, counts, col, inside, DIM, D, BLOCK, 4 * BLOCK)
    else:
        total = neighbours_alone(first, last, columns, values, x, col, inside, DIM, D, BLOCK)
    if part >= 0:
        tl.store(parts + part * DIM + col, total, mask=inside)
    else:
        if ADD:
            total += tl.load(more + row * DIM + col, mask=inside, other=0.0)
        tl.store(out + row * DIM + col, total, mask=inside)


@triton.jit
def join(rows, parts, more, out, ADD: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr):
    """`rows` are [row, its first part, the next row's first part]."""
    about = rows + tl.program_id(0) * 3
    row = tl.load(about).to(tl.int64)
    first = tl.load(about + 1)
    last = tl.load(about + 2)
    col = tl.arange(0, D)
    inside = col < DIM
    total = tl.zeros((D,), out.dtype.element_ty)
    for part in range(first, last):
        total += tl.load(parts + part * DIM + col, mask=inside, other=0.0)
    if ADD:
        total += tl.load(more + row * DIM + col, mask=inside, other=0.0)
    tl.store(out + row * DIM + col, total, mask=inside)


@triton.jit
def product_at(
    rows, indptr, columns, values, x, out,
    DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + i)
    first = tl.load(indptr + row)
    last = tl.load(indptr + row + 1)
    col = tl.arange(0, D)
    inside = col < DIM
    total = neighbours(first, last, columns, values, x, col, inside, DIM, D, BLOCK)
    tl.store(out + i * DIM + col, total, mask=inside)


@triton.jit
def represent(
    rows, indptr, columns, values, E, levels, n_nodes, F,
    K: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """F of the nodes of this batch: the mean of e⁰ … e^K; `levels` holds e¹ … e^{K−1}."""
    i = tl.program_id(0)
    node = tl.load(rows + i)
    if node < n_nodes:
        col = tl.arange(0, D)
        inside = col < DIM
        f = tl.load(E + node * DIM + col, mask=inside, other=0.0)
        if K > 0:
            last = E
            for k in range(K - 1):
                last = levels + k * n_nodes * DIM
                f += tl.load(last + node * DIM + col, mask=inside, other=0.0)
            begin = tl.load(indptr + node)
            end = tl.load(indptr + node + 1)
            f += neighbours(begin, end, columns, values, last, col, inside, DIM, D, BLOCK)
        tl.store(F + i * DIM + col, f / (K + 1), mask=inside)


@triton.jit
def slopes(
    batch, rows, n_triples, E, F, losses, l2,
    K: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """L = mean softplus(x) + λ/2B Σ‖e⁰‖², x = f_u·(f_n − f_p); α ∂L/∂F where F was."""
    many = tl.minimum(n_triples - tl.load(batch) * SIZE, SIZE)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    col = tl.arange(0, D)
    ok = i < many
    both = ok[:, None] & (col < DIM)[None, :]
    at = i[:, None] * DIM + col[None, :]
    f_u = tl.load(F + at, mask=both, other=0.0)
    f_p = tl.load(F + SIZE * DIM + at, mask=both, other=0.0)
    f_n = tl.load(F + 2 * SIZE * DIM + at, mask=both, other=0.0)
    x = tl.sum(f_u * (f_n - f_p), axis=1)
    slope = (1 / (1 + tl.exp(-x)) / many / (K + 1))[:, None]
    softplus = tl.maximum(x, 0.0) + tl.log(1 + tl.exp(-tl.abs(x)))
    loss = tl.sum(tl.where(ok, softplus, 0.0), axis=0)
    for which in tl.static_range(3):
        node = tl.load(rows + which * SIZE + i, mask=ok, other=0)
        e = tl.load(E + node[:, None] * DIM + col[None, :], mask=both, other=0.0)
        loss += 0.5 * tl.load(l2) * tl.sum(tl.sum(e * e, axis=1), axis=0)
    tl.store(F + at, slope * (f_n - f_p), mask=both)
    tl.store(F + SIZE * DIM + at, -slope * f_u, mask=both)
    tl.store(F + 2 * SIZE * DIM + at, slope * f_u, mask=both)
    tl.store(losses + tl.load(batch) * tl.num_programs(0) + tl.program_id(0), loss)


@triton.jit
def add_up(rows, order, x, out, counts, n, n_nodes, DIM: tl.constexpr, D: tl.constexpr):
    """Each node's sum of x, and how many rows it adds. `rows` are sorted; the first of equal ones adds up all."""
    i = tl.program_id(0)
    node = tl.load(rows + i)
    before = tl.load(rows + i - 1, mask=i > 0, other=-1)
    if (before != node) & (node < n_nodes):
        col = tl.arange(0, D)
        inside = col < DIM
        total = tl.zeros((D,), x.dtype.element_ty)
        at = i
        while tl.load(rows + at, mask=at < n, other=-1) == node:
            total += tl.load(x + tl.load(order + at) * DIM + col, mask=inside, other=0.0)
            at += 1
        tl.store(out + node * DIM + col, total, mask=inside)
        tl.store(counts + node, at - i)


@triton.jit
def adam(
    batch, n_triples, E, m, v, G, counts, rates, numbers, n_words,
    SIZE: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of Adam; λ applies to the nodes of the batch, as often as they are in it."""
    turn = tl.load(batch)
    many = tl.minimum(n_triples - turn * SIZE, SIZE)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n_words
    e = tl.load(E + at, mask=ok, other=0.0)
    g = tl.load(G + at, mask=ok, other=0.0)
    g += tl.load(numbers) / many * tl.load(counts + at // DIM, mask=ok, other=0) * e
    beta1 = tl.load(numbers + 1)
    beta2 = tl.load(numbers + 2)
    first = beta1 * tl.load(m + at, mask=ok, other=0.0) + (1 - beta1) * g
    second = beta2 * tl.load(v + at, mask=ok, other=0.0) + (1 - beta2) * g * g
    tl.store(m + at, first, mask=ok)
    tl.store(v + at, second, mask=ok)
    root = tl.sqrt(second) * tl.load(rates + 2 * turn + 1) + tl.load(numbers + 3)
    tl.store(E + at, e - tl.load(rates + 2 * turn) * first / root, mask=ok)
