"""Users who mask for themselves over the real network: three gateways, TLS, one of them killed on the way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)

from fedgrec.federation.common import packets
from fedgrec.federation.common.bundles import unpack
from fedgrec.federation.node.gateway import open_gateway
from fedgrec.federation.setup.init import Made
from fedgrec.federation.setup.start import start_node
from tests.federation.flower_network import ended, founded, running, tapped, until
from tests.federation.local_transport import LocalTransport
from tests.federation.worlds import World
from tests.waits import seconds

USERS = 3


def as_world(made: Made) -> World:
    members = {index: path for folder in made.nodes for index, path in open_gateway(folder).members.items()}
    return World(made.server, members, LocalTransport(dict(enumerate(made.nodes))))


def run(*words: object) -> str:
    command = [sys.executable, "-m", "fedgrec", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(60), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_three_gateways_over_tls_and_one_is_killed(tmp_path: Path) -> None:
    options = {"rounds": 4, "retries": 10}
    made = founded(tmp_path, users=USERS, options=options, per_user_masks=True, layers=1, users_per_round=100)
    world, victim = as_world(made), made.nodes[1]
    with running(made) as (server, processes):
        until(lambda: (made.server / "server.sqlite").exists() and world.applied("train"), 60, "no round came")
        processes.kill(victim.name)
        start_node(victim, processes)
        assert ended(server) == ""
    assert world.is_its_simulation()
    assert world.pending() == 0
    assert world.model().round == 4
    assert world.log()[0]["included"] == list(range(9))
    assert world.log()[-1]["included"] == list(range(9))
    received = tapped(made)
    assert {packet.kind for _, packet in received} == {packets.WHO, packets.BUNDLE}
    masked = [unpack(p) for _, p in received if p.kind == packets.BUNDLE and packets.MASKED in kinds(unpack(p))]
    assert len(masked) <= 3 * len(world.log()), "one message for a gateway and sum"
    assert max(len(parts) for parts in masked) == USERS
    nodes = json.loads(run("federation", "status", made.server, "--json"))["nodes"]
    assert [(node["name"], node["users"], node["masks"]) for node in nodes][1] == ("node-1", 3, 3)
    assert len(json.loads(run("device", "recommend", victim, "--user", "1/2", "-n", 5, "--json"))) == 5


def kinds(parts: dict[int, packets.Packet]) -> set[str]:
    return {part.kind for part in parts.values()}
