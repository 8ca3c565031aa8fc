"""Secure sums that tests can stop between any two messages, and a search for secrets that leave a client."""

import copy
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedgrec.secagg import Client, Population, Server, Session, Stage, ring, shamir
from fedgrec.secagg.messages import Keys, Reveal, parse

VALUES = 9
GRAPHS: dict[str, dict[str, Any]] = {
    "complete": {"n": 5, "threshold": 3},
    "sparse": {"n": 8, "threshold": 3, "neighbours": 4},
}
STRANGER = 77  # nobody knows it

population = cache(lambda n: Population(range(n)))  # identities outlive rounds


def session(n: int, values: int, threshold: int, bits: int = 32, **more: Any) -> Session:
    """A session for n clients; by default with a complete graph and words of one size."""
    usual = {"round_id": os.urandom(16), "rings": ((values, bits),), "neighbours": n, "users": n}
    return Session(**usual | more, threshold=threshold)


def random_vectors(n: int, values: int, bits: int = 32, seed: int = 0) -> dict[int, NDArray[Any]]:
    """Integers from the whole ring, so that sums wrap."""
    return vectors_for(n, ((values, bits),), seed)


def vectors_for(n: int, rings: ring.Rings, seed: int = 0) -> dict[int, NDArray[Any]]:
    """The same for any parts; the first two integers of a part are the ends of its ring."""
    rng = np.random.default_rng(seed)

    def part(values: int, bits: int) -> NDArray[np.int64]:
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        numbers = rng.integers(low, high, values, endpoint=True)
        if rng.random() < 0.5:
            numbers[:2] = [low, high][:values]
        return numbers

    return {me: np.concatenate([part(*ring) for ring in rings]) for me in range(n)}


def in_ring(numbers: NDArray[Any], rings: ring.Rings) -> NDArray[np.int64]:
    """Integers modulo 2ᵇ, as the signed integers nearest to zero, in Python's own arithmetic."""
    bits = [bits for values, bits in rings for _ in range(values)]
    whole = zip(numbers.tolist(), bits, strict=True)
    return np.array([(number + 2 ** (b - 1)) % 2**b - 2 ** (b - 1) for number, b in whole])


class Round:
    """All parties of one secure sum. `inbox` is what the server sent last; `sent` is all that a client ever sent."""

    def __init__(
        self,
        session: Session,
        vectors: Mapping[int, NDArray[Any]],
        users: Mapping[int, int] | None = None,
        contexts: Mapping[int, bytes] | None = None,
        threads: int = 1,
        together: Sequence[Collection[int]] = (),
    ) -> None:
        people, contexts, users = population(len(vectors)), contexts or {}, users or dict.fromkeys(vectors, 1)
        self.session, self.vectors = session, vectors
        self.server = Server(session, people.roster, threads=threads, together=together)
        self.clients = {
            me: Client(session, me, people.identities[me], people.roster, contexts.get(me, b""), threads)
            for me in vectors
        }
        for me, client in self.clients.items():
            client.submit(vectors[me], users[me])
        self.secrets = {me: client._mine() for me, client in self.clients.items()}  # clients will forget them
        self.held: dict[int, dict[int, tuple[int, int]]] = {me: {} for me in vectors}  # likewise
        self.sent: dict[int, list[bytes]] = {me: [] for me in vectors}
        self.inbox: dict[int, bytes | None] = dict.fromkeys(vectors)

    def give(self, me: int, message: bytes | None) -> bytes:
        """What this client answers to this message; to None, its first message."""
        client = self.clients[me]
        answer = client.start() if message is None else client.receive(message)
        self.sent[me].append(answer)
        self.held[me] |= client._held
        return answer

    def step(self, silent: Collection[int] = ()) -> None:
        """One stage: all but the silent answer, and the server closes it."""
        for me, message in self.inbox.items():
            if me not in silent:
                self.server.receive(me, self.give(me, message))
        self.inbox = dict(self.server.close())

    def until(self, stage: Stage) -> Self:
        """Play until the clients are due to answer in this stage."""
        while self.server.stage is not stage:
            self.step()
        return self

    def play(self, lost: Mapping[int, Stage] | None = None) -> Self:
        """Play to the end; clients in `lost` fall silent at their stage."""
        while not self.server.done:
            self.step([me for me, stage in (lost or {}).items() if stage is self.server.stage])
        return self

    def plain_sum(self, included: Collection[int]) -> NDArray[Any]:
        """The right sum: plain addition in the ring, read as signed integers."""
        total = np.zeros(self.session.values, object)
        for me in included:
            total += self.vectors[me].astype(object)
        return in_ring(total, self.session.rings)


def fresh_round(graph: str, **more: Any) -> Round:
    """A round that has not begun, on one of the graphs."""
    parameters = GRAPHS[graph] | more
    return Round(session(values=VALUES, **parameters), random_vectors(parameters["n"], VALUES))


def flip(data: bytes, bit: int = 0) -> bytes:
    at = bit // 8
    return data[:at] + bytes([data[at] ^ 1 << bit % 8]) + data[at + 1 :]


def twin(client: Client) -> Client:
    """A copy that a test may spoil."""
    other = copy.copy(client)
    other._keys, other._held = dict(client._keys), dict(client._held)
    other._words = None if client._words is None else [part.copy() for part in client._words]
    return other


def leaks(run: Round, me: int) -> list[str]:
    """Secrets of this client, or secrets that it holds shares of, that can be read in all that it has sent."""
    sent, secrets, found = b"".join(run.sent[me]), run.secrets[me], []
    own = {
        "seed": secrets.seed,
        "mask key": secrets.mask_key.private_bytes_raw(),
        "cipher key": secrets.cipher_key.private_bytes_raw(),
    }
    found += [name for name, secret in own.items() if secret in sent or secret[::-1] in sent]
    plain = b"".join(part.tobytes() for part in ring.encode(run.vectors[me], 1, run.session.rings)[:-1])
    if any(plain[at : at + 8] in sent for at in range(len(plain) - 7)):
        found.append("vector")
    given = [shares for other, held in run.held.items() if other != me for owner, shares in held.items() if owner == me]
    if any(share.to_bytes(shamir.SHARE_BYTES, "big") in sent for shares in given for share in shares):
        found.append("shares for others")
    for owner, shares in run.held[me].items():
        if sum(share.to_bytes(shamir.SHARE_BYTES, "big") in sent for share in shares) == 2:
            found.append(f"both secrets of client {owner}")
    if sum(isinstance(parse(message), Reveal) for message in run.sent[me]) > 1:
        found.append("shares, twice")
    return found


def remembers(run: Round, me: int) -> bool:
    """Whether this client still has a secret."""
    client = run.clients[me]
    return client._secrets is not None or client._words is not None or bool(client._held)


def keys_of_another_round(run: Round, keys: Keys) -> Keys:
    other = replace(run.session, round_id=os.urandom(16))
    earlier = parse(Round(other, run.vectors).give(keys.sender, None))
    assert isinstance(earlier, Keys)
    return replace(earlier, round_id=run.session.round_id)


def keys_for_other_parameters(run: Round, keys: Keys) -> Keys:
    other = replace(run.session, threshold=run.session.threshold + 1)
    found = parse(Round(other, run.vectors).give(keys.sender, None))
    assert isinstance(found, Keys)
    return found
