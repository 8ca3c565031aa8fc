"""Run ten nodes over Flower for half an hour while many things go wrong, then check what must hold.

Nodes end, are killed (SIGKILL), hang (SIGSTOP) and come back; their sources are rewritten, so that users come, click
and leave; now and then most nodes hang at once; the server is killed five times and started again. Seasons are short
and follow each other without pause. At the end all nodes come back, train one more season, and the server stops by
itself.

law       no sum counts twice: the server's degrees and latents equal those of the users' stores, to the last integer
verdicts  nodes and the server's log agree about every sum, whether it counts
lost      why sums were lost; a reason that is not in REASONS fails
level     memory and open files of every process that lived long enough: the median of its second quarter against that
          of its last quarter
stores    bytes of the stores, and bytes that a sum added to them
"""

import contextlib
import csv
import io
import os
import random
import re
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.federation.standing import standing

from fedgrec.config.configuration import Config
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.network import NodeNetwork, read_network, write_network
from fedgrec.federation.common.options import Agreement, FederationOptions
from fedgrec.federation.flower.processes import Processes
from fedgrec.federation.flower.server_end import SUPERLINK, FlowerServer, is_taken
from fedgrec.federation.node import changes, history
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.log import LOG, LOGS
from fedgrec.federation.server.store import ServerStore, model_of
from fedgrec.federation.setup.init import Made, init
from fedgrec.federation.setup.start import free_port, start_node

HALF_AN_HOUR = 1800.0
NODES, USERS, ITEMS, SOURCE = 10, 6, 40, "people.csv"
PEOPLE = 3  # a node's people do not get fewer: each node is a batch of its own
KILLS = (0.05, 0.12, 0.2, 0.3, 0.42)  # shares of the whole time; the server's last life is long enough to show leaks
AWAY, MOST_AWAY = 3, 7  # nodes that are away at once, usually and when most hang
SAMPLE, LOOK = 10.0, 0.25  # seconds between two samples, and between two checks of what is due
LONG = 12  # a process with this many samples lived long enough to be judged
LEVEL_MB, LEVEL_SHARE, LEVEL_FILES = 20.0, 0.15, 8  # by how much more a process may hold in its last quarter
REASONS = {
    "the server died": "the server stopped while the sum went on",
    "too few nodes": r"TooFewLeft|\d+ nodes are left, and this sum has no fewer than|\d+ nodes are there, and",
    "a node was cut off in it": r"BadLists|BadShare|WrongStage",
    "a batch was not whole": r"sums of people's items open over whole batches",
    "half opened": r"some nodes opened this stage for nodes|was half opened for nodes",
}  # fmt: skip
OUTSIDE = "outside what users can have"


