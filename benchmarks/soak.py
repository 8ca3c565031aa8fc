"""Run ten nodes over Flower for half an hour while many things go wrong, then check what must hold.

Nodes end, are killed (SIGKILL), hang (SIGSTOP) and come back; all their messages vanish on the way for a while, and
their connections stay dead; the disk of one is full; their sources are rewritten, so that users come, click and leave;
now and then most nodes hang at once. The server is killed, its disk is full, and twice it is lost with its disk: first
the oldest copy that it kept of itself is tried, from an earlier season, then the newest takes over. Three times busy
loops take the processors. Seasons are short and follow each other without pause. At the end all nodes come back, train
one more season, and the server stops by itself.

law       no sum counts twice: the server's degrees and latents equal those of the users' stores, to the last integer.
          What the rounds that a lost server forgot had added to the latents stays lost, while users hold it as sent: so
          much must be missing, and no more; degrees miss nothing
verdicts  nodes and the server's log agree about every sum, whether it counts, forgotten ones included
stalls    how long exchanges went on beyond 60 s, or three times as long as usual, whichever is longer, while all whom
          they waited for had been back for as long
lost      why sums were lost; a reason that is not in REASONS fails
level     memory and open files of every process that lived long enough: the median of its second quarter against that
          of its last quarter
stores    bytes of the stores, and bytes that a sum added to them
ends      seconds until all processes of a server were gone that was ended or killed

`soak_laws.py` has the checks. Full disks need the right to mount a small file system; without it there are none.
"""

import contextlib
import csv
import io
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.disks import FILLER, fill, mounted, unmount
from tests.federation.roads import Road, Roads

from benchmarks.soak_laws import (
    LOOK,
    Found,
    Loss,
    counted_of,
    descendants,
    is_called,
    is_summing,
    judged,
    lives,
    nodes_know_all,
    round_seconds,
    size,
    sums_of,
    until,
    waited_for,
)
from fedgrec.config.configuration import Config
from fedgrec.errors import DiskError
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.network import NodeNetwork, ServerNetwork, read_network, write_network
from fedgrec.federation.common.options import Agreement, FederationOptions
from fedgrec.federation.flower.processes import Processes
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.log import LOGS
from fedgrec.federation.server.store import ServerStore
from fedgrec.federation.setup.copies import place_of
from fedgrec.federation.setup.init import Made, init
from fedgrec.federation.setup.start import free_port, start_node

HALF_AN_HOUR = 1800.0
NODES, USERS, ITEMS, SOURCE = 10, 6, 40, "people.csv"
PEOPLE = 3  # a node's people do not get fewer: each node is a batch of its own
# At these shares of the whole time. The server's last life is long enough to show leaks.
PLAN = (
    (0.05, "server killed"), (0.1, "server lost"), (0.16, "starved"), (0.2, "server's disk full"),
    (0.27, "server killed"), (0.33, "server killed"), (0.4, "server lost"), (0.43, "starved"),
    (0.47, "server killed"), (0.52, "server killed"), (0.75, "starved"),
)  # fmt: skip
STRIKES = {"data": 10.0, "killed": 3.0, "ended": 2.0, "hung": 4.0, "lossy": 4.0, "disk full": 1.5, "most hung": 0.4}
AWAY, MOST_AWAY = 3, 7  # nodes that are away at once, usually and when most hang
SMALL = 1  # the node with the small disk: it is never ended, since a node does not start on a full disk
DISK = "64m"
BUSY, LOOPS = 30, 10  # seconds, and loops that are busy then
SAMPLE, GLANCE = 10.0, 1.0  # seconds between two samples, and between two looks at stalls
# Seconds: until the first sum, for a server to start, for the sum that goes on, for a server's processes to end.
FIRST, START, GRACE, GONE = 900.0, 900.0, 60.0, 60.0
PATIENCE = 4  # times as long as it should take
USUAL = 5.0  # seconds of a round; on a machine where it takes longer, nodes are struck less often
SERVER, PARTS = "server", {"app": b"serverapp", "looks": b"superexec", "superlink": b"flower.superlink"}
# It ends with this process, as the SuperLink ends with it.
AS_CHILD = (
    "import sys; from fedgrec.cli import main; from fedgrec.federation.flower.processes import end_with_parent; "
    "end_with_parent(); sys.exit(main())"
)


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


