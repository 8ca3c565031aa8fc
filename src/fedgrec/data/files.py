"""Files that are whole or not there: written beside their place, flushed to the disk, then renamed into it.

A tensor file has a digest of all its bytes in its metadata, which is checked when it is read. It may also hold digests
of the text files beside it (`digest_of`), so that those need no place for one. Files of earlier releases have none.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.errors import BusyError, DamagedError, DiskError, RunError, system_trouble

Tensors = Mapping[str, NDArray[Any]]
DIGEST, NO_DIGEST = "digest", "0" * 64  # in a tensor file's metadata


# ------------------------------------------------------------------------------------------ writing


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to. In the end it is renamed to `path`; if anything goes wrong, it is removed."""
    part = path.with_name(path.name + ".part")
    try:
        with said(path):
            yield part
            part.replace(path)
            folder = os.open(path.parent, os.O_RDONLY)  # a rename is on the disk once its folder is
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextmanager
def said(path: Path) -> Iterator[None]:
    """The system's errors as one sentence that names the file."""
    try:
        yield
    except OSError as error:
        why = system_trouble(error.errno) or str(error)
        raise DiskError(f"{path} could not be written: {why}") from error


def write_bytes(path: Path, content: bytes) -> None:
    write_together({path: content})


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Files of which one without the others is no use: once all are on the disk, they get their names."""
    with ExitStack() as parts:
        for path, content in contents.items():
            with parts.enter_context(whole(path)).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, str], private: bool = False) -> None:
    with whole(path) as part:
        part.unlink(missing_ok=True)  # left by a process that was killed here
        part.touch(0o600 if private else 0o666)  # safetensors keeps it
        _save_tensors(part, tensors, {**metadata, DIGEST: NO_DIGEST})
        with part.open("r+b") as file:
            _sort_metadata(file)
            file.seek(0)
            head, digest = _digest(file)
            file.seek(head.index(_entry(NO_DIGEST)))
            file.write(_entry(digest))
            file.flush()
            os.fsync(file.fileno())


def _save_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, str]) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path, dict(metadata))
    except SafetensorError as error:  # on a full disk too: its text has the system's error number
        if number := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        raise


def _sort_metadata(file: BufferedIOBase) -> None:
    """safetensors writes its metadata in a random order; equal runs shall leave equal bytes."""
    size = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(size))
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size)
    assert len(text) == size, "the same words in another order are as long"
    file.seek(8)
    file.write(text)


def _digest(file: BufferedIOBase) -> tuple[bytes, str]:
    """The head of a tensor file, and the digest of all bytes, with zeros where its own digest stands."""
    size = int.from_bytes(file.read(8), "little")
    file.seek(0, os.SEEK_END)
    if 8 + size > file.tell():
        raise ValueError("its header is longer than the file")
    file.seek(0)
    head = file.read(8 + size)
    blank = re.sub(_entry("([0-9a-f]{64})"), _entry(NO_DIGEST), head, count=1)
    return head, hashlib.file_digest(file, lambda: hashlib.blake2b(blank, digest_size=32)).hexdigest()  # the rest of it


def _entry(digest: str) -> bytes:
    return f'"{DIGEST}":"{digest}"'.encode()


def digest_of(content: Any) -> str:
    """The digest of plain values, as JSON gives them back."""
    same = json.loads(json.dumps(content))
    return hashlib.blake2b(json.dumps(same, sort_keys=True).encode(), digest_size=32).hexdigest()


def check_digest(path: Path, content: Any, wanted: str | None, mend: str = "restore it, or train again") -> None:
    """Refuse a text file that changed after its digest was written; None: it has no digest."""
    if wanted is not None and digest_of(content) != wanted:
        raise DamagedError(f"{path} was damaged or edited after it was written: {mend}")


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise RunError(
            f"{path} is missing: the run has no model yet; `fedgrec train --out {path.parent} --resume` goes on"
        )
    with path.open("rb") as file:
        read_head(path, file)
    try:
        with safe_open(path, framework="numpy") as file:
            tensors, about = {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, ValueError) as error:
        raise DamagedError(f"{path} is not a tensor file ({error}): it was damaged after it was written") from None
    about.pop(DIGEST, None)
    return tensors, about


def read_head(path: Path, file: BufferedIOBase) -> bytes:
    """The head of an open tensor file, once its digest is the right one."""
    file.seek(0)
    try:
        head, found = _digest(file)
        wanted = json.loads(head[8:]).get("__metadata__", {}).get(DIGEST, found)
    except (ValueError, AttributeError) as error:
        raise DamagedError(f"{path} is not a tensor file ({error}): it was damaged after it was written") from None
    if wanted != found:
        raise DamagedError(
            f"{path} was damaged after it was written (its digest is another one): restore it from a backup, or train "
            f"again from the last good state"
        )
    return head


def read_json(path: Path, mend: str, *keys: str) -> Any:
    """What a file of ours holds, with these keys; `mend`: what to do if it is damaged or gone."""
    with understood(path, mend):
        found = json.loads(path.read_text(encoding="utf-8"))
        for key in keys:
            found[key]
        return found


@contextmanager
def understood(path: Path, mend: str) -> Iterator[None]:
    """Turns errors about a file's content into one sentence that names the file and ends in `mend`."""
    try:
        yield
    except FileNotFoundError:
        raise RunError(f"{path} is missing: {mend}") from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:  # bad JSON and bad UTF-8 too
        what = f"there is no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise RunError(f"{path} is damaged ({what}): {mend}") from error


