"""Secure aggregation: the mask rate against bare AES-CTR and against Flower, one round of full size, and a fuzzer.

masks     add 16 masks to 1,000,000 words and pack them, for words of several sizes, per byte sent; the rivals do the
          same additions to words of 32 bits, one with a library call for each mask, one with Flower 1.41's own
          functions (these need the extra `deploy`)
round     400 clients, vectors of Gowalla's size at K = 2 (7.9 million words), k = 48, t = 33, 20 dropouts
fuzz      10⁶ mangled messages against parser, clients and servers
"""

import itertools
import os
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from tests.secagg.mangle import mangled, target

from benchmarks.common import CORES, alternate
from benchmarks.sum_costs import measured_round
from fedgrec.secagg import Population, SecAggError, Session, Stage, ring
from fedgrec.secagg.messages import parse
from fedgrec.secagg.prg import mask_parts

VALUES, NEIGHBOURS = 1_000_000, 16
ASKED = {12: 0.5, 14: 0.5, 16: 0.7, 20: 0.5, 32: 0.7}  # goals: bits of a word → share of bare AES-CTR's bytes a second
FULL_VALUES = 3 * 40_981 * 64
DROPS = {Stage.KEYS: 4, Stage.SHARES: 4, Stage.MASKED: 6, Stage.UNMASK: 6}


def masks(repeats: int) -> dict[str, Any]:
    """Seconds to mask one vector, and ratios."""
    keys = [os.urandom(16) for _ in range(NEIGHBOURS)]
    signed = [(key, 1 if i % 2 else -1) for i, key in enumerate(keys)]
    words = np.zeros(VALUES, np.uint32)

    def ours(bits: int, threads: int = 1) -> Callable[[], object]:
        rings = ((VALUES, bits),)
        vector = ring.zeros(rings)

        def mask_and_pack() -> object:
            mask_parts(vector, signed, threads)
            return ring.pack(vector, rings)

        return mask_and_pack

    def bare() -> None:
        """AES-CTR and an addition in pieces of 128 KiB, with nothing around them."""
        zeros, stream = bytes(2**17), bytearray(2**17)
        mask = np.frombuffer(stream, np.uint32)
        for key, _ in signed:
            cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
            for at in range(0, VALUES, len(mask)):
                piece = words[at : at + len(mask)]
                cipher.update_into(zeros[: 4 * len(piece)] if len(piece) < len(mask) else zeros, stream)
                np.add(piece, mask[: len(piece)], out=piece)

    rounds = {f"fedgrec, {bits} bits": ours(bits) for bits in ASKED} | {
        f"fedgrec, 32 bits, {CORES} threads": ours(32, CORES),
        "bare AES-CTR and addition, 32 bits": bare,
    }
    if (flower := _flower()) is not None:
        rounds["Flower's mask functions"] = lambda: flower(keys)
    times = alternate(rounds, repeats)
    alone = {bits: times[f"fedgrec, {bits} bits"] * 32 / bits for bits in ASKED}  # for as many bytes sent
    rival = times["bare AES-CTR and addition, 32 bits"]
    ratios: list[tuple[str, float, object]] = [
        (f"{bits} bits: share of bare AES-CTR's bytes a second", rival / alone[bits], asked)
        for bits, asked in ASKED.items()
    ]
    if flower:
        slow, threads = times["Flower's mask functions"], times[f"fedgrec, 32 bits, {CORES} threads"]
        ratios.append(("Flower's functions, times ours on one thread", slow / alone[32], "–"))
        ratios.append(("Flower's functions, times ours on all", slow / threads, 8.0))
    return {"values": VALUES, "neighbours": NEIGHBOURS, "seconds": times, "ratios": ratios}


def _flower() -> Callable[[list[bytes]], object] | None:
    """What Flower's client does with its neighbours' keys: draw a mask for each, add or subtract it, then reduce."""
    try:
        from flwr.common.secure_aggregation.ndarrays_arithmetic import (
            parameters_addition,
            parameters_mod,
            parameters_subtraction,
        )
        from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
    except ImportError:
        return None

    def mask(keys: list[bytes]) -> object:
        vector = [np.zeros(VALUES, np.int64)]
        for i, key in enumerate(keys):
            drawn = pseudo_rand_gen(key * 2, 1 << 32, [(VALUES,)])
            vector = parameters_addition(vector, drawn) if i % 2 else parameters_subtraction(vector, drawn)
        return parameters_mod(vector, 1 << 32)

    return mask


def full_round(clients: int = 400, values: int = FULL_VALUES) -> dict[str, Any]:
    """One round of the size that training on Gowalla has; every client masks with all cores, one after the other."""
    order = iter(np.random.default_rng(0).permutation(clients).tolist())
    silent = {next(order): stage for stage, count in DROPS.items() for _ in range(count)}
    session = Session(os.urandom(16), ((values, 32),), clients, 48, 33, least=clients - clients // 20)
    check = np.zeros(values, np.int64)

    def vector(client: int) -> Any:
        drawn = np.random.default_rng(client).integers(-5_000_000, 5_000_000, values, np.int32)
        np.add(check, drawn, out=check)
        return drawn

    begun = time.perf_counter()
    outcome, costs = measured_round(
        session, vector, Population(range(clients)), silent, context=b"model", threads=CORES
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {
        "clients": clients,
        "values": values,
        "neighbours": 48,
        "threshold": 33,
        "dropouts": [DROPS[stage] for stage in DROPS],
        "in_the_sum": outcome.users,
        "exact": bool((outcome.values == check).all()),
        "seconds": time.perf_counter() - begun,
        "stages": {name: vars(cost) for name, cost in costs.items()},
        "peak_gb": peak,
        "limit_gb": 1.0,
    }


def fuzz(inputs: int) -> dict[str, Any]:
    """Each mangled message goes to the parser and to one of the clients and servers in turn."""
    here, outcomes = target(), Counter[str]()
    doors = itertools.cycle(here.doors.values())
    for data in mangled(here.valid, inputs):
        for door in (parse, next(doors)):
            try:
                door(data)
                outcomes["taken"] += 1
            except SecAggError as error:
                outcomes[type(error).__name__] += 1
            except Exception as error:
                outcomes["crashes"] += 1
                print(f"a crash: {error!r} on {data.hex()[:200]}")
    return {"inputs": inputs, "crashes": outcomes.pop("crashes", 0), "taken": outcomes.pop("taken"), **outcomes}


def bench(quick: bool = False) -> dict[str, Any]:
    """The round comes first, because its memory is measured as the peak of this process so far."""
    return {
        "round": full_round(200, 20_000) if quick else full_round(),
        "masks": masks(1 if quick else 7),
        "fuzz": fuzz(20_000 if quick else 1_000_000),
    }
