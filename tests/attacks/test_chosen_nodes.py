"""A lying server must not choose the nodes of a sum so that the sum shows one node, or one user."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from fedgrec.errors import FedgrecError
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.plan import Plan
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.server.folder import open_server
from tests.attacks.lying_server import DEGREES, JUDGE, TRAIN, Liar, total
from tests.federation.meddlers import on, silent
from tests.federation.worlds import World, world

ATTEMPTS = itertools.count()


@pytest.fixture
def liar(tmp_path: Path) -> Liar:
    return Liar(world(tmp_path, options={"evaluations": 9}))


def test_no_sum_has_fewer_survivors_than_the_node_wants(tmp_path: Path) -> None:
    """Three nodes take part, and the server calls one lost: the limit counts the nodes in the sum."""
    liar = Liar(world(tmp_path, options={"least_nodes": 3}))
    assert liar.sum([0, 1, 2], DEGREES, lost=[2]) is None
    assert liar.refused("3 nodes or more")


def test_an_honest_server_does_not_even_try(tmp_path: Path) -> None:
    fed = world(tmp_path, options={"least_nodes": 3})
    fed.run(on("masked", 1, silent, after=2))
    assert fed.is_its_simulation()
    assert [line["round"] for line in fed.applied("train")] == [1]
    assert not any("opens only" in notice for notice in fed.witness.notices)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Twelve nodes; two of them may work for the server."""
    return world(tmp_path_factory.mktemp("crowd"), nodes=12, users=1, options={"corrupt": 0.2})


@pytest.mark.parametrize(
    ("nodes", "session", "words"),
    [
        (3, {}, "4 nodes or more"),  # two corrupt nodes and one honest node: the sum shows its upload
        (4, {"threshold": 3}, "work for the server"),  # 2t − n = 2
        (10, {"threshold": 6}, "work for the server"),
        (10, {"neighbours": 2, "threshold": 2}, "work for the server"),  # a circle: both neighbours may be corrupt
        (10, {"neighbours": 6, "threshold": 4}, "work for the server"),  # 2t − k = 2: two of six may be corrupt
    ],
)
def test_the_session_cannot_be_weaker_than_the_node_allows(
    crowd: World, nodes: int, session: dict[str, int], words: str
) -> None:
    liar = Liar(crowd, attempts=ATTEMPTS)
    assert liar.sum(range(nodes), DEGREES, **session) is None
    assert len(liar.refusals) >= nodes
    assert liar.refused(words)


@pytest.mark.parametrize(("nodes", "threshold"), [(4, 4), (10, 7), (12, 8)])
def test_a_strong_session_is_fine(crowd: World, nodes: int, threshold: int) -> None:
    liar = Liar(crowd, attempts=ATTEMPTS)
    liar.sum(range(nodes), TRAIN, threshold=threshold, until="shares")
    assert {answer.kind for answer in liar.answers["shares"].values()} == {"shares"}


@pytest.mark.keep(1)
@pytest.mark.parametrize("per_round", [0, 5])
def test_honest_servers_choose_what_nodes_accept(tmp_path: Path, per_round: int) -> None:
    options = {"nodes_per_round": per_round, "corrupt": 0.2}  # one of eight
    fed = world(tmp_path, nodes=8, users=1, options=options, users_per_round=100)
    fed.run()
    assert fed.is_its_simulation()
    assert not fed.witness.notices
    assert len(fed.applied("train")) == 2


def test_a_large_gateway_does_not_leave_the_small_ones_with_one_user(tmp_path: Path) -> None:
    """By their share, small nodes would give 5 · 12 // 110 = 0 users: they give two, and the large one gives fewer."""
    fed = world(tmp_path, users=5)
    with NodeStore(fed.nodes[0]) as store:
        store.add_users(open_node(fed.nodes[0]).method(1), [Person(f"more {n}", [n % 7, 9]) for n in range(95)])
    fed.run()
    assert fed.is_its_simulation()
    assert [line["users"] for line in fed.applied("train")] == [12, 12]
    assert not fed.witness.notices


def test_too_few_users_for_the_floors_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FedgrecError, match="users_per_round = 3 is too few for 2 nodes of 2 users each"):
        world(tmp_path, users_per_round=3).run()


def test_a_round_of_too_few_nodes_is_a_sentence(tmp_path: Path) -> None:
    fed = world(tmp_path, nodes=24, users=1, options={"nodes_per_round": 3, "corrupt": 0.1})
    with pytest.raises(FedgrecError, match="2 of 24 nodes may be corrupt, so no sum has fewer than 4"):
        fed.run()


