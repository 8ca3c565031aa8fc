"""An enrolled node brings names that other nodes' users have, and comes first."""

import hmac
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.refresh import claim
from fedgrec.federation.node.store import NodeStore, Person
from tests.attacks.lying_server import DEGREES, TRAIN, Liar, counts, total
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


def own(node: int, users: int = 3) -> set[str]:
    return {f"{node}/{user}" for user in range(users)}


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


# ------------------------------------------------------------------------------ a server that says "taken"


def tag(liar: Liar, user: str) -> bytes:
    """As a lying server knows it from the greetings."""
    return hmac.digest(open_node(liar.fed.nodes[0]).user_salt, user.encode(), "sha256")


def says_taken(liar: Liar, *tags: bytes) -> Packet:
    """The server greets node 0, and says this of its users."""
    about = {"nonce": bytes(32), "taken": b"".join(tags)}
    return liar.ask(0, Packet("hello", {"federation": liar.home.federation}, about))


def left_out(liar: Liar) -> list[str]:
    with NodeStore(liar.fed.nodes[0]) as store:
        return store.left_out()


def three_nodes(root: Path) -> Liar:
    """Each has six users."""
    return Liar(world(root))


def test_who_is_left_out_is_in_no_sum(tmp_path: Path) -> None:
    liar = three_nodes(tmp_path)
    answer = says_taken(liar, tag(liar, "0/2"))
    assert tag(liar, "0/2") not in {row.tobytes() for row in answer.arrays["tags"]}
    assert (len(answer.arrays["tags"]), left_out(liar)) == (5, ["0/2"])
    found = total(liar.sum([0, 1, 2], DEGREES), "degrees")
    with NodeStore(liar.fed.nodes[0]) as store:
        _, pairs = store.ids_and_items([store.row_of("0/2")])
    for _, item in pairs:
        found[item] += 1
    assert found == counts(liar, [0, 1, 2])
    assert in_sums(liar.fed, 0) == {f"0/{user}" for user in (0, 1, 3, 4, 5)}


@pytest.mark.parametrize("until", ["masked", "unmask"])
def test_nobody_who_was_in_a_sum_is_left_out(tmp_path: Path, until: str) -> None:
    """Otherwise the server takes a sum with a person, whatever became of it, and one without."""
    liar = three_nodes(tmp_path)
    liar.sum([0, 1, 2], DEGREES, until=until)
    answer = says_taken(liar, tag(liar, "0/2"))
    assert "1 user of node node0 who were in its sums" in answer.header["reason"]
    assert left_out(liar) == []
    assert len(says_taken(liar).arrays["tags"]) == 6


def test_who_came_in_stays_in(tmp_path: Path) -> None:
    """A person is left out of the first sums, comes in by the operator's word alone, and is called taken again."""
    liar = three_nodes(tmp_path)
    says_taken(liar, tag(liar, "0/2"))
    says_taken(liar)
    assert left_out(liar) == ["0/2"]
    claim(liar.fed.nodes[0])
    says_taken(liar)
    assert left_out(liar) == []
    assert liar.sum([0, 1, 2], DEGREES)
    assert "who were in its sums" in says_taken(liar, tag(liar, "0/2")).header["reason"]
    assert left_out(liar) == []


def test_a_node_brings_the_people_that_it_was_enrolled_with(tmp_path: Path) -> None:
    """Whatever the server says of all its users."""
    liar = three_nodes(tmp_path)
    everybody = [tag(liar, f"0/{user}") for user in range(6)]
    answer = says_taken(liar, *everybody)
    assert "node node0 has 0 users, and was enrolled as one that brings 1 or more" in answer.header["reason"]
    assert left_out(liar) == []
    assert len(says_taken(liar, *everybody[1:]).arrays["tags"]) == 1


@pytest.mark.parametrize("wrong", ["one twice", "another node's", "nobody's", "cut off"])
def test_a_server_names_users_that_the_node_brought_and_each_once(tmp_path: Path, wrong: str) -> None:
    liar = three_nodes(tmp_path)
    one = tag(liar, "0/2")
    tags = {"one twice": [one, one], "another node's": [one, tag(liar, "1/0")], "nobody's": [bytes(32)]}
    answer = says_taken(liar, *tags.get(wrong, [one, one[:16]]))
    assert "users whom node node0 did not bring, or one twice" in answer.header["reason"]
    assert left_out(liar) == []


def test_the_server_does_not_learn_who_was_drawn(tmp_path: Path) -> None:
    """A round has four of a node's six users; none of the others is left out after it."""
    liar = three_nodes(tmp_path)
    assert liar.sum([0, 1, 2], TRAIN)
    drawn = in_sums(liar.fed, 0)
    assert len(drawn) == 4
    for user in sorted(own(0, 6) - drawn):
        assert "who were in its sums" in says_taken(liar, tag(liar, user)).header["reason"]


def test_nobody_is_left_out_in_the_middle_of_a_sum(tmp_path: Path) -> None:
    """Opened again, it would be the same sum by its commitments, with one user more."""
    liar = three_nodes(tmp_path)
    liar.sum([0, 1, 2], DEGREES, until="masked", lost=[0])
    says_taken(liar, tag(liar, "0/2"))
    answer = liar.ask(0, Packet("masked", liar.asked["masked", 1].header, {"secagg": liar.sent["masked"][0]}))
    assert "commits itself to what it sends in stage 'degrees', not to that" in answer.header["reason"]
