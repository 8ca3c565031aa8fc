# mypy: ignore-errors
"""How Numba compiles the loops of this folder, who runs them, and when what it keeps on disk is out of date.

And a small matrix product for them.
"""

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


# For compiled callers alone: what Python would need to call it costs a tenth of the compilation.
fused = compiled_with(no_cpython_wrapper=True, no_cfunc_wrapper=True)
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


@fused
def add_product(A, B, out):
    """out += A B, without BLAS, which would start threads of its own.

    It takes two rows and eight terms at a time, so that less is loaded and stored between the sums.
    """
    n_rows, n_terms, width = len(out), A.shape[1], B.shape[1]
    pairs, eights = n_rows // 2, n_terms // 8
    for pair in range(pairs):
        r, s = 2 * pair, 2 * pair + 1
        for eight in range(eights):
            k = 8 * eight
            a0, a1, a2, a3 = A[r, k], A[r, k + 1], A[r, k + 2], A[r, k + 3]
            a4, a5, a6, a7 = A[r, k + 4], A[r, k + 5], A[r, k + 6], A[r, k + 7]
            b0, b1, b2, b3 = A[s, k], A[s, k + 1], A[s, k + 2], A[s, k + 3]
            b4, b5, b6, b7 = A[s, k + 4], A[s, k + 5], A[s, k + 6], A[s, k + 7]
            for j in range(width):
                c0, c1, c2, c3 = B[k, j], B[k + 1, j], B[k + 2, j], B[k + 3, j]
                c4, c5, c6, c7 = B[k + 4, j], B[k + 5, j], B[k + 6, j], B[k + 7, j]
                out[r, j] += ((a0 * c0 + a1 * c1) + (a2 * c2 + a3 * c3)) + ((a4 * c4 + a5 * c5) + (a6 * c6 + a7 * c7))
                out[s, j] += ((b0 * c0 + b1 * c1) + (b2 * c2 + b3 * c3)) + ((b4 * c4 + b5 * c5) + (b6 * c6 + b7 * c7))
    for r in range(n_rows):  # what is left over
        for k in range(8 * eights if r < 2 * pairs else 0, n_terms):
            for j in range(width):
                out[r, j] += A[r, k] * B[k, j]
