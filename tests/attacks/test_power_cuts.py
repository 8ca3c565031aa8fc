"""kill -9, a full disk and a flipped bit at random moments and places: the same model to the bit, or an error.

A federation lives many lives: each is a process that ends by its fault or after some messages. Between two lives the
test repairs only what a person would repair: it frees space, restores a damaged file, lets a node trust its server
again. After a few lives the federation runs undisturbed; then model and user states must be those of its simulation.
"""

import errno
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)

from fedgrec.errors import FedgrecError
from fedgrec.federation.common.network import ServerNetwork, read_network
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.sqlite_store import Cursor, sentence_for
from fedgrec.federation.flower.server_end import is_taken
from fedgrec.federation.node.gateway import NodeProcess
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.store import SERVER_STORE, ServerStore
from tests.attacks.test_bit_rot import flip
from tests.disks import a_disk
from tests.federation.flower_network import as_world, founded, until
from tests.federation.local_transport import Answer
from tests.federation.worlds import World, world
from tests.waits import slowness

Fault = Callable[[], None]
FULL = "the disk is full: free some space"
LOG_LOST = "it lacks the sum"
STOPPED = ("sums in a row were lost", "nodes are there after")  # if nodes are away or stop
NODES = 4


class Enough(BaseException):
    """This life was long enough."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Full:
    """From here on the disk is full, for this many attempts to write."""

    def __init__(self, attempts: int) -> None:
        self.left = attempts

    def __call__(self) -> None:
        if self.left:
            self.left -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def at_write(number: int, fault: Fault) -> None:
    """From the write of this number on, each write meets the fault. Nothing is restored: this process will end."""
    writes, flush, rename, execute = [0], os.fsync, Path.replace, Cursor.execute

    def met() -> None:
        writes[0] += 1
        if writes[0] >= number:
            fault()

    def flushed(file: int) -> None:
        met()
        flush(file)

    def renamed(path: Path, target: Any) -> Path:
        met()
        return rename(path, target)

    def executed(cursor: Cursor, *words: Any) -> Cursor:
        if words[0] != "COMMIT":
            return execute(cursor, *words)
        try:
            met()
        except OSError:
            execute(cursor, "ROLLBACK")
            full = sqlite3.OperationalError("database or disk is full")
            full.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise sentence_for(cursor.connection.path, full) from None  # type: ignore[attr-defined]
        execute(cursor, *words)
        with suppress(OSError):
            met()  # killed right after the write
        return cursor

    os.fsync, Path.replace, Cursor.execute = flushed, renamed, executed  # type: ignore[assignment, method-assign]


def in_a_process(work: Callable[[], Any]) -> tuple[int, str]:
    """How the process ended (0; 2 if it stopped with an error; −9), and what it said."""
    heard, say = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads may hold locks: this child takes none
        child = os.fork()
    if not child:
        code, said = 0, ""
        try:
            said = str(work() or "")
        except Enough:
            pass
        except FedgrecError as error:
            code, said = 2, str(error)
        except BaseException:
            code, said = 1, traceback.format_exc()
        os.write(say, said[-60_000:].encode())
        os._exit(code)
    os.close(say)
    with os.fdopen(heard) as file:
        words = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), words


def mend(path: Path, whole: bytes, bit: int) -> None:
    """Flip the bit back, unless the file was replaced, or overwritten at that place."""
    now = path.read_bytes() if path.exists() else b""
    same = sum(a == b for a, b in zip(now, whole, strict=False))
    if len(now) * 8 > bit and 2 * same > len(whole) and now[bit // 8] == whole[bit // 8] ^ (1 << bit % 8):
        flip(path, bit)


class Lives:
    """A federation and what happens to it."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        options = {"rounds": 10**6, "evaluate_every": 3, "start_nodes": NODES}
        self.fed: World = world(root, nodes=NODES, users=1, options=options)
        self.seen: Counter[str] = Counter()

    def run(self, messages: int, killed: int = 0, write: int = 0, fault: Fault = kill) -> None:
        """Run until this many messages were sent; in message number `killed`, the node is killed as it writes.

        Or all writes meet the fault, from number `write` on.
        """
        asked = [0]
        if write:
            at_write(write, fault)

        def meddle(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
            asked[0] += 1
            if asked[0] > messages:
                raise Enough
            if asked[0] != killed:
                return [answer(request)]
            folder, last = self.fed.nodes[address], self.rng.randint(1, 6)

            def dies() -> None:
                at_write(last, kill)
                NodeProcess(folder, self.fed.sums).handle(request)
                kill()

            assert in_a_process(dies)[0] == -signal.SIGKILL
            self.fed.sums.pop(folder, None)
            return []

        self.fed.run(meddle)

    def live(self) -> None:
        """One life with one fault."""
        how = self.rng.choice(["all die", "all die", "a node dies", "full", "flip"])
        if how == "flip" and not list(self.fed.server.glob("model-*.bin")):
            how = "all die"  # nobody can detect a federation's id that is wrong from the first start on
        messages = self.rng.randint(20, 90)
        at = self.rng.randint(1, 110)
        if how == "all die":
            code, said = in_a_process(lambda: self.run(messages, write=at))
        elif how == "a node dies":
            code, said = in_a_process(lambda: self.run(messages, killed=self.rng.randint(1, messages)))
        elif how == "full":
            full = Full(self.rng.choice([1, 3, 10**6]))
            code, said = in_a_process(lambda: self.run(messages, write=at, fault=full))
        else:
            code, said = self.with_a_flip(messages)
        assert code in (0, 2, -signal.SIGKILL), said
        if code == 2:
            assert how == "flip" or any(words in said for words in (FULL, *STOPPED)), (how, said)
        self.seen[f"{how}: {code}"] += 1

    def with_a_flip(self, messages: int) -> tuple[int, str]:
        """A bit flips between two lives; a file that was damaged is restored afterwards."""
        folder = self.rng.choice([self.fed.server, *self.fed.nodes.values()])
        files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.stat().st_size]
        path = self.rng.choice(files)
        whole = path.read_bytes()
        backup = {file: file.read_bytes() for file in files if file.name.startswith(SERVER_STORE)}
        bit = self.rng.randrange(8 * len(whole))
        flip(path, bit)
        code, said = in_a_process(lambda: self.run(messages))
        mend(path, whole, bit)
        if LOG_LOST in said:  # the server did not start; SQLite deleted its damaged log with the store's closing
            for file, content in backup.items():
                file.write_bytes(content)
        about = (path.name.removesuffix("-wal").removesuffix("-shm"), "model-", *STOPPED)
        assert code != 2 or any(words in said for words in about), (path, said)
        return code, said

    def check(self) -> None:
        """Run two rounds undisturbed: all verdicts are told, and all is as in the simulation."""

        def calm() -> str:
            self.fed.give_rounds(self.fed.model().round + 2)
            self.fed.run()
            return json.dumps([self.fed.is_its_simulation(), self.fed.pending(), self.fed.model().round])

        code, said = in_a_process(calm)
        assert code == 0, said
        same, pending, _ = json.loads(said)
        assert same, "another model, and nobody said so"
        assert not pending
        self.fed.give_rounds(10**6)


