"""Files that are whole or not there: written beside their place, flushed to the disk, then renamed into it."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedgrec.errors import BusyError, RunError

Tensors = Mapping[str, NDArray[Any]]


def write_bytes(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _flush_folder(path.parent)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, str]) -> None:
    from safetensors.numpy import save_file

    part = path.with_name(path.name + ".part")
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, part, dict(metadata))
    with part.open("r+b") as file:
        _sort_metadata(file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _flush_folder(path.parent)


def _sort_metadata(file: BinaryIO) -> None:
    """safetensors writes its metadata in a random order; equal runs shall leave equal bytes."""
    size = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(size))
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size)
    assert len(text) == size, "the same words in another order are as long"
    file.seek(8)
    file.write(text)


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise RunError(
            f"{path} is missing: the run has no model yet; `fedgrec train --out {path.parent} --resume` goes on"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise RunError(f"{path} is not a tensor file ({error}): it was damaged after it was written") from None


class Checkpoints:
    """One folder a checkpoint, written whole; then the pointer `latest` is renamed to it and older ones go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pointer = folder / "latest"

    def save(self, round_: int, tensors: Tensors, info: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        part, place = self.folder / f"{round_}.part", self.folder / str(round_)
        for leftover in (part, place):  # of a run that was killed here before
            if leftover.exists() and str(round_) != self._latest():
                shutil.rmtree(leftover)
        if not place.exists():
            part.mkdir()
            write_tensors(part / "state.safetensors", tensors, {"round": str(round_)})
            write_json(part / "state.json", info)
            part.rename(place)
        write_text(self.pointer, f"{round_}\n")
        for other in self.folder.iterdir():
            if other.is_dir() and other.name != str(round_):
                shutil.rmtree(other)

    def load(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
        """The latest whole checkpoint, or nothing."""
        latest = self._latest()
        if latest is None:
            return None
        tensors, _ = read_tensors(self.folder / latest / "state.safetensors")
        return tensors, json.loads((self.folder / latest / "state.json").read_text())

    def _latest(self) -> str | None:
        return self.pointer.read_text().strip() if self.pointer.exists() else None


@contextmanager
def claimed(folder: Path, wait: bool = False) -> Iterator[None]:
    """Nobody else who asks has this folder meanwhile. A process that dies gives it back."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise BusyError(f"another process is at work in {folder}: wait for it, or choose another folder") from None
        try:
            yield
        finally:
            if new:
                with suppress(OSError):  # it is not empty, as a rule: then something came of it
                    folder.rmdir()
    finally:
        os.close(handle)


def _flush_folder(folder: Path) -> None:
    """A rename is on the disk once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
