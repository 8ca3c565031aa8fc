"""An enrolled node brings names that other nodes' users have, and comes first."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore, Person
from tests.federation.worlds import World, world

THIEF, ROBBED = 0, {1: "1/0", 2: "2/0"}  # on each of these nodes one user's name is taken
EVERYBODY = [f"node{node}" for node in range(5)]


def five_nodes(root: Path, **options: Any) -> World:
    """Each node has three users."""
    return world(root, nodes=5, users=3, options={"start_nodes": 3, "corrupt": 0.0} | options)


def brings(fed: World, node: int, names: Iterable[str]) -> None:
    with NodeStore(fed.nodes[node]) as store:
        store.add_users(open_node(fed.nodes[node]).method(1), [Person(name, [0, 1]) for name in names])


def in_sums(fed: World, node: int) -> set[str]:
    """The users who were in any sum of anything."""
    with NodeStore(fed.nodes[node]) as store:
        rows = {row for users in store.participation().values() for row in users}
        return {name for row, name in store.rows("users", "row, id") if row in rows}


def own(node: int) -> set[str]:
    return {f"{node}/{user}" for user in range(3)}


def test_only_the_users_whose_names_are_taken_are_left_out(tmp_path: Path) -> None:
    """Their nodes join with all others, and these users were in no sum before it was settled."""
    fed = five_nodes(tmp_path)
    brings(fed, THIEF, ROBBED.values())
    fed.run()
    assert sorted(set(fed.witness.joiners)) == EVERYBODY, "whole nodes are kept out"
    assert in_sums(fed, THIEF) == own(THIEF) | set(ROBBED.values())
    for node in range(1, 5):
        assert in_sums(fed, node) == own(node) - {ROBBED.get(node)}
    (count,) = fed.applied("degrees")
    assert count["included"] == [0, 1, 2, 3, 4]
    assert count["users"] == 3 * 5, "each name counts once"
    assert fed.is_its_simulation()


def test_operators_hear_of_which_nodes_it_is(tmp_path: Path) -> None:
    """They find out which of two nodes has the user rightly."""
    fed = five_nodes(tmp_path)
    brings(fed, THIEF, ROBBED.values())
    fed.run()
    for node in ROBBED:
        assert any(f"node{node}" in notice and "node0" in notice for notice in fed.witness.notices)


def test_a_name_that_was_in_sums_stays_where_it_is(tmp_path: Path) -> None:
    """Who comes second with a name is left out, and its node stays."""
    fed = five_nodes(tmp_path, rounds=1)
    fed.run()
    brings(fed, THIEF, ROBBED.values())
    fed.give_rounds(4)
    fed.run()
    assert fed.applied("train")[-1]["included"] == [0, 1, 2, 3, 4], "a whole node is kept out"
    assert in_sums(fed, THIEF) == own(THIEF)
    for node in ROBBED:
        assert in_sums(fed, node) == own(node)
