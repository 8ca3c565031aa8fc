"""What batches cost a federation: sums that do not open, people who are not in them, recall, seconds and bytes.

federations   the demo's people on 3 to 100 nodes, of whom some are lost in every sum. The coordinator, its store and
              its choices are the real ones, and nodes join as they do; the sums alone are plain (`Plain`)
as real       two of these again with the five exchanges of real nodes: the same sums must open over the same nodes
year          a year in the demo's towns (year.py) with the real nodes: nobody is lost, or each in a sum now and then
secure sum    one sum of 100 clients in batches of 10, and 10 lost clients, against neither

A lost node falls silent when its vector is due. It is back for the next sum.
"""

import os
import random
import re
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from tests.federation.local_transport import LocalTransport
from threadpoolctl import threadpool_limits

from benchmarks import year
from benchmarks.stream import Month
from benchmarks.stream import year as months_of
from benchmarks.sum_costs import measured_round
from fedgrec import data
from fedgrec.cable.core import Broadcast, Cohort, Ints
from fedgrec.config.configuration import Config
from fedgrec.errors import SumLostError
from fedgrec.federation.common import folder as folder_
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.batches import batches_of
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.options import AS_USUAL, Agreement, FederationOptions, read_options
from fedgrec.federation.common.packets import FINISH, MASKED, Packet
from fedgrec.federation.common.plan import CHANGES, Plan, is_once
from fedgrec.federation.common.transport import Left
from fedgrec.federation.node.ranking import best, scores
from fedgrec.federation.node.refresh import Watcher
from fedgrec.federation.server import coordinator
from fedgrec.federation.server.folder import OPTIONS, open_server
from fedgrec.federation.server.members import Members, Observer
from fedgrec.federation.server.secure_sum import Outcome, Prepared
from fedgrec.federation.server.store import ServerStore, model_of
from fedgrec.federation.setup.init import Made, init
from fedgrec.kernels import cpu
from fedgrec.methods.contract import TRAIN, Method
from fedgrec.models import metrics
from fedgrec.secagg import Population, Session
from fedgrec.secagg.parameters import choose
from fedgrec.secagg.session import Stage

MEMORY = Path("/dev/shm")  # stores that no disk slows down, where the system has such a folder
TABLE, TOP, SEED = "visits.csv", 20, 7
MODEL = {"data": "demo", "dim": 32, "negatives": 256}  # half of the people in a round
ROUNDS = 60
CASES = (  # how people are spread, nodes, seeds
    ("many", 3, 1), ("many", 4, 1), ("many", 5, 1), ("many", 20, 1), ("many", 100, 1),
    ("few", 5, 3), ("few", 20, 3), ("few", 100, 1), ("not stated", 5, 1), ("not stated", 20, 1),
)  # fmt: skip
SHOWN = ("first count", "warm-up", "sweeps", "rounds")
MONTHS = 8  # of year.py's
YEARS = (("nobody", SEED), ("5 % of the time", SEED), ("5 % of the time", SEED + 1))  # who is lost, by which draws
YEARS_SUMS = ("degrees", "propagate", "train", CHANGES, "recount")
PEOPLE = 1000  # of the demo's
FEW = 8  # a node of few people has from 1 to so many


GONE = "one node gone"  # after the warm-up, for good


class Losses:
    """Who is lost in each sum that comes so far: each time others."""

    def __init__(self, how: str, roster: int, seed: int) -> None:
        self.how, self.roster, self.random = how, roster, random.Random(seed)

    def drawn(self, nodes: Collection[int]) -> set[int]:
        order = self.random.sample(sorted(nodes), len(nodes))
        if self.how == "5 % of the time":
            return {node for node in order if self.random.random() < 0.05}
        return set(order[: {"nobody": 0, GONE: 0, "one node": 1, "a tenth": round(self.roster / 10)}[self.how]])


class Struck(LocalTransport):
    """A transport on which some nodes do not hear that their vectors are due."""

    def __init__(self, folders: Mapping[int, Path], losses: Losses, is_plain: bool = False) -> None:
        super().__init__(folders)
        self.losses, self.is_plain = losses, is_plain

    def exchange(self, requests: Mapping[int, Packet], left: Left) -> Iterator[tuple[int, Packet]]:
        masked = {address for address, request in requests.items() if request.kind == MASKED}
        lost = self.losses.drawn(masked) if masked else set()
        if self.is_plain and any(request.kind == FINISH for request in requests.values()):
            return  # these nodes will recommend nothing
        yield from super().exchange({at: request for at, request in requests.items() if at not in lost}, left)


