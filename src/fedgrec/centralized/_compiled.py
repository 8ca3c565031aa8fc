# mypy: ignore-errors
"""All that Numba compiles here.

Every row of a result is computed by one thread, in the order of its edges: results do not depend on how many threads
there are. `chunks` cuts the rows into parts with equally many edges.
"""

import numpy as np

from fedgrec.kernels._numba import inlined, released, threaded


@inlined
def pull(indptr, indices, left, right, x, r, out, i):
    """out_i += (Â x)_r, four edges at a time so that the sum is loaded and stored less often."""
    d, first, last, scale = x.shape[1], indptr[r], indptr[r + 1], left[r]
    fours = (last - first) // 4
    for four in range(fours):
        e = first + 4 * four
        a, b, c, f = indices[e], indices[e + 1], indices[e + 2], indices[e + 3]
        wa, wb, wc, wf = scale * right[a], scale * right[b], scale * right[c], scale * right[f]
        for j in range(d):
            out[i, j] += (wa * x[a, j] + wb * x[b, j]) + (wc * x[c, j] + wf * x[f, j])
    for e in range(first + 4 * fours, last):
        a, wa = indices[e], scale * right[indices[e]]
        for j in range(d):
            out[i, j] += wa * x[a, j]


@inlined
def start(slot, g, r, out):
    """out_r = the row of the compact table g that is node r's, or 0 where it has none."""
    at = slot[r]
    for j in range(out.shape[1]):
        out[r, j] = g[at, j] if at >= 0 else 0


@threaded
def product_at(begin, end, rows, chunks, indptr, indices, left, right, x, out):
    """out_i += (Â x)_rows[i]; here `chunks` cuts `rows`."""
    for part in range(begin, end):
        for i in range(chunks[part], chunks[part + 1]):
            pull(indptr, indices, left, right, x, np.int64(rows[i]), out, i)


@threaded
def product_plus(begin, end, slot, g, chunks, indptr, indices, left, right, x, out):
    """out = G + Â x, for a G whose few rows that are not 0 lie in g: node r's is g[slot[r]]."""
    for part in range(begin, end):
        for r in range(chunks[part], chunks[part + 1]):
            start(slot, g, r, out)
            pull(indptr, indices, left, right, x, r, out, r)


@threaded
def spread(begin, end, slot, g, chunks, indptr, indices, left, right, out):
    """out = G + Â G: most neighbours have no row, and the few that have one stay in cache."""
    for part in range(begin, end):
        for r in range(chunks[part], chunks[part + 1]):
            start(slot, g, r, out)
            for e in range(indptr[r], indptr[r + 1]):
                at = slot[indices[e]]
                if at >= 0:
                    w = left[r] * right[indices[e]]
                    for j in range(out.shape[1]):
                        out[r, j] += w * g[at, j]


@released
def bpr(f, triples, g):
    """Adds ∂L/∂f to g and returns L: the mean over triples of softplus(f_u·f_n − f_u·f_p); f's rows are the batch's."""
    n, d, loss = triples.shape[1], f.shape[1], 0.0
    for b in range(n):
        u, p, m = triples[0, b], triples[1, b], triples[2, b]
        x = f[u, 0] - f[u, 0]
        for j in range(d):
            x += f[u, j] * (f[m, j] - f[p, j])
        loss += max(x, 0) + np.log1p(np.exp(-abs(x)))
        slope = f.dtype.type(1 / (1 + np.exp(-x)) / n)
        for j in range(d):
            f_u = f[u, j]
            g[u, j] += slope * (f[m, j] - f[p, j])
            g[p, j] -= slope * f_u
            g[m, j] += slope * f_u
    return loss / n


@threaded
def adam(begin, end, x, m, v, grad, scale, slot, decay, rate, epsilon, beta1, beta2):
    """One step with the gradient scale·grad + decay[slot]·x, bias corrections folded into rate and ε."""
    rest1, rest2 = x.dtype.type(1) - beta1, x.dtype.type(1) - beta2
    for r in range(begin, end):
        at = slot[r]
        shrink = decay[at] if at >= 0 else x.dtype.type(0)
        for j in range(x.shape[1]):
            g = scale * grad[r, j] + shrink * x[r, j]
            m[r, j] = beta1 * m[r, j] + rest1 * g
            v[r, j] = beta2 * v[r, j] + rest2 * g * g
            x[r, j] -= rate * m[r, j] / (np.sqrt(v[r, j]) + epsilon)


@threaded
def skip_positives(begin, end, indptr, items, users, ranks, out):
    """The item with `rank` items below it that the user does not have."""
    for i in range(begin, end):
        first = indptr[users[i]]
        low, high = first, indptr[users[i] + 1]
        while low < high:  # how many of the user's items lie below: the k-th does if items[k] − k ≤ rank
            middle = (low + high) // 2
            if items[middle] - (middle - first) <= ranks[i]:
                low = middle + 1
            else:
                high = middle
        out[i] = ranks[i] + low - first


@threaded
def times_sparse(begin, end, x, indptr, indices, values, out):
    """out = x P, row by row, for a sparse P; a row of x that is mostly 0 costs little."""
    for u in range(begin, end):
        for t in range(x.shape[1]):
            out[u, t] = 0
        for t in range(x.shape[1]):
            weight = x[u, t]
            if weight != 0:
                for e in range(indptr[t], indptr[t + 1]):
                    out[u, indices[e]] += weight * values[e]
