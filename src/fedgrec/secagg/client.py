"""A client of one secure sum, as a state machine: bytes in, bytes out, no I/O of its own.

    client = Client(session, me, identity, roster, context=hash of the model)
    server ◀─ Keys            client.start()
    server ◀─ Shares          client.receive(Neighbourhood)
    server ◀─ Masked vector   client.receive(Delivery)          after client.submit(vector)
    server ◀─ Confirm         client.receive(Survivors)
    server ◀─ Reveal          client.receive(Confirmations)

Bonawitz et al. 2017 on Bell et al. 2020's graph. Client u uploads

    x_u + PRG(b_u) + Σ_{v > u} PRG(s_uv) − Σ_{v < u} PRG(s_uv)      over the neighbours v that are still there

and shares b_u and its mask key between the holders. For each client they open b_u if its vector is in the sum, or the
mask key if it is not, never both; and only after t of a client's holders have signed that they were told the same.
Otherwise a lying server could have one client's seed and its neighbours' mask keys opened, and read that client's
vector. A client whose vector arrived but is not in the sum helps to open it: its own mask key is opened, and its vector
stays under PRG(b_u). Each refusal has its own error. If a rule of the protocol was broken, the client also forgets its
secrets and takes no further part.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from fedgrec.secagg import errors, messages, ring, shamir
from fedgrec.secagg.graph import Graph
from fedgrec.secagg.keys import (
    bind,
    derive,
    pair_mask,
    seed_mask,
    signed_part,
    survivors_part,
    verify_keys,
    verify_survivors,
)
from fedgrec.secagg.prg import Mask, mask_parts
from fedgrec.secagg.session import Session, Stage


@dataclass
class Secrets:
    """What a client never gives away, except in shares."""

    mask_key: X25519PrivateKey
    cipher_key: X25519PrivateKey
    seed: bytes

    @classmethod
    def fresh(cls) -> "Secrets":
        return cls(X25519PrivateKey.generate(), X25519PrivateKey.generate(), os.urandom(shamir.SECRET_BYTES))


class Client:
    """One client; `receive` answers each message of the server with the client's next one."""

    def __init__(
        self,
        session: Session,
        me: int,
        identity: Ed25519PrivateKey,
        roster: Mapping[int, bytes],
        context: bytes = b"",
        threads: int = 1,
    ) -> None:
        self.session, self.me, self.roster, self.threads = session, me, roster, threads
        self.context = context  # a hash of the model that the vector belongs to; set it before the stage of shares
        self.stage = Stage.KEYS
        self._identity = identity
        self._secrets: Secrets | None = Secrets.fresh()
        self._words: ring.Words | None = None
        self._graph: Graph
        self._keys: dict[int, messages.Keys] = {}  # of the neighbours
        self._bound: bytes
        self._survivors: messages.Survivors
        self._lists: tuple[set[int], set[int]]  # the clients whose seeds it opens, and those whose mask keys
        self._held: dict[int, tuple[int, int]] = {}  # by owner: the shares that it holds, of seed and mask key

    # ------------------------------------------------------------------------------------------- the door

    def start(self) -> bytes:
        """Stage 0: fresh public keys, signed."""
        if self.stage is not Stage.KEYS:
            raise errors.WrongStage(f"client {self.me} has started already: a client is for one round")
        secrets = self._mine()
        mask_key, cipher_key = (key.public_key().public_bytes_raw() for key in (secrets.mask_key, secrets.cipher_key))
        signature = self._identity.sign(signed_part(self.session, self.me, mask_key, cipher_key))
        self.stage = Stage.SHARES
        return messages.Keys(self.session.round_id, self.me, mask_key, cipher_key, signature).pack()

    def submit(self, values: NDArray[Any], users: int = 1) -> None:
        """Set the integers to sum, and how many users they come from; possible until the masked vector is due."""
        if self.stage not in (Stage.KEYS, Stage.SHARES, Stage.MASKED):
            raise errors.WrongStage(f"client {self.me} can no longer change its vector")
        if np.shape(values) != (self.session.values,):
            raise errors.BadInput(
                f"a vector of shape {np.shape(values)}, where the session says {self.session.values} values"
            )
        if not isinstance(users, int) or not 0 <= users <= self.session.users:
            raise errors.BadInput(
                f"a vector of {users} users does not fit a sum that was sized for {self.session.users}"
            )
        self._words = ring.encode(values, users, self.session.rings)

    def receive(self, data: bytes) -> bytes:
        """The next message of the server → this client's answer."""
        message = messages.parse(data)
        if message.round_id != self.session.round_id:
            raise errors.WrongRound(f"client {self.me} got a message of another round")
        steps: dict[Stage, tuple[type[messages.Message], Callable[[Any], messages.Message]]] = {
            Stage.SHARES: (messages.Neighbourhood, self._share),
            Stage.MASKED: (messages.Delivery, self._mask),
            Stage.CONFIRM: (messages.Survivors, self._confirm),
            Stage.UNMASK: (messages.Confirmations, self._unmask),
        }
        awaited, answer = steps.get(self.stage, (None, None))
        if answer is None or type(message) is not awaited:
            raise errors.WrongStage(f"client {self.me} waits for {self.stage.value} and got {type(message).__name__}")
        try:
            return answer(message).pack()
        except Exception:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Forget all secrets; every later message is refused."""
        self.stage, self._secrets, self._words, self._held = Stage.DONE, None, None, {}

    def _mine(self) -> Secrets:
        assert self._secrets is not None, "a client that has forgotten its secrets is never asked for them"
        return self._secrets

    # ---------------------------------------------------------------------------------------- the stages

    def _share(self, message: messages.Neighbourhood) -> messages.Message:
        """Stage 1: check the neighbours, then share seed and mask key between the holders."""
        self._meet(message)
        secrets, t = self._mine(), self.session.threshold
        holders = self._holders()
        owned = (secrets.seed, secrets.mask_key.private_bytes_raw())
        shares = [shamir.share(int.from_bytes(secret, "big"), t, [h + 1 for h in holders]) for secret in owned]
        if self.me in holders:
            self._held[self.me] = (shares[0][self.me + 1], shares[1][self.me + 1])
        texts = {
            holder: self._seal(holder, b"".join(s[holder + 1].to_bytes(shamir.SHARE_BYTES, "big") for s in shares))
            for holder in holders
            if holder != self.me
        }
        self.stage = Stage.MASKED
        return messages.Shares(self.session.round_id, texts)

    def _holders(self) -> list[int]:
        """The holders of its shares. Half of them must not be enough: a liar would ask each half for another secret."""
        holders, t = self._graph.holders(self.me), self.session.threshold
        if not len(holders) < 2 * t <= 2 * len(holders):
            raise errors.TooFewLeft(
                f"with {len(holders)} holders the threshold {t} is not safe or not possible: it must be more than "
                f"half of them and at most all"
            )
        return holders

    def _mask(self, message: messages.Delivery) -> messages.Message:
        """Stage 2: take the others' shares in, and mask the vector for the neighbours that are still there."""
        self._take_in(message)
        return self._masked([(seed_mask(self._mine().seed, self.session, self._bound), 1)])

    def _take_in(self, message: messages.Delivery) -> None:
        """Open what the neighbours encrypted for this client, and hold it."""
        self.stage = Stage.CONFIRM
        if not message.ciphertexts.keys() <= self._keys.keys():
            raise errors.UnknownSender(f"client {self.me} was sent shares of somebody who is no neighbour of it")
        for sender, text in message.ciphertexts.items():
            self._held[sender] = self._unpack(sender, self._open(sender, text))
        if len(self._held) < self.session.threshold:
            raise errors.TooFewLeft(
                f"client {self.me} has {len(self._held)} holders left, fewer than the {self.session.threshold} needed"
            )

    def _unpack(self, sender: int, plain: bytes) -> tuple[int, int]:
        """The shares that one neighbour gave to this client."""
        size = shamir.SHARE_BYTES
        if len(plain) != 2 * size:
            raise errors.BadCiphertext(f"client {sender} sent client {self.me} something that is not two shares")
        of_seed, of_key = (int.from_bytes(part, "big") for part in (plain[:size], plain[size:]))
        if max(of_seed, of_key) >= shamir.PRIME:  # if passed on, it would look like this client's fault
            raise errors.BadShare(f"client {sender} sent client {self.me} a share that lies outside the field")
        return of_seed, of_key

    def _masked(self, masks: list[Mask]) -> messages.Masked:
        """The vector, given out once, under these masks and under those of all pairs that are still there."""
        words, self._words = self._words, None
        if words is None:
            raise errors.BadInput(f"client {self.me} was given no vector before its masked vector was asked for")
        mine, me = self._mine().mask_key, self.me
        peers = [keys for sender, keys in self._keys.items() if sender in self._there()]
        masks = masks + [pair_mask(mine, me, k.mask_key, k.sender, self.session, self._bound) for k in peers]
        mask_parts(words, masks, self.threads)
        return messages.Masked(self.session.round_id, ring.pack(words, self.session.parts).data)

    def _there(self) -> set[int]:
        """Neighbours that this client masks with: those that shared their secrets with it."""
        return set(self._held) - {self.me}

    def _confirm(self, message: messages.Survivors) -> messages.Message:
        """Stage 3: sign the lists that this client was told, if they are possible."""
        self._survivors, self._lists = message, self._believe(message)
        self.stage = Stage.UNMASK
        return messages.Confirm(
            self.session.round_id, self._identity.sign(survivors_part(self.session, self._bound, message))
        )

    def _compare(self, message: messages.Confirmations) -> None:
        """Go on only if t holders, each of which signs once, were told the same."""
        holders = set(self._graph.holders(self.me))
        for signer, signature in message.signatures.items():
            if signer not in holders - {self.me}:
                raise errors.UnknownSender(
                    f"client {self.me} was sent a confirmation of somebody who is no neighbour of it"
                )
            verify_survivors(self.session, self._bound, self._survivors, signer, signature, self.roster)
        agreeing = len(message.signatures) + (self.me in holders)
        if agreeing < self.session.threshold:
            raise errors.TooFewLeft(
                f"{agreeing} clients around client {self.me} confirm the survivors, and {self.session.threshold} must"
            )

    def _unmask(self, message: messages.Confirmations) -> messages.Message:
        """Stage 4: help to open the sum, once enough holders were told the same."""
        self._compare(message)
        return self._reveal(*self._lists)

    def _reveal(self, alive: set[int], dropped: set[int]) -> messages.Message:
        """Open the survivors' seeds and the others' mask keys; once, and never both of one client."""
        seeds = {owner: self._held[owner][0] for owner in alive & self._held.keys()}
        keys = {owner: self._held[owner][1] for owner in dropped & self._held.keys()}
        self.abandon()
        return messages.Reveal(self.session.round_id, seeds, keys)

    def _believe(self, message: messages.Survivors) -> tuple[set[int], set[int]]:
        """Whose seeds and whose mask keys it opens, if the lists are possible: each client it masked with is in one.

        A client that is not in the sum helps to open it. In a sparse graph it opens mask keys alone: there clients sign
        different lists, and those that open a seed must be such that their own mask keys stay closed (see parameters).
        """
        alive, dropped = set(message.alive), set(message.dropped)
        if alive & dropped:
            raise errors.BadLists(f"client {self.me} was told that somebody is both alive and dropped")
        near = {self.me, *self._graph.neighbours(self.me)}
        if (alive | dropped) & near != self._there() | {self.me} or not alive | dropped <= set(self._graph.clients):
            raise errors.BadLists(f"client {self.me} was told of other clients than those that it masked with")
        if len(alive) < self.session.fewest:
            raise errors.TooFewLeft(
                f"client {self.me} was told of a sum of {len(alive)} vectors, and {self.session.fewest} are needed"
            )
        if self._graph.complete:
            return alive, dropped
        around = len(alive & near - {self.me})
        if self.me in alive and around < self.session.threshold:
            raise errors.TooFewLeft(
                f"around client {self.me} {around} clients are alive, and {self.session.threshold} are needed"
            )
        return alive & near if self.me in alive else set(), dropped & near

    # ------------------------------------------------------------------------------------------ its peers

    def _meet(self, message: messages.Neighbourhood) -> None:
        """Accept exactly the neighbours of this round's graph, each with keys that it signed."""
        if self.me not in message.clients:
            raise errors.BadLists(f"client {self.me} is not among those who take part")
        if not set(message.clients) <= self.roster.keys():
            raise errors.UnknownSender("somebody takes part who is not on the roster")
        if len(message.clients) < self.session.least:
            raise errors.TooFewLeft(
                f"{len(message.clients)} clients take part, and client {self.me} goes on with no fewer than "
                f"{self.session.least}"
            )
        self._bound = bind(self.context, message.clients)
        self._graph = Graph(message.clients, self.session.neighbours, self.session.round_id)
        if [keys.sender for keys in message.keys] != self._graph.neighbours(self.me):
            raise errors.BadLists(f"client {self.me} was given other neighbours than this round's graph has for it")
        for keys in message.keys:
            verify_keys(self.session, keys, self.roster)
            self._keys[keys.sender] = keys

    def _seal(self, to: int, plain: bytes) -> bytes:
        """Encrypt for one neighbour. The key serves one message, so the nonce may be constant."""
        key = derive(self._mine().cipher_key, self._keys[to].cipher_key, *self._about(self.me, to))
        return AESGCM(key).encrypt(bytes(12), plain, self._label(self.me, to))

    def _open(self, sender: int, text: bytes) -> bytes:
        key = derive(self._mine().cipher_key, self._keys[sender].cipher_key, *self._about(sender, self.me))
        try:
            return AESGCM(key).decrypt(bytes(12), text, self._label(sender, self.me))
        except InvalidTag:
            raise errors.BadCiphertext(
                f"what client {self.me} got as the share of client {sender} was not encrypted by it for this round "
                f"and this model"
            ) from None

    def _about(self, sender: int, receiver: int) -> tuple[Any, ...]:
        return b"fedgrec secagg share", self.session, self._bound, sender, receiver

    def _label(self, sender: int, receiver: int) -> bytes:
        return self.session.digest + b"shares" + sender.to_bytes(4, "big") + receiver.to_bytes(4, "big")
