"""The sums of `ordered` beside those of `spectral`, of as many columns: seconds of two rounds, and bytes."""

from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.common import alternate, gowalla
from fedgrec.cable.core import Cohort, ServerState
from fedgrec.config.configuration import Config
from fedgrec.methods.contract import Method
from fedgrec.runs.machine import make_method
from fedgrec.runs.population import population

GOAL = 2.2  # of spectral's time, and of its bytes
METHODS = ("spectral", "ordered")


def bench(repeats: int = 5) -> dict[str, Any]:
    """Items of real users; where the data has no times, in an order drawn by chance, which takes as long."""
    data, train = gowalla()
    train = replace(train, times=np.random.default_rng(0).random(train.n_pairs))
    made = {}
    for name in METHODS:
        config = Config().of(name)
        method = make_method(config, train.n_items, train.n_users).counted(train.degrees())
        server = method.init(0)
        server.degrees[:] = train.degrees()
        made[name] = method, server, population(config, method, train)
    seconds = alternate({name: lambda one=one: step(*one) for name, one in made.items()}, repeats)
    found = {
        name: {
            "seconds": seconds[name],
            "bytes_up": method.secure_upload(method.stages[-1], 1),
            "bytes_down": method.traffic(method.stages[-1], train.user_degrees()).down // train.n_users,
        }
        for name, (method, *_) in made.items()
    }
    ratios = {key: found["ordered"][key] / found["spectral"][key] for key in found["ordered"]}
    return {"data": data, "users": train.n_users, "items": train.n_items, **found, "ratios": ratios, "goal": GOAL}


def step(method: Method, server: ServerState, users: Cohort) -> None:
    """Two rounds of everybody, one of each direction, after the first."""
    server = replace(server, items=server.items.copy(), round=2)
    for round_ in (2, 3):
        stage = method.training(round_)
        total, _ = method.local_update(users, stage, method.broadcast(server, stage))
        server = method.apply(server, stage, total)


def summary(result: dict[str, Any]) -> list[str]:
    lines = [f"data: {result['data']}", f"{'two sums':<12}{'seconds':>9}{'MB up':>9}{'MB down':>9}"]
    for name in METHODS:
        up, down = result[name]["bytes_up"] / 1e6, result[name]["bytes_down"] / 1e6
        lines.append(f"{name:<12}{result[name]['seconds']:>9.2f}{up:>9.2f}{down:>9.2f}")
    ratios = ", ".join(f"{key} {ratio:.2f}" for key, ratio in result["ratios"].items())
    return [*lines, f"ordered over spectral: {ratios} (asked: {result['goal']})"]
