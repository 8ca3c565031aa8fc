"""Users who mask for themselves over the real network: three gateways, TLS, one of them killed on the way."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)

from fedgrec.federation import plan
from fedgrec.federation.bundling import unpack
from fedgrec.federation.gateway import open_gateway
from fedgrec.federation.identity import Made, init
from fedgrec.federation.local import LocalTransport
from fedgrec.federation.options import FederationOptions
from fedgrec.federation.up import free_port, start_node
from tests.federation.flower_network import ended, running, tapped, until
from tests.federation.worlds import N_ITEMS, World, config, people

USERS = 3


def founded(root: Path) -> Made:
    crowd = people(3, USERS)

    def fill(folder: Path, index: int) -> str:
        with (folder / "people.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["user", "item", "held_out"])
            for person in crowd[index]:
                for held, items in ((0, person.items), (1, person.held_out)):
                    table.writerows([person.id, f"item {item}", held] for item in items)
        return "people.csv"

    options = FederationOptions(
        rounds=4, evaluate_every=0, pause=0.2, deadline=15.0, work_deadline=15.0, topk=(5,), retries=10
    )
    settings, catalogue = config(layers=1, users_per_round=100), [f"item {item}" for item in range(N_ITEMS)]
    port = free_port()
    return init(root / "fed", 3, catalogue, settings, options, port=port, fill=fill, per_user_masks=[USERS] * 3)


def as_world(made: Made) -> World:
    members = {index: path for folder in made.nodes for index, path in open_gateway(folder).members.items()}
    return World(made.server, members, LocalTransport(dict(enumerate(made.nodes))))


def run(*words: object) -> str:
    command = [sys.executable, "-m", "fedgrec", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_three_gateways_over_tls_and_one_is_killed(tmp_path: Path) -> None:
    made = founded(tmp_path)
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
    assert {packet.kind for _, packet in received} == {plan.WHO, plan.BUNDLE}
    masked = [unpack(p) for _, p in received if p.kind == plan.BUNDLE and plan.MASKED in kinds(unpack(p))]
    assert len(masked) <= 3 * len(world.log()), "one message for a gateway and sum"
    assert max(len(parts) for parts in masked) == USERS
    assert "node-1 (3 users with masks of their own)" in run("federation", "status", made.server)
    assert len(json.loads(run("device", "recommend", victim, "--user", "1/2", "-k", 5, "--json"))) == 5


def kinds(parts: dict[int, plan.Packet]) -> set[str]:
    return {part.kind for part in parts.values()}
