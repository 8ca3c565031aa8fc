"""The whole way of a federation that knows order: tables with times, sums over a network, a click, what comes next."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)

from fedgrec.cable.core import as_server
from fedgrec.federation.common.catalogue import CATALOGUE, read_catalogue
from fedgrec.federation.flower.processes import Processes
from fedgrec.federation.node.folder import SERVED, open_node
from fedgrec.federation.node.person import everybody
from fedgrec.federation.setup.start import free_port
from tests.federation.flower_network import until
from tests.federation.test_order import SMALL, histories, nodes
from tests.methods.test_ordered import N, walks
from tests.waits import seconds, slowness

PROGRAM = [sys.executable, "-m", "fedgrec"]
PATIENT = {"deadline": 60.0 * slowness(), "work_deadline": 60.0 * slowness()}


def said(*words: object) -> str:
    """What the command says, in a process of its own."""
    command = [*PROGRAM, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds(120)).stdout


def shown(node: Path, user: str) -> list[str]:
    return [line["item"] for line in json.loads(said("device", "recommend", node, "--user", user, "-n", 3, "--json"))]


@pytest.mark.slow
def test_nodes_recommend_what_comes_next_and_a_click_changes_it_without_training(tmp_path: Path) -> None:
    people, fed = walks(240), tmp_path / "fed"
    (tmp_path / "items.txt").write_text("".join(f"i{item}\n" for item in range(N)))
    options = [word for name, value in {**SMALL, **PATIENT}.items() for word in ("--set", f"{name}={value}")]
    where = ["--nodes", 3, "--port", free_port(), "--catalogue", tmp_path / "items.txt", "--method", "ordered"]
    said("federation", "init", "--out", fed, *where, *options)
    for index, node in enumerate(nodes(fed)):
        lines = [f"u{u},i{item},{place}" for u in range(index, 240, 3) for place, item in enumerate(people[u])]
        lines = np.random.default_rng(index).permutation(lines).tolist()
        (node / "clicks.csv").write_text("\n".join(["user,item,time", *lines]) + "\n")
        network = (node / "network.toml").read_text().splitlines()
        network = [line for line in network if not line.startswith(("source", "refresh"))]
        (node / "network.toml").write_text("\n".join([*network, 'source = "clicks.csv"', "refresh = 0.5"]) + "\n")
    with Processes(tmp_path / "logs") as processes:
        processes.start("server", [*PROGRAM, "federation", "server", str(fed / "server")])
        for node in nodes(fed):
            processes.start(node.name, [*PROGRAM, "federation", "node", str(node)])
        server = processes.running["server"]
        until(lambda: server.poll() is not None, 300, "the server does not end")
        assert server.returncode == 0, processes.last_words("server")
        processes.running.pop("server")

        node, names = nodes(fed)[1], list(read_catalogue(fed / "server" / CATALOGUE))
        model, user = (node / SERVED).read_bytes(), "u1"
        mine = [names[item] for item in histories(node)[user]]
        assert mine == [f"i{item}" for item in people[1]], "in order of time, the last one with them"
        assert shown(node, user) == best(node, mine)
        clicked = next(f"i{item}" for item in range(N) if f"i{item}" not in {*mine, *best(node, mine)})
        with (node / "clicks.csv").open("a") as file:
            file.write(f"{user},{clicked},{len(mine)}\n")
        until(lambda: len(histories(node)[user]) > len(mine), 30, "the node does not see the click")
        assert shown(node, user) == best(node, [*mine, clicked]) != best(node, mine)
        assert best(node, [clicked, *mine]) != best(node, [*mine, clicked]), "it is the last one, not any one"
        processes.check()  # the nodes have gone on
    assert (node / SERVED).read_bytes() == model
    hits = [best(nodes(fed)[u % 3], [f"i{item}" for item in people[u]])[0] for u in range(240)]
    assert np.mean([hit == f"i{(people[u][-1] + 1) % N}" for u, hit in enumerate(hits)]) > 0.4


def best(node: Path, history: list[str]) -> list[str]:
    """The first three by the model on the node, for somebody with this history who is not there."""
    served, method, names = everybody(node)[0], open_node(node).method(240), list(read_catalogue(node / CATALOGUE))
    items = np.array([names.index(name) for name in history])
    scores = method.scores(as_server(served), method.strangers(np.array([0, len(items)]), items))[0]
    scores[items] = -np.inf
    return [names[item] for item in np.argsort(-scores, kind="stable")[:3]]
