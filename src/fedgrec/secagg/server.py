"""The server of one secure sum, as a state machine: it takes answers as they come and closes each stage.

    server = Server(session, roster)
    while not server.done:
        ... server.receive(sender, bytes) for each answer, as long as the stage may last
        messages = server.close()            # {client: bytes}: the next message for each client that is still there
    values, users = server.result()

Vectors are added up as they arrive, so memory does not grow with the number of clients. A message that is refused
changes nothing: its sender counts as silent until it answers properly. A client that is silent when a stage closes is
lost; the sum goes on without it as long as the threshold allows.

`together` names disjoint groups of clients whose vectors count only together: if one of a group is lost, the vectors of
the others are left out of the sum. These others stay, and help to open it. Of each group that is not complete yet, the
server keeps one partial sum.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from fedgrec.secagg import errors, messages, ring, shamir
from fedgrec.secagg.graph import Graph
from fedgrec.secagg.keys import bind, derive, pair_mask, seed_mask, verify_keys, verify_survivors
from fedgrec.secagg.prg import Mask, mask_parts
from fedgrec.secagg.session import Session, Stage


class _Step(NamedTuple):
    answer: type[messages.Message]
    take: Callable[[int, Any], None]  # one client's answer
    close: Callable[[], dict[int, messages.Message]]


class Server:
    """One round. `waiting` names the clients whose answer is still missing."""

    def __init__(
        self,
        session: Session,
        roster: Mapping[int, bytes],
        context: bytes = b"",
        threads: int = 1,
        together: Sequence[Collection[int]] = (),
    ) -> None:
        self.session, self.roster, self.context, self.threads = session, roster, context, threads
        self._groups = {client: frozenset(group) for group in together for client in group}
        if len(self._groups) < sum(map(len, together)):
            raise errors.BadInput("a client is in two groups of those that count only together")
        self.stage = Stage.KEYS
        self.waiting: set[int] = set(roster)
        self._answered: set[int] = set()  # clients that answered in this stage
        self.included: list[int] = []  # clients whose vectors are in the sum
        self._graph: Graph
        self._keys: dict[int, messages.Keys] = {}
        self._shares: dict[int, dict[int, bytes]] = {}  # by sender, by receiver; gone once delivered
        self._sharing: set[int] = set()  # clients that shared their secrets
        self._alive: set[int] = set()  # clients whose vectors are in the sum
        self._sum = ring.zeros(session.parts)
        self._partial: dict[frozenset[int], ring.Words] = {}  # by group: the sum of the vectors that arrived so far
        self.bound: bytes
        self._survivors: messages.Survivors
        self._confirmed: dict[int, bytes] = {}  # signatures of clients that confirmed
        self._seeds: dict[int, dict[int, int]] = {}  # by owner, by holder
        self._mask_keys: dict[int, dict[int, int]] = {}
        self._result: tuple[NDArray[np.signedinteger[Any]], int] | None = None

    @property
    def done(self) -> bool:
        return self.stage is Stage.DONE

    @property
    def survivors(self) -> list[int]:
        """Clients whose vectors are in the sum."""
        return sorted(self._alive)

    def result(self) -> tuple[NDArray[np.signedinteger[Any]], int]:
        """The sum, and the number of users in it."""
        if self._result is None:
            raise errors.WrongStage("there is no sum: the round is not over, or it failed")
        return self._result

    # ------------------------------------------------------------------------------------------- the door

    def receive(self, sender: int, data: bytes) -> None:
        """Take one client's answer. The transport names the sender, whom it has authenticated."""
        message = messages.parse(data)
        if sender not in self.roster:
            raise errors.UnknownSender(f"client {sender} is not on the roster")
        if message.round_id != self.session.round_id:
            raise errors.WrongRound(f"client {sender} sent a message of another round")
        step = self._step
        if step is None or type(message) is not step.answer:
            raise errors.WrongStage(
                f"client {sender} sent {type(message).__name__}, but the server waits for {self.stage.value}"
            )
        if sender not in self.waiting:
            if sender in self._answered:
                raise errors.SecondAnswer(f"client {sender} has answered already; its first answer stands")
            raise errors.UnknownSender(f"client {sender} takes no part in this round any more")
        step.take(sender, message)
        self.waiting.discard(sender)
        self._answered.add(sender)

    def close(self) -> dict[int, bytes]:
        """End the stage with the clients that answered; return the next message for each of them."""
        step = self._step
        if step is None:
            raise errors.WrongStage("the round is over: a server is for one round")
        try:
            following = step.close()
        except Exception:
            self.stage, self.waiting = Stage.DONE, set()
            raise
        self.waiting, self._answered = set(following), set()
        return {client: message.pack() for client, message in following.items()}

    @property
    def _step(self) -> "_Step | None":
        """What belongs to this stage; None once the round is over."""
        steps = {
            Stage.KEYS: _Step(messages.Keys, self._take_keys, self._close_keys),
            Stage.SHARES: _Step(messages.Shares, self._take_shares, self._close_shares),
            Stage.MASKED: _Step(messages.Masked, self._take_masked, self._close_masked),
            Stage.CONFIRM: _Step(messages.Confirm, self._take_confirm, self._close_confirm),
            Stage.UNMASK: _Step(messages.Reveal, self._take_reveal, self._close_unmask),
        }
        return steps.get(self.stage)

    # ---------------------------------------------------------------------------------------- the stages

    def _take_keys(self, sender: int, message: messages.Keys) -> None:
        if message.sender != sender:
            raise errors.UnknownSender(f"client {sender} sent the keys of client {message.sender}")
        verify_keys(self.session, message, self.roster)
        derive(X25519PrivateKey.generate(), message.mask_key, b"", self.session, b"")  # refuse improper keys now:
        derive(X25519PrivateKey.generate(), message.cipher_key, b"", self.session, b"")  # later all neighbours would
        self._keys[sender] = message

    def _close_keys(self) -> dict[int, messages.Message]:
        clients, fewest = sorted(self._keys), max(self.session.threshold, self.session.least)
        if len(clients) < fewest:
            raise errors.TooFewLeft(f"{len(clients)} clients sent keys, fewer than the {fewest} needed")
        whole = [client for client in clients if self._group(client) <= self._keys.keys()]
        if len(whole) < self.session.fewest:
            raise errors.TooFewLeft(
                f"{len(whole)} clients sent keys together with their whole group, fewer than the "
                f"{self.session.fewest} whose vectors must be in the sum"
            )
        clients = whole if len(whole) >= fewest else clients  # the others can only help: without need they stay out
        self.bound = bind(self.context, clients)
        self._graph = Graph(clients, self.session.neighbours, self.session.round_id)
        self.stage = Stage.SHARES
        return {
            client: messages.Neighbourhood(
                self.session.round_id, tuple(clients), tuple(self._keys[n] for n in self._graph.neighbours(client))
            )
            for client in clients
        }

    def _take_shares(self, sender: int, message: messages.Shares) -> None:
        if sorted(message.ciphertexts) != self._graph.neighbours(sender):
            raise errors.BadLists(f"client {sender} did not share with exactly its neighbours")
        self._shares[sender] = message.ciphertexts

    def _close_shares(self) -> dict[int, messages.Message]:
        self._sharing = self._enough_holders(set(self._shares))
        deliveries: dict[int, messages.Message] = {
            client: messages.Delivery(
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
            raise errors.TooFewLeft(f"no client has {t} holders of its shares left")
        return clients

    def _take_masked(self, sender: int, message: messages.Masked) -> None:
        size = ring.packed_bytes(self.session.parts)
        if len(message.vector) != size:
            raise errors.MalformedMessage(f"client {sender} sent a vector of {len(message.vector)} bytes, not {size}")
        group, words = self._group(sender), ring.unpack(message.vector, self.session.parts)
        missing = group - self._answered - {sender}
        if not missing:
            self._add(self._sum, words)
            if group in self._partial:
                self._add(self._sum, self._partial.pop(group))
            self._alive |= group
        elif missing <= self.waiting:  # otherwise one of the group is lost, and its vectors need no memory
            if group not in self._partial:
                self._partial[group] = ring.zeros(self.session.parts)
            self._add(self._partial[group], words)

    @staticmethod
    def _add(total: ring.Words, words: ring.Words) -> None:
        for part, more in zip(total, words, strict=True):
            np.add(part, more, out=part)

    def _group(self, client: int) -> frozenset[int]:
        """The clients whose vectors count only together with this client's, and itself."""
        return self._groups.get(client, frozenset([client]))

    def _close_masked(self) -> dict[int, messages.Message]:
        alive, dropped = self._alive, self._sharing - self._alive
        self._partial = {}
        if len(alive) < self.session.fewest:
            raise errors.TooFewLeft(
                f"{len(alive)} vectors can be in the sum, fewer than the {self.session.fewest} needed"
            )
        self._seeds = {client: {} for client in alive}
        self._mask_keys = {client: {} for client in dropped}
        self._need_holders(self._answered)
        self.stage = Stage.CONFIRM
        self._survivors = messages.Survivors(self.session.round_id, tuple(sorted(alive)), tuple(sorted(dropped)))
        return dict.fromkeys(sorted(self._answered), self._survivors)

    def _opened_by(self, holder: int) -> tuple[set[int], set[int]]:
        """The clients whose seeds this holder opens, and those whose mask keys; the client has the same rule."""
        held = set(self._graph.clients if self._graph.complete else self._graph.neighbours(holder))
        helps = self._graph.complete or holder in self._alive
        return self._alive & held if helps else set(), self._mask_keys.keys() & held

    def _need_holders(self, there: set[int]) -> None:
        """Refuse to go on if too few holders are left to open some client's secret."""
        opened = Counter(client for holder in there for clients in self._opened_by(holder) for client in clients)
        for client in sorted(self._sharing):
            if opened[client] < self.session.threshold:
                raise errors.TooFewLeft(
                    f"fewer than {self.session.threshold} holders of client {client}'s shares are left: the sum "
                    f"cannot be opened"
                )

    def _take_confirm(self, sender: int, message: messages.Confirm) -> None:
        verify_survivors(self.session, self.bound, self._survivors, sender, message.signature, self.roster)
        self._confirmed[sender] = message.signature

    def _close_confirm(self) -> dict[int, messages.Message]:
        confirmed = self._confirmed
        self._need_holders(set(confirmed))
        self.stage = Stage.UNMASK
        around = {client: self._graph.neighbours(client) for client in sorted(confirmed)}
        return {
            client: messages.Confirmations(self.session.round_id, {n: confirmed[n] for n in near if n in confirmed})
            for client, near in around.items()
        }

    def _take_reveal(self, sender: int, message: messages.Reveal) -> None:
        if (set(message.seeds), set(message.mask_keys)) != self._opened_by(sender):
            raise errors.BadShare(f"client {sender} opened other shares than it was asked for")
        for opened, asked in ((self._seeds, message.seeds), (self._mask_keys, message.mask_keys)):
            for owner, value in asked.items():
                opened[owner][sender + 1] = value

    def _close_unmask(self) -> dict[int, messages.Message]:
        """Subtract the masks that are left: the survivors' self masks, and their pair masks with all others."""
        t, masks = self.session.threshold, list[Mask]()
        for _, shares in sorted(self._seeds.items()):
            masks.append((seed_mask(self._secret(shares, t), self.session, self.bound), -1))
        for client, shares in sorted(self._mask_keys.items()):
            secret = X25519PrivateKey.from_private_bytes(self._secret(shares, t))
            if secret.public_key().public_bytes_raw() != self._keys[client].mask_key:
                raise errors.BadShare(f"the shares of client {client}'s mask key rebuild another key")
            for peer in self._alive.intersection(self._graph.neighbours(client)):
                # What the peer added for this pair is the opposite of what the lost client would have added.
                masks.append(pair_mask(secret, client, self._keys[peer].mask_key, peer, self.session, self.bound))
        return self._open(masks)

    @staticmethod
    def _secret(shares: Mapping[int, int], threshold: int) -> bytes:
        secret = shamir.combine(shares, threshold)
        if secret >= 2 ** (8 * shamir.SECRET_BYTES):
            raise errors.BadShare("shares rebuild something that is no secret of this protocol")
        return secret.to_bytes(shamir.SECRET_BYTES, "big")

    def _open(self, masks: list[Mask]) -> dict[int, messages.Message]:
        mask_parts(self._sum, masks, self.threads)
        self._result = ring.decode(self._sum, self.session.rings, self.session.users)
        self.included = sorted(self._alive)
        self.stage = Stage.DONE
        return {}
