"""What batches cost a federation: sums that do not open, people who are not in them, recall, seconds and bytes.

federations   the demo's people on 3 to 100 nodes, of whom some are lost in every sum. The coordinator, its store and
              its choices are the real ones, and nodes join as they do; the sums alone are plain (`Plain`)
as real       two of these again with the five exchanges of real nodes: the same sums must open over the same nodes
year          a year in the demo's towns (year.py) with the real nodes, of which each is lost in a sum now and then
secure sum    one sum of 100 clients in batches of 10, and 10 lost clients, against neither

A lost node falls silent when its vector is due. It is back for the next sum.
"""

import json
import random
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import year
from benchmarks.stream import year as months_of
from fedgrec import data
from fedgrec.cable.core import Broadcast, Cohort, Ints, UploadSpec
from fedgrec.config.configuration import Config
from fedgrec.errors import SumLostError
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.batches import batches_of
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.options import Agreement, FederationOptions
from fedgrec.federation.common.packets import MASKED, Packet
from fedgrec.federation.common.plan import CHANGES, Plan, is_once
from fedgrec.federation.common.transport import Left
from fedgrec.federation.in_process.transport import LocalTransport
from fedgrec.federation.node.ranking import best, scores
from fedgrec.federation.node.refresh import Watcher
from fedgrec.federation.server import coordinator
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.members import Members, Observer
from fedgrec.federation.server.secure_sum import Outcome, Prepared
from fedgrec.federation.server.store import ServerStore, model_of
from fedgrec.federation.setup.init import Made, init
from fedgrec.methods.contract import Method
from fedgrec.models import metrics
from fedgrec.secagg import Population, Session, fresh_round_id, run_round
from fedgrec.secagg.parameters import choose
from fedgrec.secagg.session import Stage

MEMORY = Path("/dev/shm")  # stores that no disk slows down, where the system has such a folder
TABLE, TOP, SEED = "visits.csv", 20, 7
MODEL = {"data": "demo", "dim": 16, "negatives": 64, "users_per_round": 200}
ROUNDS = 40
PEOPLE = 1500  # of the demo
FEW = 8  # a node of few people has from 1 to so many


class Losses:
    """Who is lost in each sum that comes so far: each time others."""

    def __init__(self, how: str, roster: int, seed: int) -> None:
        self.how, self.roster, self.random = how, roster, random.Random(seed)

    def drawn(self, nodes: Collection[int]) -> set[int]:
        order = self.random.sample(sorted(nodes), len(nodes))
        if self.how == "5 % of the time":
            return {node for node in order if self.random.random() < 0.05}
        return set(order[: {"nobody": 0, "one node": 1, "a tenth": round(self.roster / 10)}[self.how]])


class Struck(LocalTransport):
    """A transport on which some nodes do not hear that their vectors are due."""

    losses: Losses

    def exchange(self, requests: Mapping[int, Packet], left: Left) -> Iterator[tuple[int, Packet]]:
        masked = {address for address, request in requests.items() if request.kind == MASKED}
        lost = self.losses.drawn(masked) if masked else set()
        yield from super().exchange({at: request for at, request in requests.items() if at not in lost}, left)


# ------------------------------------------------------------------------------------------------ plain sums


class Plain:
    """Sums over people of this process, without masks: they open, or not, as secure sums over a complete graph do."""

    def __init__(self, home: Path, people: Mapping[int, Ints], data_: Any, losses: Losses, seed: int) -> None:
        self.folder, self.people, self.losses = open_server(home), people, losses
        self.rng = np.random.default_rng(seed)
        keys = self.rng.integers(2**63, size=data_.train.n_users, dtype=np.uint64)
        method = self.folder.method(sum(map(len, people.values())))
        self.users: Cohort = method.init_users(keys, data_.train.indptr, data_.train.items)

    def __call__(
        self, members: Members, ready: Prepared, broadcast: Broadcast, upcoming: Any, options: FederationOptions
    ) -> Outcome:
        """Stands in for `fedgrec.federation.server.secure_sum.secure_sum`."""
        here = set(ready.nodes) - self.losses.drawn(ready.nodes)
        together = {node: set(batch) for batch in ready.together for node in batch}
        alive = {node for node in here if together.get(node, {node}) <= here}
        session = ready.session
        if session.neighbours < len(ready.nodes) - 1:
            raise NotImplementedError("only sums over a complete graph are told plainly")
        fewest = max(session.fewest, members.folder.fewest_nodes, len(ready.nodes) * ready.all_of_them)
        if len(alive) < fewest or len(here) < session.threshold:
            raise SumLostError(f"TooFewLeft: {len(alive)} vectors, and {len(here)} nodes that help")
        members.store.opening(session.round_id.hex(), sorted(alive))
        values, count = self._summed(ready.plan, sorted(alive), broadcast, members)
        return Outcome(values, count, sorted(alive), session.least)

    def _summed(self, plan: Plan, alive: Sequence[int], broadcast: Broadcast, members: Members) -> tuple[Any, int]:
        method = members.folder.method(plan.n_users, plan.begun)
        counts = {
            node: len(mine) if is_once(method, plan.stage) else plan.count(len(mine))
            for node, mine in self.people.items()
        }
        rows = np.sort(np.concatenate([self.rng.choice(self.people[n], counts[n], replace=False) for n in alive]))
        upload, pending = method.local_update(self.users.take(rows), plan.stage_of(method), broadcast)
        method.commit(self.users, rows, pending)
        return upload.to_ring(plan.spec(method)), sum(counts[node] for node in alive)


