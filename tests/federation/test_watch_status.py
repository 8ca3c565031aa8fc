"""What `fedgrec federation status` says, at every point of a federation's life."""

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from fedgrec.cli import main
from fedgrec.federation.common.lock import is_taken
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.server import status as module
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.log import Lines, describe, log_of, writing
from fedgrec.federation.server.status import Status, status
from fedgrec.federation.server.store import ServerStore
from tests.federation.local_transport import Answer
from tests.federation.meddlers import on, silent
from tests.federation.rosters import changed, give, without
from tests.federation.worlds import Killed, World, kill_server, world

ROOT = Path(__file__).parents[2]


@contextmanager
def alive(fed: World) -> Iterator[Status]:
    """While the block lasts, a server holds its log."""
    with writing(fed.server):
        yield status(fed.server)


def digest(folder: Path) -> dict[str, str]:
    """A digest of every file, except those that SQLite makes for several readers."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal"))]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def remove(fed: World, index: int) -> None:
    give(fed.server.parent, without(fed.server.parent, index))


def test_a_fresh_folder_is_not_touched(tmp_path: Path) -> None:
    fed = world(tmp_path)
    before = {path.name for path in fed.server.iterdir()}
    found = status(fed.server)
    assert (found.state, found.round, found.rounds, found.running) == ("not started", 0, 2, False)
    assert (found.rounds_per_minute, found.seconds_left, found.metrics, found.log) == (None, None, [], [])
    assert [(node.name, node.users, node.heard_seconds) for node in found.nodes] == [
        (f"node{index}", None, None) for index in range(3)
    ]
    assert {path.name for path in fed.server.iterdir()} == before
    with alive(fed) as found:
        assert found.state == "waiting for nodes"


def test_a_trained_federation(trained: World) -> None:
    before = digest(trained.server)
    found = status(trained.server)
    assert digest(trained.server) == before
    log, rounds = trained.log(), trained.applied("train")
    assert (found.state, found.round, found.rounds, found.seconds_left) == ("finished", 4, 4, 0)
    assert (found.bytes_up, found.bytes_down) == tuple(
        sum(line[f"bytes_{way}"] for line in log) for way in ("up", "down")
    )
    assert found.round_bytes_up == round(sum(line["bytes_up"] for line in rounds) / 4)
    seconds = sum(line["seconds"] for line in log if line["number"] >= rounds[0]["number"])
    assert found.rounds_per_minute == pytest.approx(60 * 4 / seconds, abs=0.06)
    assert [line["round"] for line in found.metrics] == [line["round"] for line in trained.witness.metrics]
    assert [round_["round"] for round_ in found.last_rounds] == [1, 2, 3, 4]
    assert [(node.users, node.last_round, node.lag, node.removed) for node in found.nodes] == [(6, 4, 0, False)] * 3
    assert all(node.heard_seconds is not None and node.heard_seconds < 3600 for node in found.nodes)
    assert (found.trouble, found.sums_applied, found.sums_lost) == ("", len(log), 0)


def test_in_the_middle_of_the_warm_up(tmp_path: Path) -> None:
    fed = world(tmp_path)
    with pytest.raises(Killed):
        fed.run(kill_server(after=3 + 15 + 6))  # joining, a sum, and a part of the next
    found = status(fed.server)
    assert (found.state, found.warm_up, found.current_sum) == ("stopped", 1, None)
    assert "start it again" in found.trouble
    with alive(fed) as found:
        assert (found.state, found.warm_up, found.warm_up_stages, found.round) == ("warm-up", 1, 2, 0)
        assert found.current_sum == "warm-up, propagate 1: going on with 3 nodes"
        assert [node.lag for node in found.nodes] == [None] * 3


def test_after_a_restart_speed_and_lag_are_still_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = world(tmp_path, options={"rounds": 6})

    def killed_in_round_4(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        if request.kind == "masked" and len(fed.applied("train")) == 3:
            raise Killed
        return [node(request)]

    with pytest.raises(Killed):
        fed.run(killed_in_round_4)
    before = status(fed.server)
    assert (before.state, before.round) == ("stopped", 3)
    with alive(fed) as found:
        assert (found.state, found.current_sum) == ("training", "round 4: going on with 3 nodes")
        assert found.rounds_per_minute == before.rounds_per_minute
        assert found.seconds_left == pytest.approx(60 * 3 / found.rounds_per_minute, abs=0.06)
        with ServerStore(open_server(fed.server)) as store:
            store.recover()
        monkeypatch.setattr(module, "SILENCE", -1.0)
        assert status(fed.server).state == "waiting for nodes"
    fed.run()
    assert (status(fed.server).state, status(fed.server).sums_lost) == ("finished", 1)


def test_rounds_that_are_raised_after_the_end(trained: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trained.give_rounds(9)
    found = status(trained.server)
    assert (found.state, found.round, found.rounds) == ("stopped", 4, 9)
    assert found.seconds_left == pytest.approx(60 * 5 / found.rounds_per_minute, abs=0.06)
    monkeypatch.setattr(module, "SILENCE", 1e9)
    with alive(trained) as found:
        assert (found.state, found.round) == ("training", 4)


def test_a_node_that_falls_behind_and_one_that_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fed = world(tmp_path, nodes=4, options={"rounds": 3, "retries": 9, "start_seconds": 5.0})
    fed.run(on("masked", 3, silent, times=99, after=3))  # two sums of the warm-up and a round go well
    (*others, last) = status(fed.server).nodes
    assert {(node.last_round, node.lag) for node in others} == {(3, 0)}
    assert (last.last_round, last.lag) == (1, 2)
    remove(fed, 3)
    found = status(fed.server)
    assert [(node.name, node.removed, node.users, node.lag) for node in found.nodes][2:] == [
        ("node2", False, 6, 0),
        ("node3", True, 6, 2),
    ]
    assert main(["federation", "status", str(fed.server)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "node3" in line]
    assert line.endswith("removed")


def test_lost_sums_are_trouble(trained: World) -> None:
    with ServerStore(open_server(trained.server)) as store, store.transaction():
        store.db.execute("UPDATE sums SET applied = 0, reason = 'too few' WHERE number > 3")
    trained.give_rounds(9)
    with alive(trained) as found:
        assert found.lost_in_a_row == 5
        assert found.trouble == "the last 5 sums were lost; evaluation after round 4: lost, too few"


def test_rounds_are_numbered_alike_wherever_people_read_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The third round is lost; the log, the notices, the status, the dashboard and Prometheus count from one."""
    fed = world(tmp_path, options={"rounds": 4, "evaluate_every": 2, "retries": 9}, layers=1)
    alone = fed.transport.meddler

    def third_is_lost(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        lost = request.kind == "masked" and fed.log()[-1]["stage"] == "train" and fed.log()[-1]["round"] == 2
        return [] if lost else alone(address, request, node)

    said: list[str] = []
    fed.witness = Lines(said.append)  # type: ignore[assignment]
    fed.run(third_is_lost)
    told = "\n".join(said)
    assert len(re.findall(r"^note: round 3: lost, ", told, re.MULTILINE)) == 1
    assert re.findall(r"^round (\d)", told, re.MULTILINE) == ["1", "2", "4"]
    ends = [int(end) for end in re.findall(r"^after round (\d)", told, re.MULTILINE)]
    found = status(fed.server)
    (lost,) = [line for line in fed.log() if not line["applied"]]
    assert describe(lost).startswith("round 3: lost, ")
    assert [line["round"] for line in found.last_rounds] == [1, 2, 4]
    assert found.nodes[0].last_round == ends[-1] == 4
    assert [describe(line).split(":")[0] for line in fed.applied("evaluate")] == [
        f"evaluation after round {end}" for end in ends
    ]
    assert main(["federation", "status", str(fed.server)]) == 0
    out = capsys.readouterr().out
    assert [int(end) for end in re.findall(r"^after round (\d)", out, re.MULTILINE)] == ends[-3:]
    page = (ROOT / "src/fedgrec/federation/server/dashboard.html").read_text()
    assert "line.round]" not in page
    assert page.count("round + 1") == 2


def test_a_row_that_changed_by_itself_is_a_sentence(trained: World, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(trained.server / "server.sqlite", isolation_level=None)) as db:
        db.execute("UPDATE sums SET users = 7 WHERE number = 1")
    assert main(["federation", "status", str(trained.server)]) == 2
    assert "a row of sums has changed" in capsys.readouterr().err


def test_the_text_fits_80_columns_and_the_json_is_documented(
    trained: World, capsys: pytest.CaptureFixture[str]
) -> None:
    root = trained.server.parent
    give(root, changed(root, 1, name="a node with a very long name \x1b[2J and more"))
    assert main(["federation", "status", str(trained.server)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out
    assert out.startswith("round 4 of 4, finished\n")
    assert main(["federation", "status", str(trained.server), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    page = (ROOT / "docs" / "deploy.md").read_text()
    keys = {*found, *found["nodes"][0], *found["last_rounds"][0]}
    assert not [key for key in keys if f"`{key}`" not in page]


def test_a_status_tells_nothing_of_users(trained: World) -> None:
    """The server's store has only keyed hashes of users, and a status does not even show these."""
    text = json.dumps(asdict(status(trained.server)))
    with ServerStore(open_server(trained.server)) as store:
        tags = [tag.hex() for (tag,) in store.rows("tags", "tag")]
    assert tags
    assert not [tag for tag in tags if tag in text]


def test_a_look_does_not_keep_a_server_from_starting(tmp_path: Path) -> None:
    fed = world(tmp_path)
    with writing(fed.server):
        assert is_taken(log_of(fed.server))
    assert not is_taken(log_of(fed.server))
    with writing(fed.server):
        pass
