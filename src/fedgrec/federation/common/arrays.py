"""Named arrays in one file that is mapped into memory rather than read.

    magic "FGAR" · version (4 bytes) · length of the head (8 bytes) · digest (32 bytes) · head (JSON)
    · arrays, each at a multiple of 64

The head has `about` (plain values) and for every array its name, type, shape and place. Little-endian. The digest,
BLAKE2b of all other bytes, is checked whenever a file is read; version 1 had none, and is still read. A file is
written beside its place and renamed into it, so that it is whole or not there; only its owner may read it.
"""

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.errors import RunError
from fedgrec.whole_files import whole

MAGIC, VERSION = b"FGAR", 2
START = struct.Struct("<4sIQ")
ALIGN, DIGEST = 64, 32


def write_private(path: Path, *parts: bytes | memoryview) -> None:
    """A file that only its owner may read: whole or not there."""
    with whole(path) as part:
        part.unlink(missing_ok=True)  # left by a process that was killed here
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for piece in parts:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write the arrays and `about`."""
    places, at = [], 0
    for name, array in arrays.items():
        places.append({"name": name, "dtype": array.dtype.newbyteorder("<").str, "shape": array.shape, "at": at})
        at += -(-array.nbytes // ALIGN) * ALIGN
    head = json.dumps({"about": dict(about), "arrays": places}).encode()
    before = START.size + DIGEST
    head = head.ljust(-(-(before + len(head)) // ALIGN) * ALIGN - before)
    parts: list[bytes | memoryview] = [START.pack(MAGIC, VERSION, len(head)), head]
    for array in arrays.values():
        whole = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        parts += [whole.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % ALIGN)]
    digest = hashlib.blake2b(digest_size=DIGEST)
    for part in parts:
        digest.update(part)
    write_private(path, parts[0], digest.digest(), *parts[1:])


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The arrays, mapped and read-only, and `about`."""
    try:
        with path.open("rb") as file:
            start = file.read(START.size)
            magic, version, size = START.unpack(start)
            if magic != MAGIC or version not in (1, VERSION):
                raise ValueError("it begins otherwise")
            if version > 1:
                _check(file, start)
            here = file.tell()
            head = json.loads(file.read(min(size, path.stat().st_size)))
            arrays = {place["name"]: _mapped(path, here + size, place) for place in head["arrays"]}
            return arrays, dict(head["about"])
    except FileNotFoundError:
        raise RunError(f"{path} is missing: nothing was downloaded yet, or restore it from a backup") from None
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise RunError(
            f"{path} was damaged after it was written ({error}): restore it from a backup; a node that is asked into "
            f"the next sum downloads its own again"
        ) from None


def _check(file: BufferedIOBase, start: bytes) -> None:
    """Compare the digest, and move to the byte after it."""
    wanted = file.read(DIGEST)
    found = hashlib.file_digest(file, lambda: hashlib.blake2b(start, digest_size=DIGEST))
    if found.digest() != wanted:
        raise ValueError("its digest is another one")
    file.seek(START.size + DIGEST)


def _mapped(path: Path, start: int, place: Mapping[str, Any]) -> NDArray[Any]:
    shape = tuple(place["shape"])
    if 0 in shape:
        return np.zeros(shape, place["dtype"])
    return np.asarray(np.memmap(path, place["dtype"], "r", start + place["at"], shape))
