# mypy: ignore-errors
"""A small matrix product to call from compiled loops, where BLAS would start threads of its own."""

from fedgrec.kernels._numba import fused


@fused
def add_product(A, B, out):
    """out += A B, two rows and eight terms at a time so that less is loaded and stored between the sums."""
    n_rows, n_terms, width = len(out), A.shape[1], B.shape[1]
    pairs, eights = n_rows // 2, n_terms // 8
    for pair in range(pairs):
        r, s = 2 * pair, 2 * pair + 1
        for eight in range(eights):
            k = 8 * eight
            a0, a1, a2, a3 = A[r, k], A[r, k + 1], A[r, k + 2], A[r, k + 3]
            a4, a5, a6, a7 = A[r, k + 4], A[r, k + 5], A[r, k + 6], A[r, k + 7]
            b0, b1, b2, b3 = A[s, k], A[s, k + 1], A[s, k + 2], A[s, k + 3]
            b4, b5, b6, b7 = A[s, k + 4], A[s, k + 5], A[s, k + 6], A[s, k + 7]
            for j in range(width):
                c0, c1, c2, c3 = B[k, j], B[k + 1, j], B[k + 2, j], B[k + 3, j]
                c4, c5, c6, c7 = B[k + 4, j], B[k + 5, j], B[k + 6, j], B[k + 7, j]
                out[r, j] += ((a0 * c0 + a1 * c1) + (a2 * c2 + a3 * c3)) + ((a4 * c4 + a5 * c5) + (a6 * c6 + a7 * c7))
                out[s, j] += ((b0 * c0 + b1 * c1) + (b2 * c2 + b3 * c3)) + ((b4 * c4 + b5 * c5) + (b6 * c6 + b7 * c7))
    for r in range(n_rows):  # what is left over
        for k in range(8 * eights if r < 2 * pairs else 0, n_terms):
            for j in range(width):
                out[r, j] += A[r, k] * B[k, j]
