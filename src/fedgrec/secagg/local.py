"""One secure sum with all its parties in this process: for the simulator, the tests and the measurements.

The parties are the state machines that a network would drive, and they exchange nothing but bytes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from fedgrec.secagg.client import Client
from fedgrec.secagg.server import Server
from fedgrec.secagg.session import Session, Stage

Vectors = Callable[[int], NDArray[Any]]


@dataclass
class Outcome:
    """An opened sum."""

    values: NDArray[np.signedinteger[Any]]
    users: int
    included: list[int]


class Population:
    """Clients, each with an identity, as a deployment would have enrolled them."""

    def __init__(self, ids: Collection[int]) -> None:
        self.identities = {i: Ed25519PrivateKey.generate() for i in ids}
        self.roster = {i: key.public_key().public_bytes_raw() for i, key in self.identities.items()}


def run_round(
    session: Session,
    vectors: Vectors,
    population: Population,
    lost: Mapping[int, Stage] | None = None,
    context: bytes = b"",
    threads: int = 1,
    together: Sequence[Collection[int]] = (),
) -> Outcome:
    """Run the protocol; a client in `lost` falls silent at that stage. `vectors` is called just before the masking."""
    lost = lost or {}
    server = Server(session, population.roster, context, threads, together)
    clients = {
        me: Client(session, me, identity, population.roster, context, threads)
        for me, identity in population.identities.items()
    }
    inbox: dict[int, bytes | None] = dict.fromkeys(clients)
    while not server.done:
        stage = server.stage
        for me in sorted(inbox):
            message, client = inbox.pop(me), clients[me]
            if lost.get(me) is stage:
                del clients[me]
                continue
            if client.stage is Stage.MASKED:
                client.submit(vectors(me))
            server.receive(me, client.start() if message is None else client.receive(message))
        inbox.update(server.close())
    return Outcome(*server.result(), server.included)
