"""The draws of `fedgrec.draws` in Numba; a test holds the two equal word for word.

Every constant is uint64: mixed with a signed integer, Numba would fall back to floating point.
"""

import numba as nb
import numpy as np

from fedgrec.draws import FEISTEL_M, PHILOX_M, PHILOX_W, Purpose

# Sums may be reassociated and a division by zero gives infinity, so that loops vectorise; NaN keeps its meaning, so
# divergence is seen.
FAST = {"reassoc", "contract", "arcp", "nsz"}
fused = nb.njit(cache=True, fastmath=FAST, error_model="numpy")

U = np.uint64
LOW, SHIFT = U(0xFFFFFFFF), U(32)
M0, M1, W0, W1 = U(PHILOX_M[0]), U(PHILOX_M[1]), U(PHILOX_W[0]), U(PHILOX_W[1])
F0, F1 = U(FEISTEL_M[0]), U(FEISTEL_M[1])
NEGATIVES, PAIRS, POSITIVES = U(Purpose.NEGATIVES), U(Purpose.PAIRS), U(Purpose.POSITIVES)


@fused
def philox(key, slot, step, round_, purpose):  # type: ignore[no-untyped-def]
    k0, k1 = key & LOW, key >> SHIFT
    c0, c1, c2, c3 = U(slot) & LOW, U(step), U(round_), U(purpose)
    for _ in range(10):
        p0, p1 = M0 * c0, M1 * c2
        c0, c1, c2, c3 = (p1 >> SHIFT) ^ c1 ^ k0, p1 & LOW, (p0 >> SHIFT) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
    return c0, c1, c2, c3


@fused
def mix(half, key):  # type: ignore[no-untyped-def]
    h = ((half ^ key) * F0) & LOW
    h ^= h >> U(15)
    h = (h * F1) & LOW
    return h ^ (h >> U(13))


@fused
def permuted(out, size, key, round_, purpose):  # type: ignore[no-untyped-def]
    """Fills `out` with where the keyed permutation of 0..size−1 sends 0, 1, 2, ..."""
    bits = 0
    while (1 << bits) < size:
        bits += 1
    bits = max(2, bits)
    low_bits = U(bits // 2)
    low_mask, high_mask = (U(1) << low_bits) - U(1), (U(1) << U(bits - bits // 2)) - U(1)
    k0, k1, k2, k3 = philox(key, 0, 0, round_, purpose)
    k4, _, _, _ = philox(key, 1, 0, round_, purpose)
    offset = np.int64((k4 * U(size)) >> SHIFT)
    for i in range(len(out)):
        value = U(i)
        while True:
            low, high = value & low_mask, value >> low_bits
            high ^= mix(low, k0) & high_mask
            low ^= mix(high, k1) & low_mask
            high ^= mix(low, k2) & high_mask
            low ^= mix(high, k3) & low_mask
            value = (high << low_bits) | low
            if value < U(size):
                break
        turned = np.int64(value) + offset
        out[i] = turned - size if turned >= size else turned


@fused
def draw_negatives(out, key, round_, positives, n_items):  # type: ignore[no-untyped-def]
    """Distinct non-positives: the rank among non-positives, then skip the positives before it."""
    P = len(positives)
    permuted(out, n_items - P, key, round_, NEGATIVES)
    for i in range(len(out)):
        first, last = 0, P
        while first < last:
            middle = (first + last) // 2
            if positives[middle] - middle <= out[i]:
                first = middle + 1
            else:
                last = middle
        out[i] += first
