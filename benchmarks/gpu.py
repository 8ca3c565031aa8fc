"""One training round of Gowalla on a GPU, its floor, and a per-user PyTorch loop in the same run; then the compared
methods' rounds there, and epochs of the graph models that are not federated.

A floor is a time that a round cannot beat on this GPU. For the recipe it is the bytes that the round reads and writes
(item rows of all users twice, the sums, the server's tables) at the speed of a copy. For the paper's round it is, if
that is longer, ten Adam steps of every row at two root or reciprocal operations a number; a multiprocessor does sixteen
of these in a cycle.
"""

import itertools
import time
from typing import Any

import torch

from benchmarks import federated
from benchmarks.baselines import autograd_round
from benchmarks.common import gowalla, seconds
from benchmarks.rounds import Ours, Theirs, softmax_recipe
from fedgrec import centralized
from fedgrec.config.configuration import FedGRecOptions, preset
from fedgrec.data import Interactions
from fedgrec.kernels import cpu, fcf_torch, gnn_torch, neumf_torch
from fedgrec.kernels.cuda import Engine

ROOTS = 16  # root or reciprocal operations of a multiprocessor in a cycle
COMPARED: list[tuple[str, dict[str, Any], Any]] = [
    ("fcf", {}, fcf_torch),
    ("fedncf", {}, neumf_torch),
    ("fedncf", {"negatives": 2048}, neumf_torch),
    ("fedgnn", {}, gnn_torch),
    ("fedgnn-bpr", {}, gnn_torch),
]
LIMITS = {"paper": 2.0, "recipe": 0.25, "softmax": 0.35}  # ms, asked on one H200


def bench(repeats: int = 5, rounds: int = 200) -> dict[str, Any]:
    """Milliseconds of a round on the GPU, of the loop, and the floor."""
    name, train = gowalla()
    options = {"paper": preset("paper").model, "recipe": preset("bpr").model, "softmax": softmax_recipe()}
    speed = copy_speed()
    measured = {key: measure(o, train, repeats, rounds, speed) for key, o in options.items()}
    found = {"data": name, "gpu": torch.cuda.get_device_properties(0).name, "copy_gb_a_second": speed / 1e9}
    found |= {"rounds": measured, "limit_ms": LIMITS, "compared": compared(train, repeats, rounds)}
    return found | {"epoch_seconds": epochs(train, repeats)}


def measure(o: FedGRecOptions, train: Interactions, repeats: int, rounds: int, speed: float) -> dict[str, Any]:
    ours = Ours(o, train, cpu)
    is_bpr = o.loss == "bpr"  # the loop has no other loss
    loop = seconds(lambda: Theirs(ours, autograd_round).round(threads=1, fused=True)) if is_bpr else float("nan")
    engine = Engine(ours.method, ours.server, ours.users)
    ms, times = timed(engine, [ours.sample() for _ in range(rounds)], repeats)
    least = floor(o, train, speed)
    return {"ms": ms, "all_ms": times, "floor_ms": least, "loop_ms": 1e3 * loop, "ratio": 1e3 * loop / ms}


def timed(engine: Any, cohorts: list[Any], repeats: int) -> tuple[float, list[float]]:
    """The median of the milliseconds of a round, and all of them."""
    engine.run(cohorts[:2])
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        engine.run(cohorts)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begun) / len(cohorts))
    return sorted(times)[repeats // 2], times


def compared(train: Interactions, repeats: int, rounds: int, device: str = "cuda") -> dict[str, dict[str, float]]:
    """Milliseconds of a round of the other methods."""
    found = {}
    for name, options, engines in COMPARED:
        ours = federated.Ours.of(name, options, train)
        engine = engines.Engine(ours.method, ours.server, ours.users, device)
        cohorts = [ours.sample() for _ in range(rounds)]
        label = " ".join([name, *(f"{key}={value}" for key, value in options.items())])
        found[label] = {"ms": timed(engine, cohorts, repeats)[0]}
    return found


def epochs(train: Interactions, repeats: int, device: str = "cuda") -> dict[str, float]:
    """Seconds of an epoch, including the drawing of the next epoch's triples."""
    found = {}
    for name, layers in itertools.product(("lightgcn", "ngcf"), (1, 2, 3)):
        model = centralized.make(name, train, device=device, layers=layers)
        model.epoch()  # compiles and records
        times = []
        for _ in range(repeats):
            begun = time.perf_counter()
            model.epoch()
            times.append(time.perf_counter() - begun)
        found[f"{name}-{layers}"] = sorted(times)[repeats // 2]
    return found


def floor(o: FedGRecOptions, train: Interactions, speed: float) -> float:
    """The floor in milliseconds (see the module's text)."""
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
