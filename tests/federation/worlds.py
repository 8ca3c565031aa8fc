"""Small federations in this process, and the question whether one is its own simulation."""

import random
import re
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedgrec.cable.core import ServerState
from fedgrec.config.configuration import Config
from fedgrec.federation.common.options import Agreement, FederationOptions
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node.current_sum import Sums
from fedgrec.federation.node.gateway import open_gateway
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.server import coordinator
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.members import Observer
from fedgrec.federation.server.store import ServerStore, model_of
from tests.federation.local_folders import make_folders
from tests.federation.local_transport import Answer, LocalTransport, Meddler, honest
from tests.federation.meddlers import silent
from tests.federation.replay import Recorded, replay, states

N_ITEMS = 30
OPEN_HEARTED: dict[str, Any] = {
    **{"topk": (5,), "evaluations": 100, "evaluation_users": 1, "evaluation_epsilon": 0.0},
    "fewest_people": 1,  # each node is a batch of its own; tests/attacks/test_batches.py has larger ones
}
NODES = 3
EXCHANGES = ("keys", "shares", "masked", "confirm", "unmask")


class Killed(BaseException):
    """kill -9: none of our handlers catches it."""


def people(nodes: int = NODES, users: int = 20, seed: int = 0, prefix: str = "") -> list[list[Person]]:
    """Users with a few items each, some of them held out."""
    rng = np.random.default_rng(seed)

    def person(name: str) -> Person:
        items = rng.permutation(N_ITEMS)[: rng.integers(4, 10)].tolist()
        return Person(name, items[2:], items[: rng.integers(0, 3)])

    return [[person(f"{prefix}{node}/{user}") for user in range(users)] for node in range(nodes)]


class Witness(Observer):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.metrics: list[dict[str, Any]] = []
        self.sums: list[dict[str, Any]] = []
        self.joiners: list[str] = []

    def joined(self, name: str, users: int) -> None:
        self.joiners.append(name)

    def summed(self, line: dict[str, Any]) -> None:
        self.sums.append(line)

    def evaluated(self, line: dict[str, Any]) -> None:
        self.metrics.append(line)

    def noticed(self, sentence: str) -> None:
        self.notices.append(sentence)


@dataclass
class World:
    """A federation's folders and its network."""

    server: Path
    nodes: dict[int, Path]
    transport: LocalTransport
    witness: Witness = field(default_factory=Witness)
    recorded: Recorded | None = None  # what users had in each sum, if that changes

    @property
    def sums(self) -> Sums:
        """The sums that the nodes are in; a node that is restarted forgets its own."""
        return self.transport.sums

    def run(self, meddler: Meddler = honest) -> Path:
        self.transport.meddler = meddler
        return coordinator.run(self.transport, self.server, self.witness)

    def give_rounds(self, rounds: int) -> None:
        """From the next start on, train until this round."""
        toml = self.server / "federation.toml"
        toml.write_text(re.sub(r"^rounds = .*", f"rounds = {rounds}", toml.read_text(), flags=re.MULTILINE))

    def model(self) -> ServerState:
        return model_of(self.server)

    def judged_model(self) -> ServerState:
        """The model of the last evaluation."""
        home = open_server(self.server)
        with ServerStore(home) as store:
            return store.model(home.method(store.get("n_users")).init(home.config.run.seed), "before")

    def log(self) -> list[dict[str, Any]]:
        with ServerStore(open_server(self.server)) as store:
            return store.sums()

    def applied(self, stage: str) -> list[dict[str, Any]]:
        return [line for line in self.log() if line["stage"] == stage and line["applied"]]

    def is_its_simulation(self) -> bool:
        """Law 6: every bit of the server's tables and of every user's state."""
        model, users = replay(self.server, self.nodes, self.recorded)
        mine, real = self.model(), states(self.nodes)
        tables = ("items", "degrees", "moment1", "moment2")
        pairs = [(getattr(model, name), getattr(mine, name)) for name in tables]
        pairs += [(model.more[name], mine.more[name]) for name in mine.more]
        pairs += [(getattr(users[i], name), getattr(real[i], name)) for i in real for name in vars(users[i])]
        return model.round == mine.round and all(same_bits(a, b) for a, b in pairs)

    def pending(self) -> int:
        """Users who do not know yet whether their upload counts."""
        counts = []
        for path in self.nodes.values():
            with NodeStore(path) as store:
                counts += store.db.execute("SELECT count(*) FROM users WHERE pending IS NOT NULL").fetchone()
        return sum(counts)


def made_older(path: Path, version: int) -> None:
    """A store that names an older format."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'format'", [str(version)])


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def config(method: str = "fedgrec", **more: Any) -> Config:
    small: dict[str, Any] = {"dim": 4, "users_per_round": 12}
    if method not in ("fcf", "spectral", "ordered", "ordered-parts"):
        small |= {"negatives": 8}
    if method == "fedgrec":
        small |= {"layers": 1, "latents_every": 1, "fine_rounds": 1}  # few rounds, and all kinds of them
    return Config().of(method).changed(small | more, "test")


def world(
    root: Path,
    method: str = "fedgrec",
    nodes: int = NODES,
    users: int = 6,
    options: Any = None,
    prefix: str = "",
    per_user_masks: bool = False,
    **more: Any,
) -> World:
    """A federation that has not begun. With per-user masks, users are its nodes, and addresses are gateways.

    Nothing is judged unless the options say how often.
    """
    quick = {"rounds": 2, "evaluate_every": 0, "pause": 0.0, "start_seconds": 0.0}
    given = dict(options or {})
    if "evaluate_every" not in given:
        given = {"evaluations": 0} | given
    names = {f.name for f in fields(Agreement)}
    agreed = Agreement(**OPEN_HEARTED | {name: given.pop(name) for name in list(given) if name in names})
    wanted = FederationOptions(**quick | given)
    crowd = people(nodes, users, prefix=prefix)
    server, folders = make_folders(root, config(method, **more), N_ITEMS, crowd, wanted, per_user_masks, agreed)
    members = (
        {i: p for f in folders.values() for i, p in open_gateway(f).members.items()} if per_user_masks else folders
    )
    return World(server, members, LocalTransport(folders))


def at_random(share: float, seed: int, kinds: Iterable[str] = EXCHANGES, how: Meddler = silent) -> Meddler:
    """Meddle with this share of all messages."""
    rng, kinds = random.Random(seed), tuple(kinds)

    def meddle(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        return (how if request.kind in kinds and rng.random() < share else honest)(address, request, node)

    return meddle


def kill_server(after: int) -> Callable[[int, Packet, Answer], Iterable[Packet]]:
    """The server dies when this many answers have come."""
    seen = [0]

    def meddle(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        if seen[0] == after:
            raise Killed
        seen[0] += 1
        return honest(address, request, node)

    return meddle
