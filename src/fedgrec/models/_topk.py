"""The exact top-k scan, compiled. Imported only when something is ranked: Numba takes a second to load."""

import numpy as np
import numpy.typing as npt
from numba import njit, types

# A user's scores are laid out as [pieces, FOLD, LANES]. The maximum over FOLD is the only pass over all scores, and it
# compiles to plain vector instructions (a maximum over neighbouring scores would need fast maths for that).
FOLD, LANES = 32, 64
PIECE = FOLD * LANES

# Signatures are spelled out so that each kernel is compiled once, whether inputs are read-only or not.
_indptr = types.Array(types.int64, 1, "C", readonly=True)
_items = types.Array(types.int32, 1, "C", readonly=True)
_ids, _top, _hits = types.int32[:, ::1], types.float32[:, ::1], types.boolean[:, ::1]
_scores = types.float32[:, :, :, ::1]


@njit(cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _insert(best: npt.NDArray[np.float32], who: npt.NDArray[np.int32], score: float, item: int) -> None:
    """Insert an item if it belongs into the list: higher scores first, then lower ids. Fast for short lists only."""
    p = best.size - 1
    if score < best[p] or (score == best[p] and item >= who[p]):
        return
    while p > 0 and (best[p - 1] < score or (best[p - 1] == score and who[p - 1] > item)):
        best[p], who[p] = best[p - 1], who[p - 1]
        p -= 1
    best[p], who[p] = score, item


@njit(types.void(_scores, _indptr, _items, _ids, _top), nogil=True, no_cfunc_wrapper=True, cache=True)
def scan(
    scores: npt.NDArray[np.float32],  # [n, pieces, FOLD, LANES], −inf beyond the last item; seen items become −inf
    seen_indptr: npt.NDArray[np.int64],  # [n+1]
    seen_items: npt.NDArray[np.int32],
    ids: npt.NDArray[np.int32],  # [n, k], out
    top: npt.NDArray[np.float32],  # [n, k], out
) -> None:
    """Each user's k best unseen items, best first, ties to the lower id, −1 and −inf beyond the last."""
    n, pieces, k = scores.shape[0], scores.shape[1], ids.shape[1]
    for u in range(n):
        row, best, who = scores[u], top[u], ids[u]
        for i in range(seen_indptr[u], seen_indptr[u + 1]):
            item = seen_items[i]
            row[item // PIECE, item % PIECE // LANES, item % LANES] = -np.inf

        lane_max = np.empty((pieces, LANES), np.float32)
        for c in range(pieces):
            for j in range(LANES):
                most = row[c, 0, j]
                for f in range(1, FOLD):
                    most = row[c, f, j] if row[c, f, j] > most else most
                lane_max[c, j] = most

        # At least k items reach the k-th largest lane maximum, so an item below it is not in the top k.
        for p in range(k):
            best[p], who[p] = -np.inf, -1
        for c in range(pieces):
            for j in range(LANES):
                if lane_max[c, j] > best[k - 1]:
                    _insert(best, who, lane_max[c, j], c * LANES + j)
        floor = best[k - 1]

        for p in range(k):
            best[p], who[p] = -np.inf, -1
        for c in range(pieces):
            for j in range(LANES):
                if lane_max[c, j] >= floor:
                    for f in range(FOLD):
                        if row[c, f, j] >= floor:
                            _insert(best, who, row[c, f, j], (c * FOLD + f) * LANES + j)


_words, _vectors = types.Array(types.int8, 2, "C", readonly=True), types.Array(types.float32, 2, "C", readonly=True)


@njit(types.void(_words, _vectors, types.float32[:, :]), nogil=True, fastmath=True, no_cfunc_wrapper=True, cache=True)
def products(
    words: npt.NDArray[np.int8],  # [N, D]
    users: npt.NDArray[np.float32],  # [n, D], n a multiple of 4
    out: npt.NDArray[np.float32],  # [n, N]
) -> None:
    """Inner products of rows of small integers with users: two rows with four users at a time.

    So each number that is read from memory counts in two or four products.
    """
    last = words.shape[0] - 1
    for i in range(0, last + 1, 2):
        other = min(i + 1, last)
        row, next_row = words[i], words[other]
        for u in range(0, users.shape[0], 4):
            a = b = c = d = e = f = g = h = np.float32(0)
            first, second, third, fourth = users[u], users[u + 1], users[u + 2], users[u + 3]
            for j in range(words.shape[1]):
                x, y = np.float32(row[j]), np.float32(next_row[j])
                a += x * first[j]
                b += x * second[j]
                c += x * third[j]
                d += x * fourth[j]
                e += y * first[j]
                f += y * second[j]
                g += y * third[j]
                h += y * fourth[j]
            out[u, i], out[u + 1, i], out[u + 2, i], out[u + 3, i] = a, b, c, d
            out[u, other], out[u + 1, other], out[u + 2, other], out[u + 3, other] = e, f, g, h


@njit(types.void(_ids, _indptr, _items, _hits), no_cfunc_wrapper=True, cache=True)
def find_hits(
    ids: npt.NDArray[np.int32],  # [n, k]
    indptr: npt.NDArray[np.int64],  # [n+1]
    items: npt.NDArray[np.int32],
    hits: npt.NDArray[np.bool_],  # [n, k], out
) -> None:
    """hits[u, r] = whether ids[u, r] is among the user's items."""
    for u in range(ids.shape[0]):
        for r in range(ids.shape[1]):
            hits[u, r] = False
            for i in range(indptr[u], indptr[u + 1]):
                hits[u, r] |= items[i] == ids[u, r]