# ------------------------------------------------------------------------------------------------ plain sums


class Plain:
    """Sums over people of this process, without masks: they open, or not, as secure sums over a complete graph do."""

    def __init__(self, home: Path, people: Mapping[int, Ints], losses: Losses, seed: int) -> None:
        self.folder, self.people, self.losses = open_server(home), people, losses
        self.rng, visits = np.random.default_rng(seed), data.load("demo").split.train
        keys = self.rng.integers(2**63, size=visits.n_users, dtype=np.uint64)
        self.users: Cohort = self.folder.method(1).init_users(keys, visits.indptr, visits.items)

    def __call__(
        self, members: Members, ready: Prepared, broadcast: Broadcast, upcoming: Any, options: FederationOptions
    ) -> Outcome:
        """Stands in for `fedgrec.federation.server.secure_sum.secure_sum`."""
        if (broadcast.round, broadcast.level) != (ready.plan.round, ready.plan.level):
            raise SumLostError("TooFewLeft: nodes refuse a model of another round")
        asked = set(ready.nodes) & set(members.reachable())
        here = asked - self.losses.drawn(asked)
        together = {node: set(batch) for batch in ready.together for node in batch}
        alive = {node for node in here if together.get(node, {node}) <= here}
        session = ready.session
        if session.neighbours < len(ready.nodes) - 1:
            raise NotImplementedError("only sums over a complete graph are told plainly")
        everybody = len(ready.nodes) * (ready.all_of_them or ready.patient)
        fewest = max(session.fewest, members.folder.fewest_nodes, everybody)
        if len(alive) < fewest or len(here) < session.threshold:
            raise SumLostError(f"TooFewLeft: {len(alive)} vectors, and {len(here)} nodes that help")
        members.store.opening(session.round_id.hex(), sorted(alive))
        values, count = self._summed(ready.plan, sorted(alive), broadcast, members)
        return Outcome(values, count, sorted(alive), session.least)

    def _summed(self, plan: Plan, alive: Sequence[int], broadcast: Broadcast, members: Members) -> tuple[Any, int]:
        method = with_cpu(members.folder.method(plan.n_users, plan.begun))
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


