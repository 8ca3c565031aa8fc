"""Nodes come and go; degrees stay frozen, and nobody is on two nodes."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedgrec.errors import FedgrecError
from fedgrec.federation.node import changes
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.person import recommend
from fedgrec.federation.node.refresh import claim
from fedgrec.federation.node.store import NodeStore, Person
from tests.federation.living import Life
from tests.federation.rosters import give, without
from tests.federation.worlds import World, world


def more_rounds(fed: World, before: int, now: int) -> None:
    toml = fed.server / "federation.toml"
    toml.write_text(toml.read_text().replace(f"rounds = {before}\n", f"rounds = {now}\n"))


def test_a_node_that_joins_later_runs_no_warm_up(tmp_path: Path) -> None:
    fed = world(tmp_path, nodes=4, options={"start_nodes": 3, "evaluations": 9})
    fed.transport.away = {3}
    fed.run()
    degrees = fed.model().degrees.copy()
    fed.transport.away = set()
    more_rounds(fed, 2, 4)
    fed.run()
    assert fed.is_its_simulation()
    assert fed.model().degrees.tolist() == degrees.tolist()
    assert len(fed.applied("degrees")) == 1
    assert len(fed.applied("propagate")) == 1
    assert [3 in line["included"] for line in fed.applied("train")] == [False, False, True, True]
    with NodeStore(fed.nodes[3]) as store:
        stages = {stage for (stage,) in store.db.execute("SELECT stage FROM participation")}
    assert stages == {"train", "evaluate"}


def test_a_node_that_joins_while_training_goes_on(tmp_path: Path) -> None:
    fed = world(tmp_path, nodes=4, options={"start_nodes": 3, "rounds": 4})
    fed.transport.away = {3}
    summed = fed.witness.summed

    def arrives(line: dict[str, object]) -> None:
        summed(line)
        if line["stage"] == "train" and line["round"] == 1:
            fed.transport.away = set()

    fed.witness.summed = arrives  # type: ignore[method-assign]
    fed.run()
    assert fed.is_its_simulation()
    # The sum after round 1 was announced before the node came.
    assert [3 in line["included"] for line in fed.applied("train")] == [False, False, False, True]


def test_an_item_that_only_the_latecomer_has_counts_as_met_once(tmp_path: Path) -> None:
    fed = world(tmp_path, nodes=4, users=2, options={"start_nodes": 3, "rounds": 1})
    fed.transport.away = {3}
    fed.run()
    new = int(np.flatnonzero(fed.model().degrees == 0)[0])
    with NodeStore(fed.nodes[3]) as store:
        store.add_users(open_node(fed.nodes[3]).method(1), [Person("new", [new])])
    fed.transport.away = set()
    more_rounds(fed, 1, 14)  # its turn comes in one of these
    fed.run()
    assert fed.is_its_simulation()
    assert fed.model().degrees[new] == 0
    assert np.abs(fed.model().items[1, new]).sum() > 0, "it has sent what its latent item is made of"


def test_nodes_that_leave_are_not_missed(tmp_path: Path) -> None:
    fed = world(tmp_path, nodes=4, options={"rounds": 4, "corrupt": 0.0})
    summed = fed.witness.summed

    def leaves(line: dict[str, object]) -> None:
        summed(line)
        if line["stage"] == "train":
            fed.transport.away = {1} if line["round"] == 0 else {1, 3}

    fed.witness.summed = leaves  # type: ignore[method-assign]
    fed.run()
    assert fed.model().round == 4
    assert fed.applied("train")[-1]["included"] == [0, 2]
    assert fed.pending(), "those who left have not heard what became of their last upload"
    fed.transport.away = set()
    fed.run()  # only the last messages to nodes are left to do
    assert not fed.pending()
    assert fed.is_its_simulation()


def test_a_user_on_two_nodes_is_left_out_by_the_second(tmp_path: Path) -> None:
    """Until the first one has let it go and the operator says so; then it comes in like any new user."""
    fed = world(tmp_path, options={"start_nodes": 2, "rounds": 1}, users_per_round=100)
    with NodeStore(fed.nodes[2]) as store:
        store.add_users(open_node(fed.nodes[2]).method(1), [Person("0/1", [1, 2, 3])])
    fed.run()
    assert fed.witness.joiners == ["node0", "node1", "node2"]
    assert any("node node2 brings 1 user that node node0 brought first" in notice for notice in fed.witness.notices)
    assert fed.applied("degrees")[0]["users"] == 18
    with NodeStore(fed.nodes[2]) as store:
        assert (store.left_out(), store.get("announced")) == (["0/1"], 6)
        assert str(changes.Renewal(left_out=len(store.left_out()))).endswith(
            "take them off the nodes that also have them"
        )
    with NodeStore(fed.nodes[0]) as store:
        changes.let_go(store, store.row_of("0/1"))
    for number, (left_out, announced) in enumerate([(["0/1"], 6), ([], 7)], 1):
        more_rounds(fed, number, number + 1)
        fed.run()
        with NodeStore(fed.nodes[2]) as store:
            assert (store.left_out(), store.get("announced")) == (left_out, announced)
        claim(fed.nodes[2])
    assert fed.is_its_simulation()


def test_a_user_twice_on_one_node_is_refused(tmp_path: Path) -> None:
    fed = world(tmp_path)
    with NodeStore(fed.nodes[0]) as store:
        with pytest.raises(FedgrecError, match="'0/1' is on this node already"):
            store.add_users(open_node(fed.nodes[0]).method(1), [Person("brand new", [1]), Person("0/1", [1])])
        assert "brand new" not in store.ids(), "all of them, or none"


@pytest.mark.parametrize("person", [Person("x", []), Person("x", [30]), Person("x", [-1]), Person("x", [1], [77])])
def test_users_bring_items_of_the_catalogue(tmp_path: Path, person: Person) -> None:
    fed = world(tmp_path)
    with NodeStore(fed.nodes[0]) as store, pytest.raises(FedgrecError, match="from 0 to 29"):
        store.add_users(open_node(fed.nodes[0]).method(1), [person])


def test_users_added_later_take_part_after_the_next_hello(tmp_path: Path) -> None:
    fed = world(tmp_path, options={"rounds": 2}, users_per_round=100)
    fed.run()
    with NodeStore(fed.nodes[0]) as store:
        store.add_users(open_node(fed.nodes[0]).method(1), [Person("late", [1, 2, 3])])
    more_rounds(fed, 2, 3)
    fed.run()
    assert fed.is_its_simulation()
    # The integers were sized for the 18 users of the start: nineteen do not fit, so somebody waits.
    assert fed.applied("train")[-1]["users"] <= 18
    with NodeStore(fed.nodes[0]) as store:
        assert store.get("announced") == 7


def test_a_node_with_another_configuration_is_refused(tmp_path: Path) -> None:
    fed = world(tmp_path, options={"start_nodes": 2, "rounds": 1})
    toml = fed.nodes[1] / "config.toml"
    toml.write_text(toml.read_text().replace("l2 = ", "l2 = 1"))
    fed.run()
    assert fed.witness.joiners == ["node0", "node2"]
    assert any("copy config.toml, agreement.toml and items.txt to it" in notice for notice in fed.witness.notices)


def test_who_has_left_the_roster_does_not_join(tmp_path: Path) -> None:
    fed = world(tmp_path, nodes=4, options={"start_nodes": 3, "retries": 0, "corrupt": 0.0})
    give(tmp_path, without(tmp_path, 3))
    fed.run()
    assert fed.witness.joiners == ["node0", "node1", "node2"]
    assert any("is node3, which was removed with roster 2" in notice for notice in fed.witness.notices)


def test_a_restarted_node_at_another_address_is_the_same_node(tmp_path: Path) -> None:
    fed = world(tmp_path, options={"rounds": 3})
    summed = fed.witness.summed

    def moves(line: dict[str, object]) -> None:
        summed(line)
        if line["stage"] == "train" and line["round"] == 0:
            fed.transport.folders = {0: fed.nodes[0], 1: fed.nodes[1], 77: fed.nodes[2]}

    fed.witness.summed = moves  # type: ignore[method-assign]
    fed.run()
    assert fed.is_its_simulation()
    assert fed.applied("train")[-1]["included"] == [0, 1, 2]
    assert fed.witness.joiners == ["node0", "node1", "node2", "node2"]


def test_a_moved_folder_still_recommends(tmp_path: Path, life: Life) -> None:
    moved = tmp_path / "moved"
    shutil.move(life.world.nodes[0], moved)
    items, scores = recommend(moved, "0/3", 4)
    with NodeStore(moved) as store:
        cohort = store.cohort(open_node(moved).method(1), [store.row_of("0/3")])
    assert len(items) == 4
    assert not set(items.tolist()) & set(cohort.items.tolist())
    assert (np.diff(scores) <= 0).all()
    with pytest.raises(FedgrecError, match="no user 'nobody'"):
        recommend(moved, "nobody", 4)
