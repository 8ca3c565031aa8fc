"""`fedgrec secagg`: see secure aggregation at work, and what it costs."""

import argparse
import textwrap
from typing import Any

from fedgrec.cli.configured import command
from fedgrec.errors import ConfigError

STAGES = ("keys", "shares", "vectors", "unmasking")


def register(commands: Any) -> None:
    secagg = commands.add_parser(
        "secagg",
        help="try secure aggregation, or choose its parameters",
        description="Secure aggregation: the server learns the sum of the clients' vectors and nothing else.",
    )
    tasks = secagg.add_subparsers(title="tasks", metavar="TASK", required=True)
    add = command(tasks, "demo", run_demo, "run one round of the real protocol in this process").add_argument
    add("--clients", type=int, default=100, metavar="N", help="(default: 100)")
    add("--neighbours", type=int, default=0, metavar="K", help="0: chosen for the clients (default: 0)")
    add("--threshold", type=int, default=0, metavar="T", help="0: chosen for the clients (default: 0)")
    add("--values", type=int, default=20_000, metavar="V", help="length of a vector (default: 20000)")
    add(
        "--drop",
        default="0,0,0,0",
        metavar="A,B,C,D",
        help="clients lost before they send keys, shares, their vector, the answer that unmasks (default: 0,0,0,0)",
    )
    add("--bits", type=int, default=32, metavar="B", help="of the ring: 8, 10, … 64 (default: 32)")
    add("--threads", type=int, default=0, metavar="N", help="that make masks; 0: all cores (default: 0)")
    add = command(tasks, "parameters", run_parameters, "neighbours and threshold for a number of clients").add_argument
    add("--clients", type=int, required=True, metavar="N")
    add("--corrupt", type=float, default=0.05, metavar="X", help="share of clients (default: 0.05)")
    add("--dropped", type=float, default=0.05, metavar="X", help="share of clients (default: 0.05)")


def run_demo(arguments: argparse.Namespace) -> int:
    """Run one round with random vectors and lost clients, print its price stage by stage, and compare the opened
    sum with the plain one. Exit code 1 if they differ or the round fails.
    """
    import os
    import random

    import numpy as np

    from fedgrec.cable.core import size
    from fedgrec.secagg import Population, SecAggError, Session, Stage, fresh_round_id, run_round

    n, drops = arguments.clients, _drops(arguments.drop, arguments.clients)
    neighbours, threshold = _parameters(arguments)
    ids, order = range(n), random.sample(range(n), n)
    silent: dict[int, Stage] = {}
    for stage, count in zip((Stage.KEYS, Stage.SHARES, Stage.MASKED, Stage.UNMASK), drops, strict=True):
        silent |= {order.pop(): stage for _ in range(count)}
    largest = (2 ** (arguments.bits - 1) - 1) // n
    rng, vectors = np.random.default_rng(), dict[int, Any]()

    def vector(client: int) -> Any:
        vectors[client] = rng.integers(-largest, largest, arguments.values, np.int64, endpoint=True)
        return vectors[client]

    edges = f"k = {neighbours}" if neighbours < n - 1 else "complete graph"
    print(f"{n:,} clients, {edges}, t = {threshold}, {arguments.values:,} values of {arguments.bits} bits")
    try:
        rings, least = ((arguments.values, arguments.bits),), max(2, n - max(drops[0], n // 20))
        session = Session(fresh_round_id(), rings, n, neighbours, threshold, least=least)
        outcome = run_round(session, vector, Population(ids), silent, threads=arguments.threads or os.cpu_count() or 1)
    except SecAggError as error:
        print(f"the round failed and nothing was opened: {error}\nsum exact: no")
        return 1
    print(f"\n{'stage':<16}{'clients':>8}{'s a client':>12}{'s server':>10}{'up a client':>13}{'down a client':>15}")
    for name, cost in outcome.costs.items():
        each = max(cost.clients, 1)
        print(
            f"{name:<16}{cost.clients:>8,}{cost.client_seconds / each:>12.4f}{cost.server_seconds:>10.3f}"
            f"{size(cost.bytes_up / each):>13}{size(cost.bytes_down / each):>15}"
        )
    exact = bool((outcome.values == sum(vectors[client] for client in outcome.included)).all())
    print(
        f"\n{outcome.users:,} vectors are in the sum, {n - outcome.users:,} clients were lost before they sent theirs"
    )
    print(f"sum exact: {'yes' if exact else 'no'}")
    return 0 if exact else 1


def _drops(text: str, clients: int) -> list[int]:
    try:
        drops = [int(part) for part in text.split(",")]
    except ValueError:
        drops = []
    if len(drops) != len(STAGES) or min(drops) < 0:
        raise ConfigError(f"--drop {text}: give four numbers, clients lost in {', '.join(STAGES)}, such as 4,4,6,6")
    if sum(drops) > clients:
        raise ConfigError(f"--drop {text}: that is more than the {clients} clients there are")
    return drops


def _parameters(arguments: argparse.Namespace) -> tuple[int, int]:
    """k and t, as given or as chosen."""
    from fedgrec.secagg.parameters import choose

    n, k, t = arguments.clients, arguments.neighbours, arguments.threshold
    if n < 3:
        raise ConfigError(f"--clients {n}: a secure sum of fewer than three hides nothing from one of them")
    if arguments.values < 1:
        raise ConfigError(f"--values {arguments.values}: a vector has at least one value")
    if arguments.bits not in range(8, 65, 2):
        raise ConfigError(f"--bits {arguments.bits}: a ring has an even number of bits from 8 to 64")
    if n >= 2 ** (arguments.bits - 1):
        raise ConfigError(f"--bits {arguments.bits}: sums of {n:,} clients do not fit so few")
    if k < 0 or t < 0 or bool(k) != bool(t):
        raise ConfigError("--neighbours and --threshold go together: give both, or leave both out")
    if not k:
        chosen = choose(n)
        k, t = chosen.neighbours, chosen.threshold
    return k, t


def run_parameters(arguments: argparse.Namespace) -> int:
    """The smallest graph and a threshold that keep the risks below 2^-40, and what the risks are."""
    from fedgrec.secagg.errors import SecAggError
    from fedgrec.secagg.parameters import choose

    try:
        chosen = choose(arguments.clients, arguments.corrupt, arguments.dropped)
    except SecAggError as error:
        raise ConfigError(str(error)) from None
    print(textwrap.fill(chosen.sentence(), 78))
    return 0
