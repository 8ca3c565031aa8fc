"""A federation over Flower, every party a process on this machine: TLS, node authentication, secure sums.

rounds    seconds and bytes of a training round with 3, 10 and 30 nodes; beside it what the same network takes for an
          empty exchange and for model down, vector up in the clear (`clear`). A secure round may take
              its exchanges × an empty exchange + 1.5 × the clear one
          One empty and one clear exchange over the same nodes follow every training round, so that other load on the
          machine affects all three alike; each figure is the median of the last rounds
flower    Flower's own SecAgg+ on vectors of the same length, with its own SuperNodes
gateway   peak memory of a node that hosts 1,000 users of the demo data
"""

import json
import os
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedgrec.config.configuration import Config
from fedgrec.federation.common.network import CA, FLOWER, NodeNetwork, read_flower_key, read_network
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.flower.processes import Processes, end_with_parent
from fedgrec.federation.node.refresh import Watcher
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.store import ServerStore
from fedgrec.federation.setup.dataset import Deal
from fedgrec.federation.setup.init import Made, init
from fedgrec.federation.setup.start import free_port

NODES, USERS = (3, 10, 30), 20
ROUNDS, TIMED = 26, 6  # the last rounds are timed: they have short words and no latents, like 19 of 20 rounds
EXCHANGES = 4  # of a secure round whose keys were sent with the round before
FACTOR = 1.5
GATEWAY_USERS, GATEWAY_ROUNDS, GATEWAY_LIMIT_MB = 1000, 5, 500.0
FOUND = "bench.json"
DEMO = {"data": "demo"}
START = """
import json, time
from pathlib import Path
import numpy as np
from flwr.serverapp import ServerApp
"""

# Between training rounds: an empty exchange, and one with the model down and a vector up, over the same nodes.
MEASURING = f"""{START}
from fedgrec.federation.server.coordinator import run
from fedgrec.federation.server.store import model_of
from fedgrec.federation.flower.client_app import client_app
from fedgrec.federation.flower.transport import FlowerTransport
from fedgrec.federation.server.members import Observer
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.transport import within

server_app = ServerApp()

class Between(Observer):
    def __init__(self, folder, transport):
        self.folder, self.transport, self.found = folder, transport, {{"empty": [], "clear": []}}

    def summed(self, line):
        if line["stage"] != "train":
            return
        tables = model_of(self.folder).items
        tables = tables + np.float32(line["round"] + 1)  # Flower sends what it has sent before only once
        for name, down in (("empty", {{}}), ("clear", {{"tables": tables}})):
            requests = {{address: Packet("bench", {{}}, {{}}, down) for address in self.transport.signs()}}
            begun = time.monotonic()
            answers = list(self.transport.exchange(requests, within(300)))
            self.found[name].append(time.monotonic() - begun)
            assert len(answers) == len(requests)
        self.found["values"] = int(tables.size)

@server_app.main()
def main(grid, context):
    folder, transport = Path(context.run_config["folder"]), FlowerTransport(grid)
    between = Between(folder, transport)
    run(transport, folder, between)
    (folder / "{FOUND}").write_text(json.dumps(between.found))
"""

# Flower's tutorial for SecAgg+, with a client that does nothing but return a vector.
SECAGG_PLUS = f"""{START}
from flwr.client import ClientApp, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

class Returning(NumPyClient):
    def fit(self, parameters, config):
        return [np.random.default_rng().random(parameters[0].shape, np.float32)], 1, {{}}

client_app = ClientApp(client_fn=lambda context: Returning().to_client(), mods=[secaggplus_mod])
server_app = ServerApp()

@server_app.main()
def main(grid, context):
    about = json.loads((Path(context.run_config["folder"]) / "{FOUND}").read_text())
    while len(list(grid.get_node_ids())) < about["nodes"]:
        time.sleep(0.2)
    start = ndarrays_to_parameters([np.zeros(about["values"], np.float32)])
    everybody = {{"fraction_evaluate": 0.0, "min_fit_clients": about["nodes"], "min_available_clients": about["nodes"]}}
    strategy = FedAvg(initial_parameters=start, **everybody)
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=1), strategy=strategy)
    workflow = DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.67))
    begun = time.monotonic()
    workflow(grid, legacy)
    seconds = time.monotonic() - begun
    (Path(context.run_config["folder"]) / "{FOUND}").write_text(json.dumps({{**about, "seconds": seconds}}))
"""


