"""Servers that lie to the real clients of a secure sum.

The clients are the state machines that a device runs. Only the server is replaced. Each lie gives one person's vector,
or None where clients refuse.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from fedgrec.secagg import Client, Population, SecAggError, Server, Session, Stage, fresh_round_id, ring
from fedgrec.secagg.keys import pair_mask, seed_mask
from fedgrec.secagg.messages import Confirm, Confirmations, Delivery, Masked, Message, Reveal, Survivors
from fedgrec.secagg.prg import Mask, mask_parts

VICTIM, CLIENTS, THRESHOLD = 0, 10, 6
Numbers = NDArray[Any]


def agreed(rings: ring.Rings, users: int = CLIENTS) -> Session:
    """Ten clients insist that all ten take part, and that the server told six of them the same."""
    return Session(fresh_round_id(), rings, users, CLIENTS, THRESHOLD, least=CLIENTS)


def play(server: Server, clients: Mapping[int, Client]) -> None:
    """All stages; a client that refuses is silent from then on, and a server that cannot go on gives up."""
    inbox: dict[int, bytes | None] = dict.fromkeys(clients)
    with suppress(SecAggError):
        while not server.done:
            for me, message in inbox.items():
                with suppress(SecAggError):
                    server.receive(me, clients[me].start() if message is None else clients[me].receive(message))
            inbox = dict(server.close())


def all_clients(
    session: Session, people: Population, vector: Numbers, contexts: Mapping[int, bytes] | None = None
) -> dict[int, Client]:
    """The victim with its vector, and others who send zeros: their sum is the victim's vector."""
    clients = {
        me: Client(session, me, identity, people.roster, (contexts or {}).get(me, b""))
        for me, identity in people.identities.items()
    }
    for me, client in clients.items():
        client.submit(vector if me == VICTIM else np.zeros_like(vector), int(me == VICTIM))
    return clients


# ------------------------------------------------------------------------------------------- four lies


def with_an_accomplice(session: Session, vector: Numbers) -> Numbers | None:
    """The sum has two members: the victim, and one client that works for the server."""
    people = Population([VICTIM, VICTIM + 1])
    server = Uncritical(session, people.roster)
    play(server, all_clients(session, people, vector))
    return opened(server)


def two_models(session: Session, vector: Numbers) -> Numbers | None:
    """The server sends the others a different model, to which their updates are zeros."""
    people = Population(range(CLIENTS))
    contexts = {me: b"the model" if me == VICTIM else b"a model to which zeros are the answer" for me in range(CLIENTS)}
    server = Server(session, people.roster, contexts[VICTIM])
    play(server, all_clients(session, people, vector, contexts))
    return opened(server)


def two_stories(session: Session, vector: Numbers) -> Numbers | None:
    """The server calls each of the victim's masking partners lost, to as many clients as can open its mask key."""
    near = list(range(1, session.threshold))
    lost: dict[int, set[int]] = {me: set() for me in range(CLIENTS)}
    turn = 0
    for peer in near:  # in turns, so that no client hears of more losses than it would believe
        for _ in range(session.threshold):
            turn += turn % (CLIENTS - 1) + 1 == peer
            lost[turn % (CLIENTS - 1) + 1].add(peer)
            turn += 1
    return _with_stories(session, vector, near, lost, again=False)


def asked_again(session: Session, vector: Numbers) -> Numbers | None:
    """Once the sum is open, the server calls the victim lost, to get the victim's second secret too."""
    return _with_stories(session, vector, list(range(1, CLIENTS)), {}, again=True)


def _with_stories(
    session: Session, vector: Numbers, near: list[int], lost: Mapping[int, set[int]], again: bool
) -> Numbers | None:
    people = Population(range(CLIENTS))
    server = Storyteller(session, people.roster, near, lost, again)
    play(server, all_clients(session, people, vector))
    return server.bare()


LIES = (with_an_accomplice, two_models, two_stories, asked_again)


# ------------------------------------------------------------------------------------------ the servers


def opened(server: Server) -> Numbers | None:
    """The sum, where there is one."""
    with suppress(SecAggError):
        return server.result()[0]
    return None


