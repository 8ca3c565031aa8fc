"""Meddlers that break the network between server and nodes as networks break."""

from collections.abc import Iterable
from dataclasses import replace

from fedgrec.federation.common.packets import Packet
from tests.federation.local_transport import Answer, Meddler, honest


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
