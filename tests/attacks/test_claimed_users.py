"""A node that claims more users than it was enrolled for."""

import json
from pathlib import Path

import pytest

from fedgrec.cli import main
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore, Person
from tests.federation.rosters import changed, give
from tests.federation.worlds import World, world


def crowd(fed: World, node: int, users: int) -> None:
    """Add this many invented users."""
    with NodeStore(fed.nodes[node]) as store:
        store.add_users(open_node(fed.nodes[node]).method(1), [Person(f"ghost {i}", [i % 30]) for i in range(users)])


def test_a_crowd_of_ghosts_is_refused_by_name(tmp_path: Path) -> None:
    """One node of four claims 400 users, which would take nearly all places of other nodes' users in every round."""
    fed = world(tmp_path, nodes=4, users=6, options={"start_nodes": 3, "least_users": 1})
    give(tmp_path, changed(tmp_path, users=6))
    crowd(fed, 3, 400)
    fed.run()
    assert fed.witness.joiners == ["node0", "node1", "node2"]
    (said,) = {notice for notice in fed.witness.notices if "node3" in notice}
    assert "node3 brings 406 users and was enrolled for at most 6" in said
    assert "fedgrec federation add-users FED node3 --users N  enrols N more" in said
    assert {line["users"] for line in fed.applied("train")} == {12}, "the others have all places"


def test_a_roster_without_ceilings_still_opens(tmp_path: Path) -> None:
    """Rosters of the release before have none: nobody is refused for a number."""
    fed = world(tmp_path, nodes=3, users=6, options={"rounds": 1})
    assert "users" not in json.loads((fed.server / "roster.json").read_text())["nodes"]["0"]
    crowd(fed, 2, 50)
    fed.run()
    assert fed.witness.joiners == ["node0", "node1", "node2"]


def test_enrolment_states_the_ceiling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every way to make a node puts its limit on the roster."""
    items = tmp_path / "items.txt"
    items.write_text("a\nb\n")

    def made(*words: str) -> list[int]:
        out = tmp_path / f"fed{len(list(tmp_path.iterdir()))}"
        assert main(["federation", "init", "--out", str(out), *words]) == 0
        assert main(["federation", "add-node", str(out), "--users", "7"]) == 0
        lines = json.loads((out / "server" / "roster.json").read_text())
        return [line["users"] for line in lines["nodes"].values()]

    assert made("--catalogue", str(items)) == [1000, 1000, 1000, 7]
    assert made("--catalogue", str(items), "--users", "50") == [50, 50, 50, 7]
    assert made("--catalogue", str(items), "--users", "2", "--per-user-masks") == [1] * 6 + [7]
    assert made("--data", "demo", "--users", "20") == [20, 20, 20, 7]
    capsys.readouterr()
    assert main(["federation", "init", "--out", str(tmp_path / "no"), "--catalogue", str(items), "--users", "-1"]) == 2
    assert "a node brings at least one" in capsys.readouterr().err
