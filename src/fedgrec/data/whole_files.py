"""A file that is whole or not there: written beside its place, flushed to the disk, then renamed into it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedgrec.errors import DiskError, system_trouble


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to. In the end it is renamed to `path`; if anything goes wrong, it is removed."""
    part = path.with_name(path.name + ".part")
    try:
        with said(path):
            yield part
            part.replace(path)
            _flush_folder(path.parent)
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


def _flush_folder(folder: Path) -> None:
    """A rename is on the disk once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
