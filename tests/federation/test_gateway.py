"""Setting up gateways whose users mask for themselves: keys, folders, commands, users who come and go."""

import stat
from pathlib import Path

import pytest

from fedgrec.errors import FedgrecError
from fedgrec.federation.common.network import NETWORK
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node import gateway
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.gateway import Gateway, open_gateway
from fedgrec.federation.node.person import users_of
from fedgrec.federation.node.refresh import Watcher
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.setup.init import add_node, add_users, init
from tests.federation.local_folders import marks
from tests.federation.local_transport import LocalTransport
from tests.federation.masked_worlds import ALL, masked_world
from tests.federation.rosters import changed, give, without
from tests.federation.test_churn import more_rounds
from tests.federation.test_cli_federation import said
from tests.federation.worlds import N_ITEMS, World, config, people, world


@pytest.fixture
def fed(tmp_path: Path) -> Path:
    """Three gateways with two keys each, and a table with users for the first of them."""
    made = init(
        tmp_path / "fed", 3, ["tea", "milk", "beer"], config(), FederationOptions(corrupt=0.2), per_user_masks=[2] * 3
    )
    (tmp_path / "t.csv").write_text("user,item\nann,tea\nbob,milk\n")
    (made.nodes[0] / NETWORK).write_text(f'superlink = "x:1"\nsource = "{tmp_path / "t.csv"}"\nheld_out = 0.0\n')
    return made.server.parent


def test_every_user_has_a_key_that_nobody_else_can_read(fed: Path) -> None:
    for path in (fed, *fed.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    roster = open_server(fed / "server").roster
    assert [(member.name, member.gateway) for member in roster.values()] == [
        (f"node-{index // 2}.{index}", f"node-{index // 2}") for index in range(6)
    ]
    for index, member in roster.items():
        home = open_node(fed / member.gateway / "users" / str(index))
        assert home.identity.public_key().public_bytes_raw() == member.key
        assert (home.index, home.name, home.roster, home.corrupt) == (index, member.name, roster, 0.2)
        assert home.agreement == open_server(fed / "server").agreement
    assert len({member.key for member in roster.values()}) == 6
    assert len(list((fed / "server" / "keys").iterdir())) == 3, "one connection for each gateway"
    assert not list(fed.glob("*/identity.key"))


def test_a_gateway_gives_each_user_one_key_and_keeps_it(fed: Path, tmp_path: Path, caplog: object) -> None:
    assert Watcher(fed / "node-0").load() == 2
    home = open_gateway(fed / "node-0")
    before = home.hosted()
    assert sorted(before.values()) == ["ann", "bob"]
    (tmp_path / "t.csv").write_text("user,item\naaron,tea\nann,tea\nbob,milk\ncarl,beer\n")
    assert Watcher(fed / "node-0").load() == 2
    assert home.hosted() == before
    assert "2 users have no key and take no part" in caplog.text  # type: ignore[attr-defined]
    new = add_users(fed, "node-0", 2)
    assert [path.name for path in new] == ["6", "7"]
    assert list(open_server(fed / "server").roster) == list(range(8))
    assert isinstance(gateway.opened(fed / "node-0"), Gateway), "its roster will come from the server"
    assert Watcher(fed / "node-0").load() == 4
    assert home.hosted().items() > before.items()
    assert sorted(users_of(fed / "node-0")) == ["aaron", "ann", "bob", "carl"]


def test_places_on_the_roster_do_not_tell_the_order_of_names(tmp_path: Path) -> None:
    people = [Person(f"user {number}", [1]) for number in range(8)]
    orders = set()
    for turn in range(3):
        made = init(
            tmp_path / str(turn), 3, ["a", "b"], config("federank"), FederationOptions(), per_user_masks=[8] * 3
        )
        home = open_gateway(made.nodes[0])
        home.take_in({person.id: marks(person) for person in people})
        orders.add(tuple(home.hosted().values()))
    assert len(orders) > 1


def test_a_gateway_added_later(fed: Path) -> None:
    folder = add_node(fed, users=3)
    home = open_gateway(folder)
    assert (home.name, list(home.members)) == ("node-3", [6, 7, 8])
    assert isinstance(gateway.opened(folder), Gateway)
    assert gateway.anyone(folder).user_salt == gateway.anyone(fed / "node-0").user_salt
    plain = add_node(fed)  # a federation may have both kinds
    assert (open_node(plain).index, open_node(plain).name) == (9, "node-4")
    assert open_node(plain).membership == open_server(fed / "server").membership
    assert (fed / "server" / "keys" / "node-4.pub").exists()


def mixed_up(fed: Path, how: str) -> Path:
    """A folder that is opened as the wrong kind."""
    first = fed / "node-0"
    if how == "one user is started":
        return first / "users" / "1"
    if how == "the store of a node":
        NodeStore(first).close()
    elif how == "a node's file":
        (first / "node.json").write_bytes((first / "users" / "0" / "node.json").read_bytes())
    elif how == "no gateway.json":
        (first / "gateway.json").unlink()
    elif how == "a roster of plain nodes":
        give(fed, changed(fed, gateway=""), first)
    elif how == "a plain node whose roster has gateways":
        first = add_node(fed)
        give(fed, changed(fed, 6, gateway="node-0"), first)
    return first


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("one user is started", "is one user of a gateway, not a node by itself: start"),
        ("the store of a node", "a folder is one or the other"),
        ("a node's file", "a folder is one or the other"),
        ("no gateway.json", "has a gateway's users and no gateway.json"),
        ("a roster of plain nodes", "is not a user of node-0 by roster.json"),
        ("a plain node whose roster has gateways", "is made to add its users up"),
    ],
)
def test_one_kind_opened_as_the_other_is_one_sentence(
    fed: Path, capsys: pytest.CaptureFixture[str], how: str, sentence: str
) -> None:
    pytest.importorskip("flwr", exc_type=ImportError)
    folder = mixed_up(fed, how)
    code, _, err = said(capsys, "federation", "node", folder)
    assert code == 2
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_a_folder_is_opened_as_what_it_is(fed: Path, tmp_path: Path) -> None:
    with pytest.raises(FedgrecError, match="is a gateway whose users mask for themselves"):
        open_node(fed / "node-0")
    plain = world(tmp_path / "plain")
    with pytest.raises(FedgrecError, match="is one node, which adds its users up"):
        open_gateway(plain.nodes[0])


