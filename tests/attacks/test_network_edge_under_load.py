"""A running federation under attack at its edge: its rounds go on, hardly slower, and its memory does not grow.

The attackers share the machine's cores with the federation; real attackers would not.
"""

import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)
import httpx

from fedgrec.federation.common.network import CA
from fedgrec.federation.flower import clients
from fedgrec.federation.flower.server_end import APP, SUPERLINK
from fedgrec.federation.setup.init import Made
from tests.federation.flower_network import ended, founded, progress, running, until
from tests.waits import slowness

STRANGERS = Path(__file__).with_name("strangers.py")
PEACE, WAR = 4, 6  # rounds


def seconds_of_rounds(made: Made) -> list[float]:
    return [float(found) for found in re.findall(r"round \d+: .* users, ([\d.]+) s,", progress(made))]


def memory(pid: int) -> float:
    """The most that a process has held so far, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bodies", "half-open", "slow"])
def test_strangers_neither_fill_nor_stop_nor_slow_the_server(tmp_path: Path, kind: str) -> None:
    """Without credentials: bodies of 2 GB, 5,000 half-open connections, or senders of a byte a second."""
    made = founded(tmp_path, options={"rounds": PEACE + WAR}, layers=1)
    with running(made, APP) as (server, processes):
        until(lambda: len(seconds_of_rounds(made)) >= PEACE or processes.check(), 240, "no rounds")
        superlink = processes.running[SUPERLINK].pid
        before, in_peace = memory(superlink), len(seconds_of_rounds(made))
        attack = subprocess.Popen([sys.executable, str(STRANGERS), str(server.network.port), kind])
        try:
            assert ended(server, 240) == ""
            assert attack.poll() is None
            after = memory(superlink)
        finally:
            attack.kill()
            attack.wait()
    rounds = seconds_of_rounds(made)
    assert len(rounds) == PEACE + WAR, "no round was lost"
    peace, war = statistics.median(rounds[:in_peace]), statistics.median(rounds[in_peace + 1 :])
    print(f"{kind}: {before:.0f} -> {after:.0f} MB, rounds of {peace:.2f} -> {war:.2f} s")  # noqa: T201
    assert after - before < 256
    assert war <= 2 * peace


HOSTILE = """
import sys
from pathlib import Path
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from fedgrec.cli import main
from fedgrec.federation.flower import client_app, node_end

def hostile(process, message):
    content = client_app.answer(process, message)
    if Path(sys.argv[-1]).name == "node-1" and content["packet"]["kind"] == "masked":
        words = {"kind": "masked", "header": "{}", "layout": '[["t", "<f8", [3]]]'}
        array = Array("float64", (3,), "numpy.ndarray", b"PK\\x03\\x04broken")
        return RecordDict({"packet": ConfigRecord(words), "arrays": ArrayRecord({"t": array})})
    return content

node_end.serve.__defaults__ = (hostile,)
"""


@pytest.mark.slow
def test_a_node_that_answers_with_a_broken_zip_misses_its_sums_and_the_others_go_on(tmp_path: Path) -> None:
    """One enrolled node's answers cannot be read: it is named in the log, and the federation is trained without it."""
    made = founded(
        tmp_path, options={"rounds": 2, "deadline": 8.0 * slowness(), "work_deadline": 8.0 * slowness()}, layers=1
    )
    with running(made, APP, nodes=HOSTILE) as (server, _):
        assert ended(server, 150) == ""
    assert re.findall(r" round \d+: (\d of \d) nodes", progress(made)) == ["2 of 3"] * 2
    assert "node node-1: a Flower message that cannot be put together" in progress(made)


@pytest.mark.slow
def test_another_account_finds_neither_secret_nor_token_nor_control(tmp_path: Path) -> None:
    """Another account of the server's machine reads the list of processes, and calls the control API over loopback."""
    made = founded(tmp_path, users=5, layers=1)
    with running(made, APP) as (server, processes):
        until(lambda: "joined" in progress(made) or processes.check(), 60, "nobody joins")
        commands = {
            path.parent.name: path.read_bytes().split(b"\0")
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if str(tmp_path).encode() in path.read_bytes()
        }
        words = [word.decode() for command in commands.values() for word in command]
        assert any(word == "flwr-serverapp" for word in words), "the app of the run is among them"
        assert "--token" not in words
        hexadecimal = [word for word in words if re.fullmatch(r"[0-9a-f]{32,}", word)]
        assert (hexadecimal, server.secret in words) == ([], False)
        tls = clients.tls((made.server / CA).read_bytes())
        with httpx.Client(verify=tls, base_url=f"https://127.0.0.1:{server.network.port}") as stranger:
            paths = [
                "/v1/control/list-runs",
                "/v1/control/start-run",
                "/v1/runtime/acquire-task",
                "/docs",
                "/openapi.json",
            ]
            protobuf = {"content-type": "application/protobuf"}
            assert {stranger.post(path, content=b"", headers=protobuf).status_code for path in paths} == {404}
        assert ended(server, 120) == ""
