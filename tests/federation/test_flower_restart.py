"""A server that kill -9 ends over the real network, in every exchange of a sum and in every stage, and starts again."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)

from fedgrec.federation.common.packets import Packet
from fedgrec.federation.flower.processes import Processes
from fedgrec.federation.flower.server_end import SUPERLINK, FlowerServer, is_taken
from fedgrec.federation.node.refresh import Watcher
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.store import ServerStore
from fedgrec.federation.setup.init import Made
from fedgrec.federation.setup.start import start_node
from tests.federation.flower_network import TAPPED_APP, as_world, ended, founded, tap, until
from tests.federation.local_transport import Answer, honest
from tests.federation.meddlers import silent
from tests.federation.replay import states
from tests.federation.worlds import EXCHANGES, World, same_bits, world
from tests.waits import seconds

Death = tuple[str, int, str, int]  # stage and round of the sum, the exchange, and how many answers to it had come
STOPPED = "the server stopped while the sum went on"


def lives(made: Made, deaths: Sequence[Death]) -> None:
    """Run the server, kill it at each of these places in turn, start it again; then run to the end."""
    told = made.server / "death"
    with Processes(made.server.parent / "logs") as processes:
        for node in made.nodes:
            start_node(node, processes)
        for death in (*deaths, None):
            if death:
                told.write_text(json.dumps(death))
            server = FlowerServer(made.server, processes, TAPPED_APP)
            try:
                server.start()
                if death is None:
                    assert ended(server, 90) == ""
                else:
                    until(lambda: not told.exists() or processes.check(), 60, f"it does not come to {death}")
                    processes.kill(SUPERLINK)
                    until(lambda at=server.here: not is_taken(at), 20, "the port is not free again")
            finally:
                server.close()


def twin(made: Made) -> World:
    """The same people with the same keys, in this process, where nothing is killed."""
    for node in made.nodes:
        Watcher(node).load()
        with NodeStore(node) as store:
            assert store.node_key  # the key with which it draws who takes part
    there = made.server.parent.with_name("twin")
    shutil.copytree(made.server.parent, there)
    return as_world(replace(made, server=there / "server", nodes=[there / node.name for node in made.nodes]))


def is_the_same(one: World, other: World) -> bool:
    """Every bit of the model and of every user's state."""
    models, users = (one.model(), other.model()), (states(one.nodes), states(other.nodes))
    pairs = [[getattr(model, name) for model in models] for name in ("items", "degrees", "moment1", "moment2")]
    pairs += [[getattr(state[i], name) for state in users] for i in one.nodes for name in vars(users[0][i])]
    return models[0].round == models[1].round and all(same_bits(a, b) for a, b in pairs)


def metrics(fed: World) -> dict[int, dict[str, Any]]:
    """The metrics after each round, without their costs."""
    with ServerStore(open_server(fed.server)) as store:
        lines = store.metrics()
    assert len({line["round"] for line in lines}) == len(lines), "a round was judged twice"
    return {line["round"]: {k: v for k, v in line.items() if "@" in k or k == "users"} for line in lines}


def check_that_nothing_is_lost_or_counts_twice(made: Made, fed: World, deaths: Sequence[Death]) -> None:
    """Each death in a sum is one lost sum, which is reported; no opened sum is opened again."""
    log = fed.log()
    in_sums = [(stage, round_) for stage, round_, exchange, _ in deaths if exchange in EXCHANGES]
    lost = [line for line in log if not line["applied"]]
    assert [(line["stage"], line["round"]) for line in lost] == in_sums
    assert {line["reason"] for line in lost} == {STOPPED}
    place = {line["session"]: (line["stage"], line["level"], line["round"]) for line in log}
    last = {place[line["session"]]: line for line in log}
    assert [line for line in log if line["applied"]] == [line for line in last.values() if line["applied"]]
    assert all(line["applied"] or (line["stage"], line["round"]) in in_sums for line in last.values())

    server_lives: dict[str, set[int]] = {}  # by session
    for way, life, _, packet in tap(made):
        if way == "down" and packet.kind in EXCHANGES[1:]:
            server_lives.setdefault(packet.header["session"], set()).add(life)
    assert all(len(found) == 1 for found in server_lives.values()), "a sum was taken up again"

    counted = Counter({line["session"]: len(line["included"]) for line in log if line["applied"]})
    said = Counter[str]()
    for path in made.nodes:
        with NodeStore(path) as store:
            said.update(s for (s,) in store.db.execute("SELECT session FROM participation WHERE verdict = 1"))
    assert said == counted
    assert all(line["included"] == [0, 1, 2] for line in log if line["applied"])
    assert fed.is_its_simulation()
    assert fed.pending() == 0


