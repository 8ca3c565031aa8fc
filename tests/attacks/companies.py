"""A lying server that keeps to every floor, and has true sums opened over companies that it chooses."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Broadcast, Upload
from fedgrec.federation.common.options import Agreement
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.plan import Plan
from fedgrec.federation.node.store import NodeStore
from tests.attacks.lying_server import DEGREES, PROPAGATE, TRAIN, Liar, counts
from tests.federation.worlds import World, world

Table = NDArray[np.int64]


def in_one_batch(root: Path, nodes: int, options: Any = None, **more: Any) -> World:
    """A federation of so few people that all of them stand in one batch; nobody has trained yet."""
    batches = {"fewest_people": 20} if hasattr(Agreement, "fewest_people") else {}
    given = {"users": 1, "users_per_round": 1000} | more
    return world(root, nodes=nodes, options=batches | (options or {}), **given)


class Chooser(Liar):
    """All verdicts are true, and every company is large enough; the server lies about the model alone."""

    def __init__(self, fed: World) -> None:
        super().__init__(fed)
        self.everybody = sorted(fed.nodes)
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
        self, company: Iterable[int], plan: Plan, broadcast: Broadcast | None = None, lied_to: Iterable[int] = ()
    ) -> Upload | None:
        """The sum over this company, with the threshold of an honest server.

        All in it are then told that it counts, but those who are `lied_to` that it was lost.
        """
        nodes = sorted(company)
        threshold = (len(nodes) + self.home.corrupt_nodes) // 2 + 1
        found = self.sum(nodes, plan, broadcast, threshold=threshold)
        if found is not None:
            for node in nodes:
                self.tell(node, node not in lied_to)
        return found

    def tell(self, node: int, counted: bool) -> None:
        """Tell a node whether the last sum counted."""
        header = {"federation": self.home.federation, "verdicts": {self.sessions[-1]: counted}}
        answer = self.ask(node, Packet("hello", header, {"nonce": bytes(32)}))
        assert answer.kind == "hello", answer

    def warm_up(self, company: Iterable[int] | None = None, lied_to: Iterable[int] = ()) -> None:
        """An honest count of everybody's items, and the latents of a company under these degrees."""
        found = self.open(self.everybody, self.plan(DEGREES))
        assert found is not None, self.refusals
        self.model.degrees[:] = found.leaves["degrees"].values[:, 0]
        self.open(self.everybody if company is None else company, self.plan(PROPAGATE), None, lied_to)

    def opened(self, company: Iterable[int], leaf: str, plan: Plan, *more: Any) -> Table | None:
        """What the company adds to a leaf, as one row an item; `more` as in `open`."""
        found = self.open(company, plan, *more)
        return None if found is None else found.leaves[leaf].values.astype(np.int64)

    def sweep(
        self, company: Iterable[int], round_: int, false: bool, moving: bool = True, lied_to: Iterable[int] = ()
    ) -> Table | None:
        """How a company's latents change, under the true degrees or under false ones; if not `moving`, items are 0."""
        plan = self.plan(TRAIN, round=round_)
        model = self.broadcast(plan)
        tables = model.tables if moving else np.zeros_like(model.tables)
        degrees = 4 * model.degrees if false else model.degrees
        return self.opened(company, "latents", plan, replace(model, degrees=degrees, tables=tables), lied_to)

    def items_of(self, node: int) -> set[int]:
        """What the node's users have; only a test may know it."""
        return set(np.flatnonzero(counts(self, [node])).tolist())


def touched(*sums: Table | None) -> set[int] | None:
    """The items whose rows are left when these sums are added up; None if one of them was not opened."""
    opened = [part for part in sums if part is not None]
    return set(np.flatnonzero(np.sum(opened, axis=0).any(axis=1)).tolist()) if len(opened) == len(sums) else None
