"""Shamir's secret sharing: any t of the shares rebuild the secret, t − 1 of them say nothing about it.

The secret is the value at 0 of a random polynomial of degree t − 1 over a prime field; the share of holder x is its
value at x. The field is the smallest prime above 2²⁵⁶, so every 32-byte secret is an element of it.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping

from fedgrec.secagg.errors import BadInput, BadShare, TooFewLeft

PRIME = 2**256 + 297
SECRET_BYTES, SHARE_BYTES = 32, 33


def share(
    secret: int,
    threshold: int,
    holders: Iterable[int],
    prime: int = PRIME,
    draw: Callable[[int], int] = secrets.randbelow,
) -> dict[int, int]:
    """Shares of `secret` for these holders, of which any `threshold` rebuild it."""
    holders = list(holders)
    if not 0 <= secret < prime or any(not 0 < x < prime for x in holders) or len(set(holders)) != len(holders):
        raise BadInput("shares need a secret below the prime and distinct holders from 1 on")
    if not 1 <= threshold <= len(holders):
        raise BadInput(f"{threshold} of {len(holders)} shares cannot be asked for")
    coefficients = [draw(prime) for _ in range(threshold - 1)]

    def at(x: int) -> int:
        value = 0
        for coefficient in coefficients:
            value = (value * x + coefficient) % prime
        return (value * x + secret) % prime

    return {x: at(x) for x in holders}


def combine(shares: Mapping[int, int], threshold: int, prime: int = PRIME) -> int:
    """The secret that these shares, holder → value, rebuild. Only `threshold` of them are used."""
    if any(not 0 < x < prime or not 0 <= y < prime for x, y in shares.items()):
        raise BadShare("a share lies outside the field, or its holder is zero")
    if len(shares) < threshold:
        raise TooFewLeft(f"of a secret {len(shares)} shares are left, and {threshold} are needed to rebuild it")
    points = sorted(shares.items())[:threshold]
    secret = 0
    for x, y in points:  # Lagrange's polynomial through the points, at 0
        above, below = 1, 1
        for other, _ in points:
            if other != x:
                above, below = above * other % prime, below * (other - x) % prime
        secret += y * above * pow(below, -1, prime)
    return secret % prime