def made(root: Path, people: Mapping[int, Ints], way: str, bound: bool, rounds: int = ROUNDS) -> Made:
    """The folders of a federation. Its nodes know their people's names; only `Plain` knows all that these visited."""
    each, visits = [len(mine) for mine in people.values()], data.load("demo").split.train
    fewest = Agreement().fewest_people if way == "few" else min(Agreement().fewest_people, *each)

    def fill(folder: Path, index: int) -> str:
        lines = [f"{user},{visits.of(user)[0]},0" for user in people[index].tolist()]
        write_private(folder / TABLE, "\n".join(["user,item,held_out", *lines, ""]).encode())
        return TABLE

    found = init(
        root,
        len(people),
        list(map(str, range(visits.n_items))),
        Config().changed(MODEL | {"users_per_round": max(sum(each) // 2, 2 * len(each))}, "benchmark"),
        FederationOptions(rounds=rounds, pause=0, start_seconds=0),
        fill=fill,
        people=[1] * len(each) if way == "not stated" else each,
        agreed=Agreement(evaluations=0, fewest_people=fewest if bound else 1),
    )
    for folder in found.nodes:
        Watcher(folder).load()
    return found


def copied(made_: Made, root: Path) -> Made:
    """The same federation once more: it has the same batches."""
    shutil.copytree(made_.server.parent, root)
    return Made(root / made_.server.name, [root / folder.name for folder in made_.nodes])


class Watching(Observer):
    """Remembers what it was told, and takes a node away once the warm-up is over, if one is to go."""

    def __init__(self, transport: LocalTransport, how: str) -> None:
        self.notices: list[str] = []
        self.transport, self.how = transport, how

    def summed(self, line: dict[str, Any]) -> None:
        if self.how == GONE and line["stage"] == TRAIN.name:
            self.transport.away = {max(self.transport.folders)}

    def noticed(self, sentence: str) -> None:
        self.notices.append(sentence)


def trained(made_: Made, losses: Losses, plain: Plain | None = None) -> tuple[str, list[str]]:
    """Train; returns why the server stopped too early, or nothing, and what it noticed."""
    transport = Struck(dict(enumerate(made_.nodes)), Losses("nobody", 0, 0) if plain else losses, plain is not None)
    watching = Watching(transport, losses.how)
    try:
        with patch.object(coordinator, "secure_sum", plain or coordinator.secure_sum):
            coordinator.run(transport, made_.server, watching)
    except FederationError as stopped:
        return str(stopped), watching.notices
    return "", watching.notices


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

    A round that could not take place counts as due. `in_a_row`: the most attempts that failed one after the other.
    """
    with ServerStore(open_server(made_.server)) as store:
        lines, n_users = store.sums(), store.get("n_users")
    method, everybody = open_server(made_.server).method(n_users), sum(people.values())
    found: dict[str, Any] = {}
    empty = {"attempts": 0, "opened": 0, "people": 0.0, "in_a_row": 0}
    for line in lines:
        about = found.setdefault(kind(method, line), {"due": set(), "failed": 0, **empty})
        about["due"].add((line["level"], line["round"]))
        about["attempts"] += 1
        about["failed"] = 0 if line["applied"] else about["failed"] + 1
        about["in_a_row"] = max(about["in_a_row"], about["failed"])
        if line["applied"]:
            about["opened"] += 1
            about["people"] += sum(people[node] for node in line["included"]) / everybody
    for about in found.values():
        about["due"] = len(about["due"])
        del about["failed"]
        about["people"] /= about["due"]  # rounds: of those who might have been drawn
    return found


def left_out(made_: Made, people: Mapping[int, int]) -> float:
    """The share of people whose node is in less than a tenth of the training rounds that opened."""
    with ServerStore(open_server(made_.server)) as store:
        rounds = [line["included"] for line in store.sums() if line["stage"] == TRAIN.name and line["applied"]]
    times = Counter(node for included in rounds for node in included)
    return sum(people[node] for node in people if times[node] < 0.1 * len(rounds)) / sum(people.values())


def federation(made_: Made, people: Mapping[int, Ints], how: str, seed: int) -> dict[str, Any]:
    """Train while nodes are lost."""
    plain = Plain(made_.server, people, Losses(how, len(people), seed), seed)
    stopped, notices = trained(made_, plain.losses, plain)
    sizes = {node: len(mine) for node, mine in people.items()}
    return {
        "people": sum(map(len, people.values())),
        "batches": len(batches_of(open_server(made_.server), 1)),
        "stopped": stopped,
        "sums": opened(made_, sizes),
        "left_out": left_out(made_, sizes),
        "recall": None if stopped else recall(made_, plain),
        "notices": dict(Counter(re.sub(r"node-\d+|\d+", "…", sentence) for sentence in notices).most_common(3)),
    }


def losses_of(way: str, nodes: int) -> Sequence[str]:
    some = ("one node", "a tenth") if nodes >= 20 else ("one node", "5 % of the time")
    return (*some, GONE) if way != "many" else some


def federations(root: Path, cases: Sequence[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """All of them. Where nobody is lost, the rule changes nothing, so that is the training to compare with."""
    found = []
    for way, nodes, seed in [(way, nodes, seed) for way, nodes, seeds in cases for seed in range(seeds)]:
        people = spread(nodes, way, seed)
        for rule in (True, False)[: 1 + (way != "many")]:  # the rule does not bind batches of one node
            base = made(root / f"{way} {nodes} {seed} {rule}", people, way, rule)
            for how in (*(["nobody"] if rule else []), *losses_of(way, nodes)):
                here = copied(base, root / "now")
                about = {"way": way, "nodes": nodes, "seed": seed, "rule": rule, "lost": how}
                found.append(about | federation(here, people, how, seed))
                shutil.rmtree(root / "now")
    return found


def as_real(root: Path, cases: Sequence[tuple[int, str, str, int]]) -> list[dict[str, Any]]:
    """The same sums open over the same nodes, whether they are plain or secure."""
    found = []
    for nodes, way, how, rounds in cases:
        people = spread(nodes, way, SEED)
        base = made(root / f"{nodes} {way} {how}", people, way, True, rounds)
        logs, begun = [], time.process_time()
        for is_plain in (True, False):
            here = copied(base, root / f"{nodes} {way} {how} {is_plain}")
            losses = Losses(how, nodes, SEED)
            trained(here, losses, Plain(here.server, people, losses, SEED) if is_plain else None)
            with ServerStore(open_server(here.server)) as store:
                parts = ("stage", "level", "round", "applied", "included")
                logs.append([[line[part] for part in parts] for line in store.sums()])
        counted = sum(line[3] for line in logs[1])
        about = {"nodes": nodes, "way": way, "lost": how, "sums": len(logs[1]), "opened": counted}
        found.append(about | {"same": logs[0] == logs[1], "cpu_seconds": time.process_time() - begun})
    return found


# ------------------------------------------------------------------------------------------------------ a year


@contextmanager
def quick_nodes() -> Iterator[None]:
    """Nodes train on the compiled kernel, the fast twin of theirs: a year would take three times as long."""
    usual = folder_.make_method
    with patch.object(folder_, "make_method", lambda *about: with_cpu(usual(*about))):
        yield


def with_cpu(method: Any) -> Any:
    return replace(method, kernel=cpu)


def lives(made_: Made, losses: Losses) -> Iterator[int]:
    """A season each; says how often its server stopped, and was started again."""
    path, transport = made_.server / OPTIONS, Struck(dict(enumerate(made_.nodes)), losses)
    path.write_text(replace(read_options(path, FederationOptions), pause=0.0).to_toml(), encoding="utf-8")
    for folder in made_.nodes:
        Watcher(folder).load()
    while True:
        stops = 0
        while not _ran(transport, made_):
            stops += 1
        yield stops


def _ran(transport: LocalTransport, made_: Made) -> bool:
    try:
        coordinator.run(transport, made_.server)
    except FederationError:
        return False
    return True


def a_year(root: Path, people: int, losses: Losses, months: Sequence[Month], anew: Sequence[float]) -> dict[str, Any]:
    """The year of year.py while nodes are lost, against the mean recalls of models that were trained anew."""
    made_ = year.begin(root, months[0], year.ROUNDS, year.LATER, people)
    seasons, lines = lives(made_, losses), []
    for index, (month, after) in enumerate(pairwise(months)):
        if index:
            year.go_on(made_, month, months[index - 1])
        stops, served = next(seasons), year.recall(year.served(made_), month, after)[0]
        lines.append({"month": month.number, "stops": stops, "served": served, "share": served / anew[index]})
        print(lines[-1], flush=True)
    with ServerStore(open_server(made_.server)) as store:
        sums = store.sums()
        counts = [season.changed for season in store.seasons()[1:]]
        tried = {stage: [line["applied"] for line in sums if line["stage"] == stage] for stage in YEARS_SUMS}
    shares = [line["share"] for line in lines[1:]]
    return {
        "batches": len(batches_of(open_server(made_.server), 1)),
        "lost": losses.how,
        "months": lines,
        "sums": {stage: {"attempts": len(all_), "opened": sum(all_)} for stage, all_ in tried.items()},
        "seasons_without_count": counts.count(None),
        "least_share": min(shares),
        "mean_share": statistics.fmean(shares),
        "asked": year.WITHIN,
    }


def years(root: Path, quick: bool) -> dict[str, Any]:
    months = list(months_of(year.SEED, (3 if quick else MONTHS) + 1))
    anew = [
        [year.recall(year.from_scratch(m, year.ROUNDS, seed), m, after)[0] for seed in range(year.SEEDS)]
        for m, after in pairwise(months)
    ]
    means, found = [statistics.fmean(recalls) for recalls in anew], []
    with quick_nodes():
        for way, people in (("each node a batch", AS_USUAL.fewest_people), ("one batch", 1)):
            for how, seed in YEARS[1:2] if quick else YEARS:
                about, losses = {"way": way, "seed": seed}, Losses(how, year.NODES, seed)
                found.append(about | a_year(root / f"{way} {how} {seed}", people, losses, months, means))
    return {"anew": anew, "lives": found}


# ------------------------------------------------------------------------------------------------- a secure sum


def secure_sums(clients: int = 100, values: int = 50_000, repeats: int = 1) -> dict[str, Any]:
    """One sum with and without batches and lost clients; all parties in this process, on one thread."""
    rng, population = np.random.default_rng(SEED), Population(range(clients))
    vectors = rng.integers(-(2**20), 2**20, (clients, values), np.int32)
    chosen, batches = choose(clients, 0.05, 0.34), [range(at, at + 10) for at in range(0, clients, 10)]
    cases: dict[str, tuple[Sequence[range], Collection[int]]] = {
        "no batches, nobody lost": ([], ()),
        "no batches, 10 lost": ([], rng.choice(clients, 10, replace=False).tolist()),
        "batches of 10, one of them lost": (batches, batches[0]),
        "batches of 10, 10 lost at random": (batches, rng.choice(clients, 10, replace=False).tolist()),
    }
    costs: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for name in [name for _ in range(repeats) for name in cases]:
        together, lost = cases[name]
        fewest = 7 if together else 0
        session = Session(
            os.urandom(16), ((values, 32),), clients, chosen.neighbours, chosen.threshold, least_summed=fewest
        )
        with threadpool_limits(1):
            silent = dict.fromkeys(lost, Stage.MASKED)
            outcome, of_stages = measured_round(session, vectors.__getitem__, population, silent, together=together)
        np.testing.assert_array_equal(outcome.values, vectors[outcome.included].sum(axis=0, dtype=np.int32))
        stages = of_stages.values()
        costs[name].append(
            {
                "in_the_sum": len(outcome.included),
                "client_seconds": sum(stage.client_seconds for stage in stages) / clients,
                "server_seconds": sum(stage.server_seconds for stage in stages),
                "bytes_up": sum(stage.bytes_up for stage in stages),
                "bytes_down": sum(stage.bytes_down for stage in stages),
            }
        )
    medians = {n: {key: statistics.median(c[key] for c in all_) for key in all_[0]} for n, all_ in costs.items()}
    first = next(iter(medians.values()))
    ratios = {name: {key: cost[key] / first[key] for key in cost} for name, cost in medians.items()}
    about = {"clients": clients, "values": values, "neighbours": chosen.neighbours, "threshold": chosen.threshold}
    return about | {"costs": medians, "ratios": ratios}


# -------------------------------------------------------------------------------------------------- the result


def bench(quick: bool = False) -> dict[str, Any]:
    cases = (("many", 3, 1), ("few", 20, 1)) if quick else CASES
    real = [(5, "not stated", "5 % of the time", 4), (5, "not stated", GONE, 6), (20, "few", "a tenth", 2)]
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as root:
        parts: dict[str, Callable[[], Any]] = {
            "federations": lambda: federations(Path(root), cases),
            "as_real": lambda: as_real(Path(root), real[:1] if quick else real),
            "year": lambda: years(Path(root), quick),
            "secure_sum": lambda: secure_sums(values=1000) if quick else secure_sums(),
        }
        found: dict[str, Any] = {"rounds": ROUNDS, "model": MODEL}
        for name, part in parts.items():
            begun = time.process_time()
            found[name] = part()
            print(f"{name}: {time.process_time() - begun:.0f} CPU seconds", flush=True)
    return found


def summary(result: Mapping[str, Any]) -> list[str]:
    """Means over seeds: sums that opened of those that were due, and recall against training without losses."""
    heads = f"{'people':<12}{'nodes':>6}{'batches':>8}  {'lost':<16}{'rule':<5}"
    lines = [heads + "".join(f"{name:>14}" for name in SHOWN) + f"{'people':>8}{'recall':>8}"]
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for case in result["federations"]:
        groups.setdefault((case["way"], case["nodes"], case["lost"], case["rule"]), []).append(case)
    for (way, nodes, lost, rule), cases in groups.items():
        line = f"{way:<12}{nodes:>6}{statistics.mean(c['batches'] for c in cases):>8.0f}  {lost:<16}"
        line += f"{'yes' if rule else 'no':<5}"
        for name in SHOWN:
            sums = [case["sums"].get(name, {"opened": 0, "due": 1, "people": 0.0}) for case in cases]
            line += f"{sum(s['opened'] for s in sums) / sum(s['due'] for s in sums):>14.2f}"
        line += f"{statistics.mean(c['sums'].get('sweeps', {'people': 0.0})['people'] for c in cases):>8.2f}"
        usual = groups[way, nodes, "nobody", True]
        pairs = [(c["recall"], u["recall"]) for c, u in zip(cases, usual, strict=True) if not c["stopped"]]
        stops = sum(bool(case["stopped"]) for case in cases)
        share = f"{sum(c for c, _ in pairs) / sum(u for _, u in pairs):>8.2f}" if pairs else ""
        lines.append(line + share + f"  stopped: {stops} of {len(cases)}" * bool(stops))
    lines.append(f"the same with real nodes: {all(case['same'] for case in result['as_real'])}")
    for life in result["year"]["lives"]:
        shares = f"{life['least_share']:.3f} at least, {life['mean_share']:.3f} on average (asked: {life['asked']})"
        lines.append(f"year, {life['way']}, lost: {life['lost']}: {shares}; {life['sums']}")
    for name, ratio in result["secure_sum"]["ratios"].items():
        lines.append(f"{name:<36}" + "".join(f"{key} {value:.2f}  " for key, value in ratio.items()))
    return lines
