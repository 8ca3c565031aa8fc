"""Small federations over real processes on loopback: TLS, node authentication, secure sums."""

import csv
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgrec.federation.common.options import Agreement, FederationOptions
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.flower.processes import Processes
from fedgrec.federation.flower.server_end import APP, FlowerServer
from fedgrec.federation.setup.init import Made, init
from fedgrec.federation.setup.start import free_port, start_node
from tests.federation.local_transport import LocalTransport
from tests.federation.worlds import N_ITEMS, OPEN_HEARTED, World, config, people
from tests.waits import seconds, slowness

# The app of a run, and a tap on the server's end of the cable: it records all that the server received and, without
# blobs and arrays, sent. The file `death` says where kill -9 ends it: a sum's stage and round, the exchange, and how
# many answers to it have come.
TAPPED = """
import json
import os
import signal
import sqlite3
from pathlib import Path

import numpy as np
from flwr.serverapp import ServerApp

from fedgrec.federation.server.coordinator import run
from fedgrec.federation.flower.client_app import client_app
from fedgrec.federation.flower.transport import FlowerTransport
from fedgrec.federation.flower.processes import end_with_starter
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.server.log import Lines, writing


class Tapped(FlowerTransport):
    def __init__(self, grid, folder):
        super().__init__(grid)
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.number = len(list(folder.iterdir()))

    def write(self, address, packet, way):
        self.number += 1
        about = {"address": address, "kind": packet.kind, "header": packet.header, "blobs": list(packet.blobs)}
        about["life"] = os.getpid()
        parts = {f"blob.{name}": np.frombuffer(blob, np.uint8) for name, blob in packet.blobs.items()}
        parts |= {f"array.{name}": array for name, array in packet.arrays.items()}
        part = self.folder / f"part-{self.number}.npz"
        np.savez(part, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **parts)
        part.rename(self.folder / f"{self.number:05}-{way}-{packet.kind}-{address}.npz")

    def exchange(self, requests, left):
        kind = {request.kind for request in requests.values()}
        self.die_if_told(kind, 0)
        for address, request in requests.items():
            self.write(address, Packet(request.kind, request.header), "down")
        for heard, (address, packet) in enumerate(super().exchange(requests, left), 1):
            self.write(address, packet, "up")
            self.die_if_told(kind, heard)
            yield address, packet

    def die_if_told(self, kinds, heard):
        death = self.folder.parent / "death"
        if not death.exists():
            return
        stage, round_, kind, answers = json.loads(death.read_text())
        db = sqlite3.connect(self.folder.parent / "server.sqlite")
        now = db.execute("SELECT stage, round FROM sums ORDER BY number DESC").fetchone() or ("", 0)
        db.close()
        if (*now, kinds, heard) == (stage, round_, {kind}, answers):
            death.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


server_app = ServerApp()


@server_app.main()
def main(grid, context):
    end_with_starter()
    folder = Path(context.run_config["folder"])
    with writing(folder) as say:
        run(Tapped(grid, folder / "tap"), folder, Lines(say))
"""
TAPPED_APP = {**APP, "fedgrec_app/apps.py": TAPPED}

# Nodes that keep a record beside the federation: what each, and each user alone, was about to mask; and the sizes of
# all parts that it hands to Flower for each answer.
RECORDED = """
import json
from pathlib import Path

import numpy as np
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedgrec.federation.flower import client_app, node_end
from fedgrec.federation.node import node

compute_upload, record = node.compute_upload, Path(sys.argv[1]).parents[1] / "record"
record.mkdir(exist_ok=True)

def recorded(store, method, sum_, rows, broadcast, *more):
    result = compute_upload(store, method, sum_, rows, broadcast, *more)
    alone = [compute_upload(store, method, sum_, [row], broadcast, 1)[0] for row in rows]
    np.save(record / ("~".join(map(str, [*sum_.place, Path(folder).name])) + ".npy"), np.stack([result[0], *alone]))
    return result

def sized(process, message):
    content = client_app.answer(process, message)
    parts = sorted(len(part.deflate()) for part in get_all_nested_objects(content).values())
    with (record / f"{Path(folder).name}.sizes").open("a") as file:
        file.write(json.dumps([content["packet"]["kind"], parts]) + "\\n")
    return content

node.compute_upload = recorded
node_end.serve.__defaults__ = (sized,)
"""
# One process imports all that they need, and forks for each further node.
BEGIN = "import os, sys\n"
START = """
from fedgrec.cli import main

for folder in sys.argv[1:]:
    if folder == sys.argv[-1]:
        break
    if not os.fork():
        os.environ["FEDGREC_PARENT"] = str(os.getppid())
        break
sys.argv = ["fedgrec", "federation", "node", folder]
sys.exit(main())
"""


