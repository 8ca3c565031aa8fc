"""A lying server that tests can script: it writes its own plans, models and sessions."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np

from fedgrec.cable.core import Broadcast, Upload
from fedgrec.federation.common import packets
from fedgrec.federation.common.history import chained, counted, line, unpack
from fedgrec.federation.common.packets import Packet, pack_broadcast
from fedgrec.federation.common.plan import EVALUATE, Plan, sum_name
from fedgrec.federation.node.node import handle
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.folder import open_server
from fedgrec.secagg import SecAggError, Server, Session
from tests.federation.worlds import EXCHANGES, N_ITEMS, World

DEGREES = Plan("degrees", 0, 0, 18, 18)
PROPAGATE = Plan("propagate", 1, 0, 18, 18)
TRAIN = Plan("train", 0, 5, 18, 12, take=12, of=18)
JUDGE = Plan(EVALUATE, 0, 5, 18, 18, topk=(5,))


@dataclass
class Liar:
    """Asks nodes whatever a test likes, and says that nobody was in any sum, so that no node moves on."""

    fed: World
    refusals: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # the history that it tells
    attempts: Iterator[int] = field(default_factory=itertools.count)  # nodes remember the attempts that they have seen

    def __post_init__(self) -> None:
        self.home = open_server(self.fed.server)
        self.method = self.home.method(18)
        self.model = self.method.init(0)
        for node in self.fed.nodes:
            self.greet(node)

    def ask(self, node: int, packet: Packet) -> Packet:
        return handle(self.fed.nodes[node], packet, self.fed.sums)

    def greet(self, node: int) -> None:
        answer = self.ask(node, Packet("hello", {"federation": self.home.federation}, {"nonce": bytes(32)}))
        assert answer.kind == "hello", answer

    def broadcast(self, sum_: Plan) -> Broadcast:
        self.model.round = sum_.round
        return self.method.broadcast(self.model, sum_.stage_of(self.method), level=sum_.level)

    def session(self, sum_: Plan, nodes: int, place: tuple[str, int, int], **other: Any) -> Session:
        spec = sum_.spec(self.method)
        usual = {"rings": spec.rings, "users": spec.users, "neighbours": max(nodes - 1, 1), "threshold": nodes // 2 + 1}
        self.attempt = next(self.attempts)
        name = sum_name(self.home.federation, place, self.attempt)
        return Session(name, **{**usual, "least": nodes, **other})

    def sum(
        self,
        nodes: Sequence[int],
        sum_: Plan,
        broadcast: Broadcast | None = None,
        lost: Iterable[int] = (),
        until: str = "unmask",
        openers: Iterable[int] | None = None,
        announced: Plan | None = None,
        **session: Any,
    ) -> Upload | None:
        """The sum, or None if the nodes do not open it; `refusals` says why."""
        broadcast = broadcast or self.broadcast(sum_)
        self.method = self.method.counted(broadcast.degrees)
        place = (announced or sum_).place
        chosen = self.session(sum_, len(nodes), place, **session)
        server = Server(chosen, {n: self.home.roster[n].key for n in nodes})
        model, arrays = pack_broadcast(broadcast)
        self.sessions.append(chosen.round_id.hex())
        self.included: list[int] = []  # who is in the last sum
        self.answers: dict[str, dict[int, Packet]] = {}
        self.asked: dict[tuple[str, int], Packet] = {}
        self.sent: dict[str, dict[int, bytes]] = {}
        messages = dict.fromkeys(nodes, b"")
        try:
            for kind in EXCHANGES[: EXCHANGES.index(until) + 1]:
                header: dict[str, Any] = {"session": self.sessions[-1], packets.HISTORY: self.history()}
                if kind == packets.KEYS:
                    header |= {"session": chosen.to_json(), "place": list(place), "attempt": self.attempt}
                header |= {"plan": asdict(sum_), "model": model} if kind == packets.SHARES else {}
                self.sent[kind] = messages
                for node, message in messages.items():
                    if (kind == packets.MASKED and node in lost) or (
                        kind == packets.UNMASK and openers is not None and node not in openers
                    ):
                        continue
                    tables = arrays if kind == packets.SHARES else {}
                    self.asked[kind, node] = Packet(kind, header, {packets.SECAGG: message}, tables)
                    answer = self.ask(node, self.asked[kind, node])
                    self.answers.setdefault(kind, {})[node] = answer
                    if answer.kind == packets.ERROR:
                        self.refusals.append(answer.header["reason"])
                    elif kind == packets.MASKED:
                        server.receive(node, answer.arrays[packets.SECAGG].tobytes())
                    else:
                        server.receive(node, answer.blobs[packets.SECAGG])
                if kind == packets.KEYS:
                    sum_ = committed(sum_, self.answers[kind])
                    server.context = self.context(sum_, broadcast, self.home.membership.digest, self.head())
                messages = server.close()
            values, users = server.result()
            self.included = server.included
        except SecAggError as error:
            self.refusals.append(str(error))
            return None
        finally:
            self.lines.append(line(self.sessions[-1], place, self.home.membership.number, []).pack())
        spec = sum_.spec(self.method)
        return Upload.from_ring(values, spec, users)

    def history(self) -> dict[str, Any]:
        return {"after": 0, "lines": self.lines}

    def context(self, sum_: Plan, broadcast: Broadcast, roster: str, head: str, founded: int = 0) -> bytes:
        """What nodes bind their masks to if they have this roster, heard of the sums with this head, and began so."""
        founded = founded or (unpack(self.lines[0]).roster if self.lines else self.home.membership.number)
        return sum_.context(broadcast, self.home.agreement, roster, head, str(founded))

    def head(self) -> str:
        return reduce(chained, self.lines, "")

    def trained(self, nodes: Sequence[int] = (0, 1, 2), round_: Plan = TRAIN) -> "Liar":
        """Train, and tell the truth about it: nodes judge only models that they have trained on."""
        assert self.sum(nodes, round_), self.refusals
        self.told_the_truth()
        return self

    def told_the_truth(self) -> None:
        """All nodes will hear that the last sum counts, if it was opened."""
        if self.included:
            self.lines[-1] = replace(unpack(self.lines[-1]), counted=counted(self.included)).pack()

    def refused(self, words: str) -> bool:
        return any(words in reason for reason in self.refusals)


def committed(sum_: Plan, answers: Mapping[int, Packet]) -> Plan:
    """The plan with the nodes' commitments, if there are any."""
    words = [answers[node].blobs.get(packets.COMMITTED + packets.SECAGG, b"").hex() for node in sorted(answers)]
    there = [word for word, node in zip(words, sorted(answers), strict=True) if answers[node].kind == packets.KEYS]
    return replace(sum_, committed=tuple(there)) if any(there) else sum_


def counts(liar: Liar, nodes: Iterable[int]) -> list[int]:
    """What these nodes' users have; only a test may know it."""
    found = np.zeros(N_ITEMS, np.int64)
    for node in nodes:
        with NodeStore(liar.fed.nodes[node]) as store:
            for (item,) in store.db.execute("SELECT item FROM interactions WHERE held_out = 0"):
                found[item] += 1
    return found.tolist()


def total(upload: Upload | None, leaf: str) -> list[int]:
    assert upload is not None
    return upload.leaves[leaf].values.ravel().tolist()