def node(folder: Path) -> None:
    """A node that also answers the benchmark's requests: with nothing, or with a vector as long as the tables."""
    from flwr.app import Message, RecordDict

    from fedgrec.federation.common.packets import Packet
    from fedgrec.federation.flower.client_app import answer
    from fedgrec.federation.flower.node_end import serve
    from fedgrec.federation.flower.records import from_records, to_records
    from fedgrec.federation.node.gateway import NodeProcess

    def reply(process: NodeProcess, message: Message) -> RecordDict:
        packet = from_records(message.content)
        if packet.kind != "bench":
            return answer(process, message)
        # Each node's vector differs, as real uploads do: Flower would not send equal data twice.
        own = np.uint32(zlib.crc32(process.folder.name.encode()))
        vectors = {name: table.view("uint32") ^ own for name, table in packet.arrays.items()}
        return to_records(Packet("bench", arrays=vectors))

    Watcher(folder).load()
    end_with_parent()
    serve(folder, read_network(folder, NodeNetwork).superlink, folder / CA, read_flower_key(folder), reply)


@contextmanager
def federation(
    root: Path,
    nodes: int,
    share: Callable[[Deal, int], list[int]],
    rounds: int,
    run: Mapping[str, str] = DEMO,
    **options: float,
) -> Iterator[Made]:
    """A run's data on this many nodes; `share` says which users a node gets."""

    class Shared(Deal):
        def users_of(self, index: int) -> list[int]:
            return share(self, index)

    config = Config().changed(run, "benchmark")
    deal = Shared.of(config, nodes)
    wanted = {"rounds": rounds, "evaluate_every": 0, "deadline": 300.0, "work_deadline": 600.0, "start_seconds": 600.0}
    wanted |= options
    yield init(
        root / f"fed-{nodes}",
        nodes,
        deal.catalogue,
        config,
        FederationOptions(**wanted),
        "127.0.0.1",
        free_port(),
        deal.write,
        most_users=[len(share(deal, node)) for node in range(nodes)],
    )


def drive(made: Made, app: str, start: Callable[[Processes, Path], None], seconds: float = 3600) -> dict[str, float]:
    """Run an app to its end; returns the nodes' peak memory in MB."""
    from fedgrec.federation.flower.server_end import APP, FlowerServer

    with Processes(made.server.parent / "logs") as processes:
        server = FlowerServer(made.server, processes, {**APP, "fedgrec_app/apps.py": app})
        try:
            server.start()
            for folder in made.nodes:
                start(processes, folder)
            end = time.monotonic() + seconds
            while (ended := server.ended()) is None:
                if time.monotonic() > end:
                    raise TimeoutError(f"no end after {seconds:.0f} s: see {processes.logs}")
                time.sleep(0.5)
            assert not ended, f"{ended}: see {processes.logs}"
            return {name: peak_mb(process.pid) for name, process in processes.running.items()}
        finally:
            server.close()


def peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def ours(processes: Processes, folder: Path) -> None:
    processes.start(folder.name, [sys.executable, "-m", "benchmarks.federation", str(folder)])


def stock(processes: Processes, folder: Path) -> None:
    beside = Path(sys.executable).parent
    words = [str(beside / "flower-supernode"), "--root-certificates", str(folder / CA), "--port", str(free_port())]
    words += ["--superlink", read_network(folder, NodeNetwork).superlink]
    words += ["--auth-supernode-private-key", str(folder / FLOWER)]
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(folder / "flower")}
    processes.start(folder.name, words, {**quiet, "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}"})