def founded(
    root: Path,
    method: str = "fedgrec",
    users: int = 20,
    options: Any = None,
    crowd: Any = None,
    per_user_masks: bool = False,
    **more: Any,
) -> Made:
    """A federation that has not begun: three nodes with the people of the in-process worlds, or with this crowd."""
    quick = {
        "rounds": 2,
        "evaluate_every": 0,
        "pause": 0.2,
        "deadline": 15.0 * slowness(),
        "work_deadline": 15.0 * slowness(),
    }
    crowd = crowd or people(3, users)

    def fill(folder: Path, index: int) -> str:
        with (folder / "people.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["user", "item", "held_out"])
            for person in crowd[index]:
                for held, items in ((0, person.items), (1, person.held_out)):
                    table.writerows([person.id, f"item {item}", held] for item in items)
        return "people.csv"

    agreed, given = OPEN_HEARTED, dict(options or {})
    agreed = agreed | {name: given.pop(name) for name in agreed if name in given}
    wanted = FederationOptions(**quick | given)
    catalogue = [f"item {item}" for item in range(N_ITEMS)]
    keys = [len(members) for members in crowd] if per_user_masks else []
    return init(
        root / "fed",
        len(crowd),
        catalogue,
        config(method, **more),
        wanted,
        port=free_port(),
        fill=fill,
        per_user_masks=keys,
        agreed=Agreement(**agreed),
    )


def as_world(made: Made) -> World:
    folders = dict(enumerate(made.nodes))
    return World(made.server, folders, LocalTransport(folders))


@contextmanager
def running(made: Made, app: dict[str, str] = TAPPED_APP, nodes: str = "") -> Iterator[tuple[FlowerServer, Processes]]:
    """Server and nodes as processes, which end with the block; `nodes` is code that all nodes run first."""
    with Processes(made.server.parent / "logs") as processes:
        server = FlowerServer(made.server, processes, app)
        try:
            server.start()
            if nodes:
                processes.start("nodes", [sys.executable, "-c", BEGIN + nodes + START, *map(str, made.nodes)])
            for node in [] if nodes else made.nodes:
                start_node(node, processes)
            yield server, processes
        finally:
            server.close()


def until(happened: Callable[[], Any], idle: float, why: str) -> Any:
    """Wait for something that takes less than so many seconds on an idle machine."""
    end = time.monotonic() + (wait := seconds(idle))
    while time.monotonic() < end:
        if (found := happened()) not in (None, False):
            return found
        time.sleep(0.02)
    raise AssertionError(f"{why} within {wait:.0f} s")


def ended(server: FlowerServer, idle: float = 120) -> str:
    """How the run ended."""
    return str(until(server.ended, idle, "the run does not end"))


def progress(made: Made) -> str:
    """What the server has said so far."""
    log = made.server / "logs" / "server.log"
    return log.read_text() if log.exists() else ""


class Seen(NamedTuple):
    """A packet at the server's end of the cable."""

    way: str  # "up" or "down"
    life: int  # of the server
    address: int
    packet: Packet


def tap(made: Made) -> list[Seen]:
    """All that the server sent (without blobs and arrays) and received, in order."""
    found = []
    for path in sorted((made.server / "tap").glob("*-*-*.npz")):
        with np.load(path) as parts:
            about = json.loads(parts["about"].tobytes())
            blobs = {name: parts[f"blob.{name}"].tobytes() for name in about["blobs"]}
            arrays = {name.removeprefix("array."): parts[name] for name in parts if name.startswith("array.")}
        packet = Packet(about["kind"], about["header"], blobs, arrays)
        found.append(Seen(path.name.split("-")[1], about["life"], about["address"], packet))
    return found


def tapped(made: Made) -> list[tuple[int, Packet]]:
    """All that the server received, in order."""
    return [(seen.address, seen.packet) for seen in tap(made) if seen.way == "up"]


def clear_uploads(made: Made) -> dict[tuple[str, int, int, str, str], np.ndarray]:
    """What recorded nodes were about to mask: stage, level, round, node, and "all" or which of its users."""
    found = {}
    for path in sorted((made.server.parents[1] / "record").glob("*.npy")):
        stage, level, round_, node = path.stem.split("~")
        for place, words in enumerate(np.load(path)):
            found[stage, int(level), int(round_), node, str(place) if place else "all"] = words
    return found