@pytest.mark.slow
def test_killed_outside_of_training_the_model_is_that_of_a_run_that_never_was(tmp_path: Path) -> None:
    deaths: list[Death] = [
        ("", 0, "hello", 1),
        ("degrees", 0, "keys", 0),
        ("degrees", 0, "confirm", 1),
        ("propagate", 0, "shares", 1),
        ("propagate", 0, "unmask", 3),  # opened only in memory: the same nodes open it once more
        ("evaluate", 1, "masked", 2),
        ("evaluate", 2, "finish", 1),
    ]
    made = founded(tmp_path, options={"rounds": 3, "evaluate_every": 1}, layers=1)
    never_killed = twin(made)
    lives(made, deaths)
    never_killed.run()
    fed = as_world(made)
    check_that_nothing_is_lost_or_counts_twice(made, fed, deaths)
    assert is_the_same(fed, never_killed)
    assert all(line["applied"] for line in never_killed.log())
    judged, expected = metrics(fed), metrics(never_killed)
    assert set(judged) == {1, 2}, "a killed evaluation is tried once more"
    assert judged == expected


@pytest.mark.slow
def test_killed_in_any_exchange_of_a_training_round_costs_that_round_and_nothing_else(tmp_path: Path) -> None:
    """The result is that of a run in which nobody answered in those rounds."""
    deaths: list[Death] = [
        ("train", 1, "shares", 1),
        ("train", 2, "keys", 2),
        ("train", 4, "masked", 3),
        ("train", 5, "confirm", 2),
        ("train", 8, "unmask", 1),  # the last one: after an opened sum that does not count, half of the users send
    ]
    made = founded(tmp_path, options={"rounds": 9}, layers=1)
    never_killed = twin(made)
    lives(made, deaths)
    gone = {round_ for _, round_, _, _ in deaths}

    def deaf(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        sum_ = request.header.get("plan", {"stage": ""})
        is_gone = sum_["stage"] == "train" and sum_["round"] in gone
        return (silent if is_gone else honest)(address, request, answer)

    never_killed.run(deaf)
    fed = as_world(made)
    check_that_nothing_is_lost_or_counts_twice(made, fed, deaths)
    assert is_the_same(fed, never_killed)
    assert [line["round"] for line in fed.applied("train")] == [0, 3, 6, 7]
    assert metrics(fed) == metrics(never_killed)


def test_a_server_restored_from_a_backup_opens_no_round_again(tmp_path: Path) -> None:
    """In this process: nodes refuse rounds that they have sent, and training goes on with the first new round."""
    fed = world(tmp_path, users=3, layers=1, options={"rounds": 2})
    fed.run()
    shutil.copytree(fed.server, tmp_path / "backup")
    fed.give_rounds(4)
    fed.run()
    shutil.rmtree(fed.server)
    shutil.copytree(tmp_path / "backup", fed.server)
    fed.give_rounds(6)
    fed.run()
    rounds = [(line["round"], line["applied"]) for line in fed.log() if line["stage"] == "train"]
    assert rounds == [(0, 1), (1, 1), (2, 0), (3, 0), (4, 1), (5, 1)]
    assert any("nodes know of 2 sums that this server does not" in notice for notice in fed.witness.notices)
    for path in fed.nodes.values():
        with NodeStore(path) as store:
            sent = store.db.execute("SELECT round FROM participation WHERE stage = 'train'").fetchall()
        assert sorted(sent) == [(round_,) for round_ in range(6)]


@pytest.mark.slow
def test_a_server_restored_from_before_the_warm_up_ends_with_a_sentence(tmp_path: Path) -> None:
    """It goes on once its newest folder is back."""
    made, backup, newest = founded(tmp_path, users=2, layers=1), tmp_path / "backup", tmp_path / "newest"
    shutil.copytree(made.server, backup)
    command = [sys.executable, "-m", "fedgrec", "federation", "server", str(made.server)]
    ends = []
    with Processes(made.server.parent / "logs") as processes:
        for node in made.nodes:
            start_node(node, processes)
        for folder, other in ((made.server, made.server), (backup, newest), (newest, tmp_path / "old")):
            made.server.rename(other)
            folder.rename(made.server)
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(120), check=False)
            ends.append((done.returncode, "has forgotten the sum of stage 'degrees'" in done.stderr))
    assert "has forgotten the sum" in (tmp_path / "old" / "logs" / "server.log").read_text()
    assert ends == [(0, False), (2, True), (0, False)]
    fed = as_world(made)
    assert fed.is_its_simulation()
    assert fed.pending() == 0
