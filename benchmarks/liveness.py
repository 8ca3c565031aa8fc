"""A federation of five nodes over Flower. One node is killed in mid-round, started again, hung and continued.

Seconds of training rounds, from the server's log:

usual     the median of the rounds before
struck    the round in which the node was killed (SIGKILL) or hung (SIGSTOP)
after     the rounds after that, without the node
back      how many rounds began between the node's return and the first round with all five in it
"""

import json
import os
import re
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS
from benchmarks.federation import USERS, federation
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.flower.processes import Processes
from fedgrec.federation.flower.server_end import FlowerServer
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.log import LOG, LOGS
from fedgrec.federation.server.store import ServerStore
from fedgrec.federation.setup.dataset import Deal
from fedgrec.federation.setup.init import Made
from fedgrec.federation.setup.start import start_node

NODES, ROUNDS = 5, 1000  # the benchmark ends the run earlier
SETTLED, AFTER, MOST = 22, 6, 900.0  # rounds until word sizes settle, rounds measured after, seconds for each step
ROUND = re.compile(r" round [\d,]+: | the sum of stage 'train' of round \d+ was lost")
LIMIT = 10.0  # seconds that a round may take beyond its usual time


class Run:
    """A federation that keeps training while one of its nodes is struck."""

    def __init__(self, made: Made, processes: Processes, victim: str) -> None:
        self.made, self.processes, self.victim = made, processes, victim

    def rounds(self) -> list[dict[str, Any]]:
        """Training rounds that have ended, lost ones included."""
        with ServerStore(open_server(self.made.server)) as store:
            return [line for line in store.sums() if line["stage"] == "train" and line["applied"] is not None]

    def ended(self) -> int:
        """How many rounds have ended. Reading the log costs the server nothing."""
        log = self.made.server / LOGS / LOG
        return len(ROUND.findall(log.read_text(encoding="utf-8"))) if log.exists() else 0

    def until(self, happened: Callable[[], bool]) -> None:
        end = time.monotonic() + MOST
        while not happened():
            if time.monotonic() > end:
                raise TimeoutError(f"nothing happens for {MOST:.0f} s: see {self.processes.logs}")
            time.sleep(0.05)

    def until_round(self, count: int) -> None:
        self.until(lambda: self.ended() >= count)

    def until_whole(self) -> int:
        """How many rounds pass until one includes all nodes."""
        begun = count = self.ended()
        while True:
            count += 1
            self.until_round(count)
            if len(self.rounds()[count - 1]["included"] or []) == NODES:
                return count - begun

    def struck(self, strike: Callable[[], None], recover: Callable[[], None]) -> dict[str, Any]:
        """The seconds of the rounds around a strike in mid-round, and how soon the node took part again."""
        self.until_round(self.ended() + AFTER)
        usual = statistics.median(line["seconds"] for line in self.rounds()[-AFTER:])
        self.until_round(self.ended() + 1)  # a round has just begun
        time.sleep(usual / 2)
        at = self.ended()
        strike()
        self.until_round(at + 1 + AFTER)
        recover()
        back = self.until_whole()
        struck, *after = [line["seconds"] for line in self.rounds()[at : at + 1 + AFTER]]
        return {
            "usual": usual,
            "struck": struck,
            "after": after,
            "back": back,
            "within": struck <= usual + LIMIT and statistics.median(after) <= 2 * usual and max(after) <= usual + LIMIT,
        }

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.processes.running[self.victim].pid, number)


@contextmanager
def running(root: Path, rounds: int) -> Iterator[Run]:
    """Five nodes with the usual deadlines, after the first rounds, whose word sizes differ."""

    def share(deal: Deal, index: int) -> list[int]:
        return Deal.users_of(deal, index)[:USERS]

    usual = FederationOptions()
    deadlines = {"deadline": usual.deadline, "work_deadline": usual.work_deadline}
    with federation(root, NODES, share, ROUNDS, **deadlines) as made, Processes(root / "logs") as processes:
        server = FlowerServer(made.server, processes)
        try:
            server.start()
            for folder in made.nodes:
                start_node(folder, processes)
            run = Run(made, processes, made.nodes[-1].name)
            run.until_round(rounds)
            yield run
        finally:
            server.close()


def bench(quick: bool = False) -> dict[str, Any]:
    """A killed node, then a hung one; beside them the figures from before deadlines followed measured times."""
    with tempfile.TemporaryDirectory() as root, running(Path(root), 3 if quick else SETTLED) as run:
        killed = run.struck(
            lambda: run.processes.kill(run.victim), lambda: start_node(run.made.nodes[-1], run.processes)
        )
        print(f"killed: {killed}", flush=True)
        hung = run.struck(lambda: run.signal(signal.SIGSTOP), lambda: run.signal(signal.SIGCONT))
        print(f"hung: {hung}", flush=True)
    kept = RESULTS / "liveness.json"
    before = json.loads(kept.read_text())["result"].get("before") if kept.exists() else None
    return {"killed": killed, "hung": hung, "before": before or {}}
