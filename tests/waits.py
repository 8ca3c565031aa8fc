"""Waits that only a hang outlasts, on slow and busy machines too."""

import os
import tempfile
import time
import zlib
from functools import cache

IDLE = 0.065  # what `work` takes on an idle cloud machine of two cores, in seconds
GENEROUS = 4  # whoever is busy now may be busier soon


def work() -> float:
    """The seconds that a fixed piece of Python, C and file work takes."""
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as file:
        for _ in range(5):
            text = ",".join(str(n * n) for n in range(20_000))
            file.write(zlib.compress(text.encode(), 1))
            file.flush()
            os.fsync(file.fileno())
    return time.perf_counter() - begun


@cache
def slowness() -> float:
    """How many times slower this machine is than an idle one of two cores: at least 1, measured once."""
    return max(1.0, max(work() for _ in range(3)) / IDLE)


def seconds(idle: float) -> float:
    """The time to give to what takes less than `idle` seconds on an idle machine."""
    return idle * GENEROUS * slowness()
