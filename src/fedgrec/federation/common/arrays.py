"""Private files: named arrays with plain values beside them, as safetensors, and files that only their owner may read.

A file of arrays has a digest of all its bytes, which is checked whenever it is read (data/files.py). Every file is
written beside its place and renamed into it, so that it is whole or not there.
"""

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.data.files import read_head, whole, write_tensors
from fedgrec.errors import DamagedError, RunError

ABOUT = "about"  # the plain values, as JSON, in the metadata of a file of arrays
MAGIC, START, DIGEST = b"FGAR", struct.Struct("<4sIQ"), 32  # how files of arrays of version 0.2 begin


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
    write_tensors(path, arrays, {ABOUT: json.dumps(dict(about))}, private=True)


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The arrays, mapped and read-only, and `about`."""
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                return _read_fgar(path)
            arrays, about = _mapped(file, read_head(path, file))
            return arrays, dict(json.loads(about[ABOUT]))
    except FileNotFoundError:
        raise RunError(f"{path} is missing: nothing was downloaded yet, or restore it from a backup") from None
    except (DamagedError, struct.error, ValueError, KeyError, TypeError, MemoryError) as error:
        raise RunError(
            f"{path} was damaged after it was written ({error}): restore it from a backup; a node that is asked into "
            f"the next sum downloads its own again"
        ) from None


def _mapped(file: BufferedReader, head: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The tensors of a file whose digest is right. safetensors itself would copy them: a device has no room for two."""
    tensors = json.loads(head[8:])
    about = tensors.pop("__metadata__")
    arrays = {}
    for name, tensor in tensors.items():
        dtype, shape = tensor["dtype"], tuple(tensor["shape"])
        kind = np.dtype(f"<{dtype[0].lower()}{int(dtype[1:]) // 8}")  # such as F32, I64, U8
        at = len(head) + tensor["data_offsets"][0]
        arrays[name] = np.asarray(np.memmap(file, kind, "r", at, shape)) if math.prod(shape) else np.zeros(shape, kind)
    return arrays, about


def _read_fgar(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """A file that version 0.2 wrote: a start, a digest of all other bytes, a head (JSON), then the arrays."""
    content = path.read_bytes()
    size, rest = START.unpack_from(content)[2], memoryview(content)[START.size + DIGEST :]
    digest = hashlib.blake2b(content[: START.size], digest_size=DIGEST)
    digest.update(rest)
    if digest.digest() != content[START.size : START.size + DIGEST]:
        raise ValueError("its digest is another one")
    head = json.loads(bytes(rest[:size]))
    parts = [(part["name"], part["dtype"], tuple(part["shape"]), size + part["at"]) for part in head["arrays"]]
    arrays = {name: np.frombuffer(rest, kind, math.prod(shape), at).reshape(shape) for name, kind, shape, at in parts}
    return arrays, head["about"]
