"""Five nodes over a real network; one is killed in mid-round, started again, stopped, and continued."""

import os
import re
import signal
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)

from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.setup.init import Made
from fedgrec.federation.setup.start import start_node
from tests.federation.flower_network import founded, progress, running, until
from tests.federation.worlds import people

NODES, VICTIM = 5, "node-4"
LATE = 10.0  # seconds that a round may take beyond its usual time
DEFAULTS = FederationOptions()


def rounds(made: Made) -> list[tuple[int, float]]:
    """Nodes and seconds of each training round so far."""
    found = re.findall(r" round [\d,]+: (\d+) of \d+ nodes, .* users, ([\d.]+) s", progress(made))
    return [(int(nodes), float(seconds)) for nodes, seconds in found]


def more_rounds(made: Made, count: int) -> None:
    wanted = len(rounds(made)) + count
    until(lambda: len(rounds(made)) >= wanted, 120, f"no {count} more rounds")


def masked(made: Made) -> int:
    """How many requests to train the server has sent."""
    return len(list((made.server / "tap").glob("*-down-masked-*.npz")))


def strike(made: Made, how: Callable[[], None], after: int = 4) -> None:
    """Call `how` while nodes train; that round and the next ones must end in time."""
    more_rounds(made, 3)
    usual = statistics.median(seconds for _, seconds in rounds(made)[-3:])
    seen, at = masked(made), len(rounds(made))
    until(lambda: masked(made) >= seen + NODES, 60, "nobody is asked to train")
    how()
    more_rounds(made, after + 1)
    struck, *later = rounds(made)[at : at + after + 1]
    if struck[0] == NODES:  # the victim had already answered
        struck, *later = later
    assert struck[0] == NODES - 1
    assert struck[1] < usual + LATE
    assert [nodes for nodes, _ in later] == [NODES - 1] * len(later)
    assert statistics.median(seconds for _, seconds in later) < usual + 2.0, "nobody waits for it any more"


def back(made: Made, since: int) -> int:
    """After how many rounds all nodes are in one again."""
    until(lambda: any(nodes == NODES for nodes, _ in rounds(made)[since:]), 60, "it does not come back")
    return next(count for count, (nodes, _) in enumerate(rounds(made)[since:]) if nodes == NODES)


@pytest.mark.slow
def test_a_killed_and_a_hung_node_hold_up_one_round_for_seconds(tmp_path: Path) -> None:
    usual = {"rounds": 10**6, "deadline": DEFAULTS.deadline, "work_deadline": DEFAULTS.work_deadline}
    made = founded(tmp_path, options=usual, crowd=people(NODES, 10), layers=1, latents_every=1000, fine_rounds=0)
    with running(made) as (_, processes):
        until(lambda: len(rounds(made)) >= 3 or processes.check(), 120, "training does not begin")
        strike(made, lambda: processes.kill(VICTIM))
        start_node(made.nodes[4], processes)
        until(lambda: f"node {VICTIM} is back" in progress(made), 60, "it does not come back")

        hung = processes.running[VICTIM].pid
        more_rounds(made, 8)  # the server forgets how long the dead node took
        strike(made, lambda: os.kill(hung, signal.SIGSTOP))
        os.kill(hung, signal.SIGCONT)
        assert back(made, len(rounds(made))) <= 3  # after the round that goes on and the one that is announced
        said = [line for line in progress(made).splitlines() if VICTIM in line]
        assert sum("fell silent" in line for line in said) == 2
        assert sum("is back" in line for line in said) == 2
