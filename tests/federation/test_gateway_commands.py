"""Gateways whose users mask for themselves, as a person types it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedgrec.cli.federation import TITLES
from fedgrec.data.item_names import KEPT
from fedgrec.federation.node.gateway import open_gateway
from fedgrec.federation.node.person import recommend, users_of
from fedgrec.federation.node.refresh import Watcher
from tests.federation.masked_worlds import masked_world
from tests.federation.test_cli_federation import said
from tests.federation.test_gateway import fed
from tests.federation.worlds import World
from tests.waits import seconds

__all__ = ["fed"]  # a fixture


def test_init_with_data_makes_a_key_for_every_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clicks = "".join(f"u{user},i{(user * 7 + item) % 50}\n" for user in range(11) for item in range(5))
    (tmp_path / "clicks.csv").write_text("user,item\n" + clicks)
    fed = tmp_path / "fed"
    words = ["--data", tmp_path / "clicks.csv", "--per-user-masks", "--set", "dim=4", "--set", "layers=1"]
    code, out, err = said(capsys, "federation", "init", "--out", fed, *words)
    assert code == 0, err
    assert "count users" in out
    assert [len(open_gateway(fed / f"node-{index}").members) for index in range(3)] == [4, 4, 3]
    assert [Watcher(fed / f"node-{index}").load() for index in range(3)] == [4, 4, 3]
    everybody = [user for index in range(3) for user in users_of(fed / f"node-{index}")]
    assert sorted(everybody) == sorted(f"u{user}" for user in range(11))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["init", "--out", "FED", "--catalogue", "ITEMS", "--per-user-masks"], "--per-user-masks needs --users N"),
        (["add-users", "MADE", "node-0", "--users", "0"], "0 users: add at least one"),
        (["add-users", "MADE", "server"], "gateway.json is missing"),
        (["add-node", "MADE", "--per-user-masks", "-1"], "needs at least one user"),
    ],
)
def test_mistakes_are_one_sentence(
    fed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    (tmp_path / "items.txt").write_text("tea\n")
    real = {"FED": tmp_path / "new", "ITEMS": tmp_path / "items.txt", "MADE": fed}
    code, _, err = said(capsys, "federation", *(real.get(word, word) for word in words))
    assert (code, len(err.splitlines())) == (2, 1)
    assert sentence in err


def test_new_keys_are_said_where_to_go(fed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "federation", "add-users", fed, "node-1", "--users", 2)
    assert code == 0
    assert all(str(fed / "node-1" / "users" / name) in out for name in ("6", "7"))
    code, out, _ = said(capsys, "federation", "add-node", fed, "--per-user-masks", 2)
    assert code == 0
    assert list(open_gateway(fed / "node-3").members) == [8, 9]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> World:
    fed = masked_world(tmp_path_factory.mktemp("gateways"))
    fed.run()
    return fed


def test_status_and_recommendations(trained: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "federation", "status", trained.server)
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.endswith("own masks")]
    assert [row[:2] for row in rows] == [["node0", "2"], ["node1", "2"], ["node2", "2"]]
    place = trained.transport.folders[1]
    (place / "items.txt").write_text("".join(f"item {i}\n" for i in range(30)))
    code, out, _ = said(capsys, "device", "recommend", place, "--user", "1/0", "-n", 4, "--json")
    assert code == 0
    (home,) = [path for path in trained.nodes.values() if users_of(path) == ["1/0"]]
    items, scores = recommend(home, "1/0", 4)
    assert [(line["item"], line["score"]) for line in json.loads(out)] == [
        (f"item {item}", float(score)) for item, score in zip(items, scores, strict=True)
    ]
    assert (np.diff(scores) <= 0).all()
    assert TITLES == KEPT
    (place / TITLES).write_text(f"item,title\nitem {items[1]},Tea\n")
    code, out, _ = said(capsys, "device", "recommend", place, "--user", "1/0", "-n", 2)
    assert [line[5:].rsplit(maxsplit=1)[0] for line in out.splitlines()] == [
        f"item {items[0]}", f"Tea (item item {items[1]})",
    ]  # fmt: skip
    code, out, _ = said(capsys, "device", "recommend", place, "--user", "1/0", "-n", 2, "--json")
    assert [line.get("title") for line in json.loads(out)] == [None, "Tea"]
    assert said(capsys, "device", "recommend", place, "--user", "0/0")[2] == (
        "fedgrec: there is no user '0/0' on this node\n"
    )


def test_a_gateway_needs_numpy_cryptography_and_safetensors_alone(trained: World) -> None:
    from tests.federation.test_light_node import NODE

    code = NODE[: NODE.index("from pathlib")] + (
        "from pathlib import Path\n"
        "from fedgrec.federation.common.bundles import pack, unpack\n"
        "from fedgrec.federation.node.gateway import NodeProcess, anyone\n"
        "from fedgrec.federation.node.person import recommend\n"
        "from fedgrec.federation.common.packets import Packet\n"
        "folder = Path(sys.argv[1])\n"
        "home = anyone(folder)\n"
        "about = {'federation': home.federation, 'roster': [home.membership.number, home.membership.digest]}\n"
        "hello = Packet('hello', about, {'nonce': bytes(32)})\n"
        "answers = unpack(NodeProcess(folder).handle(pack({0: hello, 1: hello})))\n"
        "print(*(answer.kind for answer in answers.values()), len(recommend(folder, '0/0', 3)[0]))\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(trained.transport.folders[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds(60))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["hello", "hello", "3"]
