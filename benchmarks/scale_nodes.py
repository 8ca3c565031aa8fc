"""What a node more costs a federation over Flower: processor seconds of a round, of each party, and memory.

processes   3, 10 and 30 nodes of 50 users of the demo with defaults, each node a process of its own
threads     the same 30, and 100 nodes, as light stand-ins: a few processes hold them all, with a thread for each. Each
            has its own folder, keys, connections and secure sums, so the server has the same work

Processor seconds are those of all of a party's processes and threads. Other load on the machine alters them less than
the time that a round takes.

`python -m benchmarks.scale_nodes` draws docs/nodes.png from the kept result.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS
from benchmarks.drawing import BLUE, GREEN, GREY, INK, RED, new_figure, png, set_frame
from benchmarks.federation import federation
from fedgrec.federation.common.network import CA, NodeNetwork, read_flower_key, read_network
from fedgrec.federation.flower.processes import Processes, end_with_parent
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.store import ServerStore
from fedgrec.federation.setup.dataset import Deal
from fedgrec.federation.setup.start import start_node

USERS, ROUNDS, WARM = 50, 12, 4  # users of a node; training rounds; those at the start, which are not counted
NODES, LIGHT, TOGETHER = (3, 10, 30), (100,), 25  # nodes of a process that holds light ones
IDLE = 3.0  # seconds after the last node has joined, in which the SuperLink rests
LIMITS = {"seconds": 8.0, "superlink_mb_a_node": 5.0}  # of 30 nodes
PARTIES = ("superlink", "app", "nodes")
PICTURE = RESULTS.parents[1] / "docs" / "nodes.png"
PIDS, FOUND = "bench-pids.json", "bench-rounds.json"
TICKS = os.sysconf("SC_CLK_TCK")
APP = f"""
import json, os, time
from pathlib import Path
from flwr.serverapp import ServerApp
from benchmarks.scale_nodes import Looks
from fedgrec.federation.flower.transport import FlowerTransport
from fedgrec.federation.server.coordinator import run

server_app = ServerApp()

@server_app.main()
def main(grid, context):
    folder = Path(context.run_config["folder"])
    looks = Looks(folder)
    run(FlowerTransport(grid), folder, looks)
    (folder / "{FOUND}").write_text(json.dumps(looks.found))
"""


def cpu(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mb(pid: int, name: str = "VmRSS") -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


class Looks:
    """An observer in the server's app: what each party has used by the end of each sum."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.found = folder, list[dict[str, Any]]()

    def joined(self, name: str, users: int) -> None: ...
    def evaluated(self, line: dict[str, Any]) -> None: ...

    def noticed(self, sentence: str) -> None:
        print(sentence, flush=True)

    def summed(self, line: dict[str, Any]) -> None:
        pids = json.loads((self.folder / PIDS).read_text())
        self.found.append(
            {
                "stage": line["stage"],
                "seconds": line["seconds"],
                "time": time.monotonic(),
                "up": line["bytes_up"],
                "down": line["bytes_down"],
                "superlink": cpu(pids["superlink"]),
                "app": time.process_time(),
                "nodes": sum(cpu(pid) for pid in pids["nodes"]),
                "superlink_mb": memory_mb(pids["superlink"]),
            }
        )