class Crowd:
    """The users of each node's source, and their items."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.number = chance, 0
        self.people: list[dict[str, set[str]]] = [{} for _ in range(NODES)]
        for index in range(NODES):
            for _ in range(USERS):
                self.come(index)

    def come(self, index: int) -> None:
        self.number += 1
        self.people[index][f"user {self.number}"] = set(self._items(8))

    def click(self, index: int) -> None:
        user = self.chance.choice(sorted(self.people[index]))
        self.people[index][user] = (self.people[index][user] ^ set(self._items(3))) or set(self._items(1))

    def leave(self, index: int) -> None:
        if len(self.people[index]) > PEOPLE:
            del self.people[index][self.chance.choice(sorted(self.people[index]))]

    def _items(self, count: int) -> list[str]:
        return self.chance.sample([f"item {number}" for number in range(ITEMS)], count)

    def write(self, folder: Path, index: int) -> str:
        text = io.StringIO()
        table = csv.writer(text)
        table.writerow(["user", "item"])
        table.writerows([user, item] for user, items in sorted(self.people[index].items()) for item in sorted(items))
        write_private(folder / SOURCE, text.getvalue().encode())
        return SOURCE


def founded(root: Path, crowd: Crowd) -> Made:
    """A federation whose rounds are quick and whose seasons are short."""
    small = {"dim": 8, "layers": 2, "users_per_round": 40, "negatives": 8, "latents_every": 2, "fine_rounds": 2}
    options = FederationOptions(
        rounds=10, seasons=0, later_rounds=5, rest=2.0, look=0.0, deadline=20.0, work_deadline=20.0, pause=0.5,
        retries=10**6, start_seconds=600.0,
    )  # fmt: skip
    agreed = Agreement(
        topk=(5,), evaluations=10**5, evaluation_users=1, evaluation_epsilon=0.0, recount_users=3, season_rounds=5,
        fewest_people=PEOPLE,
    )  # fmt: skip
    names = [f"item {number}" for number in range(ITEMS)]
    config = Config().of("fedgrec").changed(small, "soak")
    made = init(
        root / "fed", NODES, names, config, options, port=free_port(), fill=crowd.write, people=[PEOPLE] * NODES,
        agreed=agreed,
    )  # fmt: skip
    for folder in made.nodes:
        write_network(folder, replace(read_network(folder, NodeNetwork), refresh=2.0, held_out=0.1))
    return made


# ------------------------------------------------------------------------------------------------- what happens


@dataclass
class Soak:
    """A federation whose processes are struck."""

    made: Made
    processes: Processes
    crowd: Crowd
    chance: random.Random
    server: FlowerServer = field(init=False)
    back: dict[int, tuple[float, str]] = field(default_factory=dict)  # nodes that are away: until when, and how
    strikes: Counter[str] = field(default_factory=Counter)
    ended: list[str] = field(default_factory=list)  # processes that ended although nobody had struck them
    samples: list[dict[str, Any]] = field(default_factory=list)

    def start_server(self) -> None:
        self.server = FlowerServer(self.made.server, self.processes)
        self.server.start()

    def stop_server(self, end: Callable[[str], None]) -> None:
        here = self.server.here
        self.server.close()
        end(SUPERLINK)
        _until(lambda: not is_taken(here), 30, "the port is not free again")

    def live(self, seconds: float) -> None:
        """Strike at random until the time is up."""
        begun = time.monotonic()
        kills, strike, sample = [begun + part * seconds for part in KILLS], begun + 20, begun
        while (now := time.monotonic()) < begun + seconds:
            self._bring_back(now)
            if kills and now >= kills[0]:
                kills.pop(0)
                self.strikes["server killed"] += 1
                self.stop_server(self.processes.kill)
                self.start_server()
            if now >= strike:
                self._strike(now)
                strike = now + self.chance.uniform(1.5, 6)
            if now >= sample:
                self._notice_ended()
                self.samples.append(self._sample(now - begun))
                sample = now + SAMPLE
            time.sleep(LOOK)

    def calm(self) -> None:
        """All nodes come back, one more season is trained, the server stops by itself, then the nodes stop."""
        self._bring_back(float("inf"))
        self.stop_server(self.processes.stop)
        with ServerStore(open_server(self.made.server), read_only=True) as store:
            last = store.seasons()[-1].number
        toml = self.made.server / "federation.toml"
        text = re.sub(r"^seasons = .*", f"seasons = {last + 1}", toml.read_text(), flags=re.MULTILINE)
        toml.write_text(text)
        time.sleep(10)  # nodes read their sources
        self.start_server()
        how = _until(self.server.ended, 400, "the last season does not end")
        if how:
            self.ended.append(f"the server: {how}")
        self._notice_ended()
        self.stop_server(self.processes.stop)
        for folder in self.made.nodes:
            if folder.name in self.processes.running:
                self.processes.stop(folder.name)

    def _strike(self, now: float) -> None:
        what = self.chance.choices(
            ["data", "killed", "ended", "hung", "most hung"], [10, 3, 2, 4, 0.4]
        )[0]  # fmt: skip
        if what == "data":
            self.strikes[what] += 1
            self._new_data()
            return
        here = [index for index in range(NODES) if index not in self.back]
        count = 1
        if what == "most hung":
            count, what = max(MOST_AWAY - len(self.back), 0), "hung"
            self.strikes["most hung"] += 1
        elif len(self.back) >= AWAY:
            return
        for index in self.chance.sample(here, count):
            # The first two are never ended, so that some processes live from the beginning to the end.
            self._take_away(index, what if index > 1 else "hung", now)

    def _take_away(self, index: int, how: str, now: float) -> None:
        self.strikes[how] += 1
        name = self.made.nodes[index].name
        if how == "hung":
            os.kill(self.processes.running[name].pid, signal.SIGSTOP)
        else:
            (self.processes.kill if how == "killed" else self.processes.stop)(name)
        self.back[index] = now + self.chance.uniform(1, 25), how

    def _bring_back(self, now: float) -> None:
        for index, (due, how) in list(self.back.items()):
            if now >= due:
                del self.back[index]
                folder = self.made.nodes[index]
                if how == "hung":
                    os.kill(self.processes.running[folder.name].pid, signal.SIGCONT)
                else:
                    start_node(folder, self.processes)

    def _new_data(self) -> None:
        """Rewrite the source of one node or of a few, away or not."""
        for index in self.chance.sample(range(NODES), self.chance.randint(1, 3)):
            for _ in range(self.chance.randint(1, 3)):
                self.chance.choice([self.crowd.click, self.crowd.click, self.crowd.come, self.crowd.leave])(index)
            self.crowd.write(self.made.nodes[index], index)

    def _notice_ended(self) -> None:
        for name, process in list(self.processes.running.items()):
            if process.poll() is not None:
                self.ended.append(f"{name}: {self.processes.last_words(name)}")
                del self.processes.running[name]
                if name != SUPERLINK:
                    start_node(next(folder for folder in self.made.nodes if folder.name == name), self.processes)

    # ------------------------------------------------------------------------------------------- samples

    def _sample(self, at: float) -> dict[str, Any]:
        folders = [self.made.server, *self.made.nodes]
        return {
            "at": at,
            "processes": {life: held for name in self.processes.running for life, held in self._held(name)},
            "stores": {folder.name: _size(folder.glob("*.sqlite")) for folder in folders},
            "wal": max(_size(folder.glob("*.sqlite-wal")) for folder in folders),
            "logs": _size((self.made.server / LOGS).glob("*")),
            "sums": self._sums(),
        }

    def _held(self, name: str) -> Iterator[tuple[str, tuple[float, int]]]:
        """Memory in MB and open files of a child and of its children, under a name that is new after each restart."""
        leader = self.processes.running[name].pid
        for pid in [leader, *_descendants(leader)] if name == SUPERLINK else [leader]:
            with contextlib.suppress(OSError, StopIteration):
                about = Path(f"/proc/{pid}")
                words = (about / "cmdline").read_bytes().split(b"\0")
                role = "app" if pid != leader and any(b"serverapp" in word for word in words) else name
                role = f"{name}'s child" if pid != leader and role == name else role
                memory = next(line for line in (about / "status").read_text().splitlines() if line.startswith("VmRSS"))
                yield f"{role}/{pid}", (int(memory.split()[1]) / 1024, len(list((about / "fd").iterdir())))

    def _sums(self) -> int:
        with ServerStore(open_server(self.made.server), read_only=True) as store:
            return len(store.rows("sums", "number"))


def _descendants(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [found for child in map(int, children) for found in (child, *_descendants(child))]
    return []


def _size(paths: Iterable[Path]) -> int:
    total = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def _until(happened: Callable[[], Any], seconds: float, why: str) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (found := happened()) not in (None, False):
            return found
        time.sleep(LOOK)
    raise TimeoutError(f"{why} within {seconds:.0f} s")


# --------------------------------------------------------------------------------------------------- what holds


def settle(made: Made) -> int:
    """Tell nodes what they have not heard of sums, as the server's next message would; returns how many waited."""
    told = 0
    with ServerStore(open_server(made.server)) as server:
        said = {"after": 0, "lines": [line.pack() for line in server.over(after=0)]}
    for index, folder in enumerate(made.nodes):
        with NodeStore(folder) as store, store.transaction():
            told += len(store.waiting())
            changes.counted(store, history.hear(store, index, said))
            changes.delete_gone(store)
    return told


