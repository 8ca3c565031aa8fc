# mypy: ignore-errors
"""How Numba compiles the loops of this folder, who runs them, and when what it keeps on disk is out of date."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import numba as nb

T = TypeVar("T")

# Sums may be reassociated and a division by zero gives infinity, so that loops vectorise; NaN keeps its meaning, so
# divergence is seen.
COMMON = {"cache": True, "fastmath": {"reassoc", "contract", "arcp", "nsz"}, "error_model": "numpy"}


@cache
def stamp(*folders: Path) -> str:
    """Changes when a source in one of the folders does. The files' dates do not matter: a new copy is not a change."""
    whole = sha256()
    for path in (path for folder in folders for path in sorted(folder.glob("*.py"))):
        whole.update(path.name.encode() + sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def compiled_with(**options):
    """A decorator. Numba's cache notices changes in a function's own file only; this one's, in all of the folder."""

    def compile_(function):
        dispatcher = nb.njit(**COMMON, **options)(function)
        with suppress(AttributeError):  # a Numba that keeps it elsewhere; a test tells
            folders = sorted({Path(__file__).parent, Path(function.__code__.co_filename).parent})
            dispatcher._cache._cache_file._source_stamp = stamp(*folders)
        return dispatcher

    return compile_


# For compiled callers alone: what Python would need to call it costs a tenth of the compilation. Always a part of its
# caller: else a process that compiles calls another copy, with other last bits, than one that finds the caller on disk.
fused = compiled_with(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)
# For loop bodies: a call hands over every field of every array, which costs more than a row of arithmetic. And for what
# calls much: on its own it would be compiled, with all that it calls, once more.
inlined = compiled_with(inline="always")
released = compiled_with(nogil=True, no_cfunc_wrapper=True)  # for threads of Python's


def threaded(loop):
    """A decorator: `loop(begin, end, …)` is called as `loop(count, …)`, and all cores share 0 … count − 1.

    The threads are Python's. A parallel loop of Numba's runs no faster, and compiles several times as long.
    """
    part = released(loop)

    def shared(count, *arguments):
        in_threads(lambda begin, end: part(begin, end, *arguments), count)

    shared.part = part
    return shared


def in_threads(part: Callable[[int, int], T], count: int) -> list[T]:
    """Calls part(begin, end) for equal shares of 0 … count − 1, side by side; returns what each returned."""
    threads = max(min(nb.get_num_threads(), count), 1)
    ends = [count * thread // threads for thread in range(threads + 1)]
    others = [_pool(threads, os.getpid()).submit(part, *ends[i : i + 2]) for i in range(1, threads)]
    return [part(*ends[:2]), *(other.result() for other in others)]


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that wait for work. A process that was forked has none of its parent's, so it starts its own."""
    return ThreadPoolExecutor(threads, "loop")