def lives(root: Path, faults: int, seed: int = 0) -> Counter[str]:
    """This many faults, a few for each federation."""
    seen: Counter[str] = Counter()
    while seen.total() < faults:
        federation = Lives(root / str(seed), seed)
        for _ in range(6):
            for _ in range(4):
                federation.live()
            federation.check()
            if federation.seen.total() + seen.total() >= faults:
                break
        seen += federation.seen
        seed += 1
    return seen


def test_faults(tmp_path: Path) -> None:
    """A few faults, in this process."""
    assert len(lives(tmp_path, 8)) > 2


@pytest.mark.slow
def test_a_thousand_faults(tmp_path: Path) -> None:
    """The same at length. Bits also flip in all kinds of files in test_bit_rot.py."""
    assert lives(tmp_path, 1000, seed=1).total() >= 1000


# ------------------------------------------------------------------------------------------- real processes


class Running:
    """A federation whose parts are processes of the command line, on its own disk."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.rng = root, random.Random(seed)
        options = {
            "rounds": 10**6,
            "deadline": 4.0 * slowness(),
            "work_deadline": 4.0 * slowness(),
            "evaluate_every": 5,
        }
        self.made = founded(root, users=3, options=options, layers=1)
        self.parts = {"server": self.made.server} | {node.name: node for node in self.made.nodes}
        network = read_network(self.made.server, ServerNetwork)
        self.address = network.listen, network.port
        self.alive: dict[str, subprocess.Popen[bytes]] = {}
        self.seen: Counter[str] = Counter()

    def start(self, name: str) -> None:
        folder = self.parts[name]
        words = ["server", str(folder)] if name == "server" else ["node", str(folder), "--trust-again"]
        if name == "server":
            until(lambda: not is_taken(self.address), 30, "the port is not free again")
        command = [sys.executable, "-m", "fedgrec", "federation", *words]
        with (self.root.parent / f"{name}.err").open("w") as errors:
            self.alive[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)

    def words(self, name: str) -> str:
        return (self.root.parent / f"{name}.err").read_text()

    def kill(self, name: str) -> None:
        self.alive[name].kill()
        self.alive[name].wait()

    def ended(self) -> dict[str, str]:
        """Parts that have ended by themselves, and what they said: one sentence, with code 2."""
        found = {}
        for name, process in self.alive.items():
            if (code := process.poll()) is not None:
                found[name] = self.words(name)
                assert code == 2, (name, code, found[name])
                assert "Traceback" not in found[name], found[name]
        return found

    def again(self) -> None:
        for name in self.ended():
            self.start(name)

    def round(self) -> int:
        with ServerStore(open_server(self.made.server)) as store:
            return int(store.get("round", 0))

    def goes_on(self) -> None:
        """Training goes on, if necessary after somebody has looked at the nodes."""
        for patience in (30, 60, 90):
            before, end = self.round(), time.monotonic() + patience
            while time.monotonic() < end:
                time.sleep(0.5)
                self.again()
                if self.round() > before + 1:
                    return
            for name in self.alive:
                self.kill(name)
                self.start(name)
        raise AssertionError(f"training does not go on: {self.words('server')}")

    def fault(self) -> None:
        time.sleep(self.rng.uniform(0.2, 3))
        how = self.rng.choice(["kill", "kill", "kill", "full", "flip"])
        name = self.rng.choice(["server", "server", *self.parts])
        said = ""
        if how == "kill":
            self.kill(name)
            self.start(name)
        elif how == "full":
            said = self.fill()
        else:
            said = self.flip(name)
        self.seen[how + said] += 1

    def fill(self) -> str:
        ballast = self.root / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        time.sleep(self.rng.uniform(1, 6))
        stopped = self.ended()
        ballast.unlink()
        assert all(FULL in words for words in stopped.values()), stopped
        self.again()
        return ": stopped" if stopped else ""

    def flip(self, name: str) -> str:
        self.kill(name)
        files = [path for path in sorted(self.parts[name].rglob("*")) if path.is_file() and path.stat().st_size]
        path = self.rng.choice([path for path in files if path.parent.name not in ("logs", "flower")])
        whole = path.read_bytes()
        bit = self.rng.randrange(8 * len(whole))
        flip(path, bit)
        self.start(name)
        with suppress(subprocess.TimeoutExpired):
            self.alive[name].wait(20)
        said = self.ended().get(name, "")
        if not said:
            self.kill(name)
        mend(path, whole, bit)
        self.start(name)
        return ": stopped" if said else ""

    def finish(self) -> None:
        """Two more rounds without a fault, and all is as in the simulation."""
        self.kill("server")
        fed = as_world(self.made)
        fed.give_rounds(self.round() + 2)
        self.start("server")
        assert self.alive["server"].wait(180) == 0, self.words("server")
        for name in self.alive:
            self.kill(name)
        assert fed.is_its_simulation(), "another model, and nobody said so"
        assert not fed.pending()


@pytest.mark.slow
def test_fifty_faults_of_real_processes(tmp_path: Path) -> None:
    with a_disk(tmp_path / "disk", "48m") as disk:
        federation = Running(disk, 1)
        try:
            for name in federation.parts:
                federation.start(name)
            for number in range(50):
                federation.fault()
                if number % 5 == 4:
                    federation.goes_on()
            federation.finish()
        finally:
            for name in federation.alive:
                federation.kill(name)
    assert len(federation.seen) > 3  # kinds of faults