def founded(root: Path, crowd: Crowd) -> tuple[Made, list[Path]]:
    """A federation whose rounds are quick and whose seasons are short; and the small disks that are under it."""
    small = {"dim": 8, "layers": 2, "users_per_round": 40, "negatives": 8, "latents_every": 2, "fine_rounds": 2}
    options = FederationOptions(
        rounds=10, seasons=0, later_rounds=5, rest=2.0, look=0.0, pause=0.5, retries=10**6, start_seconds=600.0,
        copies=str(root / "copies"),
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
    disks = [disk for disk in (root / "disk-of-server", root / "disk-of-node") if mounted(disk, DISK)]
    if len(disks) == 2:
        made.nodes[SMALL] = Path(shutil.move(made.nodes[SMALL], disks[1] / made.nodes[SMALL].name))
        made = Made(Path(shutil.move(made.server, disks[0] / made.server.name)), made.nodes)
    return made, disks


# ------------------------------------------------------------------------------------------------- what happens


@dataclass
class Soak:
    """A federation whose processes are struck."""

    made: Made
    disks: list[Path]
    roads: list[Road]
    processes: Processes
    crowd: Crowd
    chance: random.Random
    found: Found
    back: dict[int, tuple[float, str]] = field(default_factory=dict)  # nodes that are away: until when, and how
    starting: dict[str, int] = field(default_factory=dict)  # nodes that start, and how often they had connected before
    strikes: Counter[str] = field(default_factory=Counter)
    loops: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    had: int = 0  # sums that counted when the server was started
    began: int = 0  # sums that it had begun then
    full: tuple[float, Path] | None = None  # while the server's disk is full: until when at most, and with what

    # --------------------------------------------------------------------------------------------- the server

    def start_server(self, *more: str) -> None:
        self.had, self.began = counted_of(self.made), sums_of(self.made)
        words = ["federation", "server", str(self.made.server), "--grace", f"{GRACE:.0f}", *more]
        self.processes.start(SERVER, [sys.executable, "-c", AS_CHILD, *words])

    def kill_server(self) -> None:
        """Kill what an operator started. What that had started ends by itself."""
        pids = self._server()
        self.processes.kill(SERVER)
        self._see_end("killed", pids)

    def stop_server(self) -> None:
        """As a service manager does: the sum that goes on may end first."""
        pids, process = self._server(), self.processes.running.pop(SERVER)
        process.terminate()
        process.wait(GRACE + GONE)
        self._see_end("ended", pids)

    def _server(self) -> list[int]:
        return descendants(self.processes.running[SERVER].pid)

    def _see_end(self, how: str, pids: list[int]) -> None:
        begun = time.monotonic()
        until(lambda: not any(map(lives, pids)), GONE, "the server's processes live on")
        self.found.ends.setdefault(how, []).append(time.monotonic() - begun)

    def lose_server(self) -> None:
        """The server's machine is lost with its disk, at a moment when its nodes have heard of all its sums.

        If fewer nodes have heard of one than may lie, they refuse the next server until `--trust-again`.
        """
        for _ in range(400):
            apps = [pid for pid in self._server() if is_called(pid, b"serverapp")]
            for pid in apps:
                os.kill(pid, signal.SIGSTOP)
            if apps and nodes_know_all(self.made):
                break
            for pid in apps:
                os.kill(pid, signal.SIGCONT)
            time.sleep(LOOK)
        else:
            raise TimeoutError("there is no moment when nodes have heard of all sums")
        copies, number = place_of(self.made.server), len(self.found.losses)
        for pid in [self.processes.running[SERVER].pid, *self._server()]:
            os.kill(pid, signal.SIGKILL)
        self.processes.kill(SERVER)
        lost = Path(shutil.move(self.made.server, copies.with_name(f"lost-{number}")))
        oldest, newest = min(copies.iterdir()), max(copies.iterdir())
        refusal, copy = "", oldest
        if oldest != newest:
            earlier = copies.with_name(f"earlier-{number}")
            shutil.copytree(oldest, earlier / oldest.name)
            self.start_server("--from", str(earlier))
            refusal = self._refusal()
        if refusal or oldest == newest:
            shutil.rmtree(self.made.server, ignore_errors=True)
            copy = max(copies.iterdir())
            self.start_server("--from", str(copies))
        used = shutil.copytree(copy, copies.with_name(f"used-{number}"))
        self.found.losses.append(Loss.of(lost, used, refusal))
        until(self.made.server.exists, START, "no copy is taken over")
        self.had = counted_of(self.made)

    def _refusal(self) -> str:
        """How a server ends that nodes do not accept; "" once it goes on."""

        def decided() -> str | None:
            if self.processes.running[SERVER].poll() is not None:
                return self.processes.last_words(SERVER)
            return "" if is_summing(self.made) else None

        words: str = until(decided, START, "it is not decided whether an earlier copy will do")
        if words:
            self.processes.running.pop(SERVER)
        return words

    # ------------------------------------------------------------------------------------------- what happens

    def live(self, seconds: float) -> None:
        """Strike at random until the time is up, which begins with the first sum.

        The server is struck only once a sum has counted since the last time, however slow the machine is.
        """
        until(lambda: sums_of(self.made), FIRST, "no sum begins")
        begun = time.monotonic()
        due = [(begun + part * seconds, what) for part, what in PLAN if self.disks or "disk" not in what]
        strike, sample, glance = begun + 20, begun, begun
        while (now := time.monotonic()) < begun + seconds or (due and now < begun + PATIENCE * seconds):
            self._bring_back(now)
            if due and now >= due[0][0] and not self.full and counted_of(self.made) > self.had:
                self._strike_server(due.pop(0)[1])
            if now >= strike:
                self._strike(now)
                strike = now + self.chance.uniform(1.5, 6) * max(round_seconds(self.made) / USUAL, 1.0)
            if now >= glance:
                self._glance(now)
                glance = now + GLANCE
            if now >= sample:
                self._notice_ended()
                self.found.samples.append(self._sample(now - begun))
                sample = now + SAMPLE
            time.sleep(LOOK)

    def calm(self) -> None:
        """All nodes come back, one more season is trained, the server stops by itself, then the nodes stop."""
        self._bring_back(float("inf"))
        self._notice_ended()
        self.stop_server()
        with ServerStore(open_server(self.made.server), read_only=True) as store:
            last = store.seasons()[-1].number
        toml = self.made.server / "federation.toml"
        text = re.sub(r"^seasons = .*", f"seasons = {last + 1}", toml.read_text(), flags=re.MULTILINE)
        toml.write_text(text)
        time.sleep(10)  # nodes read their sources
        self.start_server()
        end = time.monotonic() + START + PATIENCE * GRACE
        while self.processes.running[SERVER].poll() is None and time.monotonic() < end:
            self._glance(time.monotonic())
            time.sleep(GLANCE)
        if self.processes.running[SERVER].poll() != 0:
            self.found.ended.append(f"the last season: {self.processes.last_words(SERVER)}")
        self.processes.stop(SERVER)
        self._notice_ended()
        for folder in self.made.nodes:
            if folder.name in self.processes.running:
                self.processes.stop(folder.name)

    def _strike_server(self, what: str) -> None:
        self.strikes[what] += 1
        if what == "server killed":
            self.kill_server()
            self.start_server()
        elif what == "server lost":
            self.lose_server()
        elif what == "starved":
            words = ["timeout", f"{BUSY:.0f}", "sh", "-c", "while :; do :; done"]
            self.loops = [subprocess.Popen(words) for _ in range(LOOPS)]
        else:
            self.full = time.monotonic() + GONE, fill(self.disks[0])

    def _strike(self, now: float) -> None:
        what = self.chance.choices(list(STRIKES), list(STRIKES.values()))[0]
        here = [index for index in range(NODES) if index not in self.back]
        if what == "data":
            self.strikes[what] += 1
            self._new_data()
        elif what == "most hung":
            self.strikes[what] += 1
            for index in self.chance.sample(here, max(MOST_AWAY - len(self.back), 0)):
                self._take_away(index, "hung", now)
        elif len(self.back) < AWAY and what != "disk full":
            # The first two are never ended, so that some processes live from the beginning to the end.
            index = self.chance.choice(here)
            self._take_away(index, "hung" if index <= SMALL and what in ("killed", "ended") else what, now)
        elif what == "disk full" and self.disks and SMALL in here:
            self._take_away(SMALL, what, now)

    def _take_away(self, index: int, how: str, now: float) -> None:
        self.strikes[how] += 1
        name = self.made.nodes[index].name
        if how == "hung":
            os.kill(self.processes.running[name].pid, signal.SIGSTOP)
        elif how == "lossy":
            self.roads[index].lose()
        elif how == "disk full":
            fill(self.disks[1])
        else:
            (self.processes.kill if how == "killed" else self.processes.stop)(name)
        self.found.returned[name] = float("inf")
        self.back[index] = now + self.chance.uniform(1, 25), how

    def _bring_back(self, now: float) -> None:
        for index, (due, how) in list(self.back.items()):
            if now >= due:
                del self.back[index]
                folder = self.made.nodes[index]
                self.found.returned[folder.name] = time.monotonic()
                if how == "hung":
                    os.kill(self.processes.running[folder.name].pid, signal.SIGCONT)
                elif how == "lossy":
                    self.roads[index].mend()
                elif how == "disk full":
                    (self.disks[1] / FILLER).unlink()
                else:
                    self._start(folder)
        if self.full and (self.processes.running[SERVER].poll() is not None or now >= self.full[0]):
            self.full[1].unlink()
            self.full, process = None, self.processes.running[SERVER]
            self.found.full_ends.append(process.poll())
            if process.poll() is not None:
                self.start_server()

    def _start(self, folder: Path) -> None:
        self.starting[folder.name] = self._connected(folder.name)
        self.found.returned[folder.name] = float("inf")
        start_node(folder, self.processes)

    def _connected(self, name: str) -> int:
        """How often a node has connected by now."""
        return self.processes.log(name).read_text(encoding="utf-8", errors="replace").count("connected to ")

    def _new_data(self) -> None:
        """Rewrite the source of one node or of a few, away or not."""
        for index in self.chance.sample(range(NODES), self.chance.randint(1, 3)):
            for _ in range(self.chance.randint(1, 3)):
                self.chance.choice([self.crowd.click, self.crowd.click, self.crowd.come, self.crowd.leave])(index)
            with contextlib.suppress(DiskError):  # the source stays as it was
                self.crowd.write(self.made.nodes[index], index)

    def _notice_ended(self) -> None:
        for name, process in list(self.processes.running.items()):
            if process.poll() is not None and not (name == SERVER and self.full):
                self.found.ended.append(f"{name}: code {process.returncode}, {self.processes.last_words(name)}")
                del self.processes.running[name]
                if name == SERVER:
                    self.start_server()
                else:
                    self._start(next(folder for folder in self.made.nodes if folder.name == name))

    def _glance(self, now: float) -> None:
        for name, before in list(self.starting.items()):
            if self._connected(name) > before:
                del self.starting[name]
                self.found.returned[name] = now
        if sums_of(self.made) > self.began:
            self.found.look(waited_for(self.made), now)
        else:  # the server has not yet looked at what it did when it was killed
            self.found.late = None

    # ------------------------------------------------------------------------------------------- samples

    def _sample(self, at: float) -> dict[str, Any]:
        folders = [self.made.server, *self.made.nodes]
        return {
            "at": at,
            "processes": {life: held for name in self.processes.running for life, held in self._held(name)},
            "stores": {folder.name: size(folder.glob("*.sqlite")) for folder in folders},
            "wal": max(size(folder.glob("*.sqlite-wal")) for folder in folders),
            "logs": size((self.made.server / LOGS).glob("*")),
            "sums": sums_of(self.made),
        }

    def _held(self, name: str) -> Iterator[tuple[str, tuple[float, int]]]:
        """Memory in MB and open files of a child and of its children, under a name that is new after each restart."""
        leader = self.processes.running[name].pid
        for pid in [leader, *descendants(leader)] if name == SERVER else [leader]:
            with contextlib.suppress(OSError, StopIteration):
                about = Path(f"/proc/{pid}")
                roles = (role for role, word in PARTS.items() if pid != leader and is_called(pid, word))
                memory = next(line for line in (about / "status").read_text().splitlines() if line.startswith("VmRSS"))
                files = len(list((about / "fd").iterdir()))
                yield f"{next(roles, name)}/{pid}", (int(memory.split()[1]) / 1024, files)


@contextmanager
def running(root: Path, seed: int) -> Iterator[Soak]:
    chance = random.Random(seed)
    crowd = Crowd(chance)
    made, disks = founded(root, crowd)
    here = read_network(made.server, ServerNetwork)
    with (
        small_disks(disks),
        Roads((here.listen, here.port), NODES) as roads,
        Processes(root / "logs") as processes,
    ):
        for folder, road in zip(made.nodes, roads.each, strict=True):
            network = read_network(folder, NodeNetwork)
            write_network(folder, replace(network, superlink=f"127.0.0.1:{road.port}", refresh=2.0, held_out=0.1))
        soak_ = Soak(made, disks, roads.each, processes, crowd, chance, Found())
        soak_.start_server()
        for folder in made.nodes:
            start_node(folder, processes)
        try:
            yield soak_
        finally:
            for loop in soak_.loops:
                loop.kill()
                loop.wait()


@contextmanager
def small_disks(disks: list[Path]) -> Iterator[None]:
    try:
        yield
    finally:
        for disk in disks:
            unmount(disk)


def soak(root: Path, seconds: float = HALF_AN_HOUR, seed: int = 0) -> dict[str, Any]:
    """Run for this many seconds, stop, and return what held."""
    with running(root, seed) as soak_:
        soak_.live(seconds)
        soak_.calm()
        about = {"seconds": seconds, "nodes": NODES, "strikes": dict(soak_.strikes), "users_named": soak_.crowd.number}
        vanished = sum(road.vanished for road in soak_.roads)
        return about | {"bytes_vanished": vanished} | judged(soak_.made, soak_.found)


def bench(quick: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as root:
        return soak(Path(root), 120.0 if quick else HALF_AN_HOUR)
