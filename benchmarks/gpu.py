"""One training round of Gowalla on a GPU, its floor, and a per-user PyTorch loop in the same run.

A floor is what the round cannot go below on this GPU. The recipe's: the bytes that it reads and writes (item rows of
all users twice, the sums, the server's tables) at the speed of a copy. The paper's, if that is more: ten Adam steps of
every row at two root or reciprocal operations a number, of which a multiprocessor does sixteen in a cycle.
"""

import time
from typing import Any

import torch

from benchmarks.baselines import autograd_round
from benchmarks.common import gowalla, seconds
from benchmarks.rounds import Ours, Theirs
from fedgrec.config import FedGRecOptions, preset
from fedgrec.data import Interactions
from fedgrec.kernels import cpu
from fedgrec.kernels.cuda import Engine

ROOTS = 16  # root or reciprocal operations of a multiprocessor in a cycle
LIMITS = {"paper": 2.0, "recipe": 0.25}  # ms, asked on one H200


def bench(repeats: int = 5, rounds: int = 200) -> dict[str, Any]:
    """Milliseconds of a round on the GPU, of the loop, and the floor."""
    name, train = gowalla()
    options = {"paper": preset("paper").model, "recipe": FedGRecOptions()}
    speed = copy_speed()
    measured = {key: measure(o, train, repeats, rounds, speed) for key, o in options.items()}
    about = torch.cuda.get_device_properties(0)
    return {"data": name, "gpu": about.name, "copy_gb_a_second": speed / 1e9, "rounds": measured, "limit_ms": LIMITS}


def measure(o: FedGRecOptions, train: Interactions, repeats: int, rounds: int, speed: float) -> dict[str, Any]:
    ours = Ours(o, train, cpu)
    loop = seconds(lambda: Theirs(ours, autograd_round).round(threads=1, fused=True))
    engine = Engine(ours.method, ours.server, ours.users)
    cohorts = [ours.sample() for _ in range(rounds)]
    engine.run(cohorts[:2])
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        engine.run(cohorts)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begun) / rounds)
    ms = sorted(times)[repeats // 2]
    least = floor(o, train, speed)
    return {"ms": ms, "all_ms": times, "floor_ms": least, "loop_ms": 1e3 * loop, "ratio": 1e3 * loop / ms}


def floor(o: FedGRecOptions, train: Interactions, speed: float) -> float:
    """Milliseconds, see above."""
    positives = train.user_degrees().clip(max=o.max_positives or None).mean()
    rows = o.users_per_round * (o.negatives + positives)
    roots = 0.0
    if o.item_optimizer == "adam":
        gpu = torch.cuda.get_device_properties(0)
        clock = getattr(gpu, "clock_rate", 1.98e6) * 1e3
        roots = 2 * rows * o.dim * o.local_steps / (ROOTS * gpu.multi_processor_count * clock)
    tables = 2 * 4 * (o.layers + 1) + 6  # items and sums of every level, both ways, and two moments and f
    return float(1e3 * max(roots, 4 * o.dim * (3 * rows + tables * train.n_items) / speed))


def copy_speed() -> float:
    """Bytes a second of a copy on the GPU, read and write counted."""
    a = torch.empty(2**28, device="cuda")
    b = torch.empty_like(a)
    b.copy_(a)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(10):
        b.copy_(a)
    torch.cuda.synchronize()
    return 10 * 2 * a.nbytes / (time.perf_counter() - begun)
