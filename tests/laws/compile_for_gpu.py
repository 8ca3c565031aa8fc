"""Compiles every loop in Triton for an H100 as the engine launches it, on a machine without a GPU; prints their names.

With the word `some` it ends after the largest.

Triton's interpreter accepts programs that its compiler rejects. Here the engine goes through its rounds and nothing
runs: a launch is compiled, and what it would have written stays 0.
"""

import sys
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from fedgrec.config.configuration import FedGRecOptions
from fedgrec.kernels import cuda
from tests.laws.worlds import Run, World

LARGEST = "fedgrec.kernels._steps_triton.user_step"
compiled: set[str] = set()
run = JITFunction.run


class NoDriver:
    """All that the compiler asks of a GPU."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(kernel: Any, *given: Any, grid: Any, warmup: bool, **more: Any) -> Any:
    name = f"{kernel.fn.__module__}.{kernel.fn.__name__}"
    compiled.add(name)
    done = run(kernel, *given, grid=grid, warmup=True, **more)
    if name == LARGEST and sys.argv[1:] == ["some"]:
        sys.stdout.write("\n".join(sorted(compiled)))
        sys.exit()
    return done


FEDGREC: list[dict[str, Any]] = [
    {
        "local_steps": 10,
        "item_optimizer": "adam",
        "user_optimizer": "adam",
        "layers": 3,
        "half_life": 10,
        "max_positives": 4,
        "loss": "bpr",
        "similarity": "inner",
        "popular_negatives": 0.0,
    },
    {"local_steps": 1},
    {
        "local_steps": 3,
        "layers": 2,
        "combine": "concat",
        "live": False,
        "item_optimizer": "sgd",
        "loss": "mse",
        "similarity": "inner",
    },
    {"local_steps": 2, "layers": 0, "loss": "mse0", "l2_scaling": "row", "exclude_positives": False},
]


def fedgrec(**options: Any) -> None:
    liked = np.random.default_rng(0).random((9, 80)) < 0.2
    run = Run.warmed_up(World(liked, FedGRecOptions(dim=16, negatives=16, users_per_round=6, **options), seed=0))
    cuda.Engine(run.method, run.server, run.users, "cpu").run([np.arange(6)] * 2)


if __name__ == "__main__":
    driver.set_active(NoDriver())
    JITFunction.run = compile_only  # type: ignore[method-assign]
    torch.empty, torch.empty_like = torch.zeros, torch.zeros_like  # type: ignore[assignment]
    for options in [{"local_steps": 1}, *FEDGREC]:
        fedgrec(**options)
    sys.stdout.write("\n".join(sorted(compiled)))
