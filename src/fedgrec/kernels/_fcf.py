# mypy: ignore-errors
"""The compiled twin of the loops in `methods.fcf`: the same functions, for a whole cohort on all cores.

Each user and each item belongs to one thread, and no thread adds to what another writes. So a result depends neither on
the number of threads nor on the other users of a cohort.
"""

import numpy as np

from fedgrec.cable.core import Rows
from fedgrec.errors import FedgrecError
from fedgrec.kernels._numba import add_product, fused, threaded

BLOCK = 256  # rows of Y that a thread takes at a time, and whose squares are added in the precision of Y


def solve(cohort, at, c, Y, gram, l2):
    X = np.empty((len(cohort), Y.shape[1]))
    solve_users(len(X), cohort.indptr, at, c, np.ascontiguousarray(Y), gram.astype(np.float64), l2, X)
    return X


def contributions(cohort, at, c, Y, X, items, gram, dtype):
    if not np.isfinite(X).all():
        raise FedgrecError("the update of 'items' is not finite: training diverged; lower the learning rate")
    weights = np.empty(len(at))
    weigh(len(X), cohort.indptr, at, c, np.ascontiguousarray(Y), X, weights)
    order = np.argsort(cohort.items, kind="stable")
    index, first = np.unique(cohort.items[order], return_index=True)
    values, cut = np.zeros((len(index), items.width), dtype), np.zeros(len(index), np.int64)
    first = np.append(first, len(order))
    add_rows(len(index), order, first, cohort.owner, weights, X, 1 / items.step, items.bound, values, cut)
    square_, cut_too = np.zeros((gram.rows, gram.width), dtype), np.zeros(gram.rows, np.int64)
    add_squares(X.shape[1], X, 1 / gram.step, gram.bound, square_, cut_too)
    return Rows(index, values), Rows(np.arange(gram.rows), square_), int(cut.sum() + cut_too.sum())