def test_a_server_whose_roster_does_not_know_of_gateways_is_told(tmp_path: Path) -> None:
    fed = masked_world(tmp_path)
    give(tmp_path, changed(tmp_path, gateway=""))
    with pytest.raises(FedgrecError, match="0 of 6 nodes are there"):
        fed.run()
    assert any("copy the gateway's to the server" in notice for notice in fed.witness.notices)


def test_a_plain_node_among_gateways(tmp_path: Path) -> None:
    """A federation may have both kinds: six users who mask for themselves, and a node that adds two up."""
    crowd, catalogue = people(4, 2), [f"item {item}" for item in range(N_ITEMS)]
    options = FederationOptions(rounds=2, evaluate_every=0, pause=0.0, start_seconds=0.0)
    made = init(tmp_path / "fed", 3, catalogue, config(layers=1), options, per_user_masks=[2] * 3)
    plain = add_node(made.server.parent)
    assert gateway.NodeProcess(made.nodes[0]).handle(Packet("who")).header == {"members": []}, "no key has its user yet"
    members = {6: plain}
    for folder, persons in zip(made.nodes, crowd, strict=False):
        open_gateway(folder).take_in({person.id: marks(person) for person in persons})
        members |= open_gateway(folder).members
    with NodeStore(plain) as store:
        store.add_users(open_node(plain).method(1), crowd[3])
    fed = World(made.server, members, LocalTransport(dict(enumerate([*made.nodes, plain]))))
    fed.run()
    assert fed.is_its_simulation()
    assert all((line["included"], line["users"]) == ([*ALL, 6], 8) for line in fed.log())
    assert sorted(fed.witness.joiners) == ["node-0", "node-1", "node-2", "node-3"]


# ------------------------------------------------------------------------------------- coming and going


def test_a_gateway_that_comes_later_and_one_that_leaves(tmp_path: Path) -> None:
    fed = masked_world(tmp_path, options={"start_nodes": 4})
    fed.transport.away = {2}
    fed.run()
    assert fed.applied("train")[-1]["included"] == [0, 1, 2, 3]
    degrees = fed.model().degrees.copy()
    fed.transport.away = set()
    more_rounds(fed, 2, 9)
    fed.run()
    # The integers were sized for the four users of the start, so four of the six are drawn. Seven draws without one
    # of the two new ones are very unlikely.
    assert {4, 5} & {index for line in fed.applied("train") for index in line["included"]}
    fed.transport.away = {0}
    more_rounds(fed, 9, 10)
    fed.run()
    assert fed.applied("train")[-1]["included"] == [2, 3, 4, 5]
    fed.transport.away = set()
    fed.run()
    assert not fed.pending()
    assert fed.is_its_simulation()
    assert fed.model().degrees.tolist() == degrees.tolist()


def test_a_gateway_that_comes_back_elsewhere_in_the_middle(tmp_path: Path) -> None:
    fed = masked_world(tmp_path)
    summed, first = fed.witness.summed, fed.transport.folders[1]

    def moves(line: dict[str, object]) -> None:
        summed(line)
        if line["stage"] == "train" and line["round"] == 0:
            fed.transport.folders = {0: fed.transport.folders[0], 2: fed.transport.folders[2], 77: first}

    fed.witness.summed = moves  # type: ignore[method-assign]
    fed.run()
    assert fed.is_its_simulation()
    assert fed.applied("train")[-1]["included"] == ALL
    assert fed.witness.joiners == ["node0", "node1", "node2", "node1"]


def test_a_gateway_that_does_not_say_whom_it_hosts_is_asked_less_and_less(tmp_path: Path) -> None:
    fed, asked = masked_world(tmp_path, options={"start_nodes": 4, "rounds": 4}), [0]

    def deaf(address: int, request: Packet, answer: object) -> list[Packet]:
        asked[0] += address == 2
        return [] if address == 2 else [answer(request)]  # type: ignore[operator]

    fed.run(deaf)
    assert fed.is_its_simulation()
    assert 1 < asked[0] < 5


def test_a_user_who_leaves_is_taken_off_alone(tmp_path: Path) -> None:
    """Its folder and its line of the roster go; its neighbour stays."""
    fed = masked_world(tmp_path, options={"rounds": 1})
    fed.run()
    gone = fed.nodes.pop(3)
    gone.rename(tmp_path / "gone")
    give(tmp_path, without(tmp_path, 3))
    more_rounds(fed, 1, 2)
    fed.run()
    assert fed.applied("train")[-1]["included"] == [0, 1, 2, 4, 5]
