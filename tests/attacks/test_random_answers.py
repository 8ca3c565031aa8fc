"""Some nodes send random answers, and all parts restart at random: the server goes on, and its model stays possible.

They lie about their keys, lists and numbers in sums of all kinds, and about the roster and the history when they join.
People click between seasons, a node is removed, and in some of the federations people stand in batches.
"""

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.config.options import FedGRecOptions
from fedgrec.errors import FedgrecError
from fedgrec.federation.common import batches
from fedgrec.federation.common.history import line
from fedgrec.federation.common.packets import HELLO, HISTORY, Packet
from fedgrec.federation.node import changes
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server import coordinator, model_keeper
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.store import ServerStore
from fedgrec.methods.fedgrec import FedGRecMethod
from fedgrec.secagg.client import Client
from tests.attacks.lying_node import told
from tests.attacks.test_wrong_answers import ODD
from tests.federation.local_transport import Answer
from tests.federation.rosters import give, without
from tests.federation.worlds import N_ITEMS, Killed, World, world

NODES, USERS = 6, 3
KINDS: list[dict[str, Any]] = [  # of federations
    {"rounds": 10**6, "evaluate_every": 3},
    {"rounds": 3, "seasons": 0, "later_rounds": 2, "season_rounds": 2, "rest": 0.0, "look": 0.0, "recount_users": 1},
    {"rounds": 10**6, "evaluate_every": 3, "fewest_people": 9, "batches_for_training": 2},
]
LARGEST, LATENT_CLIP, PER_ROUND = 40.0, 2.5, 12  # 20 levels of a row's coarsest step, 2, reach the clip of 30
SENTENCES = ("nodes are there", "sums in a row were lost", "has forgotten")  # with which a server may stop


class Enough(BaseException):
    """The wanted number of answers has come."""


