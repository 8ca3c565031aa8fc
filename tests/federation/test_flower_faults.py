"""What a real network does to a federation: killed nodes, a killed server, children that end or do not."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)

from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.flower import processes as module
from fedgrec.federation.flower.node_end import NUMBER
from fedgrec.federation.flower.processes import Processes
from fedgrec.federation.flower.server_end import SUPERLINK, FlowerServer, is_taken
from fedgrec.federation.setup.init import Made
from fedgrec.federation.setup.start import start_node
from tests.federation.flower_network import as_world, ended, founded, progress, running, until
from tests.waits import slowness


def asked(made: Made, kind: str) -> int:
    """How many requests of a kind the server has sent so far."""
    return len(list((made.server / "tap").glob(f"*-down-{kind}-*.npz")))


def sent_to(made: Made, node: int, kind: str) -> int:
    """How many requests of a kind the server has sent to a node so far."""
    number = (made.nodes[node] / NUMBER).read_text() if (made.nodes[node] / NUMBER).exists() else ""
    return len(list((made.server / "tap").glob(f"*-down-{kind}-{number}.npz")))


SLOW = """
import sys, time
from pathlib import Path
from fedgrec.federation.flower import client_app, node_end
from fedgrec.federation.flower.processes import end_with_parent
from fedgrec.federation.setup.start import node

def slowly(process, message):
    if sys.argv[2] == "before":
        time.sleep(1.5)
    content = client_app.answer(process, message)
    if sys.argv[2] == "after":
        time.sleep(1.5)
    return content

node_end.serve.__defaults__ = (slowly,)
node(Path(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedgrec", "federank"])
def test_law_6_with_a_node_killed_in_every_stage_and_started_again(tmp_path: Path, method: str) -> None:
    """The node is killed before its step, or after the step is on its disk and before the answer leaves."""
    quick = {"rounds": 60, "deadline": 6.0 * slowness(), "work_deadline": 6.0 * slowness(), "retries": 9}
    made = founded(tmp_path, method, options=quick, **({"layers": 1} if method == "fedgrec" else {}))

    def start_slow(processes: Processes, when: str) -> None:
        processes.start("node-1", [sys.executable, "-c", SLOW, str(made.nodes[1]), when])

    killed = []
    with running(made) as (server, processes):
        until(lambda: "round 1:" in progress(made) or processes.check(), 90, "the first round does not come")
        for stage, when in (("shares", "before"), ("masked", "after"), ("confirm", "before"), ("unmask", "after")):
            processes.kill("node-1")
            start_slow(processes, when)
            seen = sent_to(made, 1, stage)
            until(lambda s=stage, n=seen: sent_to(made, 1, s) > n, 60, f"no stage {stage}")
            time.sleep(1.0)  # until the node is at work on it
            killed.append(stage)
        processes.kill("node-1")
        start_node(made.nodes[1], processes)
        assert ended(server, 200) == ""
    world = as_world(made)
    assert world.is_its_simulation()
    assert world.pending() == 0
    rounds = [line for line in world.log() if line["stage"] == "train"]
    assert sorted({line["round"] for line in rounds}) == list(range(60))
    assert any(line["included"] != [0, 1, 2] for line in world.log()), f"nobody was lost by {killed}: a test of nothing"


@pytest.mark.slow
def test_a_server_killed_in_a_sum_goes_on_with_the_next_one(tmp_path: Path) -> None:
    made = founded(
        tmp_path, options={"rounds": 3, "deadline": 8.0 * slowness(), "work_deadline": 8.0 * slowness()}, layers=1
    )
    with running(made) as (server, processes):
        until(lambda: "round 1:" in progress(made) or processes.check(), 90, "the first round does not come")
        seen = asked(made, "masked")
        until(lambda: asked(made, "masked") > seen, 30, "no second round")
        processes.kill(SUPERLINK)
        server.close()
        again = FlowerServer(made.server, processes, server.app)
        until(lambda: not is_taken(again.here), 20, "the port is not free again")
        again.start()
        try:
            assert ended(again, 150) == ""
        finally:
            again.close()
    world = as_world(made)
    assert world.is_its_simulation()
    assert world.pending() == 0
    lost = [line for line in world.log() if not line["applied"]]
    assert [line["reason"] for line in lost] == ["the server stopped while the sum went on"]
    assert "it is lost" in progress(made)


def test_children_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from fedgrec.federation.flower.processes import Processes
processes = Processes(Path({str(tmp_path)!r}))
import_ = "from fedgrec.federation.flower.processes import end_with_parent"
child = import_ + "; import time; end_with_parent(); time.sleep(60)"
processes.start("child", [sys.executable, "-c", child])
print(processes.running["child"].pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(slowness())  # the child has to have begun to watch
        parent.kill()
    until(lambda: not alive(child), 10, "the child lives on")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_child_that_dies_is_one_sentence_with_its_log(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start("child", [sys.executable, "-c", "import sys; sys.exit('out of cheese')"])
        until(lambda: processes.running["child"].poll() is not None, 20, "it does not end")
        with pytest.raises(FederationError, match=r"child ended with code 1: see .*child.log \(out of cheese\)"):
            processes.check()


def test_a_child_that_will_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.5)
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    with Processes(tmp_path) as processes:
        processes.start("deaf", [sys.executable, "-c", deaf])
        pid = processes.running["deaf"].pid
        until(lambda: "deaf" in processes.log("deaf").read_text(), 20, "it does not start")
        begun = time.monotonic()
    assert not alive(pid)
    assert 0.5 <= time.monotonic() - begun < 30