def descend(server, rows, step, gram, many, o):
    real, t = server.items.dtype.type, server.round + 1
    where = np.full(server.items.shape[1], -1, np.int64)
    where[rows.index] = np.arange(len(rows.index))
    adam = o.server_optimizer == "adam"
    rates = (o.server_rate / (1 - o.beta1**t), 1 / (1 - o.beta2**t)) if adam else (o.server_rate, 1.0)
    numbers = (2 * many, 2 * many * step, 2 * o.l2, *rates, o.beta1, o.beta2, o.adam_epsilon)
    gram = gram.astype(server.items.dtype)
    tables = (server.items[0], server.moment1, server.moment2)
    move(-(-len(where) // BLOCK), *tables, gram, where, rows.values, *map(real, numbers), adam)


def square(Y):
    parts = np.zeros((-(-len(Y) // BLOCK), Y.shape[1], Y.shape[1]), Y.dtype)
    add_blocks(len(parts), np.ascontiguousarray(Y), parts)
    return parts.sum(0, dtype=np.float64).astype(Y.dtype)


# --------------------------------------------------------------------------------------------------- loops
# A loop that does not start at 0 counts in U: with signed numbers Numba would look for negative indices, and not
# vectorise. Loops take four rows at a time, so that sums are loaded and stored less often.

U = np.uint64


@threaded
def solve_users(begin, end, indptr, at, c, Y, gram, l2, X):
    d = Y.shape[1]
    for u in range(begin, end):
        first, last = indptr[u], indptr[u + 1]
        fours = (last - first + 3) // 4 * 4  # zero rows fill the last four up
        rows, weights, A, b = np.zeros((fours, d)), np.zeros(fours), gram.copy(), np.zeros(d)
        for e in range(first, last):
            weights[e - first] = c[e] - 1
            for j in range(d):
                rows[e - first, j] = Y[at[e], j]
                b[j] += c[e] * rows[e - first, j]
        for i in range(d):
            A[i, i] += l2
        add_outer(A, rows, weights)
        factor(A)
        substitute(A, b)
        for j in range(d):
            X[u, j] = b[j]


@fused
def add_outer(A, y, w):
    """Adds Σ_e w_e y_e y_eᵀ to the upper triangle of A."""
    d = A.shape[1]
    for e in range(0, len(w), 4):
        for i in range(d):
            a0, a1, a2, a3 = w[e] * y[e, i], w[e + 1] * y[e + 1, i], w[e + 2] * y[e + 2, i], w[e + 3] * y[e + 3, i]
            for j in range(U(i), U(d)):
                A[i, j] += (a0 * y[e, j] + a1 * y[e + 1, j]) + (a2 * y[e + 2, j] + a3 * y[e + 3, j])


@fused
def factor(A):
    """A = RᵀR (Cholesky), in place of A's upper triangle: each row loses what the rows above it explain."""
    d = A.shape[1]
    for i in range(d):
        for four in range(i // 4):
            k = 4 * four
            r0, r1, r2, r3 = A[k, i], A[k + 1, i], A[k + 2, i], A[k + 3, i]
            for j in range(U(i), U(d)):
                A[i, j] -= (r0 * A[k, j] + r1 * A[k + 1, j]) + (r2 * A[k + 2, j] + r3 * A[k + 3, j])
        for k in range(i // 4 * 4, i):
            for j in range(U(i), U(d)):
                A[i, j] -= A[k, i] * A[k, j]
        pivot = 1 / np.sqrt(A[i, i])
        for j in range(U(i), U(d)):
            A[i, j] *= pivot


@fused
def substitute(R, b):
    """Solves RᵀR x = b in place of b."""
    d = len(b)
    for i in range(d):
        b[i] /= R[i, i]
        for j in range(U(i + 1), U(d)):
            b[j] -= b[i] * R[i, j]
    for i in range(d - 1, -1, -1):
        known = 0.0
        for j in range(U(i + 1), U(d)):
            known += R[i, j] * b[j]
        b[i] = (b[i] - known) / R[i, i]


@threaded
def weigh(begin, end, indptr, at, c, Y, X, weights):
    """c − (c − 1) x_uᵀy_i of every positive."""
    for u in range(begin, end):
        for e in range(indptr[u], indptr[u + 1]):
            score = 0.0
            for j in range(X.shape[1]):
                score += X[u, j] * Y[at[e], j]
            weights[e] = c[e] - (c[e] - 1) * score


@threaded
def add_rows(begin, end, order, first, owner, weights, X, per_step, bound, values, cut):
    for t in range(begin, end):
        for place in range(first[t], first[t + 1]):
            u, over = owner[order[place]], 0.0
            weight = weights[order[place]] * per_step
            for j in range(X.shape[1]):
                word = np.rint(weight * X[u, j])
                over += abs(word) > bound
                values[t, j] += values.dtype.type(min(max(word, -bound), bound))
            cut[t] += np.int64(over)


@threaded
def add_squares(begin, end, X, per_step, bound, values, cut):
    for i in range(begin, end):
        for u in range(len(X)):
            over, scale = 0.0, X[u, i] * per_step
            for j in range(X.shape[1]):
                word = np.rint(scale * X[u, j])
                over += abs(word) > bound
                values[i, j] += values.dtype.type(min(max(word, -bound), bound))
            cut[i] += np.int64(over)


@threaded
def add_blocks(begin, end, Y, parts):
    """YᵀY of each block of rows."""
    for block in range(begin, end):
        rows = Y[block * BLOCK : block * BLOCK + BLOCK]
        add_product(rows.T, rows, parts[block])


@threaded
def move(begin, end, Y, m, v, gram, where, values, many, scale, l2, rate, unbias, beta1, beta2, epsilon, adam):
    one, d = Y.dtype.type(1), Y.shape[1]
    for block in range(begin, end):
        first = block * BLOCK
        grad = np.zeros((min(BLOCK, len(Y) - first), d), Y.dtype)
        add_product(Y[first : first + BLOCK], gram, grad)
        for i in range(len(grad)):
            t = first + i
            for j in range(d):
                grad[i, j] = many * grad[i, j] + l2 * Y[t, j]
            row = where[t]
            if row >= 0:
                for j in range(d):
                    grad[i, j] -= scale * values[row, j]
            if adam:
                for j in range(d):
                    m[t, j] = beta1 * m[t, j] + (one - beta1) * grad[i, j]
                    v[t, j] = beta2 * v[t, j] + (one - beta2) * grad[i, j] * grad[i, j]
                    Y[t, j] -= rate * m[t, j] / (np.sqrt(v[t, j] * unbias) + epsilon)
            else:
                for j in range(d):
                    Y[t, j] -= rate * grad[i, j]