def spread(nodes: int, way: str, seed: int) -> dict[int, Ints]:
    """Each node's people, by their numbers in the demo."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(PEOPLE)
    if way == "few":
        ends = np.cumsum(rng.integers(1, FEW + 1, nodes))
        return dict(enumerate(np.split(order[: ends[-1]], ends[:-1])))
    return dict(enumerate(np.array_split(order, nodes)))


def made(root: Path, people: Mapping[int, Ints], stated: bool, bound: bool, rounds: int) -> Made:
    """The folders of a federation of these people; their nodes have read them."""
    visits, agreed = data.load("demo").split, Agreement(evaluations=0)
    least = min(map(len, people.values()))
    if not bound:
        agreed = replace(agreed, fewest_people=1)
    elif least > FEW:  # each node shall be a batch of its own, also where the demo has 15 people for each
        agreed = replace(agreed, fewest_people=min(agreed.fewest_people, least))

    def fill(folder: Path, index: int) -> str:
        lines = ["user,item,held_out"]
        for user in people[index].tolist():
            lines += [f"{user},{item},0" for item in visits.train.of(user)]
            lines += [f"{user},{item},1" for item in visits.test.of(user)]
        write_private(folder / TABLE, "\n".join([*lines, ""]).encode())
        return TABLE

    items, options = map(str, range(visits.train.n_items)), FederationOptions(rounds=rounds, pause=0, start_seconds=0)
    found = init(
        root,
        len(people),
        list(items),
        Config().changed(MODEL, "benchmark"),
        options,
        fill=fill,
        people=[len(mine) if stated else 1 for mine in people.values()],
        agreed=agreed,
    )
    for folder in found.nodes:
        Watcher(folder).load()
    return found


class Notices(Observer):
    def __init__(self) -> None:
        self.notices: list[str] = []

    def noticed(self, sentence: str) -> None:
        self.notices.append(sentence)


def trained(made_: Made, losses: Losses, plain: Plain | None = None) -> tuple[str, list[str]]:
    """Train; returns why the server stopped too early, or nothing, and what it noticed."""
    transport, notices = Struck(dict(enumerate(made_.nodes))), Notices()
    transport.losses = Losses("nobody", 0, 0) if plain else losses
    try:
        if plain:
            with patch.object(coordinator, "secure_sum", plain):
                coordinator.run(transport, made_.server, notices)
        else:
            coordinator.run(transport, made_.server, notices)
    except FederationError as stopped:
        return str(stopped), notices.notices
    return "", notices.notices


def kind(method: Method, line: Mapping[str, Any]) -> str:
    if line["stage"] == method.stages[-1].name:
        return "sweeps" if method.training(line["round"]).everyone else "rounds"
    return "first count" if line["level"] == 0 else "warm-up"


# ----------------------------------------------------------------------------------------------- federations


def recall(made_: Made, plain: Plain) -> float:
    """Recall@20 over all people, of the model as it is at the end."""
    rows, test = np.sort(np.concatenate([*plain.people.values()])), data.load("demo").split.test
    method, people = plain.folder.method(len(rows)), plain.users.take(rows)
    found, hits = scores(method, method.as_ranked(model_of(made_.server)), people), []
    for place, row in enumerate(found):
        if len(wanted := test.of(rows[place])):
            hits.append(metrics.recall(np.isin(best(row, people.items_of(place), TOP), wanted), len(wanted)))
    return float(np.mean(hits))


def opened(made_: Made, people: Mapping[int, int]) -> dict[str, Any]:
    """For each kind of sum: how many were due, attempts, sums that opened, and the share of the people in these.

    A round that could not take place counts as due.
    """
    with ServerStore(open_server(made_.server)) as store:
        lines, n_users = store.sums(), store.get("n_users")
    method, everybody = open_server(made_.server).method(n_users), sum(people.values())
    found: dict[str, Any] = {}
    for line in lines:
        about = found.setdefault(kind(method, line), {"due": set(), "attempts": 0, "opened": 0, "people": 0.0})
        about["due"].add((line["level"], line["round"]))
        about["attempts"] += 1
        if line["applied"]:
            about["opened"] += 1
            about["people"] += sum(people[node] for node in line["included"]) / everybody
    for about in found.values():
        about["due"] = len(about["due"])
        about["people"] /= about["due"]  # rounds: of those who might have been drawn
    return found


def federation(root: Path, nodes: int, way: str, how: str, bound: bool, seed: int) -> dict[str, Any]:
    """A federation of the demo's people, trained while nodes are lost."""
    stated, people = way != "not stated", spread(nodes, "few" if way == "few" else "many", seed)
    made_ = made(root, people, stated, bound, ROUNDS)
    plain = Plain(made_.server, people, data.load("demo").split, Losses(how, nodes, seed), seed)
    stopped, notices = trained(made_, plain.losses, plain)
    found = opened(made_, {node: len(mine) for node, mine in people.items()})
    return {
        "people": sum(map(len, people.values())),
        "batches": len(batches_of(open_server(made_.server), 1)),
        "stopped": stopped,
        "sums": found,
        "recall": None if stopped else recall(made_, plain),
        "notices": dict(Counter(sentence.split(":")[0] for sentence in notices).most_common(3)),
    }


WAYS = {"many": (3, 4, 5, 20, 100), "few": (5, 20, 100), "not stated": (5, 20)}


def cases() -> Iterator[tuple[int, str, str, bool]]:
    """Nodes, how people are spread, who is lost, whether sums open over whole batches."""
    for way, sizes in WAYS.items():
        for nodes in sizes:
            for how in ("nobody", "one node", *(["a tenth"] if nodes >= 20 else []), "5 % of the time"):
                for bound in (True, False) if way != "many" else (True,):  # batches of one node bind nothing
                    yield nodes, way, how, bound
