"""A transport that calls the nodes in this process, and `Meddler`s that break it as networks break.

A `Meddler` stands between server and node. It gets the address, the request and the node itself, and returns what the
server hears: nothing, one answer, or more.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.transport import Left, Sign
from fedgrec.federation.node.gateway import handle

Answer = Callable[[Packet], Packet]
Meddler = Callable[[int, Packet, Answer], Iterable[Packet]]


def honest(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
    """What a network does when nothing goes wrong."""
    return [node(request)]


def silent(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
    """The request never arrives, or the node is killed before it has done anything."""
    return []


def killed_after_writing(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
    """The node has written down its step and is killed before it answers."""
    node(request)
    return []


def answers_twice(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
    """The network delivers an answer twice."""
    answer = node(request)
    return [answer, answer]


def asked_twice(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
    """The network delivers a request twice; both answers come back."""
    return [node(request), node(request)]


def truncated(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
    """Half of the answer gets lost."""
    answer = node(request)
    blobs = {name: blob[: len(blob) // 2] for name, blob in answer.blobs.items()}
    arrays = {name: array[: len(array) // 2] for name, array in answer.arrays.items()}
    return [replace(answer, blobs=blobs, arrays=arrays)]


def on(kind: str, address: int, meddler: Meddler, times: int = 1, after: int = 0) -> Meddler:
    """Meddle with this node in this kind of exchange, `times` times, after the first `after` ones."""
    seen = [0]

    def meddle(at: int, request: Packet, node: Answer) -> Iterable[Packet]:
        if at == address and request.kind == kind:
            seen[0] += 1
            if after < seen[0] <= after + times:
                return meddler(at, request, node)
        return honest(at, request, node)

    return meddle


@dataclass
class LocalTransport:
    """Calls the nodes in these folders, one after the other. `received` is all that the server ever got."""

    folders: Mapping[int, Path]  # by address
    meddler: Meddler = honest
    away: set[int] = field(default_factory=set)
    received: list[tuple[int, Packet]] = field(default_factory=list)
    looks: int = 0  # at signs of life

    def addresses(self) -> Sequence[int]:
        return sorted(set(self.folders) - self.away)

    def signs(self) -> Mapping[int, Sign]:
        """A node in this process lives as long as the process."""
        self.looks += 1
        return dict.fromkeys(self.addresses(), Sign(last=self.looks))

    def exchange(self, requests: Mapping[int, Packet], left: Left) -> Iterator[tuple[int, Packet]]:
        for address, request in requests.items():
            if address in self.away:
                continue
            node = partial(_through_the_cable, partial(handle, self.folders[address]))
            for answer in self.meddler(address, request, node):
                self.received.append((address, answer))
                yield address, answer


def _through_the_cable(node: Answer, request: Packet) -> Packet:
    return _copied(node(_copied(request)))


def _copied(packet: Packet) -> Packet:
    """What a network would deliver: the same bytes, in other memory."""
    header: dict[str, Any] = json.loads(json.dumps(packet.header))
    arrays = {name: np.array(array) for name, array in packet.arrays.items()}
    blobs = {name: bytes(blob) for name, blob in packet.blobs.items()}
    return Packet(packet.kind, header, blobs, arrays, packet.protocol)
