"""Who takes part in a sum, with how many users, under which session of secure aggregation."""

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate

from fedgrec.cable.core import UploadSpec
from fedgrec.errors import ConfigError, SumLostError
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.plan import CHANGES, EVALUATE, Plan, is_once, is_recount, sum_name
from fedgrec.federation.server.members import Members
from fedgrec.federation.server.secure_sum import Prepared
from fedgrec.methods.contract import Method
from fedgrec.secagg import SecAggError, Session
from fedgrec.secagg.parameters import SURE, Parameters, choose

SPARSE_ONCE = 0.1  # share of the nodes that a large sum that is opened once may lose: more would need a dense graph


class Participants:
    """Draws nodes and their shares, and chooses masks that hold."""

    def __init__(self, members: Members) -> None:
        self.members, self.store, self.options = members, members.store, members.folder.options
        self.random = random.SystemRandom()

    @property
    def fewest(self) -> int:
        return self.members.folder.fewest_nodes

    def prepare(self, method: Method, begun: int, stage: str, level: int, round_: int) -> Prepared:
        """A sum of this stage, level and round, in the season that began with that round."""
        o = self.options
        warm_up, present = is_once(method, stage), self.members.present()
        sum_ = Plan(stage, level, round_, method.n_users, method.n_users, begun=begun)
        again = self.store.half_opened(stage, level, round_) if warm_up else None
        if stage == CHANGES:
            nodes = present
            sum_ = replace(sum_, users=sum(self.members.users[node] for node in nodes) or 1)
        elif is_recount(method, stage):
            nodes, again = present, None
        elif again is not None:  # nodes refuse other companies: the difference would be one node's upload
            self._check_here(stage, again)
            self.members.wait(lambda: set(again) <= set(self.members.reachable()), o.start_seconds)
            nodes = [node for node in again if node in self.members.reachable()]
        elif warm_up:
            nodes = self._with_room(present)
        elif stage == EVALUATE:
            trained, agreed = self.store.trained()[1], self.members.folder.agreed
            nodes = [node for node in present if node in trained]
            users = sum(self.members.users[node] for node in nodes) or 1
            sum_ = replace(sum_, users=users, topk=agreed.topk, deviation=agreed.deviation)
        else:
            nodes, kind = present, method.training(round_)
            if kind.everyone:  # in a sweep, a node takes part with all users or not at all
                nodes = self._fitting(method.n_users, nodes, self.members.users)
            else:
                if o.nodes_per_round:
                    nodes = self.random.sample(nodes, min(len(nodes), o.nodes_per_round + o.spares))
                sum_, nodes = self.share_out(method.spec(kind).users, sum_, nodes)
        training = stage == method.stages[-1].name and not method.training(round_).everyone
        wanted = min(len(nodes), o.nodes_per_round or len(nodes)) if training else len(nodes)
        if wanted < self.fewest:
            raise SumLostError(f"{len(nodes)} nodes are there, and a sum needs {self.fewest}")
        if again is not None and len(nodes) < len(again):
            raise SumLostError(f"stage {stage!r} was half opened for nodes {again}: all of them must be there again")
        attempt = self.store.attempt(sum_.place)
        session = self._session(sum_, sum_.spec(method), wanted, attempt, once=warm_up)
        roster = self.members.folder.membership.digest
        return Prepared(sum_, session, sorted(nodes), wanted, again is not None, attempt, roster)

    def _with_room(self, nodes: list[int]) -> list[int]:
        """The nodes that fit a sum of the warm-up: its integers were sized for the users of the start.

        A node that was in the first count sends for the users of that count, whoever has come or left since.
        """
        counted, founders = set(self.store.first_counted()), self.store.founders()
        return [node for node in nodes if node in counted or self.members.users[node] <= founders.get(node, 0)]

    def _check_here(self, stage: str, nodes: list[int]) -> None:
        """A stage that is opened again needs all nodes of the first time, and a removed node never comes back."""
        if gone := [node for node in nodes if node not in self.members.folder.roster]:
            names = {index: name for index, name, _ in self.store.nodes()}
            who = ", ".join(names.get(node, str(node)) for node in gone)
            raise FederationError(
                f"stage {stage!r} of the warm-up was opened in part with {who}, and cannot be opened without it: "
                f"begin a new federation, and remove nodes once its warm-up is over"
            )

    def _fitting(self, most: int, nodes: list[int], users: Mapping[int, int]) -> list[int]:
        """Some of these nodes, drawn at random, with at most this many users together."""
        drawn = self.random.sample(nodes, len(nodes))
        return drawn[: sum(given <= most for given in accumulate(users[node] for node in drawn))]

    def share_out(self, most: int, sum_: Plan, nodes: list[int]) -> tuple[Plan, list[int]]:
        """Each node's share of a round of `most` users; some nodes wait if all nodes' least shares are too many."""
        users, least = self.members.users, self.options.least_users
        shares = {node: min(users[node], least) for node in nodes}
        if sum(shares.values()) > most:
            nodes = self._fitting(most, nodes, shares)
            if len(nodes) < self.fewest:
                raise ConfigError(
                    f"users_per_round = {most} is too few for {self.fewest} nodes of {least} users each: raise it"
                )
        total = sum(users[node] for node in nodes)
        sum_ = replace(sum_, users=most, take=min(most, total), of=max(total, 1), least=least)
        while (over := sum(sum_.count(users[node]) for node in nodes) - most) > 0:
            sum_ = replace(sum_, take=max(sum_.take - over, 0))
        return sum_, nodes

    def _session(self, sum_: Plan, spec: UploadSpec, nodes: int, attempt: int, once: bool) -> Session:
        """A session whose masks hold against corrupt nodes; `once`: only one company can open it."""
        o, corrupt = self.options, self.members.folder.corrupt_nodes
        name = sum_name(self.members.folder.federation, sum_.place, attempt)
        neighbours, threshold, least = o.neighbours, o.threshold, self.fewest
        if not neighbours:
            chosen = self._parameters(nodes, corrupt, len(self.members.folder.roster) if once else 0)
            neighbours, threshold, least = chosen.neighbours, chosen.threshold, max(chosen.least, least)
        return Session(name, spec.rings, spec.users, neighbours, threshold, least=min(least, nodes))

    def _parameters(self, nodes: int, corrupt: int, founders: int) -> Parameters:
        """Parameters for the losses that `dropped` allows, or for as many as there is room for."""
        most = nodes - (max(nodes, founders) + corrupt) // 2 - 1
        if most < 0:
            raise SumLostError(f"{nodes} nodes are there, and this sum needs {nodes - most}")
        lost = self.options.dropped if nodes <= SURE or not founders else min(self.options.dropped, SPARSE_ONCE)
        try:
            return choose(nodes, corrupt / nodes, lost, self.members.folder.agreed.security, founders=founders)
        except SecAggError:
            return choose(nodes, corrupt / nodes, most / nodes, self.members.folder.agreed.security, founders=founders)
