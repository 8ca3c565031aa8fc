"""A federation of three nodes over Flower that starts while busy loops take the processors.

joined    seconds until all nodes had joined
summed    seconds until the first sum had counted
apps      how many processes of the server's app were started: one is enough
imports   CPU-seconds that each part of the server spends before its work, from a process that only imports; and for
          the app without `internals.leave_out_sql`
said      what the server's console said until the first node joined, with the seconds
gone      seconds from SIGTERM until all processes of the server were gone, and of the nodes
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.federation.flower_network import founded

from benchmarks.soak import AS_CHILD
from benchmarks.soak_laws import descendants, is_called, lives
from fedgrec.federation.flower.processes import Processes
from fedgrec.federation.setup.start import start_node

LOOPS, MOST, LOOK = 24, 400.0, 0.2  # busy loops, seconds that it may take, seconds between two looks
GONE = 90.0
LEAVE_OUT, USE = "c.internals.leave_out_sql(); ", "getattr(c.internals, '{}'); "
AS_CHILDREN = "import fedgrec.federation.flower.children as c; "
APP = "from fedgrec.federation.flower import client_app, server_app"
IMPORTS = {
    "app": AS_CHILDREN + LEAVE_OUT + USE.format("flwr-serverapp") + APP,
    "app with SQL": AS_CHILDREN + USE.format("flwr-serverapp") + APP,
    "looks for runs": AS_CHILDREN + LEAVE_OUT + USE.format("flower-superexec"),
    "SuperLink": "import fedgrec.federation.flower.superlink as c; " + LEAVE_OUT + "c.internals.check()",
    "server": "import fedgrec.federation.flower.server_end",
}


@contextmanager
def busy(number: int, seconds: float) -> Iterator[None]:
    """Loops that end with the block, and in any case after so many seconds."""
    words = ["timeout", f"{seconds:.0f}", "sh", "-c", "while :; do :; done"]
    loops = [subprocess.Popen(words, start_new_session=True) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            os.killpg(loop.pid, 9)
            loop.wait()


def imports() -> dict[str, float]:
    found = {}
    for name, code in IMPORTS.items():
        before = _spent()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        found[name] = _spent() - before
    return found


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def gone(pids: list[int]) -> float:
    """Seconds until these processes were gone."""
    begun = time.monotonic()
    while any(map(lives, pids)) and time.monotonic() < begun + GONE:
        time.sleep(LOOK)
    return time.monotonic() - begun


def started(root: Path, loops: int) -> dict[str, Any]:
    usual = {"deadline": 60.0, "work_deadline": 600.0, "rounds": 1000}
    made, apps, said = founded(root, options=usual), set[int](), list[tuple[float, str]]()
    with busy(loops, 3 * MOST), Processes(root / "logs") as processes:
        begun = time.monotonic()
        processes.start("server", [sys.executable, "-c", AS_CHILD, "federation", "server", str(made.server)])
        for folder in made.nodes:
            start_node(folder, processes)
        joined = summed = None
        while summed is None and time.monotonic() < begun + MOST:
            time.sleep(LOOK)
            now, everything = time.monotonic() - begun, descendants(processes.running["server"].pid)
            apps |= {pid for pid in everything if is_called(pid, b"serverapp")}
            lines = processes.log("server").read_text(encoding="utf-8").splitlines()
            said += [(now, line) for line in lines[len(said) :]]
            joined = joined or (now if sum(" joined with " in line for line in lines) == len(made.nodes) else None)
            summed = now if any("degrees: " in line for line in lines) else None
        server = [processes.running["server"].pid, *descendants(processes.running["server"].pid)]
        nodes = [processes.running[folder.name].pid for folder in made.nodes]
        processes.running["server"].terminate()
        ends = {"server": gone(server)}
        for pid in nodes:
            os.kill(pid, 15)
        ends["nodes"] = gone(nodes)
    first = next((at for at, (_, line) in enumerate(said) if " joined with " in line), len(said))
    before = [f"{at:.0f} s: {line.replace(str(root), '')}" for at, line in said[:first]]
    return {"joined": joined, "summed": summed, "apps": len(apps), "said": before, "gone": ends}


def bench(quick: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {"imports": imports()}
    for loops in (0,) if quick else (0, LOOPS):
        with tempfile.TemporaryDirectory() as root:
            found[f"{loops} loops"] = started(Path(root), loops) | {"load": os.getloadavg()[0]}
            print(found, flush=True)
    return found