# -------------------------------------------------------------------------------------- checkpoints


class Checkpoints:
    """One folder for each checkpoint, written whole; then the pointer `latest` names it, and older ones are removed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pointer = folder / "latest"

    def save(self, round_: int, tensors: Tensors, info: Mapping[str, Any]) -> None:
        part, place = self.folder / f"{round_}.part", self.folder / str(round_)
        try:
            with said(place):
                self.folder.mkdir(parents=True, exist_ok=True)
                for leftover in (part, place):  # of a run that was killed here before
                    if leftover.exists() and str(round_) != self._latest():
                        shutil.rmtree(leftover)
                if not place.exists():
                    part.mkdir()
                    about = {"round": str(round_), "state.json": digest_of(info)}
                    write_tensors(part / "state.safetensors", tensors, about)
                    write_json(part / "state.json", info)
                    part.rename(place)
                write_text(self.pointer, f"{round_}\n")
                for other in self.folder.iterdir():
                    if other.is_dir() and other.name != str(round_):
                        shutil.rmtree(other)
        except BaseException:
            unreached = [] if self._latest() == str(round_) else [place]
            for leftover in (part, *unreached):
                shutil.rmtree(leftover, ignore_errors=True)
            raise

    @property
    def mend(self) -> str:
        """What to do if a checkpoint is damaged."""
        return f"restore it, or remove {self.folder}, and --resume begins the run anew"

    def load(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
        """The latest whole checkpoint, or nothing."""
        latest = self._latest()
        if latest is None:
            return None
        there = sorted(path.name for path in self.folder.iterdir() if path.is_dir() and path.name.isdecimal())
        if latest not in there:
            others = f"there is {' and '.join(there)}" if there else "there is none"
            raise RunError(
                f"{self.pointer} names the checkpoint {latest!r}, which is not there ({others}): write its name into "
                f"the file, or remove {self.folder}, and --resume begins the run anew"
            )
        place = self.folder / latest
        with understood(place / "state.json", self.mend):
            info = dict(read_json(place / "state.json", self.mend).items())
        with understood(place / "state.safetensors", self.mend):
            (place / "state.safetensors").stat()
            tensors, about = read_tensors(place / "state.safetensors")
        check_digest(place / "state.json", info, about.get("state.json"), self.mend)
        return tensors, info

    def _latest(self) -> str | None:
        with suppress(FileNotFoundError):
            return self.pointer.read_bytes().decode("utf-8", "replace").strip()
        return None


# ------------------------------------------------------------------------------------------ folders


def check_writable(folder: Path, flag: str = "--out") -> None:
    """Refuse a folder that cannot be written now, not after hours of work; leaves nothing behind.

    Permission bits say little (for root, or on a read-only file system), so this really makes a folder: inside the
    nearest one that is there, under a fresh name, with all missing folders inside it.
    """
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
        if not there.is_dir():
            what = "is a file" if there.exists() else "is a link to nothing"
            raise RunError(f"{there} {what}: choose another {flag}")
        missing = folder.absolute().relative_to(there.absolute())
        probe = Path(tempfile.mkdtemp(prefix=".writable-", dir=there))
        try:
            (probe / missing).mkdir(parents=True, exist_ok=True)
        finally:
            shutil.rmtree(probe, ignore_errors=True)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise RunError(f"{folder} cannot be written: {why}; choose another {flag}") from None


@contextmanager
def claimed(folder: Path, wait: bool = False) -> Iterator[None]:
    """Only one process at a time can claim this folder. A process that dies releases it."""
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
                with suppress(OSError):  # usually it is not empty, and stays
                    folder.rmdir()
    finally:
        os.close(handle)
