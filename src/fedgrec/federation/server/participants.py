"""Who takes part in a sum, with how many users, under which session of secure aggregation."""

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, chain

from fedgrec.cable.core import UploadSpec
from fedgrec.errors import ConfigError, SumLostError
from fedgrec.federation.common.batches import Batch, binding, names, whole
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.plan import CHANGES, EVALUATE, Plan, is_once, is_recount, sum_name
from fedgrec.federation.server.members import Members
from fedgrec.federation.server.secure_sum import Prepared
from fedgrec.methods.contract import Method
from fedgrec.secagg import SecAggError, Session
from fedgrec.secagg.parameters import Parameters, choose

Unit = tuple[int, ...]  # nodes that are in a sum together or not at all
PATIENT = 2  # attempts at a sum that is opened once for which every batch must stay whole


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
        once, sum_ = is_once(method, stage), Plan(stage, level, round_, method.n_users, method.n_users, begun=begun)
        again = self.store.half_opened(stage, level, round_) if once and not is_recount(method, stage) else None
        if again is None:
            sum_, units, wanted = self._drawn(sum_, method)
        else:
            units, wanted = self._all_of(stage, again), len(again)
        nodes = sorted(chain(*units))
        if min(wanted, len(nodes)) < self.fewest:
            raise SumLostError(f"{len(nodes)} nodes are there, and a sum needs {self.fewest}")
        attempt, together = self.store.attempt(sum_.place), [unit for unit in units if len(unit) > 1]
        session = self._session(sum_, sum_.spec(method), wanted, attempt, bool(together))
        roster = self.members.folder.membership.digest
        # Whoever is lost in the warm-up takes its batch along until a recount: better try again, before it is opened.
        patient = again is None and once and bool(together) and attempt < PATIENT
        return Prepared(sum_, session, nodes, wanted, again is not None, patient, attempt, roster, together)

    def _drawn(self, sum_: Plan, method: Method) -> tuple[Plan, list[Unit], int]:
        """The sum with the users that it may hold; who is asked; and how many nodes of these should take part."""
        o, users, training = self.options, self.members.users, method.training(sum_.round)
        if sum_.stage == EVALUATE:
            agreed = self.members.folder.agreed
            sum_ = replace(sum_, topk=agreed.topk, deviation=agreed.deviation)
        units = self._units(sum_, method)
        if sum_.stage in (EVALUATE, CHANGES):
            sum_ = replace(sum_, users=sum(users[node] for node in chain(*units)) or 1)
        elif not is_once(method, sum_.stage) and training.everyone:
            units = self._fitting(method.n_users, units, users)  # in a sweep, a node takes part with all users or none
        elif not is_once(method, sum_.stage):
            alone = all(len(unit) == 1 for unit in units)
            if o.nodes_per_round:
                most = dict.fromkeys(chain(*units), 1)
                units = self._fitting(o.nodes_per_round + o.spares * alone, units, most) or units[:1]
            sum_, units = self.share_out(method.spec(training).users, sum_, units)
            if o.nodes_per_round and alone:
                return sum_, units, min(len(units), o.nodes_per_round)
        return sum_, units, sum(map(len, units))

    def _units(self, sum_: Plan, method: Method) -> list[Unit]:
        """Who can take part now: nodes one by one, or whole batches in sums that open only over these."""
        folder, next_round = self.members.folder, self.store.get("round", 0)
        waits = is_once(method, sum_.stage) and sum_.round == next_round  # but training waits for no recount
        patience = self.options.start_seconds if waits else 0.0
        drawn = self.binding(sum_, method)
        if not drawn:
            return [(node,) for node in self._here(sum_, method) if self.members.users[node]]
        self.members.wait(lambda: bool(whole(drawn, self._here(sum_, method))), patience)
        here = self._here(sum_, method)
        if found := whole(drawn, here):
            return [tuple(sorted(batch)) for batch in found]
        away = names(folder, frozenset().union(*drawn).difference(here))
        raise SumLostError(
            f"sums of people's items open over whole batches (fewest_people), and {away} cannot be there"
        )

    def binding(self, sum_: Plan, method: Method) -> list[Batch]:
        folder = self.members.folder
        return binding(folder, self.store.founded() or folder.membership.number, method, sum_)

    def _here(self, sum_: Plan, method: Method) -> list[int]:
        """The nodes that are present and may be in this sum."""
        here = self.members.present()
        if sum_.stage == EVALUATE:
            return [node for node in here if node in self.store.trained()[1] or not self.members.users[node]]
        warm_up = is_once(method, sum_.stage) and not is_recount(method, sum_.stage)
        return self._with_room(here) if warm_up else here

    def _all_of(self, stage: str, nodes: list[int]) -> list[Unit]:
        """The nodes of a sum that some nodes opened: they refuse another company, which would tell of who differs."""
        self._check_here(stage, nodes)
        if not self.members.wait(lambda: set(nodes) <= set(self.members.reachable()), self.options.start_seconds):
            raise SumLostError(f"stage {stage!r} was half opened for nodes {nodes}: all of them must be there again")
        return [(node,) for node in nodes]

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

    def _fitting(self, most: int, units: list[Unit], users: Mapping[int, int]) -> list[Unit]:
        """Some of these units, drawn at random, with at most this many users together."""
        drawn = self.random.sample(units, len(units))
        return drawn[: sum(given <= most for given in accumulate(sum(users[n] for n in unit) for unit in drawn))]

    def share_out(self, most: int, sum_: Plan, units: list[Unit]) -> tuple[Plan, list[Unit]]:
        """Each node's share of a round of `most` users; some wait if all nodes' least shares are too many."""
        users, least = self.members.users, self.options.least_users
        shares = {node: min(users[node], least) for node in chain(*units)}
        if sum(shares.values()) > most:
            units = self._fitting(most, units, shares)
            if sum(map(len, units)) < self.fewest:
                raise ConfigError(
                    f"users_per_round = {most} is too few for {self.fewest} nodes of {least} users each: raise it"
                )
        nodes = [*chain(*units)]
        total = sum(users[node] for node in nodes)
        sum_ = replace(sum_, users=most, take=min(most, total), of=max(total, 1), least=least)
        while (over := sum(sum_.count(users[node]) for node in nodes) - most) > 0:
            sum_ = replace(sum_, take=max(sum_.take - over, 0))
        return sum_, units

    def _session(self, sum_: Plan, spec: UploadSpec, nodes: int, attempt: int, together: bool) -> Session:
        """A session whose masks hold against corrupt nodes.

        `together`: a lost node takes its batch out of the sum, so few may be left, while the others help to open it.
        """
        o, corrupt = self.options, self.members.folder.corrupt_nodes
        name = sum_name(self.members.folder.federation, sum_.place, attempt)
        neighbours, threshold, least = o.neighbours, o.threshold, self.fewest
        if not neighbours:
            chosen = self._parameters(nodes, corrupt)
            neighbours, threshold, least = chosen.neighbours, chosen.threshold, max(chosen.least, least)
        fewest = self.fewest if together else 0
        return Session(
            name, spec.rings, spec.users, neighbours, threshold, least=min(least, nodes), least_summed=fewest
        )

    def _parameters(self, nodes: int, corrupt: int) -> Parameters:
        """Parameters for the losses that `dropped` allows, or for as many as there is room for."""
        most = nodes - (nodes + corrupt) // 2 - 1
        if most < 0:
            raise SumLostError(f"{nodes} nodes are there, and this sum needs {nodes - most}")
        security = self.members.folder.agreed.security
        try:
            return choose(nodes, corrupt / nodes, self.options.dropped, security)
        except SecAggError:
            return choose(nodes, corrupt / nodes, most / nodes, security)