def law(made: Made) -> dict[str, Any]:
    """Whether the server's degrees and latents equal those of the users' stores."""
    degrees, steps = standing(made.server, made.nodes)
    model = model_of(made.server)
    return {
        "degrees_differ": int((model.degrees != degrees).sum()),
        "latents_differ": int((model.kept["standing"] != steps).sum()),
        "interactions": int(degrees.sum()),
        "latents": int(np.count_nonzero(steps)),
    }


def verdicts(made: Made, sums: list[dict[str, Any]]) -> dict[str, int]:
    """How often nodes and the server's log disagree whether a sum counts, and how many sums count twice."""
    said: dict[str, list[int]] = {}
    for index, folder in enumerate(made.nodes):
        with NodeStore(folder) as store:
            for (session,) in store.rows("participation", "session", "WHERE verdict = 1"):
                said.setdefault(session, []).append(index)
    logged = {line["session"]: line["included"] for line in sums if line["applied"]}
    places = Counter((line["stage"], line["level"], line["round"]) for line in sums if line["applied"])
    return {
        "disagree": sum(said.get(session, []) != logged.get(session, []) for session in said.keys() | logged.keys()),
        "twice": sum(count > 1 for count in places.values()),
    }


def why_lost(sums: list[dict[str, Any]]) -> dict[str, Any]:
    """How many sums were lost for each reason; unknown reasons are kept word by word."""
    found, unknown = Counter[str](), list[str]()
    for line in sums:
        if not line["applied"]:
            reason = str(line["reason"])
            known = next((name for name, words in REASONS.items() if re.search(words, reason)), None)
            if known:
                found[known] += 1
            else:
                unknown.append(reason)
    return {"known": dict(found), "unknown": unknown}


