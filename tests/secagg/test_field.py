"""The field of LightSecAgg against Python's integers, which neither overflow nor round."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from fedgrec.secagg import field
from fedgrec.secagg.errors import BadInput, MalformedMessage
from fedgrec.secagg.field import PRIME

EXTREMES = [1, 2, 2**16 - 1, 2**16, 2**31, PRIME // 2, PRIME - 2, PRIME - 1]
elements = st.one_of(st.sampled_from([0, *EXTREMES]), st.integers(0, PRIME - 1))
primes = st.sampled_from([3, 11, 65_537, 2**31 - 1, PRIME])


def slow_product(matrix, columns, prime=PRIME):
    """The readable twin: each product is reduced before it is added."""
    total = np.zeros((len(matrix), columns.shape[1]), np.uint64)
    for column, row in zip(matrix.T, columns, strict=True):
        total = (total + column[:, None].astype(np.uint64) * row.astype(np.uint64) % prime) % prime
    return total.astype(np.uint32)


def test_the_modulus_is_the_largest_prime_of_32_bits() -> None:
    def is_prime(n: int) -> bool:
        return all(n % factor for factor in range(2, 65_536))

    assert is_prime(PRIME)
    assert not any(is_prime(n) for n in range(PRIME + 1, 2**32))


@pytest.mark.parametrize("a", EXTREMES)
def test_products_and_inverses_at_the_extremes(a) -> None:
    others = np.array(EXTREMES, np.uint32)
    assert field.multiply(np.array([a], np.uint32), others).tolist() == [a * b % PRIME for b in EXTREMES]
    assert field.inverse(np.array([a], np.uint32)).tolist() == [pow(a, -1, PRIME)]


@given(a=elements, b=elements, prime=primes)
def test_products_and_inverses(a, b, prime) -> None:
    a, b = a % prime, b % prime
    assert field.multiply(np.array([a], np.uint32), np.array([b], np.uint32), prime).tolist() == [a * b % prime]
    if a:
        assert field.inverse(np.array([a]), prime).tolist() == [pow(a, -1, prime)]


def test_zero_has_no_inverse() -> None:
    with pytest.raises(BadInput):
        field.inverse(np.array([3, 0], np.uint32))


@given(
    seed=st.integers(0, 99), rows=st.integers(1, 4), terms=st.integers(1, 40), columns=st.integers(0, 30), prime=primes
)
def test_products_of_matrices_are_those_of_the_readable_twin(seed, rows, terms, columns, prime) -> None:
    rng = np.random.default_rng(seed)
    left = rng.integers(0, prime, (rows, terms), np.uint64)
    right = rng.integers(0, prime, (terms, columns), np.uint32)
    assert np.array_equal(field.product(left, right, prime), slow_product(left, right, prime))


@pytest.mark.parametrize("terms", [field.TERMS - 1, field.TERMS, field.TERMS + 1, 2 * field.TERMS + 3])
def test_sums_of_many_extreme_products_are_exact(terms) -> None:
    """Odd limbs everywhere: a single bit lost to rounding shows."""
    left, right = np.full((2, terms), PRIME - 1, np.uint64), np.full((terms, 3), PRIME - 1, np.uint32)
    left[1] = 2**32 - 2**22 - 1  # the second highest limb is at its maximum, too
    expected = [[terms * int(row[0]) * (PRIME - 1) % PRIME] * 3 for row in left]
    assert field.product(left, right).tolist() == expected
    assert (2**field.LIMB_BITS - 1) * (PRIME - 1) * field.TERMS < 2**53


def test_products_do_not_depend_on_blocks() -> None:
    rng = np.random.default_rng(0)
    left, right = (
        rng.integers(0, PRIME, (3, 5), np.uint64),
        rng.integers(0, PRIME, (5, 2 * field.COLUMNS + 1), np.uint32),
    )
    assert np.array_equal(field.product(left, right), slow_product(left, right))


@given(prime=st.sampled_from([11, 65_537, PRIME]), coefficients=st.lists(elements, min_size=1, max_size=5))
def test_lagrange_carries_a_polynomial_from_points_to_points(prime, coefficients) -> None:
    def values(points) -> list[int]:
        return [sum(c * x**power for power, c in enumerate(coefficients)) % prime for x in points]

    points, at = range(1, 1 + len(coefficients)), [prime - 1, 0, 7, 6]
    matrix = field.lagrange(at, points, prime)
    known = np.array(values(points), np.uint32)[:, None]
    assert field.product(matrix, known, prime)[:, 0].tolist() == values(at)


# ------------------------------------------------------------------------------------------------ randomness


def key_stream(key: bytes, words: int) -> list[int]:
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(4 * words))
    return [int.from_bytes(stream[at : at + 4], "little") for at in range(0, len(stream), 4)]


@given(
    key=st.binary(min_size=16, max_size=16), count=st.integers(0, 300), prime=st.sampled_from([3 * 2**30, PRIME, 11])
)
def test_random_elements_are_the_words_below_the_last_multiple_of_the_prime(key, count, prime) -> None:
    """3·2³⁰ stands in for a prime: with it a quarter of the words are skipped, with p only one in 2³⁰."""
    limit = 2**32 // prime * prime
    expected = [word % prime for word in key_stream(key, 4 * count + 100) if word < limit][:count]
    assert field.uniform(key, count, prime).tolist() == expected
    assert field.uniform(key, count + 50, prime)[:count].tolist() == expected


def test_a_modulus_that_does_not_divide_the_words_gives_no_bias() -> None:
    """Modulo 3·2³⁰ without skipping, the lowest quarter of words would come up half of the time."""
    drawn = field.uniform(bytes(16), 40_000, 3 * 2**30)
    thirds = np.bincount(drawn // 2**30, minlength=3)
    assert np.abs(thirds - 40_000 / 3).max() < 5 * np.sqrt(40_000 * 2 / 9)


# ----------------------------------------------------------------------------------------------------- bytes


def test_bytes_become_elements_or_are_refused() -> None:
    assert field.read((PRIME - 1).to_bytes(4, "little") + bytes(4), 2).tolist() == [PRIME - 1, 0]
    for data, count in [(PRIME.to_bytes(4, "little"), 1), (bytes(5), 1), (bytes(4), 2), (b"\xff" * 8, 2)]:
        with pytest.raises(MalformedMessage):
            field.read(data, count)
