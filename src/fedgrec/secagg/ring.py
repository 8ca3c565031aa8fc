"""The ring Z_2³² or Z_2⁶⁴ in which masks hide numbers: signed integers in, words out, and back.

A masked vector carries a trailer behind its values: the number of users in it and zeros. The zeros of an opened sum
are zeros again unless masks failed to cancel; then they are random, and chance lets 2⁻⁹⁶ of such failures pass
(2⁻⁶⁴ with words of 64 bits).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.secagg.errors import BadInput, NotASum

Words = NDArray[np.unsignedinteger[Any]]
TRAILER_BYTES = 16


def dtype(bits: int) -> np.dtype[Any]:
    """Words as they travel: little-endian."""
    if bits not in (32, 64):
        raise BadInput(f"the ring has 32 or 64 bits, not {bits}")
    return np.dtype(f"<u{bits // 8}")


def length(values: int, bits: int) -> int:
    """Words of a masked vector of this many values, trailer included."""
    return values + TRAILER_BYTES * 8 // bits


def encode(values: NDArray[Any], users: int, bits: int) -> Words:
    """Integers of one client, the sum of `users` users → ring words with their trailer."""
    values = np.asarray(values)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise BadInput(f"a secure sum takes a vector of integers, not {values.ndim} dimensions of {values.dtype}")
    if values.dtype.itemsize * 8 > bits and values.size:
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if values.dtype.kind == "i" else (0, 2**bits)
        if int(values.min()) < low or int(values.max()) >= high:
            raise BadInput(f"values from {values.min()} to {values.max()} do not fit a ring of {bits} bits")
    words = np.zeros(length(len(values), bits), dtype(bits))
    words[: len(values)] = values.astype(f"<i{bits // 8}" if values.dtype.kind == "i" else dtype(bits)).view(
        dtype(bits)
    )
    words[len(values)] = users
    return words


def decode(words: Words, values: int, most_users: int) -> tuple[NDArray[np.signedinteger[Any]], int]:
    """An opened sum → (signed integers, number of users in it), or a refusal where it is noise or may have wrapped."""
    users, zeros = int(words[values]), words[values + 1 :]
    if zeros.any():
        raise NotASum("the opened sum is noise: clients did not all mask for the same round, parameters and model")
    if users > most_users:
        raise BadInput(f"the sum holds {users} users, but its numbers were sized for {most_users}: it may have wrapped")
    return words[:values].view(f"<i{words.itemsize}"), users
