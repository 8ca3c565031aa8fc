"""The server of one secure sum, as a state machine: it takes answers as they come and closes each stage.

    server = Server(session, roster)
    while not server.done:
        ... server.receive(sender, bytes) for each answer, as long as the stage may last
        messages = server.close()            # {client: bytes}: the next message for each client that is still there
    values, users = server.result()

Vectors are added up as they arrive, so memory does not grow with the number of clients. A message that is refused
changes nothing: its sender counts as silent until it answers properly. A client that is silent when a stage closes is
lost; the sum goes on without it as long as the threshold allows.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from fedgrec.secagg import ring, shamir
from fedgrec.secagg.errors import (
    BadLists,
    BadShare,
    MalformedMessage,
    SecondAnswer,
    TooFewLeft,
    UnknownSender,
    WrongRound,
    WrongStage,
)
from fedgrec.secagg.graph import Graph
from fedgrec.secagg.keys import bind, derive, pair_mask, seed_mask, verify_keys, verify_survivors
from fedgrec.secagg.messages import (
    Confirm,
    Confirmations,
    Delivery,
    Keys,
    Masked,
    Message,
    Neighbourhood,
    Reveal,
    Shares,
    Survivors,
    parse,
)
from fedgrec.secagg.prg import Mask, mask_parts
from fedgrec.secagg.session import Session, Stage


class Server:
    """One round. `waiting` names the clients whose answer is still missing."""

    answers: Mapping[Stage, type[Message]] = {
        Stage.KEYS: Keys,
        Stage.SHARES: Shares,
        Stage.MASKED: Masked,
        Stage.CONFIRM: Confirm,
        Stage.UNMASK: Reveal,
    }

    def __init__(self, session: Session, roster: Mapping[int, bytes], context: bytes = b"", threads: int = 1) -> None:
        self.session, self.roster, self.context, self.threads = session, roster, context, threads
        self.stage = Stage.KEYS
        self.waiting: set[int] = set(roster)
        self._answered: set[int] = set()  # clients that answered in this stage
        self.included: list[int] = []  # clients whose vectors are in the sum
        self._graph: Graph
        self._keys: dict[int, Keys] = {}
        self._shares: dict[int, dict[int, bytes]] = {}  # by sender, by receiver; gone once delivered
        self._sharing: set[int] = set()  # clients that shared their secrets
        self._alive: set[int] = set()  # clients whose vectors arrived
        self._sum = ring.zeros(session.parts)
        self.bound: bytes
        self._survivors: Survivors
        self._confirmed: dict[int, bytes] = {}  # signatures of clients that confirmed
        self._seeds: dict[int, dict[int, int]] = {}  # by owner, by holder
        self._mask_keys: dict[int, dict[int, int]] = {}
        self._result: tuple[NDArray[np.signedinteger[Any]], int] | None = None

    @property
    def done(self) -> bool:
        return self.stage is Stage.DONE

    @property
    def survivors(self) -> list[int]:
        """Clients whose vectors have arrived."""
        return sorted(self._alive)

    def result(self) -> tuple[NDArray[np.signedinteger[Any]], int]:
        """The sum, and the number of users in it."""
        if self._result is None:
            raise WrongStage("there is no sum: the round is not over, or it failed")
        return self._result

    # ------------------------------------------------------------------------------------------- the door

    def receive(self, sender: int, data: bytes) -> None:
        """Take one client's answer. The transport names the sender, whom it has authenticated."""
        message = parse(data)
        if sender not in self.roster:
            raise UnknownSender(f"client {sender} is not on the roster")
        if message.round_id != self.session.round_id:
            raise WrongRound(f"client {sender} sent a message of another round")
        if type(message) is not self.answers.get(self.stage):
            raise WrongStage(
                f"client {sender} sent {type(message).__name__}, but the server waits for {self.stage.value}"
            )
        if sender not in self.waiting:
            if sender in self._answered:
                raise SecondAnswer(f"client {sender} has answered already; its first answer stands")
            raise UnknownSender(f"client {sender} takes no part in this round any more")
        self._take(sender, message)
        self.waiting.discard(sender)
        self._answered.add(sender)

    def close(self) -> dict[int, bytes]:
        """End the stage with the clients that answered; return the next message for each of them."""
        steps = {
            Stage.KEYS: self._close_keys,
            Stage.SHARES: self._close_shares,
            Stage.MASKED: self._close_masked,
            Stage.CONFIRM: self._close_confirm,
            Stage.UNMASK: self._close_unmask,
        }
        if self.stage not in steps:
            raise WrongStage("the round is over: a server is for one round")
        try:
            messages = steps[self.stage]()
        except Exception:
            self.stage, self.waiting = Stage.DONE, set()
            raise
        self.waiting, self._answered = set(messages), set()
        return {client: message.pack() for client, message in messages.items()}

    def _take(self, sender: int, message: Message) -> None:
        if isinstance(message, Keys):
            self._take_keys(sender, message)
        elif isinstance(message, Shares):
            self._take_shares(sender, message)
        elif isinstance(message, Confirm):
            self._take_confirm(sender, message)
        elif isinstance(message, Reveal):
            self._take_reveal(sender, message)
        else:
            assert isinstance(message, Masked)
            self._take_masked(sender, message)

    # ---------------------------------------------------------------------------------------- the stages

    def _take_keys(self, sender: int, message: Keys) -> None:
        if message.sender != sender:
            raise UnknownSender(f"client {sender} sent the keys of client {message.sender}")
        verify_keys(self.session, message, self.roster)
        derive(X25519PrivateKey.generate(), message.mask_key, b"", self.session, b"")  # refuse improper keys now:
        derive(X25519PrivateKey.generate(), message.cipher_key, b"", self.session, b"")  # later all neighbours would
        self._keys[sender] = message

    def _close_keys(self) -> dict[int, Message]:
        clients = sorted(self._keys)
        fewest = max(self.session.threshold, self.session.least)
        if len(clients) < fewest:
            raise TooFewLeft(f"{len(clients)} clients sent keys, fewer than the {fewest} needed")
        self.bound = bind(self.context, clients)
        self._graph = Graph(clients, self.session.neighbours, self.session.round_id)
        self.stage = Stage.SHARES
        return {
            client: Neighbourhood(
                self.session.round_id, tuple(clients), tuple(self._keys[n] for n in self._graph.neighbours(client))
            )
            for client in clients
        }

    def _take_shares(self, sender: int, message: Shares) -> None:
        if sorted(message.ciphertexts) != self._graph.neighbours(sender):
            raise BadLists(f"client {sender} did not share with exactly its neighbours")
        self._shares[sender] = message.ciphertexts

    def _close_shares(self) -> dict[int, Message]:
        self._sharing = self._enough_holders(set(self._shares))
        deliveries: dict[int, Message] = {
            client: Delivery(
                self.session.round_id,
                {n: self._shares[n][client] for n in self._graph.neighbours(client) if n in self._sharing},
            )
            for client in sorted(self._sharing)
        }
        self._shares = {}
        self.stage = Stage.MASKED
        return deliveries

    def _enough_holders(self, clients: set[int]) -> set[int]:
        """Leave out clients whose secrets too few holders could open later: in this stage it costs nothing."""
        t = self.session.threshold
        while lonely := {c for c in clients if len(clients.intersection(self._graph.holders(c))) < t}:
            clients = clients - lonely
        if not clients:
            raise TooFewLeft(f"no client has {t} holders of its shares left")
        return clients

    def _take_masked(self, sender: int, message: Masked) -> None:
        size = ring.packed_bytes(self.session.parts)
        if len(message.vector) != size:
            raise MalformedMessage(f"client {sender} sent a vector of {len(message.vector)} bytes, not {size}")
        for total, part in zip(self._sum, ring.unpack(message.vector, self.session.parts), strict=True):
            np.add(total, part, out=total)
        self._alive.add(sender)

    def _close_masked(self) -> dict[int, Message]:
        alive, dropped = self._alive, self._sharing - self._alive
        self._need_holders(alive)
        self._seeds = {client: {} for client in alive}
        self._mask_keys = {client: {} for client in dropped}
        self.stage = Stage.CONFIRM if self.session.lying_server else Stage.UNMASK
        self._survivors = Survivors(self.session.round_id, tuple(sorted(alive)), tuple(sorted(dropped)))
        return dict.fromkeys(sorted(alive), self._survivors)

    def _need_holders(self, there: set[int]) -> None:
        """Refuse to go on if too few holders are left to open some client's secret."""
        for client in sorted(self._sharing):
            if len(there.intersection(self._graph.holders(client))) < self.session.threshold:
                raise TooFewLeft(
                    f"fewer than {self.session.threshold} holders of client {client}'s shares are left: the sum "
                    f"cannot be opened"
                )

    def _take_confirm(self, sender: int, message: Confirm) -> None:
        verify_survivors(self.session, self.bound, self._survivors, sender, message.signature, self.roster)
        self._confirmed[sender] = message.signature

    def _close_confirm(self) -> dict[int, Message]:
        confirmed = self._confirmed
        self._need_holders(set(confirmed))
        self.stage = Stage.UNMASK
        around = {client: self._graph.neighbours(client) for client in sorted(confirmed)}
        return {
            client: Confirmations(self.session.round_id, {n: confirmed[n] for n in near if n in confirmed})
            for client, near in around.items()
        }

    def _take_reveal(self, sender: int, message: Reveal) -> None:
        near = set(self._graph.neighbours(sender))
        own = {sender} & set(self._graph.holders(sender))
        if set(message.seeds) != self._alive & (near | own) or set(message.mask_keys) != near & self._mask_keys.keys():
            raise BadShare(f"client {sender} opened other shares than it was asked for")
        for opened, asked in ((self._seeds, message.seeds), (self._mask_keys, message.mask_keys)):
            for owner, value in asked.items():
                opened[owner][sender + 1] = value

    def _close_unmask(self) -> dict[int, Message]:
        """Subtract the masks that are left: the survivors' self masks, and the pair masks of lost clients."""
        t, masks = self.session.threshold, list[Mask]()
        for _, shares in sorted(self._seeds.items()):
            masks.append((seed_mask(self._secret(shares, t), self.session, self.bound), -1))
        for client, shares in sorted(self._mask_keys.items()):
            secret = X25519PrivateKey.from_private_bytes(self._secret(shares, t))
            if secret.public_key().public_bytes_raw() != self._keys[client].mask_key:
                raise BadShare(f"the shares of client {client}'s mask key rebuild another key")
            for peer in self._alive.intersection(self._graph.neighbours(client)):
                # What the peer added for this pair is the opposite of what the lost client would have added.
                masks.append(pair_mask(secret, client, self._keys[peer].mask_key, peer, self.session, self.bound))
        return self._open(masks)

    @staticmethod
    def _secret(shares: Mapping[int, int], threshold: int) -> bytes:
        secret = shamir.combine(shares, threshold)
        if secret >= 2 ** (8 * shamir.SECRET_BYTES):
            raise BadShare("shares rebuild something that is no secret of this protocol")
        return secret.to_bytes(shamir.SECRET_BYTES, "big")

    def _open(self, masks: list[Mask]) -> dict[int, Message]:
        mask_parts(self._sum, masks, self.threads)
        return self._finish(self._sum)

    def _finish(self, words: ring.Words) -> dict[int, Message]:
        self._result = ring.decode(words, self.session.rings, self.session.users)
        self.included = sorted(self._alive)
        self.stage = Stage.DONE
        return {}
