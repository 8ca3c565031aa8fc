"""Compile FedGRec's Numba kernels: `python -m tests.compile_ahead`.

Numba caches them on disk, where the workers of a first test run find them; else each worker compiles all of them. In
double precision, those that `make check` tests in it.
"""

from fedgrec.kernels import cpu
from tests.methods.laws import World

if __name__ == "__main__":
    for precision in ("float32", "float64"):
        for steps in (1, 2):
            World.of("fedgrec", cpu, precision=precision, local_steps=steps).train(1)
