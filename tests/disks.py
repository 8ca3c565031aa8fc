"""File systems that are soon full."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FILLER = "filler"


def mounted(place: Path, size: str) -> bool:
    """Whether a separate file system is at this new place from now on; `unmount` ends it."""
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    return shutil.which("mount") is not None and not subprocess.run(words, capture_output=True, check=False).returncode


def unmount(place: Path) -> None:
    subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def a_disk(place: Path, size: str) -> Iterator[Path]:
    """A separate file system that exists until the end of the block."""
    if not mounted(place, size):
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield place
    finally:
        unmount(place)


def fill(disk: Path) -> Path:
    """A file that takes all room that is left."""
    filler, size = disk / FILLER, 2**20
    with filler.open("wb", buffering=0) as file:
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    return filler
