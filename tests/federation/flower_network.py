"""Small federations over real processes on loopback: TLS, node authentication, secure sums."""

import csv
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedgrec.federation.flower_server import APP, FlowerServer
from fedgrec.federation.identity import Made, init
from fedgrec.federation.local import LocalTransport
from fedgrec.federation.options import FederationOptions
from fedgrec.federation.processes import Processes
from fedgrec.federation.transport import Packet
from fedgrec.federation.up import free_port, start_node
from tests.federation.worlds import N_ITEMS, World, config, people

# The app of a run, and a tap on the server's end of the cable: all that it sent (its kind) and received (everything).
TAPPED = """
import json
from pathlib import Path

import numpy as np
from flwr.serverapp import ServerApp

from fedgrec.federation.coordinator import run
from fedgrec.federation.flower import FlowerTransport, client_app
from fedgrec.federation.processes import end_with_starter
from fedgrec.federation.transport import Packet
from fedgrec.federation.watching import Lines, writing


class Tapped(FlowerTransport):
    def __init__(self, grid, folder):
        super().__init__(grid)
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.number = len(list(folder.iterdir()))

    def write(self, address, packet, way):
        self.number += 1
        about = {"address": address, "kind": packet.kind, "header": packet.header, "blobs": list(packet.blobs)}
        parts = {f"blob.{name}": np.frombuffer(blob, np.uint8) for name, blob in packet.blobs.items()}
        parts |= {f"array.{name}": array for name, array in packet.arrays.items()}
        part = self.folder / f"part-{self.number}.npz"
        np.savez(part, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **parts)
        part.rename(self.folder / f"{self.number:05}-{way}-{packet.kind}-{address}.npz")

    def exchange(self, requests, seconds):
        for address, request in requests.items():
            self.write(address, Packet(request.kind), "down")
        for address, packet in super().exchange(requests, seconds):
            self.write(address, packet, "up")
            yield address, packet


server_app = ServerApp()


@server_app.main()
def main(grid, context):
    end_with_starter()
    folder = Path(context.run_config["folder"])
    with writing(folder) as say:
        run(Tapped(grid, folder / "tap"), folder, Lines(say))
"""
TAPPED_APP = {**APP, "fedgrec_app/apps.py": TAPPED}


def founded(root: Path, method: str = "fedgrec", users: int = 20, options: Any = None, **more: Any) -> Made:
    """A federation of three nodes that has not begun; the same people as in the in-process worlds."""
    quick = {"rounds": 2, "evaluate_every": 0, "pause": 0.2, "deadline": 15.0, "work_deadline": 15.0, "topk": (5,)}
    crowd = people(3, users)

    def fill(folder: Path, index: int) -> str:
        with (folder / "people.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["user", "item", "held_out"])
            for person in crowd[index]:
                for held, items in ((0, person.items), (1, person.held_out)):
                    table.writerows([person.id, f"item {item}", held] for item in items)
        return "people.csv"

    wanted = FederationOptions(**quick | (options or {}))
    catalogue = [f"item {item}" for item in range(N_ITEMS)]
    return init(root / "fed", 3, catalogue, config(method, **more), wanted, port=free_port(), fill=fill)


def as_world(made: Made) -> World:
    folders = dict(enumerate(made.nodes))
    return World(made.server, folders, LocalTransport(folders))


@contextmanager
def running(made: Made, app: dict[str, str] = TAPPED_APP) -> Iterator[tuple[FlowerServer, Processes]]:
    """Server and nodes as processes; they are gone when the block ends."""
    with Processes(made.server.parent / "logs") as processes:
        server = FlowerServer(made.server, processes, app)
        try:
            server.start()
            for node in made.nodes:
                start_node(node, processes)
            yield server, processes
        finally:
            server.close()


def until(happened: Callable[[], Any], seconds: float, why: str) -> Any:
    """Wait for something, not for ever."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (found := happened()) not in (None, False):
            return found
        time.sleep(0.02)
    raise AssertionError(f"{why} within {seconds} s")


def ended(server: FlowerServer, seconds: float = 120) -> str:
    """How the run ended."""
    return str(until(server.ended, seconds, "the run does not end"))


def tapped(made: Made, way: str = "up") -> list[tuple[int, Packet]]:
    """All that the server received (or the kinds of what it sent), in order."""
    found = []
    for path in sorted((made.server / "tap").glob(f"*-{way}-*.npz")):
        with np.load(path) as parts:
            about = json.loads(parts["about"].tobytes())
            blobs = {name: parts[f"blob.{name}"].tobytes() for name in about["blobs"]}
            arrays = {name.removeprefix("array."): parts[name] for name in parts if name.startswith("array.")}
        found.append((about["address"], Packet(about["kind"], about["header"], blobs, arrays)))
    return found