def light(folders: Iterable[Path]) -> None:
    """Nodes in the threads of this process, until it is ended."""
    from fedgrec.federation.flower import node_end
    from fedgrec.federation.flower.client_app import answer
    from fedgrec.federation.node.gateway import NodeProcess
    from fedgrec.federation.node.refresh import Watcher

    def be(folder: Path) -> None:
        superlink, key = read_network(folder, NodeNetwork).superlink, read_flower_key(folder)
        link, process = node_end.Link(folder, superlink, folder / CA, key), NodeProcess(folder)
        while True:
            link.enter()
            node_end._work(link, partial(answer, process), process.work_ahead)

    end_with_parent()
    folders = list(folders)
    for folder in folders:
        Watcher(folder).load()
    threads = [threading.Thread(target=be, args=(folder,), daemon=True) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def start_apart(processes: Processes, folders: list[Path]) -> None:
    for folder in folders:
        start_node(folder, processes)


def start_light(processes: Processes, folders: list[Path]) -> None:
    for at in range(0, len(folders), TOGETHER):
        words = [sys.executable, "-m", "benchmarks.scale_nodes", *map(str, folders[at : at + TOGETHER])]
        processes.start(f"nodes-{at}", words, {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"})


def measure(
    nodes: int, start: Callable[[Processes, list[Path]], None], rounds: int = ROUNDS, users: int = USERS
) -> dict[str, Any]:
    """Rounds over this many nodes, each with this many users of the demo."""
    from fedgrec.federation.flower.server_end import APP as USUAL
    from fedgrec.federation.flower.server_end import SUPERLINK, FlowerServer

    def share(deal: Deal, index: int) -> list[int]:
        return Deal.users_of(deal, index)[:users]

    with (
        tempfile.TemporaryDirectory() as root,
        federation(Path(root), nodes, share, rounds) as made,
        Processes(made.server.parent / "logs") as processes,
    ):
        server = FlowerServer(made.server, processes, {**USUAL, "fedgrec_app/apps.py": APP})
        try:
            server.start()
            superlink = processes.running[SUPERLINK].pid
            time.sleep(IDLE)
            idle = memory_mb(superlink)
            start(processes, made.nodes)
            pids = [process.pid for name, process in processes.running.items() if name != SUPERLINK]
            (made.server / PIDS).write_text(json.dumps({"superlink": superlink, "nodes": pids}))
            while (ended := server.ended()) is None:
                time.sleep(0.5)
            assert not ended, f"{ended}: see {processes.logs}"
            peak, of_nodes = memory_mb(superlink, "VmHWM"), sum(memory_mb(pid, "VmHWM") for pid in pids)
        finally:
            server.close()
        with ServerStore(open_server(made.server)) as store:
            people = sum(users for _, _, users in store.nodes())
            lost = [line["reason"] for line in store.sums() if not line["applied"]]
        found = json.loads((made.server / FOUND).read_text())
    trained = [(a, b) for a, b in pairwise(found) if b["stage"] == "train"][WARM:]

    def each(key: str) -> float:
        return statistics.median(b[key] - a[key] for a, b in trained)

    return {
        "nodes": nodes,
        "users": people,
        "rounds": len(trained),
        "lost": lost,
        "seconds": statistics.median(b["seconds"] for _, b in trained),
        "cpu_seconds": {party: each(party) for party in PARTIES},
        "cpu_seconds_in_all": statistics.median(sum(b[p] - a[p] for p in PARTIES) for a, b in trained),
        "bytes_up_a_node": statistics.median(b["up"] for _, b in trained) / nodes,
        "bytes_down_a_node": statistics.median(b["down"] for _, b in trained) / nodes,
        "superlink_idle_mb": idle,
        "superlink_last_mb": found[-1]["superlink_mb"],
        "superlink_peak_mb": peak,
        "superlink_mb_a_node": (peak - idle) / nodes,
        "nodes_peak_mb": of_nodes,
    }


def bench(quick: bool = False) -> dict[str, Any]:
    """All federations, one after the other."""
    result: dict[str, Any] = {"users_a_node": 4 if quick else USERS, "limits": LIMITS}
    for how, start, sizes in (("processes", start_apart, NODES), ("threads", start_light, LIGHT)):
        result[how] = {}
        for nodes in (3,) if quick else sizes:
            result[how][nodes] = measure(nodes, start, WARM + 1 if quick else ROUNDS, result["users_a_node"])
            print(f"{nodes} nodes, {how}: {result[how][nodes]}", flush=True)
    return result


def summary(result: dict[str, Any]) -> list[str]:
    lines = [
        f"{'nodes':>12}{'round s':>10}{'CPU s':>10}{'SuperLink':>11}{'app':>8}{'nodes':>8}{'MB a node':>11}{'lost':>6}"
    ]
    for how in ("processes", "threads"):
        for nodes, m in result[how].items():
            cpu_ = "".join(
                f"{m['cpu_seconds'][party]:>{width}.2f}" for party, width in zip(PARTIES, (11, 8, 8), strict=True)
            )
            lines.append(
                f"{nodes:>5} {how[:6]}{m['seconds']:>10.1f}{m['cpu_seconds_in_all']:>10.1f}{cpu_}"
                f"{m['superlink_mb_a_node']:>11.1f}{len(m['lost']):>6}"
            )
    limits = result["limits"]
    return [*lines, f"asked of 30 nodes: {limits['seconds']:.0f} s, {limits['superlink_mb_a_node']:.0f} MB a node"]


def draw(result: dict[str, Any]) -> bytes:
    """Processor seconds of a round, and the SuperLink's memory, over the number of nodes."""
    figure = new_figure(8.4, 3.4)
    costs, memory = figure.subplots(1, 2)
    found = {int(nodes): m for how in ("threads", "processes") for nodes, m in result[how].items()}
    sizes = sorted(found)
    for party, name, colour in zip(
        PARTIES, ("SuperLink", "the server's app", "all nodes"), (BLUE, RED, GREEN), strict=True
    ):
        costs.plot(sizes, [found[n]["cpu_seconds"][party] for n in sizes], "o-", color=colour, label=name)
    memory.plot(sizes, [found[n]["superlink_peak_mb"] for n in sizes], "o-", color=BLUE, label="SuperLink")
    allowed = [found[n]["superlink_idle_mb"] + result["limits"]["superlink_mb_a_node"] * n for n in sizes]
    memory.plot(sizes, allowed, "--", color=GREY, label="idle, and 5 MB a node")
    set_frame(costs, "Processor seconds of a round", "nodes")
    set_frame(memory, "The SuperLink's memory, MB", "nodes")
    for axes in (costs, memory):
        axes.set_ylim(bottom=0)
        axes.set_xticks(sizes)
        axes.legend(frameon=False, fontsize=9, labelcolor=INK)
    return png(figure)


if __name__ == "__main__":
    if folders := sys.argv[1:]:
        light(map(Path, folders))
    else:
        PICTURE.write_bytes(draw(json.loads((RESULTS / "scale_nodes.json").read_text())["result"]))
