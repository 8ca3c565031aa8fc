"""Compile a method's Numba kernels: `python -m tests.compile_ahead fcf`.

Numba caches them on disk, where the workers of a first test run find them; else each worker compiles all of them. In
double precision, those that `make check` tests in it.
"""

import sys

from fedgrec.kernels import cpu
from tests.methods.laws import World

if __name__ == "__main__":
    for precision in ("float32", "float64"):
        for options in [{"local_steps": 1}, {"local_steps": 2}] if sys.argv[1] == "fedgrec" else [{}]:
            World.of(sys.argv[1], cpu, precision=precision, **options).train(1)
