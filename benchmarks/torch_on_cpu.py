"""A training round of FCF, FedNCF and FedGNN on Gowalla, on a CPU: in Numba's loops, in NumPy, and in PyTorch.

`compiled` are the verbs over Numba's loops, `readable` the same verbs over NumPy, a user at a time; `torch` is what a
GPU runs, on the CPU, with the fastest of some sizes of its working tables. A round is all that a simulation does in
one. FedNCF ranks by scores that are no inner products: those of a block of users are measured too. A compiled loop is
worth its lines where PyTorch takes more than three times as long.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.common import about, alternate, gowalla, seconds, write
from fedgrec.cable.core import Cohort, Ints, ServerState
from fedgrec.config.options import method_module
from fedgrec.data import Interactions
from fedgrec.kernels import cpu, reference
from fedgrec.methods.contract import Method

THREADS, USERS, RANKED = 2, 400, 256
TABLES = (2**20, 2**22, 2**24, 2**28)  # bytes of a working table
METHODS = ("fcf", "fedncf", "fedgnn", "fedgnn-bpr")


def bench(repeats: int = 5, names: tuple[str, ...] = METHODS) -> dict[str, Any]:
    """Median seconds of a round, and of scores, in each code."""
    cpu.use_threads(THREADS)
    torch.set_num_threads(THREADS)
    data, train = gowalla()
    measured = {name: measure(name, train, repeats) for name in names}
    return {"data": data, "threads": THREADS, "users": USERS, "ranked": RANKED, "seconds": measured}


def measure(name: str, train: Interactions, repeats: int) -> dict[str, Any]:
    """One method: its codes take turns."""
    rounds: dict[str, Callable[[], object]] = {}
    rankings: dict[str, Callable[[], object]] = {}
    for code, kernel in {"compiled": cpu, "readable": reference, "torch": cpu}.items():
        method, server, users = begun(name, train, kernel)
        rng = np.random.default_rng(0)
        if code == "torch":
            module = importlib.import_module(method.engine)
            engines = [module.Engine(method, server, users, "cpu", memory=size) for size in TABLES]
            work = [partial(_torch_round, engine, rng, len(users)) for engine in engines]
            rounds[code] = min(work, key=seconds)
        else:
            rounds[code] = partial(_verbs, method, server, users, rng)
        if not method.inner_product:
            some = np.arange(RANKED)
            score = method.scorer(server, users, "cpu") if code == "torch" else None
            rankings[code] = partial(score, some) if score else partial(method.scores, server, users.take(some))
    found = {"round": _turns(rounds, repeats)}
    return found | ({"scores": _turns(rankings, repeats)} if rankings else {})


def begun(name: str, train: Interactions, kernel: Any) -> tuple[Method, ServerState, Cohort]:
    """A federation before its first training round."""
    module = method_module(name)
    method = module.make(module.Options(users_per_round=USERS), train.n_items, train.n_users, kernel)
    server = method.init(0)
    keys = np.random.default_rng(1).integers(0, 2**64, train.n_users, dtype=np.uint64)
    users = method.init_users(keys, train.indptr, train.items)
    for stage in method.stages[:-1]:
        if stage.combine == "match":
            users, _ = method.match(users, 0, 0)
        else:
            total, _ = method.local_update(users, stage, method.broadcast(server, stage))
            server = method.apply(server, stage, total)
    return method, server, users


def _verbs(method: Method, server: ServerState, users: Cohort, rng: np.random.Generator) -> None:
    chosen, stage = _sample(rng, len(users)), method.stages[-1]
    total, pending = method.local_update(users.take(chosen), stage, method.broadcast(server, stage))
    method.apply(server, stage, total)
    method.commit(users, chosen, pending)


def _torch_round(engine: Any, rng: np.random.Generator, n_users: int) -> None:
    engine.run([_sample(rng, n_users)])


def _sample(rng: np.random.Generator, n_users: int) -> Ints:
    return rng.choice(n_users, USERS, replace=False, shuffle=False)


def _turns(codes: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    for work in codes.values():  # compiles, if nothing is cached yet
        seconds(work)
    return alternate(codes, repeats)


if __name__ == "__main__":
    print(write("torch-on-cpu", bench(), about()).read_text())
