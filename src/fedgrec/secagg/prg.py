"""Masks: the AES-128-CTR key stream of a 16-byte key, read as little-endian words and added in their container.

A key makes one mask and is never used again, so the counter starts at zero. The stream covers the parts of a vector one
after the other, and each part begins with a new block. A key stream can be computed from any block on, so threads share
a part: each thread adds all masks to its piece, in chunks that stay in cache.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from fedgrec.secagg.errors import BadInput
from fedgrec.secagg.ring import Words

KEY_BYTES = 16
BLOCK = 16
CHUNK_BYTES = 2**18

Part = NDArray[np.unsignedinteger[Any]]
Mask = tuple[bytes, int]  # a key, and +1 to add its mask or −1 to subtract it


def mask_parts(words: Words, masks: Sequence[Mask], threads: int = 1) -> None:
    """Adds the masks to all parts of a vector, in place."""
    block = 0
    for part in words:
        add_masks(part, masks, threads, block=block)
        block += -(-part.nbytes // BLOCK)


def add_masks(
    words: Part, masks: Sequence[Mask], threads: int = 1, chunk_bytes: int = CHUNK_BYTES, block: int = 0
) -> None:
    """Adds the masks to `words`, in place, from this block of their streams on.

    The result depends on neither threads nor chunks.
    """
    if chunk_bytes % BLOCK or chunk_bytes <= 0:
        raise BadInput(f"a chunk has a positive multiple of {BLOCK} bytes, not {chunk_bytes}")
    chunks = -(-words.nbytes // chunk_bytes)
    share = -(-chunks // max(threads, 1)) * chunk_bytes  # bytes for each thread
    starts = range(0, words.nbytes, share) if masks else range(0)
    if len(starts) <= 1:
        for start in starts:
            _add_from(words, masks, start, share, chunk_bytes, block)
        return
    with ThreadPoolExecutor(len(starts)) as pool:
        list(pool.map(lambda start: _add_from(words, masks, start, share, chunk_bytes, block), starts))


def _add_from(words: Part, masks: Sequence[Mask], start: int, share: int, chunk_bytes: int, block: int) -> None:
    """One thread's piece: `share` bytes from `start` on."""
    size = words.itemsize
    zeros, stream = bytes(chunk_bytes), bytearray(chunk_bytes)
    mask = np.frombuffer(stream, words.dtype)
    streams = [(_key_stream(key, block + start // BLOCK), np.add if sign > 0 else np.subtract) for key, sign in masks]
    for at in range(start, min(start + share, words.nbytes), chunk_bytes):
        piece = words[at // size : (at + chunk_bytes) // size]
        wanted = memoryview(zeros)[: piece.nbytes]
        for cipher, combine in streams:
            cipher.update_into(wanted, stream)
            combine(piece, mask[: len(piece)], out=piece)


def _key_stream(key: bytes, block: int) -> Any:
    if len(key) != KEY_BYTES:
        raise BadInput(f"a mask key has {KEY_BYTES} bytes, not {len(key)}")
    return Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(BLOCK, "big"))).encryptor()
