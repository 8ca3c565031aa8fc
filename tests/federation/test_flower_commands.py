"""The commands that docs/deploy.md gives, each in a process of its own."""

import json
import re
import socket
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)

import httpx

from fedgrec.federation.common.network import ServerNetwork, read_network
from fedgrec.federation.flower.processes import Processes
from tests.federation.flower_network import as_world, founded, until
from tests.federation.test_cli_federation import said
from tests.waits import seconds, slowness


def asked(url: str) -> int:
    return httpx.get(url, timeout=seconds(10)).status_code


@pytest.mark.slow
def test_server_and_nodes(tmp_path: Path) -> None:
    made = founded(
        tmp_path, "federank", options={"rounds": 1, "deadline": 60.0 * slowness(), "work_deadline": 60.0 * slowness()}
    )
    program = [sys.executable, "-m", "fedgrec", "federation"]
    with Processes(tmp_path / "logs") as processes:
        watched = ["--metrics", "0", "--log-json"]  # on any port that is free
        processes.start("server", [*program, "server", str(made.server), *watched])
        for node in made.nodes:
            processes.start(node.name, [*program, "node", str(node), *watched])
        server = processes.running["server"]
        until(lambda: "joined" in processes.log("server").read_text(), 120, "no node joins")
        for name in ("server", "node-1"):
            text = processes.log(name).read_text()
            (place,) = re.findall(r"http://127\.0\.0\.1:\d+(?=/metrics)", text)
            until(lambda place=place: asked(f"{place}/health") == 200, 30, f"{name} is not well")
            assert asked(f"{place}/metrics") == 200
        assert until(lambda: server.poll() is not None, 240, "the server does not end")
        assert server.returncode == 0, processes.last_words("server")
        processes.running.pop("server")
        processes.check()  # nodes stay, for the next time
    for path in (tmp_path / "logs").iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert {line.get("server") or line["node"] for line in lines} == {path.stem}
    world = as_world(made)
    assert world.is_its_simulation()
    assert [line["included"] for line in world.log()] == [[0, 1, 2]] * len(world.log())


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = founded(tmp_path, users=2)
    with socket.create_server(("127.0.0.1", read_network(made.server, ServerNetwork).port)):
        code, _, err = said(capsys, "federation", "server", made.server)
    assert code == 2
    assert "is in use" in err
