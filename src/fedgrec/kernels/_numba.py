# mypy: ignore-errors
"""How Numba compiles the loops of this folder, and when what it keeps on disk is out of date."""

from contextlib import suppress
from pathlib import Path

import numba as nb

# Sums may be reassociated and a division by zero gives infinity, so that loops vectorise; NaN keeps its meaning, so
# divergence is seen.
COMMON = {"cache": True, "fastmath": {"reassoc", "contract", "arcp", "nsz"}, "error_model": "numpy"}


def stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Changes when a source in the folder does."""
    files = ((path.name, path.stat()) for path in sorted(folder.glob("*.py")))
    return tuple((name, about.st_mtime_ns, about.st_size) for name, about in files)


STAMP = stamp(Path(__file__).parent)


def compiled_with(**options):
    """A decorator. Numba's cache notices changes in a function's own file only; this one's, in all of the folder."""

    def compile_(function):
        dispatcher = nb.njit(**COMMON, **options)(function)
        with suppress(AttributeError):  # a Numba that keeps it elsewhere; a test tells
            dispatcher._cache._cache_file._source_stamp = STAMP
        return dispatcher

    return compile_


fused = compiled_with()
# For loop bodies: a call hands over every field of every array, which costs more than a row of arithmetic. And for what
# calls much: on its own it would be compiled, with all that it calls, once more.
inlined = compiled_with(inline="always")
released = compiled_with(nogil=True)  # for threads of Python's
threaded = compiled_with(parallel=True)