def rounds_with(nodes: int, rounds: int, users: int = USERS) -> dict[str, Any]:
    """A training round with this many nodes, and the exchanges that it is compared with."""

    def share(deal: Deal, index: int) -> list[int]:
        return Deal.users_of(deal, index)[:users]

    with tempfile.TemporaryDirectory() as root, federation(Path(root), nodes, share, rounds) as made:
        memory = drive(made, MEASURING, ours)
        with ServerStore(open_server(made.server)) as store:
            sums = [line for line in store.sums() if line["stage"] == "train" and line["applied"]]
        clear = json.loads((made.server / FOUND).read_text())
    timed = sums[-TIMED:]
    seconds = statistics.median(line["seconds"] for line in timed)
    empty, plain = (statistics.median(clear[name][-TIMED:]) for name in ("empty", "clear"))
    bound = EXCHANGES * empty + FACTOR * plain
    return {
        "values": clear["values"],
        "users": nodes * users,
        "seconds": seconds,
        "empty_exchange_seconds": empty,
        "clear_seconds": plain,
        "bound_seconds": bound,
        "within": seconds <= bound,
        "bytes_up_a_node": timed[-1]["bytes_up"] / nodes,
        "bytes_down_a_node": timed[-1]["bytes_down"] / nodes,
        "node_peak_mb": max(peak for name, peak in memory.items() if name.startswith("node-")),
        "superlink_peak_mb": memory["superlink"],
    }


def secagg_plus(nodes: int, values: int) -> dict[str, Any]:
    """One round of Flower's SecAgg+ on this many vectors."""
    with tempfile.TemporaryDirectory() as root, federation(Path(root), nodes, lambda deal, i: [i], 1) as made:
        (made.server / FOUND).write_text(json.dumps({"nodes": nodes, "values": values}))
        drive(made, SECAGG_PLUS, stock)
        found: dict[str, Any] = json.loads((made.server / FOUND).read_text())
    return found


def gateway(users: int, rounds: int) -> dict[str, Any]:
    """One node with this many users, and two nodes with the rest."""

    def share(deal: Deal, index: int) -> list[int]:
        everybody = [u for u in range(deal.train.n_users) if len(deal.train.of(u))]
        rest = everybody[users:]
        return everybody[:users] if index == 0 else rest[index - 1 :: 2][:users]

    with tempfile.TemporaryDirectory() as root, federation(Path(root), 3, share, rounds) as made:
        memory = drive(made, MEASURING, ours)
        with ServerStore(open_server(made.server)) as store:
            (recall,) = [line["recall@20"] for line in store.metrics()]
            seconds = [line["seconds"] for line in store.sums() if line["stage"] == "train"]
    peak = memory["node-0"]
    return {
        "users": users,
        "rounds": rounds,
        "round_seconds": statistics.median(seconds),
        "recall@20": recall,
        "peak_mb": peak,
        "limit_mb": GATEWAY_LIMIT_MB,
        "within": peak < GATEWAY_LIMIT_MB,
    }


def bench(quick: bool = False) -> dict[str, Any]:
    """All measurements, one federation after the other."""
    result: dict[str, Any] = {"rounds": {}, "gateway": {}, "flower": {}}
    for n in (3,) if quick else NODES:
        result["rounds"][n] = _said(f"{n} nodes", rounds_with(n, 2 if quick else ROUNDS, 4 if quick else USERS))
    result["gateway"] = _said("gateway", gateway(50 if quick else GATEWAY_USERS, 1 if quick else GATEWAY_ROUNDS))
    values = 10_000 if quick else result["rounds"][3]["values"]
    result["flower"][3] = _said("Flower's SecAgg+, 3 nodes", secagg_plus(3, values))
    return result


def _said(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Print a result at once: minutes pass before the next."""
    print(f"{name}: {found}", flush=True)
    return found


if __name__ == "__main__":
    node(Path(sys.argv[1]))
