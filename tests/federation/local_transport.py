"""A transport that calls the nodes in this process. A `Meddler` may stand between server and node, as networks do.

It gets the address, the request and the node itself, and returns what the server hears: nothing, one answer, or more.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.transport import Left, Sign
from fedgrec.federation.node.current_sum import Sums
from fedgrec.federation.node.gateway import NodeProcess

Answer = Callable[[Packet], Packet]
Meddler = Callable[[int, Packet, Answer], Iterable[Packet]]


def honest(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
    """What a network does when nothing goes wrong."""
    return [node(request)]


@dataclass
class LocalTransport:
    """Calls the nodes in these folders, one after the other. `received` is all that the server ever got."""

    folders: Mapping[int, Path]  # by address
    meddler: Meddler = honest
    away: set[int] = field(default_factory=set)
    received: list[tuple[int, Packet]] = field(default_factory=list)
    looks: int = 0  # at signs of life
    sums: Sums = field(default_factory=dict)  # of all nodes, as long as they are not restarted

    def signs(self) -> Mapping[int, Sign]:
        """A node in this process lives as long as the process."""
        self.looks += 1
        return dict.fromkeys(sorted(self.folders.keys() - self.away), Sign(last=self.looks))

    def exchange(self, requests: Mapping[int, Packet], left: Left) -> Iterator[tuple[int, Packet]]:
        for address, request in requests.items():
            if address in self.away:
                continue
            process = NodeProcess(self.folders[address], self.sums)

            def node(request: Packet, process: NodeProcess = process) -> Packet:
                return _copied(process.handle(_copied(request)))

            for answer in self.meddler(address, request, node):
                self.received.append((address, answer))
                yield address, answer


def _copied(packet: Packet) -> Packet:
    """What a network would deliver: the same bytes, in other memory."""
    header: dict[str, Any] = json.loads(json.dumps(packet.header))
    arrays = {name: np.array(array) for name, array in packet.arrays.items()}
    blobs = {name: bytes(blob) for name, blob in packet.blobs.items()}
    return Packet(packet.kind, header, blobs, arrays, packet.protocol)
