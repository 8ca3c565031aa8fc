"""Smaller holes that a review found, one test for each."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fedgrec import cli
from fedgrec.federation.common import lock
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.sources import read_source
from fedgrec.federation.server.folder import open_server
from fedgrec.secagg.errors import BadInput
from fedgrec.secagg.session import Session
from tests.federation.worlds import N_ITEMS, world
from tests.secagg.rounds import Round, random_vectors


def test_escape_sequences_in_item_names_reach_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of the catalogue holds codes that clear the screen, or write something else on it."""
    fed = world(tmp_path, options={"rounds": 1})
    names = [f"\x1b[2Jitem\x07 {i}" for i in range(N_ITEMS)]
    for folder in (fed.server, *fed.nodes.values()):
        (folder / "items.txt").write_text("".join(f"{name}\n" for name in names))
    fed.run()
    assert cli.main(["device", "recommend", str(fed.nodes[0]), "--user", "0/0"]) == 0
    shown = capsys.readouterr().out
    assert "item" in shown
    assert shown.replace("\n", "").isprintable()
    assert cli.main(["device", "recommend", str(fed.nodes[0]), "--user", "\x1b[2J"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_null_is_nobody(tmp_path: Path) -> None:
    """Earlier, guests' orders became one user called "None", the same in every shop."""
    db = sqlite3.connect(tmp_path / "shop.db")
    db.execute("CREATE TABLE orders (user TEXT, item TEXT)")
    db.executemany(
        "INSERT INTO orders VALUES (?, ?)", [("ann", "a"), (None, "a"), ("", "b"), ("bob", None), ("bob", "b")]
    )
    db.commit()
    db.close()
    found = read_source(f"{tmp_path / 'shop.db'}#orders", {"a": 0, "b": 1})
    assert [person.id for person in found.people(0.0)] == ["ann", "bob"]
    assert found.nameless == 3


def test_two_processes_do_not_share_a_nodes_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would answer for the node, and neither would know what the other has sent."""
    monkeypatch.setattr(lock, "TURN", 0.3)
    path = tmp_path / "node.lock"
    with lock.held(path, "the node of this folder"):
        code = f"from fedgrec.federation.common import lock; lock.TURN = 0.3\nwith lock.held(__import__('pathlib').Path({str(path)!r}), 'the node of this folder'): pass"  # noqa: E501
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
        assert "another process is the node of this folder" in done.stderr
    with lock.held(path, "the node of this folder"):
        pass


@pytest.mark.parametrize(("nodes", "corrupt"), [(3, 0), (4, 1), (19, 1)])
def test_from_four_nodes_on_one_may_be_corrupt(tmp_path: Path, nodes: int, corrupt: int) -> None:
    """Earlier, a share of 5 % of nineteen nodes meant no node."""
    home = open_node(world(tmp_path, nodes=nodes, users=1).nodes[0])
    assert home.corrupt_nodes == corrupt
    assert home.fewest_nodes == corrupt + 2


def test_three_nodes_say_that_they_trust_each_other(tmp_path: Path) -> None:
    homes = [open_server(world(tmp_path / f"{n}", nodes=n, users=1).server) for n in (3, 4)]
    assert "none of the 3 nodes may work for the server" in homes[0].assumption
    assert homes[1].assumption == ""


@pytest.mark.parametrize(("threshold", "privacy"), [(4, 1), (5, 3), (6, 5)])
def test_lightsecagg_needs_more_than_half_of_all_and_the_colluding(threshold: int, privacy: int) -> None:
    """With 2U ≤ n + T, a lying server can get two lists of survivors confirmed."""
    session = Session(bytes(16), ((3, 32),), 7, 6, threshold, mechanism="lightsecagg", privacy=privacy, least=7)
    with pytest.raises(BadInput, match="2U > n \\+ T"):
        Round(session, random_vectors(7, 3)).play({})
