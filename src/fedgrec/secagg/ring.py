"""The rings Z_2ᵇ in which masks hide numbers, each as small as its sums allow: integers in, words out, and back.

A vector has parts, and each part has its own ring, with an even number of bits b from 8 to 64. In memory its words lie
in the smallest type that holds b bits, the container. 2ᵇ divides the number of the container's values, so words are
masked and added there, and their low b bits are kept. Only these bits travel, in planes given by the binary digits of
b: for 20 = 16 + 4, first the low 16 bits of all words, then the next 4 bits of all words, two to a byte.

The last part is a trailer: the number of users and three zeros, of 32 bits each. In an opened sum the zeros are zeros
again. If masks failed to cancel they are random, and by chance 2⁻⁹⁶ of these failures pass.
"""

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.secagg.errors import BadInput, NotASum

Words = list[NDArray[np.unsignedinteger[Any]]]  # one array for each part, in its container
Rings = tuple[tuple[int, int], ...]  # of each part: how many words, and their bits
TRAILER = (4, 32)
PLANES = (64, 32, 16, 8, 4, 2)


def container(bits: int) -> np.dtype[Any]:
    """The smallest type that holds words of this many bits, little-endian."""
    if bits not in range(8, 65, 2):
        raise BadInput(f"a ring has an even number of bits from 8 to 64, not {bits}")
    return np.dtype(f"<u{1 << ((bits - 1) // 8).bit_length()}")


def packed_bytes(rings: Rings) -> int:
    """Bytes that these parts take on the network."""
    return sum(size for values, bits in rings for _, _, size in _planes(values, bits))


def zeros(rings: Rings) -> Words:
    return [np.zeros(values, container(bits)) for values, bits in rings]


def encode(values: NDArray[Any], users: int, rings: Rings) -> Words:
    """Integers of one client, the sum of `users` users → the words of all parts and the trailer."""
    values, words, at = np.asarray(values), zeros((*rings, TRAILER)), 0
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise BadInput(f"a secure sum takes a vector of integers, not {values.ndim} dimensions of {values.dtype}")
    for part, (count, bits) in zip(words, rings, strict=False):
        here, at = values[at : at + count], at + count
        if not -(2 ** (bits - 1)) <= int(here.min()) <= int(here.max()) < 2 ** (bits - 1):
            raise BadInput(f"values from {here.min()} to {here.max()} do not fit a ring of {bits} bits")
        part[:] = here  # a negative number becomes its two's complement
    words[-1][0] = users
    return words


def decode(words: Words, rings: Rings, most_users: int) -> tuple[NDArray[np.signedinteger[Any]], int]:
    """An opened sum → (signed integers, number of users in it); an error if it is noise or may have wrapped."""
    users, *rest = words[-1].tolist()
    if any(rest):
        raise NotASum("the opened sum is noise: clients did not all mask for the same round, parameters and model")
    if users > most_users:
        raise BadInput(f"the sum holds {users} users, but its numbers were sized for {most_users}: it may have wrapped")
    signed = []
    for part, (_, bits) in zip(words, rings, strict=False):
        above = 8 * part.itemsize - bits  # bits of the container that mean nothing
        signed.append((part << above).view(f"<i{part.itemsize}") >> above)
    widest = max(bits for _, bits in rings)
    return np.concatenate(signed, dtype=np.int32 if widest <= 32 else np.int64), users


# ------------------------------------------------------------------------------------------- what travels


def pack(words: Words, rings: Rings) -> NDArray[np.uint8]:
    """The low b bits of each word."""
    packed, at = np.zeros(packed_bytes(rings), np.uint8), 0
    for part, (count, bits) in zip(words, rings, strict=True):
        for low, width, size in _planes(count, bits):
            plane = packed[at : at + size].view(f"<u{width // 8}") if width >= 8 else np.zeros(size * 8 // width, "u1")
            np.right_shift(part, part.dtype.type(low), out=plane[:count], casting="unsafe")
            if width < 8:
                packed[at : at + size] = _joined(plane, width)
            at += size
    return packed


def unpack(packed: bytes | memoryview, rings: Rings) -> Words:
    """What `pack` packed, modulo 2ᵇ, read-only; the caller has checked its length."""
    words, at = [], 0
    for count, bits in rings:
        planes, type_ = [], container(bits)
        for low, width, size in _planes(count, bits):
            plane = np.frombuffer(packed, f"<u{max(width // 8, 1)}", size * 8 // max(width, 8), at)
            plane = (plane if width >= 8 else _parted(plane, width))[:count].astype(type_, copy=False)
            planes.append(plane << type_.type(low) if low else plane)
            at += size
        words.append(reduce(np.bitwise_or, planes))
    return words


def _planes(count: int, bits: int) -> Iterator[tuple[int, int, int]]:
    """For each plane: its lowest bit in a word, its bits of a word, its bytes."""
    low = 0
    for width in PLANES:
        if bits & width:
            yield low, width, -(-count * width // 8)  # the last byte is filled up with zeros
            low += width


def _joined(plane: NDArray[np.uint8], width: int) -> NDArray[Any]:
    """Join the low 4 or 2 bits of two or four bytes; the result is the lowest byte of each returned word."""
    plane &= 2**width - 1
    joined: NDArray[Any] = plane.view("<u2" if width == 4 else "<u4")
    for shift in (4,) if width == 4 else (6, 12):
        joined = joined | joined >> shift
    return joined


def _parted(plane: NDArray[Any], width: int) -> NDArray[Any]:
    """The inverse of `_joined`."""
    parted: NDArray[Any] = plane.astype("<u2" if width == 4 else "<u4")
    for shift in (4,) if width == 4 else (12, 6):
        parted = parted | parted << shift
    return parted.view(np.uint8) & np.uint8(2**width - 1)
