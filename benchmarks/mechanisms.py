"""The cost of secure aggregation on each graph, and how many lost clients it survives.

All parties run in this process on one thread. Clients are lost when their vector is due, after all preparation: a loss
at that moment costs the others most. Every opened sum is compared with the plain one.
"""

import json
import os
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.sum_costs import StageCost, measured_round
from fedgrec.secagg import Population, Session, Stage
from fedgrec.secagg.errors import TooFewLeft
from fedgrec.secagg.parameters import choose


def sessions(clients: int, values: int) -> dict[str, Session]:
    """Each graph with parameters of a real deployment; two thirds of the clients can open a sum."""
    n, t, chosen = clients, 2 * clients // 3 + 1, choose(clients)
    everybody = Session(os.urandom(16), ((values, 32),), n, n - 1, t)
    return {
        "complete graph (2017)": everybody,
        "k-regular graph (2020)": replace(everybody, neighbours=chosen.neighbours, threshold=chosen.threshold),
    }


def bench(clients: int = 100, values: int = 100_000, repeats: int = 3) -> dict[str, Any]:
    """For each graph and number of lost clients: bytes and seconds of a client, seconds of the server, or None."""
    rng, population = np.random.default_rng(0), Population(range(clients))
    largest = (2**31 - 1) // clients
    vectors = rng.integers(-largest, largest, (clients, values), np.int32)
    measured: dict[str, Any] = {}
    for name, session in sessions(clients, values).items():
        costs = {
            lost: _medians([_round(session, vectors, population, lost) for _ in range(repeats)])
            for lost in (0, clients // 10, clients // 3)
        }
        measured[name] = {
            "neighbours": session.neighbours,
            "threshold": session.threshold,
            "lost": costs,
            "most_lost_with_a_sum": max(lost for lost, cost in costs.items() if cost),
        }
    return {"clients": clients, "values": values, "bits": 32, "repeats": repeats, "mechanisms": measured}


def _round(session: Session, vectors: Any, population: Population, lost: int) -> dict[str, float] | None:
    """One round without the clients 0 .. lost − 1; None if it fails without them."""
    session = replace(session, round_id=os.urandom(16))
    try:
        with threadpool_limits(1):
            silent = dict.fromkeys(range(lost), Stage.MASKED)
            outcome, costs = measured_round(session, vectors.__getitem__, population, silent)
    except TooFewLeft:
        return None
    if not np.array_equal(outcome.values, vectors[lost:].sum(axis=0, dtype=np.int32)):
        raise AssertionError("the opened sum is not the plain one")
    return _of_one(costs)


def _of_one(costs: dict[str, StageCost]) -> dict[str, float]:
    """Costs over all stages, of one client that stays until the end and of the server."""
    stages = costs.values()
    return {
        "bytes_up": sum(stage.bytes_up / stage.clients for stage in stages),
        "bytes_down": sum(stage.bytes_down / stage.clients for stage in stages),
        "client_seconds": sum(stage.client_seconds / stage.clients for stage in stages),
        "server_seconds": sum(stage.server_seconds for stage in stages),
    }


def _medians(rounds: list[dict[str, float] | None]) -> dict[str, float] | None:
    opened = [costs for costs in rounds if costs]
    if len(opened) < len(rounds):  # one failed round is too many
        return None
    return {key: statistics.median(costs[key] for costs in opened) for key in opened[0]}


if __name__ == "__main__":
    print(json.dumps(bench(80, 2_000, 1), indent=2))
