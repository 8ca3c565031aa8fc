"""Rosters: numbered, signed, each continues the one before, and they reach all nodes by themselves."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgrec.errors import FedgrecError
from fedgrec.federation.common import certificates
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.roster import (
    ROSTER,
    Member,
    Membership,
    check_successor,
    differences,
    read_roster,
    unpack,
    write_roster,
)
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.gateway import open_gateway
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.setup.changes import remove_node
from fedgrec.federation.setup.init import add_node
from tests.federation.local_folders import marks
from tests.federation.masked_worlds import masked_world
from tests.federation.replay import replay
from tests.federation.rosters import changed, following, give, without
from tests.federation.test_operate import founded
from tests.federation.worlds import World, people, same_bits, world

# ------------------------------------------------------------------------------------------- one after the other


def line(name: str, number: int = 1, **more: Any) -> Member:
    return Member(name, bytes([number]) * 32, **more)


NOW = Membership("f", 3, {0: line("a"), 1: line("b", users=9, people=4), 2: line("c", joined=2, left=3)})


def then(number: int = 4, **lines: Any) -> Membership:
    """The next roster with other lines at places p0, p1, …; None: without the line."""
    members: dict[int, Any] = dict(NOW.members) | {int(place[1:]): member for place, member in lines.items()}
    return Membership("f", number, {place: member for place, member in members.items() if member})


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (then(3), "its number is not larger"),
        (then(2), "its number is not larger"),
        (then(p0=None), "a has vanished"),
        (then(p2=None), "c has vanished"),
        (then(p0=line("A")), "says of a has changed"),
        (then(p0=line("a", gateway="g")), "says of a has changed"),
        (then(p1=line("b", users=9, people=5)), "says of b has changed"),
        (then(p0=line("a", joined=2)), "says of a has changed"),
        (then(p2=line("c", joined=2)), "c cannot have left with roster 0"),
        (then(p2=line("c", joined=2, left=4)), "c cannot have left with roster 4"),
        (then(p0=line("a", left=3)), "a cannot have left with roster 3"),
        (then(p0=line("a", left=5)), "a cannot have left with roster 5"),
        (then(p3=line("d")), "d cannot have joined with roster 1"),
        (then(p3=line("d", joined=5)), "d cannot have joined with roster 5"),
    ],
)
def test_what_does_not_continue_the_roster_here_is_refused(new: Membership, said: str) -> None:
    with pytest.raises(FederationError, match=said):
        check_successor(new, NOW)


def test_keys_and_ceilings_change_nodes_come_and_go(tmp_path: Path) -> None:
    new = then(
        9,
        p0=line("a", 7),
        p1=line("b", users=99, people=4, left=5),
        p3=line("d", joined=4),
        p4=line("g.4", gateway="g", joined=6),
    )
    check_successor(new, NOW)
    assert differences(new, NOW) == "came: d, g; went: b; with other keys: a"
    assert differences(then(), NOW) == "nobody came and nobody went"
    assert list(new.present) == [0, 3, 4]
    digests = {m.digest for m in (NOW, new, then(), replace(NOW, federation="g"), then(3, p1=line("b", users=9)))}
    assert len(digests) == 5, "everything is in it"
    assert NOW.digest.startswith(NOW.fingerprint.replace(" ", ""))


@pytest.mark.parametrize("how", ["not signed", "another authority", "another federation", "another line"])
def test_only_what_the_authority_signed_for_this_federation_is_read(tmp_path: Path, how: str) -> None:
    fed = world(tmp_path)
    home = open_server(fed.server)
    roster = home.membership
    if how == "not signed":
        roster = replace(roster, signature=b"")
    elif how == "another authority":
        roster = roster.signed(certificates.authority("other")[0])
    elif how == "another federation":
        roster = replace(roster, federation="0" * 32).signed(certificates.open_authority(tmp_path)[0])
    else:
        roster = replace(roster, members=changed(tmp_path, 0, people=2))
    write_roster(fed.server, roster)
    with pytest.raises(FederationError, match=r"server: the authority of this federation has not signed roster\.json"):
        open_server(fed.server)
    with pytest.raises(FederationError, match="has not signed"):
        unpack(roster.pack(), fed.nodes[0], home.federation, "x")


# -------------------------------------------------------------------------------------------- they travel by themselves


def after(fed: World, round_: int, act: Callable[[], None]) -> None:
    """Do this once, after a training round."""
    summed = fed.witness.summed

    def then_act(line: dict[str, Any]) -> None:
        summed(line)
        if line["stage"] == "train" and line["round"] == round_:
            act()

    fed.witness.summed = then_act  # type: ignore[method-assign]


def test_a_running_federation_takes_up_rosters_with_a_newcomer_and_without_who_left(tmp_path: Path) -> None:
    root, fed = founded(tmp_path, 4, rounds=6)

    def comes() -> None:
        folder = add_node(root, people=2)
        with NodeStore(folder) as store:
            store.add_users(open_node(folder).method(1), people(5, 3)[4])
        fed.transport.folders = fed.nodes = {**fed.nodes, 4: folder}

    after(fed, 0, comes)
    after(fed, 2, lambda: remove_node(root, "node-3") and None)
    after(fed, 3, lambda: (root / "server" / ROSTER).write_text("{"))  # half copied: the one before holds
    after(fed, 4, lambda: write_roster(root / "server", open_node(fed.nodes[0]).membership))
    fed.run()
    rounds = [line["included"] for line in fed.applied("train")]
    assert rounds == [[0, 1, 2, 3], *2 * [[0, 1, 2, 3, 4]], *3 * [[0, 1, 2, 4]]], fed.witness.notices
    said = "\n".join(fed.witness.notices)
    assert all(words in said for words in ("is followed by roster 2 (", "came: node-4", "went: node-3"))
    assert "is node-3, which was removed with roster 3: stop it" in said
    assert "roster.json is not readable" in said
    assert [open_node(fed.nodes[index]).membership.number for index in range(5)] == [3, 3, 3, 2, 3]
    model, _ = replay(fed.server, fed.nodes, None)
    assert same_bits(model.items, fed.model().items)


def test_what_is_not_signed_is_noticed_once_and_not_handed_on(tmp_path: Path) -> None:
    fed = world(tmp_path, users=3)
    forged = replace(following(tmp_path, without(tmp_path, 2)), signature=b"\0" * 102)
    good = open_server(fed.server).membership
    after(fed, 0, lambda: write_roster(fed.server, forged))
    fed.run()
    write_roster(fed.server, good)
    assert sum("has not signed roster.json" in notice for notice in fed.witness.notices) == 1
    assert fed.applied("train")[-1]["included"] == [0, 1, 2]
    assert {read_roster(path, forged.federation).number for path in fed.nodes.values()} == {1}


def test_users_of_a_gateway_come_and_go_while_the_server_runs(tmp_path: Path) -> None:
    """All users of a gateway share one file, which the first of them installs."""
    fed = masked_world(tmp_path, options={"rounds": 4})
    gateway = fed.transport.folders[1]
    after(fed, 0, lambda: enrolled(tmp_path, fed, gateway))
    after(fed, 2, lambda: give(tmp_path, without(tmp_path, 0)) and None)
    fed.run()
    rounds = [line["included"] for line in fed.applied("train")]
    assert (rounds[0], rounds[-1]) == ([*range(6)], [*range(1, 7)]), fed.witness.notices
    assert {
        read_roster(path, open_server(fed.server).federation).number for path in fed.transport.folders.values()
    } == {3}


def enrolled(root: Path, fed: World, gateway: Path) -> None:
    """One more user of a gateway: keys in the gateway's folder, a line on the server's roster, and a person."""
    from fedgrec.federation.common.folder import Terms
    from fedgrec.federation.node.folder import floors
    from fedgrec.federation.node.gateway import anyone, create, enrol

    first, (lines, keys) = anyone(gateway), enrol(open_gateway(gateway).name, 6, 1)
    new = following(root, {**changed(root), 6: replace(lines[6], joined=2)})
    terms = Terms(new, (gateway / "ca.crt").read_bytes(), first.config, first.n_items, first.agreed)
    create(gateway, terms, keys, first.user_salt, floors(first))
    open_gateway(gateway).take_in({"new": marks(Person("new", [1, 2, 3]))})
    write_roster(fed.server, new)


def test_errors_name_the_folder(tmp_path: Path) -> None:
    fed = world(tmp_path)
    (fed.nodes[0] / ROSTER).unlink()
    with pytest.raises(FedgrecError, match=r"node0/roster\.json is missing"):
        open_node(fed.nodes[0]).roster  # noqa: B018