class Chance:
    """One federation in which some nodes lie with a certain chance, for this many answers."""

    def __init__(self, root: Path, seed: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rng, self.left, self.odd = random.Random(seed), steps, 0
        rng = self.rng
        self.rate, self.lying = rng.choice([0.02, 0.1, 0.4]), rng.choice([0.3, 0.9])  # shares: of answers, of sums
        self.liars = set(rng.sample(range(NODES), rng.choice([1, 1, 2])))
        self.names = {f"node{index}" for index in self.liars}
        self.optimizer = rng.choice(["adam", "sum"])
        options, latents = {"start_nodes": 4} | KINDS[seed % len(KINDS)], rng.choice([0, 1])
        monkeypatch.setattr(batches, "FEWEST_NODES", 3)  # so that a few nodes are two batches
        monkeypatch.setattr(coordinator, "RESTING", 0.0)
        more = {"server_optimizer": self.optimizer, "latents_every": latents}
        self.fed: World = world(root, nodes=NODES, users=USERS, options=options, **more)
        self.root, self.removed = root, False
        self.server_rate = FedGRecOptions().server_rate
        self.at: Any = self.fed.transport.folders  # by address
        self.old: list[Packet] = []
        real = Client.submit

        def submit(client: Client, values: Any, users: int = 1) -> None:
            real(client, values, users)
            if client.me in self.liars and self.rng.random() < self.lying:
                self.lie(client)

        monkeypatch.setattr(Client, "submit", submit)
        self.before: tuple[Any, Any] | None = None
        apply = ServerStore.apply

        def kept(store: ServerStore, session: str, included: list[int], users: int, server: Any, *more: Any) -> None:
            self.check_step(server, users)
            apply(store, session, included, users, server, *more)

        monkeypatch.setattr(ServerStore, "apply", kept)

    def check_step(self, server: Any, users: int) -> None:
        """Check that a round moves the items no further than its users could; a sweep moves none."""
        now = server.items[0].astype(float), server.moment1.astype(float)
        if self.before is not None and not np.array_equal(now[0], self.before[0]):
            sum_ = (
                (now[0] - self.before[0]) / self.server_rate
                if self.optimizer == "sum"
                else (now[1] - 0.9 * self.before[1]) / 0.1
            )
            assert np.abs(sum_).max() <= LARGEST * users * 1.001
        self.before = now

    def lie(self, client: Client) -> None:
        """Change the users' numbers, and perhaps the number of users."""
        rng = self.rng
        with told(client) as numbers:
            most = np.iinfo(numbers.dtype).max
            for _ in range(rng.choice([1, 5, 200])):
                at = rng.randrange(client.session.values + (rng.random() < 0.02))
                numbers[at] = rng.choice([most, -most, -most - 1, -1, 1000, -1000, rng.randint(-most, most)])

    def meddle(self, address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        self.left -= 1
        if self.left < 0:
            raise Enough
        if self.rng.random() < 0.003:
            raise Killed
        if self.rng.random() < 0.003:  # a node that restarts has another address
            before = self.rng.choice(list(self.fed.transport.signs()))
            self.at[max(self.at) + 1] = self.at[before]
            self.fed.transport.away.add(before)
        if self.rng.random() < 0.02:
            self.click()
        if self.rng.random() < 0.001 and not self.removed:
            self.removed = True
            give(self.root, without(self.root, self.rng.randrange(NODES)))
        reply = answer(request)
        node = int(self.at[address].name.removeprefix("node"))
        if node not in self.liars:
            return [reply]
        self.old.append(reply)
        return self.said(reply) if self.rng.random() < self.rate else [reply]

    def click(self) -> None:
        """A user of some node has another item; where items are counted again, this counts with the next recount."""
        with NodeStore(self.fed.nodes[self.rng.randrange(NODES)]) as store, store.transaction():
            row = self.rng.choice(store.first_rows(USERS))
            if not store.counting():
                changes.want(store, row, sorted({*changes.wanted(store, row)} ^ {self.rng.randrange(N_ITEMS)}))

    def said(self, reply: Packet) -> list[Packet]:
        rng = self.rng
        if reply.kind == HELLO and rng.random() < 0.5:
            return [replace(reply, header=reply.header | self.other_facts(reply.header))]
        how = rng.randrange(5)
        if how == 0:
            return []
        if how == 1:
            return [replace(rng.choice(self.old), kind=reply.kind), reply]
        if how == 2:
            return [replace(reply, blobs={name: self.mangled(blob) for name, blob in reply.blobs.items()})]
        if how == 3:
            return [rng.choice(self.old)]
        self.odd += 1
        return [ODD[rng.choice(list(ODD))](reply)]

    def other_facts(self, header: dict[str, Any]) -> dict[str, Any]:
        """Another roster or catalogue, or another history than the node was told."""
        rng = self.rng
        session, included = f"{rng.getrandbits(128):032x}", rng.sample(range(NODES), rng.randint(0, NODES))
        place = rng.choice([("degrees", 0, 0), ("train", 0, rng.randrange(50)), ("recount", 0, rng.randrange(50))])
        lies = [line(session, place, rng.randint(1, 2), included).pack(), "", None]
        told, number = header[HISTORY], header[HISTORY]["number"]
        others = [{"lines": [*told["lines"], *lies]}, {"lines": lies}, {"number": number + rng.choice([-1, 1, 9])}]
        others += [{"head": session}, {"lines": None, "number": None}]
        name = rng.choice(["roster", "catalogue"])
        return rng.choice([{name: header[name] + rng.choice([-1, 1])}, *({HISTORY: told | other} for other in others)])

    def mangled(self, blob: bytes) -> bytes:
        content = bytearray(blob)
        for _ in range(self.rng.choice([1, 8])):
            content[self.rng.randrange(len(content))] = self.rng.randrange(256)
        return bytes(content[: self.rng.choice([len(content), len(content) // 2])])

    def live(self) -> bool:
        """One life of the server, to its end; return whether there should be another."""
        try:
            self.fed.run(self.meddle)
        except Enough:
            return False
        except Killed:
            return True
        except FedgrecError as stopped:
            if not any(words in str(stopped) for words in SENTENCES):
                raise
            return self.left > 0
        raise AssertionError("neither a million rounds nor all seasons can be over")

    def check(self) -> None:
        """Check that honest users could have made every number of the model."""
        model = self.fed.model()
        everyone = NODES * USERS
        assert ((model.degrees >= 0) & (model.degrees <= everyone)).all()
        with ServerStore(open_server(self.fed.server)) as store:
            counts = model.degrees[:, None] + store.loose_users()
        assert (np.abs(model.items[1:]) <= (LATENT_CLIP * counts).astype("f4")).all()
        most = LARGEST * PER_ROUND
        assert np.abs(model.moment1).max() <= most
        assert np.abs(model.moment2).max() <= most**2
        assert (
            np.abs(model.items[0]).max()
            <= 1 + self.server_rate * (1.0 if self.optimizer == "adam" else most) * model.round * 3.2
        )
        for found in self.fed.witness.metrics:
            assert all(0 <= found[name] <= 1 for name in ("recall@5", "ndcg@5"))
            assert 0 < found["users"] <= everyone
        if self.odd > 10:
            assert any(name in notice for name in self.names for notice in self.fed.witness.notices)


def fuzz(root: Path, monkeypatch: pytest.MonkeyPatch, steps: int, episodes: int, seed: int = 0) -> None:
    for episode in range(seed, seed + episodes):
        with monkeypatch.context() as patch:
            chance = Chance(root / str(episode), episode, steps // episodes, patch)
            going = True
            while going:
                going = chance.live()
                chance.check()


def test_lying_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One or two nodes of six send random answers and random numbers, while nodes and the server restart."""
    fuzz(tmp_path, monkeypatch, steps=330, episodes=3)


@pytest.mark.parametrize("bound", ["check_round", "keep_possible"])
def test_it_takes_every_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """Without one of the server's bounds, the same lies show in the model."""
    where: Any = model_keeper if bound == "check_round" else FedGRecMethod
    monkeypatch.setattr(where, bound, lambda *_: 0)
    with pytest.raises(AssertionError):
        fuzz(tmp_path, monkeypatch, steps=200, episodes=1)


@pytest.mark.slow
def test_lying_nodes_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for 100,000 answers."""
    fuzz(tmp_path, monkeypatch, steps=100_000, episodes=200, seed=100)
