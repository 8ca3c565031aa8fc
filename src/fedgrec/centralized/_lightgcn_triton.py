"""LightGCN's loops on a GPU. A batch is a few launches, one after the other:

    product      (nodes)     Â x, or G + Â x; of an x that is 0 but in the rows of the batch, those rows alone are read
    product_at   (rows)      of Â x some rows, which NGCF asks for
    represent    (3 × batch) rows of F that the batch needs; the last of the K products is made for them alone
    slopes       (batch)     the loss, and ∂L/∂F added up as integers, so that bits do not depend on their order
    adam         (nodes)     with λ for the nodes of the batch

The backward pass is K products more, by Horner.
"""

import triton
import triton.language as tl

STEPS = tl.constexpr(2.0**45)  # of a gradient that is added up


@triton.jit
def neighbours(
    row, indptr, columns, values, x, counts, col, inside,
    SOME: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Σ_j Â_rj x_j; where SOME, over the j that `counts` has."""
    first = tl.load(indptr + row)
    last = tl.load(indptr + row + 1)
    total = tl.zeros((BLOCK, D), x.dtype.element_ty)
    for start in range(first, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        ok = at < last
        j = tl.load(columns + at, mask=ok, other=0).to(tl.int64)
        w = tl.load(values + at, mask=ok, other=0.0)
        if SOME:
            ok = ok & (tl.load(counts + j, mask=ok, other=0) > 0)
        total += w[:, None] * tl.load(
            x + j[:, None] * DIM + col[None, :], mask=ok[:, None] & inside[None, :], other=0.0
        )
    return tl.sum(total, axis=0)


@triton.jit
def product(
    order, indptr, columns, values, x, more, counts, out,
    SOME: tl.constexpr, ADD: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.load(order + tl.program_id(0)).to(tl.int64)
    col = tl.arange(0, D)
    inside = col < DIM
    total = neighbours(row, indptr, columns, values, x, counts, col, inside, SOME, DIM, D, BLOCK)
    if ADD:
        total += tl.load(more + row * DIM + col, mask=inside, other=0.0)
    tl.store(out + row * DIM + col, total, mask=inside)


@triton.jit
def product_at(
    rows, indptr, columns, values, x, out,
    DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, D)
    inside = col < DIM
    total = neighbours(tl.load(rows + i), indptr, columns, values, x, x, col, inside, False, DIM, D, BLOCK)
    tl.store(out + i * DIM + col, total, mask=inside)


@triton.jit
def represent(
    batch, nodes, n_triples, indptr, columns, values, E, levels, n_nodes, F,
    K: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """F of the nodes of this batch: the mean of e⁰ … e^K, of which `levels` has e¹ … e^{K−1}."""
    i = tl.program_id(0)
    which = tl.program_id(1)
    at = tl.load(batch) * SIZE + i
    if at < n_triples:
        node = tl.load(nodes + which * n_triples + at)
        col = tl.arange(0, D)
        inside = col < DIM
        f = tl.load(E + node * DIM + col, mask=inside, other=0.0)
        if K > 0:
            last = E
            for k in range(K - 1):
                last = levels + k * n_nodes * DIM
                f += tl.load(last + node * DIM + col, mask=inside, other=0.0)
            f += neighbours(node, indptr, columns, values, last, last, col, inside, False, DIM, D, BLOCK)
        tl.store(F + (which * SIZE + i) * D + col, f / (K + 1))


@triton.jit
def slopes(
    batch, nodes, n_triples, E, F, sums, counts, losses, l2,
    K: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """L = mean softplus(x) + λ/2B Σ‖e⁰‖², x = f_u·(f_n − f_p); ∂L/∂F into the sums."""
    first = tl.load(batch) * SIZE
    many = tl.minimum(n_triples - first, SIZE)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    col = tl.arange(0, D)
    ok = i < many
    both = ok[:, None] & (col < DIM)[None, :]
    f_u = tl.load(F + i[:, None] * D + col[None, :], mask=both, other=0.0)
    f_p = tl.load(F + (SIZE + i)[:, None] * D + col[None, :], mask=both, other=0.0)
    f_n = tl.load(F + (2 * SIZE + i)[:, None] * D + col[None, :], mask=both, other=0.0)
    x = tl.sum(f_u * (f_n - f_p), axis=1)
    slope = 1 / (1 + tl.exp(-x)) / many / (K + 1)
    softplus = tl.maximum(x, 0.0) + tl.log(1 + tl.exp(-tl.abs(x)))
    loss = tl.sum(tl.where(ok, softplus, 0.0), axis=0)
    for which in tl.static_range(3):
        node = tl.load(nodes + which * n_triples + first + i, mask=ok, other=0)
        e = tl.load(E + node[:, None] * DIM + col[None, :], mask=both, other=0.0)
        loss += 0.5 * tl.load(l2) * tl.sum(tl.sum(e * e, axis=1), axis=0)
        if which == 0:
            gradient = slope[:, None] * (f_n - f_p)
        elif which == 1:
            gradient = -slope[:, None] * f_u
        else:
            gradient = slope[:, None] * f_u
        steps = (gradient.to(tl.float64) * STEPS).to(tl.int64)
        tl.atomic_add(sums + node[:, None] * DIM + col[None, :], steps, mask=both, sem="relaxed")
        tl.atomic_add(counts + node, 1, mask=ok, sem="relaxed")
    tl.store(losses + tl.load(batch) * tl.num_programs(0) + tl.program_id(0), loss)


@triton.jit
def adam(
    batch, n_triples, E, m, v, G, counts, numbers, n_words,
    SIZE: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of Adam; λ is felt by the nodes of the batch, as often as they are in it."""
    many = tl.minimum(n_triples - tl.load(batch) * SIZE, SIZE)
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
    root = tl.sqrt(second) * tl.load(numbers + 4) + tl.load(numbers + 5)
    tl.store(E + at, e - tl.load(numbers + 3) * first / root, mask=ok)
