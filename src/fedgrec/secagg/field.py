"""Exact arithmetic with NumPy in the field of a prime below 2³², for LightSecAgg.

The prime is p = 2³² − 5, the largest below 2³². No step can overflow or round:

* a product of two elements is at most (p − 1)² < 2⁶⁴, so it fits an unsigned 64-bit word and is reduced at once;
* a product of matrices runs on floating-point units, which are exact up to 2⁵³: the left matrix is cut into limbs of
  11 bits, and a sum of 2¹⁰ products of 11 by 32 bits is below 2⁵³. The three limbs are put together in 64-bit words.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.secagg.errors import BadInput, MalformedMessage
from fedgrec.secagg.prg import add_masks

PRIME = 2**32 - 5
Elements = NDArray[np.uint32]  # as they travel: little-endian
Wide = NDArray[np.uint64]  # as they are multiplied
LIMB_BITS, TERMS = 11, 2**10
COLUMNS = 2**10  # columns of a block, few enough that intermediate results stay in cache


def multiply(a: NDArray[Any], b: NDArray[Any], prime: int = PRIME) -> Wide:
    """Element by element."""
    return a.astype(np.uint64) * b.astype(np.uint64) % prime


def inverse(values: NDArray[Any], prime: int = PRIME) -> Wide:
    """1/values, by Fermat: x⁻¹ = x^(p−2)."""
    if not values.all():
        raise BadInput("zero has no inverse")
    square, result = values.astype(np.uint64), np.ones(values.shape, np.uint64)
    for bit in range((prime - 2).bit_length()):
        if (prime - 2) >> bit & 1:
            result = multiply(result, square, prime)
        square = multiply(square, square, prime)
    return result


def lagrange(at: Sequence[int], points: Sequence[int], prime: int = PRIME) -> Wide:
    """The matrix [at, points] that takes a polynomial's values at `points` to its values `at` other places.

    ℓ_k(a) = Π_{m≠k} (a − x_m) / (x_k − x_m) = M(a) / ((a − x_k) M′(x_k)) with M(a) = Π_m (a − x_m).
    """
    x = np.array(points, np.uint64)
    away = (np.array(at, np.uint64)[:, None] + (prime - x)) % prime  # a − x_k
    between = (x[:, None] + (prime - x)) % prime  # x_k − x_m
    np.fill_diagonal(between, 1)
    above, below = (reduce(lambda a, b: multiply(a, b, prime), factors.T) for factors in (away, between))
    return multiply(above[:, None], inverse(multiply(away, below, prime), prime), prime)


def product(matrix: NDArray[Any], columns: Elements, prime: int = PRIME) -> Elements:
    """matrix · columns: [R, U] · [U, L] → [R, L]."""
    result = np.empty((len(matrix), columns.shape[1]), "<u4")
    for left in range(0, columns.shape[1], COLUMNS):
        block = columns[:, left : left + COLUMNS].astype(np.float64)
        total = np.zeros((len(matrix), block.shape[1]), np.uint64)
        for top in range(0, len(columns), TERMS):
            total += _few_terms(matrix[:, top : top + TERMS], block[top : top + TERMS], prime)
        result[:, left : left + COLUMNS] = total % prime
    return result


def _few_terms(matrix: NDArray[Any], columns: NDArray[np.float64], prime: int) -> Wide:
    """A product of at most TERMS terms; from the highest limb down, result ← 2¹¹ · result + limb · columns."""
    result = np.zeros((len(matrix), columns.shape[1]), np.uint64)
    for shift in reversed(range(0, 32, LIMB_BITS)):
        limb = (matrix >> shift & (2**LIMB_BITS - 1)).astype(np.float64)
        result = ((result << LIMB_BITS) + (limb @ columns).astype(np.uint64)) % prime  # below 2⁴³ + 2⁵³
    return result


def uniform(key: bytes, count: int, prime: int = PRIME, threads: int = 1) -> Elements:
    """The first `count` uniform elements of a key's stream; a shorter count gives the beginning of a longer one.

    Words from the last, incomplete multiple of the prime on are skipped: they would make small elements more likely.
    """
    limit = 2**32 - 2**32 % prime
    spare = 16  # words: about one in 2³⁰ is skipped
    while True:
        words = np.zeros(count + spare, "<u4")
        add_masks(words, [(key, 1)], threads)
        kept = words[words < limit] if int(words.max()) >= limit else words
        if len(kept) >= count:
            return kept[:count] % np.uint32(prime)
        spare = 2 * spare + count


def read(data: bytes | memoryview, count: int, prime: int = PRIME) -> Elements:
    """Bytes → `count` elements, or MalformedMessage."""
    if len(data) != 4 * count:
        raise MalformedMessage(f"{len(data)} bytes are not {count} elements of the field")
    elements = np.frombuffer(data, "<u4")
    if count and int(elements.max()) >= prime:
        raise MalformedMessage("a number lies outside the field")
    return elements