def test_a_sparse_graph_that_was_chosen_well_is_accepted() -> None:
    """The node's own check agrees with `parameters.choose`, for all nodes and for the fewest allowed."""
    from fedgrec.secagg.parameters import choose, withstands

    for n, corrupt, dropped in itertools.product((100, 300, 1000), (0.02, 0.05), (0.05, 0.2)):
        chosen, c = choose(n, corrupt, dropped), int(corrupt * n)
        assert chosen.neighbours < n - 1
        k, t = chosen.neighbours, chosen.threshold
        assert withstands(n, k, t, c, n - chosen.least)
        assert withstands(chosen.least, k, t, c, 0)
        assert not withstands(n, k, k // 2 + 1, c, n - chosen.least)


@pytest.mark.parametrize(
    "sum_",
    [
        replace(TRAIN, take=0),
        replace(TRAIN, take=1, of=10**6),
        replace(JUDGE, take=1, of=6),
        replace(DEGREES, take=1, of=6),
        replace(JUDGE, topk=()),
        replace(JUDGE, topk=(0,)),
    ],
    ids=range(6),
)
def test_the_server_cannot_have_a_gateway_pick_one_user(liar: Liar, sum_: Plan) -> None:
    assert liar.sum([0, 1, 2], sum_) is None
    assert liar.answers.keys() == {"keys", "shares"}


def test_in_a_sweep_a_node_takes_part_with_everybody(tmp_path: Path) -> None:
    """Round 6 is a sweep, after four turns of twelve of 18 users: with fewer, a row of latents may be one user's."""
    liar = Liar(world(tmp_path, latents_every=0))
    sweep = replace(TRAIN, round=6)
    assert liar.sum([0, 1, 2], sweep) is None
    assert liar.refused("adds up 6 users or more in stage 'train', not 4")
    assert liar.sum([0, 1, 2], replace(sweep, take=1, of=1, users=18)) is not None


def test_a_gateway_does_not_hand_in_one_users_metrics(liar: Liar) -> None:
    """Only one of node 0's six users has held-out items: its hits would be the node's whole part of an evaluation."""
    with NodeStore(liar.fed.nodes[0]) as store:
        store.db.execute("DELETE FROM interactions WHERE held_out = 1 AND user > 1")
        store.db.execute("INSERT OR REPLACE INTO interactions (user, item, held_out) VALUES (1, 29, 1)")
    judging = 0
    for node in (1, 2):
        with NodeStore(liar.fed.nodes[node]) as store:
            judging += store.db.execute("SELECT count(DISTINCT user) FROM interactions WHERE held_out").fetchone()[0]
    found = liar.trained().sum([0, 1, 2], JUDGE)
    assert total(found, "count") == [judging]
    assert found is not None
    assert found.users == 18, "and the server cannot see that it did not"


def test_the_floors_are_the_nodes_own(tmp_path: Path) -> None:
    """Every node's folder holds the limits from `init`; the server's options cannot lower them later."""
    fed = world(tmp_path, options={"least_nodes": 3, "least_users": 4, "corrupt": 0.2, "retries": 0})
    assert [(home.least_nodes, home.least_users, home.corrupt) for home in map(open_node, fed.nodes.values())] == [
        (3, 4, 0.2)
    ] * 3
    toml = fed.server / "federation.toml"
    toml.write_text(toml.read_text().replace("least_users = 4", "least_users = 1"))
    config = fed.server / "config.toml"
    assert "users_per_round = 12" in config.read_text()
    with pytest.raises(FedgrecError, match="sums in a row"):  # one of three has fewer: 6 · 9 // 18 = 3
        fed.run(lambda a, r, n: [n(lower(r))])
    assert any("4 users or more" in notice for notice in fed.witness.notices)


def lower(request: Packet) -> Packet:
    """On the way to the node the plan's share becomes smaller."""
    if "plan" not in request.header or request.header["plan"]["stage"] != "train":
        return request
    return replace(request, header=request.header | {"plan": request.header["plan"] | {"take": 9}})


@pytest.mark.parametrize(("nodes", "corrupt"), [(3, 0), (4, 1), (19, 1)])
def test_from_four_nodes_on_one_may_be_corrupt(tmp_path: Path, nodes: int, corrupt: int) -> None:
    """A share of 5 % of nineteen nodes would mean no node."""
    home = open_node(world(tmp_path, nodes=nodes, users=1).nodes[0])
    assert home.corrupt_nodes == corrupt
    assert home.fewest_nodes == corrupt + 2


def test_three_nodes_say_that_they_trust_each_other(tmp_path: Path) -> None:
    homes = [open_server(world(tmp_path / f"{n}", nodes=n, users=1).server) for n in (3, 4)]
    assert "none of the 3 nodes may work for the server" in homes[0].assumption
    assert homes[1].assumption == ""
