"""Bytes on the wire against the bytes in the server's log: three demo nodes reach the server through a counting relay.

The log has the bytes of the sums. The wire also carries TLS, HTTP and Flower's messages around ours, and small
requests, nearly all from nodes that poll for work, several times a second during a sum. The bytes of small requests
grow with time and not with the model, so the relay counts them apart.
"""

import socket
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.federation import DEMO, drive, federation
from fedgrec.federation.common.network import NodeNetwork, read_network, write_network
from fedgrec.federation.flower.processes import Processes
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.store import ServerStore
from fedgrec.federation.setup.dataset import Deal
from fedgrec.federation.setup.start import start_node

CHUNK, SMALL = 1 << 16, 2000  # bytes


class Relay:
    """Listens on its own port, forwards everything to another, and counts bytes."""

    def __init__(self, port: int) -> None:
        self.to, self.up, self.down, self.small = port, 0, 0, {"up": 0, "down": 0}
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.socket.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self.socket.accept()
            far = socket.create_connection(("127.0.0.1", self.to))
            for ends, way in (((near, far), "up"), ((far, near), "down")):
                threading.Thread(target=self._copy, args=(*ends, way), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, way: str) -> None:
        try:
            while data := source.recv(CHUNK):
                setattr(self, way, getattr(self, way) + len(data))
                self.small[way] += len(data) if len(data) < SMALL else 0
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:  # either side has closed
            source.close()
            target.close()


def measure(rounds: int = 60, nodes: int = 3, run: Mapping[str, str] = DEMO) -> dict[str, Any]:
    """Whole runs of a federation, from the first hello to the last model."""
    from fedgrec.federation.flower.server_end import APP

    relay: Relay | None = None

    def start(processes: Processes, folder: Path) -> None:
        nonlocal relay
        network = read_network(folder, NodeNetwork)
        host, _, port = network.superlink.rpartition(":")
        relay = relay or Relay(int(port))
        write_network(folder, replace(network, superlink=f"{host}:{relay.port}"))
        start_node(folder, processes)

    with tempfile.TemporaryDirectory() as root, federation(Path(root), nodes, Deal.users_of, rounds, run) as made:
        drive(made, APP["fedgrec_app/apps.py"], start)
        with ServerStore(open_server(made.server)) as store:
            cost = store.cost()
    assert relay is not None
    account = {"up": cost.up, "down": cost.down}
    wire = {"up": relay.up, "down": relay.down}
    return {
        "rounds": rounds,
        "seconds": cost.seconds,
        "account": account,
        "wire": wire,
        "small": relay.small,
        "over_percent": {way: 100 * ((wire[way] - relay.small[way]) / account[way] - 1) for way in wire},
    }
