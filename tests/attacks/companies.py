"""A lying server that keeps to every floor, and has true sums opened over companies that it chooses."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Broadcast, Upload
from fedgrec.federation.common import packets
from fedgrec.federation.common.certificates import open_authority
from fedgrec.federation.common.history import line
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.plan import Plan
from fedgrec.federation.common.roster import Membership, write_roster
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.folder import open_server
from tests.attacks.lying_server import DEGREES, PROPAGATE, TRAIN, Liar, counts
from tests.federation.worlds import World, world

Table = NDArray[np.int64]


def in_one_batch(root: Path, nodes: int, options: Any = None, **more: Any) -> World:
    """A federation of so few people that all of them stand in one batch; nobody has trained yet."""
    given = {"users": 1, "users_per_round": 1000} | more
    return world(root, nodes=nodes, options={"fewest_people": 20} | (options or {}), **given)


class Chooser(Liar):
    """All verdicts are true, and every company is large enough; the server lies about the model alone."""

    def __init__(self, fed: World) -> None:
        self.false: dict[tuple[int, int], str] = {}  # lines of the history that one node alone is told, by number
        self.everybody = sorted(fed.nodes)
        self.alone = set(self.everybody)  # who gets plans
        super().__init__(fed)
        self.people = sum(len(users) for users in self._users())
        self.method = self.home.method(self.people)
        self.model = self.method.init(0)

    def _users(self) -> Iterator[list[str]]:
        for path in self.fed.nodes.values():
            with NodeStore(path) as store:
                yield store.ids()

    def plan(self, like: Plan, **other: Any) -> Plan:
        """A sum of everybody's users."""
        return replace(like, n_users=self.people, users=self.people, take=1, of=1, **other)

    def open(
        self,
        company: Iterable[int],
        plan: Plan,
        broadcast: Broadcast | None = None,
        lied_to: Iterable[int] = (),
        left_out: Iterable[int] = (),
        ahead: Iterable[int] = (),
    ) -> Upload | None:
        """The sum over this company, with the threshold of an honest server.

        All nodes are then told that it counts, but those who are `lied_to` that it was lost; the latter may be all.
        Of nodes that are `left_out` all nodes are told that the sum is without them. Nodes that are `ahead` get the
        plan of another sum first, which is then given up.
        """
        nodes = sorted(company)
        threshold = (len(nodes) + self.home.corrupt_nodes) // 2 + 1
        found = self.sum(nodes, plan, broadcast, threshold=threshold)
        if found is not None:
            for node in ahead:
                self._begins_alone(node, nodes, replace(plan, round=plan.round + 1), threshold)
            if set(lied_to) != set(nodes):
                self.false |= {(node, len(self.lines) - 1): self.lines[-1] for node in lied_to}
                self.lines[-1] = line(
                    self.sessions[-1], plan.place, self.home.membership.number, {*nodes}.difference(left_out)
                ).pack()
            for node in self.everybody:
                self.greet(node)
        return found

    def _begins_alone(self, node: int, company: list[int], plan: Plan, threshold: int) -> None:
        """All give their keys for another sum, but only this node gets its plan, and the last line is not told yet."""
        held_back, self.alone = self.lines.pop(), {node}
        self.sum(company, plan, until="shares", threshold=threshold)
        self.lines[-1:], self.alone = [held_back], set(self.everybody)
        self.sessions.pop()

    def greet(self, node: int) -> None:
        """As honest servers do; the node hears what became of all sums, and may refuse to believe it."""
        known = self.home.membership
        header = {"federation": self.home.federation, "roster": [known.number, known.digest]}
        answer = self.ask(node, Packet(packets.HELLO, header | {packets.HISTORY: self.history()}, {"nonce": bytes(32)}))
        if answer.kind != packets.HELLO:
            self.refusals.append(answer.header["reason"])

    def ask(self, node: int, packet: Packet) -> Packet:
        """With the history that this node is told; a message that does not reach its node is an error."""
        if packet.kind == packets.SHARES and node not in self.alone:
            return packets.failure("the node was not asked")
        lines = [self.false.get((node, number), told) for number, told in enumerate(self.lines)]
        told = {packets.HISTORY: self.history() | {"lines": lines}} if packets.HISTORY in packet.header else {}
        return super().ask(node, replace(packet, header={**packet.header, **told}))

    def without(self, *nodes: int) -> None:
        """The authority takes these nodes off the roster, and all others hear of it."""
        now = self.home.membership
        gone = {node: replace(now.members[node], left=now.number + 1) for node in nodes}
        new = Membership(now.federation, now.number + 1, {**now.members, **gone}).signed(
            open_authority(self.fed.server.parent)[0]
        )
        write_roster(self.fed.server, new)
        self.home = open_server(self.fed.server)
        self.everybody = [node for node in self.everybody if node not in nodes]
        for other in self.everybody:
            self.ask(other, Packet(packets.NEW_ROSTER, arrays={"roster": packets.as_array(new.pack())}))
            self.greet(other)

    def warm_up(self, company: Iterable[int] | None = None, *more: Iterable[int]) -> None:
        """An honest count of everybody's items, and the latents of a company under these degrees."""
        found = self.open(self.everybody, self.plan(DEGREES))
        assert found is not None, self.refusals
        self.model.degrees[:] = found.leaves["degrees"].values[:, 0]
        self.open(self.everybody if company is None else company, self.plan(PROPAGATE), None, *more)

    def opened(self, company: Iterable[int], leaf: str, plan: Plan, *more: Any) -> Table | None:
        """What the company adds to a leaf, as one row an item; `more` as in `open`."""
        found = self.open(company, plan, *more)
        return None if found is None else found.leaves[leaf].values.astype(np.int64)

    def sweep(
        self, company: Iterable[int], round_: int, false: bool, *more: Iterable[int], moving: bool = True
    ) -> Table | None:
        """How a company's latents change, under the true degrees or under false ones; if not `moving`, items are 0."""
        plan = self.plan(TRAIN, round=round_)
        model = self.broadcast(plan)
        tables = model.tables if moving else np.zeros_like(model.tables)
        degrees = 4 * model.degrees if false else model.degrees
        return self.opened(company, "latents", plan, replace(model, degrees=degrees, tables=tables), *more)

    def items_of(self, node: int) -> set[int]:
        """What the node's users have; only a test may know it."""
        return set(np.flatnonzero(counts(self, [node])).tolist())


def touched(*sums: Table | None) -> set[int] | None:
    """The items whose rows are left when these sums are added up; None if one of them was not opened."""
    opened = [part for part in sums if part is not None]
    return set(np.flatnonzero(np.sum(opened, axis=0).any(axis=1)).tolist()) if len(opened) == len(sums) else None