def level(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """What every process that lived long enough held in the second and in the last quarter of its life."""
    lives: dict[str, list[tuple[float, int]]] = {}
    for sample in samples:
        for life, held in sample["processes"].items():
            lives.setdefault(life, []).append(held)
    found: dict[str, Any] = {}
    for life, held in lives.items():
        if len(held) >= LONG:
            quarter = len(held) // 4
            second, last = held[quarter : 2 * quarter], held[-quarter:]
            mb, files = ([statistics.median(h[part] for h in some) for some in (second, last)] for part in (0, 1))
            more = mb[1] - mb[0]
            is_level = more <= max(LEVEL_MB, LEVEL_SHARE * mb[0]) and files[1] - files[0] <= LEVEL_FILES
            found[life] = {"samples": len(held), "mb": mb, "files": files, "level": is_level}
    return found


def growth(made: Made, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Bytes of the closed stores, and the bytes that a sum added to nodes and log after the first quarter."""
    first, last = samples[len(samples) // 4], samples[-1]
    sums = max(last["sums"] - first["sums"], 1)

    def nodes(sample: dict[str, Any]) -> float:
        return float(statistics.mean(sample["stores"][folder.name] for folder in made.nodes))

    return {
        "server_bytes": _size(made.server.glob("*.sqlite")),  # while it is open, new rows are in SQLite's log beside it
        "node_bytes": statistics.mean(_size(folder.glob("*.sqlite")) for folder in made.nodes),
        "node_bytes_a_sum": (nodes(last) - nodes(first)) / sums,
        "log_bytes_a_sum": (last["logs"] - first["logs"]) / sums,
        "largest_wal_bytes": max(sample["wal"] for sample in samples),
    }


def check_stores(made: Made) -> None:
    """Check every page and every row; an error where something is broken."""
    with ServerStore(open_server(made.server)) as store:
        store.check()
    for folder in made.nodes:
        with NodeStore(folder) as node:
            node.check()


def judged(soak_: Soak) -> dict[str, Any]:
    """What held, once all processes have stopped."""
    made = soak_.made
    check_stores(made)
    undelivered = settle(made)
    with ServerStore(open_server(made.server)) as store:
        sums, seasons = store.sums(), store.seasons()
    log = (made.server / LOGS / LOG).read_text(encoding="utf-8")
    result = {
        "strikes": dict(soak_.strikes),
        "seasons": len(seasons),
        "sums": dict(Counter(line["stage"] for line in sums)),
        "counted": sum(bool(line["applied"]) for line in sums),
        "round_seconds": statistics.median(
            line["seconds"] for line in sums if line["stage"] == "train" and line["applied"]
        ),
        "users_named": soak_.crowd.number,
        "law": law(made),
        "verdicts": verdicts(made, sums) | {"undelivered": undelivered},
        "lost": why_lost(sums),
        "put_back": log.count(OUTSIDE),
        "ended_by_themselves": soak_.ended,
        "level": level(soak_.samples),
        "stores": growth(made, soak_.samples),
    }
    return result | {"holds": holds(result)}


def holds(result: dict[str, Any]) -> bool:
    """Whether all requirements hold."""
    return (
        not result["law"]["degrees_differ"]
        and not result["law"]["latents_differ"]
        and not result["verdicts"]["disagree"]
        and not result["verdicts"]["twice"]
        and not result["lost"]["unknown"]
        and not result["put_back"]
        and not result["ended_by_themselves"]
        and all(life["level"] for life in result["level"].values())
    )


@contextmanager
def running(root: Path, seed: int) -> Iterator[Soak]:
    chance = random.Random(seed)
    crowd = Crowd(chance)
    made = founded(root, crowd)
    with Processes(root / "logs") as processes:
        soak_ = Soak(made, processes, crowd, chance)
        soak_.start_server()
        try:
            for folder in made.nodes:
                start_node(folder, processes)
            yield soak_
        finally:
            soak_.server.close()


def soak(root: Path, seconds: float = HALF_AN_HOUR, seed: int = 0) -> dict[str, Any]:
    """Run for this many seconds, stop, and return what held."""
    with running(root, seed) as soak_:
        soak_.live(seconds)
        soak_.calm()
        return {"seconds": seconds, "nodes": NODES} | judged(soak_)


def bench(quick: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as root:
        return soak(Path(root), 120.0 if quick else HALF_AN_HOUR)