class Uncritical(Server):
    """Goes on with any number of clients."""

    def _close_keys(self) -> dict[int, Message]:
        honest, self.session = self.session, replace(self.session, least=2, threshold=1)
        try:
            return super()._close_keys()
        finally:
            self.session = honest


class Storyteller(Server):
    """Tells each client its own list of lost clients, keeps every share, and removes the victim's masks."""

    def __init__(
        self, session: Session, roster: Mapping[int, bytes], near: list[int], lost: Mapping[int, set[int]], again: bool
    ) -> None:
        super().__init__(session, roster)
        self.near, self.lost, self.again = near, lost, again  # near: the victim's masking partners; lost: by client
        self.masked: ring.Words | None = None
        self.stories: dict[int, Message] = {}

    def _close_shares(self) -> dict[int, Message]:
        messages = super()._close_shares()
        mine = messages[VICTIM]
        assert isinstance(mine, Delivery)
        fewer = {sender: text for sender, text in mine.ciphertexts.items() if sender in self.near}
        return messages | {VICTIM: replace(mine, ciphertexts=fewer)}

    def _take_masked(self, sender: int, message: Masked) -> None:
        if sender == VICTIM:
            self.masked = [part.copy() for part in ring.unpack(message.vector, self.session.parts)]
        super()._take_masked(sender, message)

    def _close_masked(self) -> dict[int, Message]:
        self.stage = Stage.CONFIRM
        for me in self._alive:
            there = {VICTIM, *self.near} if me == VICTIM else self._sharing
            self.stories[me] = self._story(there, self.lost.get(me, set()))
        return self.stories

    def _story(self, there: set[int], lost: set[int]) -> Message:
        return Survivors(self.session.round_id, tuple(sorted(there - lost)), tuple(sorted(lost)))

    def _take_confirm(self, sender: int, message: Confirm) -> None:
        self._confirmed[sender] = message.signature

    def _close_confirm(self) -> dict[int, Message]:
        """Each client gets the signatures of the clients that heard the same list."""
        self.stage, signed = Stage.UNMASK, self._confirmed
        return {
            me: Confirmations(
                self.session.round_id,
                {other: signed[other] for other in signed if other != me and self.stories[other] == self.stories[me]},
            )
            for me in signed
        }

    def _take_reveal(self, sender: int, message: Reveal) -> None:
        for kept, shares in ((self._seeds, message.seeds), (self._mask_keys, message.mask_keys)):
            for owner, share in shares.items():
                kept.setdefault(owner, {})[sender + 1] = share

    def _close_unmask(self) -> dict[int, Message]:
        if not self.again:
            self.stage = Stage.DONE
            return {}
        self.again, self.stage, self._confirmed = False, Stage.CONFIRM, {}
        self.stories = dict.fromkeys(sorted(self._sharing - {VICTIM}), self._story(self._sharing, {VICTIM}))
        return self.stories

    def bare(self) -> Numbers | None:
        """The victim's vector, if the server knows every mask that is on it."""
        seed, pairs = self._rebuilt(self._seeds, VICTIM), [self._pair(peer) for peer in self.near]
        if self.masked is None or seed is None or None in pairs:
            return None
        mask_parts(self.masked, [(seed_mask(seed, self.session, self.bound), -1), *filter(None, pairs)])
        return ring.decode(self.masked, self.session.rings, self.session.users)[0]

    def _pair(self, peer: int) -> Mask | None:
        """What removes the mask between the victim and this peer: one of their two mask keys is enough."""
        for owner, other, sign in ((peer, VICTIM, 1), (VICTIM, peer, -1)):
            key = self._rebuilt(self._mask_keys, owner)
            if key is not None:
                secret, public = X25519PrivateKey.from_private_bytes(key), self._keys[other].mask_key
                mask, own = pair_mask(secret, owner, public, other, self.session, self.bound)
                return mask, sign * own
        return None

    def _rebuilt(self, kept: Mapping[int, Mapping[int, int]], owner: int) -> bytes | None:
        """The secret, if there are enough shares."""
        shares, t = kept.get(owner, {}), self.session.threshold
        return self._secret(shares, t) if len(shares) >= t else None
