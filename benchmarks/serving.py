"""`fedgrec serve` at Gowalla's size: requests a second, how long they take, and memory over 100,000 requests.

The server is a process of its own; the requests come from this one, over connections that stay open, on the same cores.
Each asks for the list of another user; nothing keeps an answer.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import gowalla
from fedgrec.config.configuration import USUAL_PRESET, preset
from fedgrec.data import Interactions
from fedgrec.models.model import Model
from fedgrec.runs.machine import make_method

CONNECTIONS, N, WARM = 8, 10, 200
TOKEN = "a-token-of-the-benchmark"
GOALS = {"requests_a_second": 200, "ms_of_99_percent": 50}


def bench(requests: int = 100_000) -> dict[str, Any]:
    data, train = gowalla()
    with tempfile.TemporaryDirectory() as place:
        run, tokens = Path(place) / "run", Path(place) / "tokens"
        model = made(train)
        model.save(run)
        tokens.write_text(TOKEN)
        words = [sys.executable, "-m", "fedgrec", "serve", str(run), "--port", "0", "--token-file", str(tokens)]
        begun = time.perf_counter()
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout
                found = re.search(r"http://([\d.]+):(\d+)", server.stdout.readline())
                assert found, "the server did not start"
                opened = time.perf_counter() - begun
                users = np.random.default_rng(0).permutation(train.n_users).tolist()
                ask(found, users, WARM, server.pid)
                seconds, memory, whole = ask(found, users, requests, server.pid)
            finally:
                server.terminate()
    ms = dict(zip(("50", "90", "99", "99.9"), np.percentile(seconds, [50, 90, 99, 99.9]) * 1e3, strict=True))
    return {
        "data": data,
        "users": train.n_users,
        "items": train.n_items,
        "columns": model.item_vectors().shape[1],
        "N": N,
        "connections": CONNECTIONS,
        "requests": requests,
        "seconds_to_open": opened,
        "requests_a_second": requests / whole,
        "ms_of_percent": ms,
        "memory_mb": memory,
        "goals": GOALS,
    }


def made(train: Interactions) -> Model:
    """The default model with random tables: the time of a list does not depend on its items."""
    config, draw = preset(USUAL_PRESET), np.random.default_rng(0)
    method = make_method(config, train.n_items, train.n_users)
    users = method.init_users(np.arange(train.n_users, dtype=np.uint64), train.indptr, train.items)
    server = method.init(0)
    for table in (server.items, server.more["directions"]):
        table[:] = draw.normal(0, 0.01, table.shape)
    server.more["trust"][:] = 1
    server.degrees[:] = train.degrees()
    return Model.of(config, server, users, train)


def ask(where: Any, users: list[int], requests: int, pid: int) -> tuple[list[float], list[float], float]:
    """Seconds of each request, memory ten times on the way, and seconds of all together."""
    seconds, memory, places = [0.0] * requests, list[float](), iter(range(requests))
    head = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}

    def work() -> None:
        connection = HTTPConnection(where[1], int(where[2]))
        for place in places:  # shared: each request is sent once
            begun = time.perf_counter()
            connection.request("POST", "/recommend", json.dumps({"user": users[place % len(users)], "k": N}), head)
            answer = connection.getresponse()
            assert len(json.loads(answer.read())["items"]) == N
            seconds[place] = time.perf_counter() - begun
            if place % max(requests // 10, 1) == 0:
                memory.append(resident(pid))
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(CONNECTIONS)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seconds, memory, time.perf_counter() - begun


def resident(pid: int) -> float:
    """MB that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
