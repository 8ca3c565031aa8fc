"""The history of sums: what a node believes, what it binds into its keys, and what a restored server learns from it."""

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgrec.federation.common import packets
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.folder import make_method
from fedgrec.federation.common.history import counted, line, unpack
from fedgrec.federation.common.options import AS_USUAL
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.plan import Plan
from fedgrec.federation.node import history
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.history import History
from fedgrec.federation.server.store import ServerStore
from tests.attacks.lying_server import TRAIN, Liar
from tests.federation.local_transport import Answer, Meddler, honest
from tests.federation.worlds import N_ITEMS, World, config, world

ME = 1
OTHER = "another history of sums than this node knows"


def told(number: int, *included: int, stage: str = "train") -> str:
    """The line of the sum with this number."""
    return line(f"{number:032x}", (stage, 0, number), 1, included).pack()


FIRST, SECOND, THIRD = told(1, 0, 1, 2), told(2), told(3, 0, 2)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[NodeStore]:
    with NodeStore(tmp_path) as store:
        yield store


def hear(store: NodeStore, *lines: Any, after: int = 0) -> list[int]:
    with store.transaction():
        return history.hear(store, ME, {"after": after, "lines": list(lines)})


def refuses(store: NodeStore, *lines: Any, after: int = 0) -> bool:
    """Whether the node refuses to believe this, and keeps what it knew."""
    before = store.rows("history", "number, line, head")
    try:
        hear(store, *lines, after=after)
    except FederationError:
        return before == store.rows("history", "number, line, head")
    return False


# ------------------------------------------------------------------------------------------ what a node believes


def test_a_line_says_who_is_in_a_sum() -> None:
    assert counted([0, 1, 3]) == "b"
    assert unpack(told(1, 0, 1, 3)).included == [0, 1, 3]
    assert unpack(told(1)).included == []
    assert unpack(told(7, 2)).pack() == told(7, 2)


@pytest.mark.parametrize("other", ["-1", "07", "0x7", "7_0", " 7", "+7", "", "g", "٧", "F"])
def test_who_is_in_a_sum_is_written_in_one_way(other: str) -> None:
    """A number below zero would have had a bit for everybody, and been in nobody's list."""
    with pytest.raises(FederationError, match="names no sum"):
        unpack(told(1, 0, 1, 2).replace('"7"', f'"{other}"'))


def test_lines_are_chained(store: NodeStore) -> None:
    """Each head is the hash of the one before and of the line, by hand."""
    assert history.end(store) == (0, "")
    hear(store, FIRST, SECOND)
    head = hashlib.sha256(b"fedgrec history  " + FIRST.encode()).hexdigest()
    head = hashlib.sha256(f"fedgrec history {head} {SECOND}".encode()).hexdigest()
    assert history.end(store) == (2, head)


@pytest.mark.parametrize("included", [(1,), (2, 3), (1, 2), (0, 1, 2, 3), (0, 1)])
def test_a_batch_counts_as_a_whole(store: NodeStore, included: tuple[int, ...]) -> None:
    """The server did not ask this batch to sign who is in the sum, and says that a part of it is."""
    with store.transaction():
        store.take_part(f"{1:032x}", ("propagate", 1, 0), [], None, b"", batch=counted([1, 2]))
    is_whole = len({1, 2}.intersection(included)) in (0, 2)
    assert refuses(store, told(1, *included, stage="propagate")) != is_whole


def test_new_lines_may_come_in_any_portions_and_again(store: NodeStore) -> None:
    hear(store, FIRST)
    hear(store, SECOND, THIRD, after=1)
    end = history.end(store)
    hear(store, FIRST, SECOND, THIRD)
    hear(store, FIRST, SECOND)
    hear(store, SECOND, after=1)
    hear(store, after=3)
    assert history.hear(store, ME, None) == []
    assert history.end(store) == end


def test_a_fork_is_refused(store: NodeStore) -> None:
    hear(store, FIRST, SECOND)
    assert refuses(store, told(1, 0, 2))
    assert refuses(store, FIRST, told(2, 0, 1))
    assert refuses(store, FIRST, told(2, 0, 1), THIRD)
    with pytest.raises(FederationError, match=rf"{OTHER}.*--trust-again"):
        hear(store, SECOND, after=0)
    assert not refuses(store, THIRD, after=2)


def test_a_gap_is_refused(store: NodeStore) -> None:
    hear(store, FIRST)
    assert refuses(store, THIRD, after=2)
    assert refuses(store, SECOND, after=-1)
    assert not refuses(store, SECOND, THIRD, after=1)


def test_what_is_no_history_is_refused(store: NodeStore) -> None:
    for message in (
        [],
        {},
        {"after": 0},
        {"after": "0", "lines": []},
        {"after": True, "lines": []},
        {"lines": [FIRST]},
    ):
        with pytest.raises(FederationError):
            history.hear(store, ME, message)
    spaced = FIRST.replace(", ", ",")
    for packed in (None, 1, "", "{}", "[]", spaced, FIRST.replace("7", "g"), told(1)[:-1], b""):
        assert refuses(store, packed), packed


def test_all_or_nothing_is_heard(store: NodeStore) -> None:
    """A message with a line that is refused teaches the node nothing."""
    assert refuses(store, FIRST, SECOND, "no line")
    assert history.end(store) == (0, "")


@pytest.mark.parametrize(
    ("included", "believed"), [([0, 1, 2], True), ([], True), ([0, 2], False), ([0, 1, 2, 3], False)]
)
def test_a_sum_counts_for_those_on_the_list_that_was_signed_or_for_nobody(
    store: NodeStore, included: list[int], believed: bool
) -> None:
    store.db.execute("INSERT INTO signed (session, counted) VALUES (?, ?)", [f"{1:032x}", counted([0, 1, 2])])
    assert refuses(store, told(1, *included)) != believed


def took_part(store: NodeStore) -> list[int]:
    """The node's one user is in the first sum, a count of items, and waits for the verdict."""
    store.add_users(make_method(config(), N_ITEMS, 1, AS_USUAL), [Person("somebody", [1, 2])])
    rows = store.first_rows(1)
    store.take_part(f"{1:032x}", ("degrees", 0, 1), rows, None, b"")
    return rows


def test_users_hear_by_it_whether_their_items_are_counted(store: NodeStore) -> None:
    rows = took_part(store)
    assert hear(store, told(1, 0, ME, stage="degrees")) == rows
    assert store.waiting() == []
    assert hear(store, told(1, 0, ME, stage="degrees")) == [], "they hear it once"


def test_who_is_not_in_it_is_not_counted(store: NodeStore) -> None:
    took_part(store)
    assert hear(store, told(1, 0, 2, stage="degrees")) == []
    assert store.waiting() == []


def test_a_line_that_counts_what_the_node_has_given_up_is_refused(store: NodeStore) -> None:
    """It has been in another sum since, so what its users would send next has not what this line counts."""
    took_part(store)
    store.settle(f"{1:032x}", False)
    assert refuses(store, told(1, 0, ME, stage="degrees"))
    assert not refuses(store, told(1, 0, 2, stage="degrees"))


def test_trusted_again_a_server_cannot_take_back_what_counted(store: NodeStore) -> None:
    """The node's users hold it as sent: who of a batch does, and who sends it again, must not differ."""
    took_part(store)
    hear(store, told(1, 0, ME, stage="degrees"))
    history.forget(store)
    assert refuses(store, told(1, stage="degrees"))
    assert not refuses(store, told(1, 0, ME, stage="degrees"))


def test_trusted_again_a_server_tells_everything_anew(store: NodeStore) -> None:
    """What the node has signed and given up stays: its operator forgets tellings, not facts."""
    store.db.execute("INSERT INTO signed (session, counted) VALUES (?, ?)", [f"{3:032x}", counted([0, 2])])
    hear(store, FIRST, SECOND)
    other = told(1, 0, 2)
    assert refuses(store, other)
    history.forget(store)
    assert history.end(store) == (0, "")
    assert refuses(store, SECOND, after=1)
    assert not refuses(store, other, SECOND)
    assert refuses(store, told(3, 0, ME, 2), after=2)


def test_the_first_sum_says_which_roster_the_federation_began_with(store: NodeStore) -> None:
    history.note_beginning(store, 4)
    assert store.get("founded") == 4
    history.note_beginning(store, 5)
    assert store.get("founded") == 4


def test_who_joins_later_hears_of_it(store: NodeStore) -> None:
    hear(store, line("00", ("degrees", 0, 0), 2, [0]).pack())
    history.note_beginning(store, 5)
    assert store.get("founded") == 2


# ---------------------------------------------------------------------------------------------- what keys are bound to


def opened_after_two_tellings(root: Path) -> bool:
    """Whether a sum is opened after node 0 alone has heard of one more that is over."""
    liar = Liar(world(root))
    hello = Packet(packets.HELLO, {"federation": liar.home.federation}, {"nonce": bytes(32)})
    liar.ask(0, replace(hello, header={**hello.header, packets.HISTORY: {"after": 0, "lines": [told(9)]}}))
    return liar.sum([0, 1, 2], TRAIN) is not None


def test_nodes_that_were_told_different_histories_share_no_keys(tmp_path: Path) -> None:
    assert not opened_after_two_tellings(tmp_path)


def test_without_the_history_in_their_keys_they_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = Plan.context
    monkeypatch.setattr(Plan, "context", lambda plan, model, *told: bound(plan, model, *told[:2], *told[3:]))
    assert opened_after_two_tellings(tmp_path)


# -------------------------------------------------------------------------------------------------- restored servers


def names_used(fed: World) -> dict[int, set[str]]:
    """All sums that nodes were ever asked into."""
    found = {}
    for index, path in fed.nodes.items():
        with NodeStore(path) as store:
            found[index] = set(store.column("sessions", "id"))
    return found


def trained_and_restored(root: Path, nodes: int) -> World:
    """A federation of four rounds, whose server is then the copy that was made after two."""
    fed = world(root, nodes=nodes, users=1)
    fed.run()
    shutil.copytree(fed.server, root / "backup")
    fed.give_rounds(4)
    fed.run()
    shutil.rmtree(fed.server)
    (root / "backup").rename(fed.server)
    return fed


def test_a_restored_server_uses_no_round_and_no_name_twice(tmp_path: Path) -> None:
    fed = trained_and_restored(tmp_path, 3)
    before, asked = names_used(fed), list[str]()

    def listens(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        """`begin_session` would refuse a name that was used."""
        replies = list(honest(address, request, answer))
        asked.extend(reply.header.get("reason", "") for reply in replies)
        return replies

    fed.give_rounds(6)
    fed.run(listens)
    rounds = [(row["round"], row["applied"], row["reason"]) for row in fed.log() if row["stage"] == "train"]
    assert [round_ for round_, *_ in rounds] == [0, 1, 2, 3, 4, 5]
    assert [bool(applied) for _, applied, _ in rounds] == [True, True, False, False, True, True]
    assert all("restored copy" in rounds[at][2] for at in (2, 3))
    assert not any("asked into this sum before" in reason for reason in asked)
    sessions = [row["session"] for row in fed.log()]
    assert len(set(sessions)) == len(sessions)
    assert not before[0] & set(sessions[-2:])
    assert any("nodes know of 2 sums that this server does not" in notice for notice in fed.witness.notices)
    ends = set()
    for path in fed.nodes.values():
        with NodeStore(path) as store:
            ends.add(history.end(store))
    assert len(ends) == 1


def tells(liar: int, *lines: str) -> Meddler:
    """This node says that it has heard of these sums, too."""

    def meddle(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        for reply in honest(address, request, answer):
            if address == liar and reply.kind == packets.HELLO:
                heard = reply.header[packets.HISTORY]
                heard["lines"] += lines
            yield reply

    return meddle


@pytest.mark.parametrize("restored", [False, True])
def test_one_lying_node_alone_makes_no_server_believe_lines(tmp_path: Path, restored: bool) -> None:
    """From four nodes on one may lie, so a server believes what two say."""
    fed = trained_and_restored(tmp_path, 4) if restored else world(tmp_path, nodes=4, users=1)
    assert open_server(fed.server).corrupt_nodes == 1
    lies = [told(77, 0, 1), line("ab" * 16, ("train", 0, 5), 1, []).pack()]
    fed.give_rounds(6)
    fed.run(tells(2, *lies))
    said = [unpack(packed).session for packed in lies]
    assert not any(row["session"] in said for row in fed.log())
    assert [row["round"] for row in fed.log() if row["stage"] == "train"] == [0, 1, 2, 3, 4, 5]


def test_lines_are_believed_one_after_the_other_as_long_as_enough_agree(tmp_path: Path) -> None:
    fed = world(tmp_path, nodes=4, users=1)
    with ServerStore(open_server(fed.server)) as store:
        known = History(store)
        assert known.believe([[FIRST, SECOND], [told(1, 2)], None, [3]], 2) == 0
        assert known.believe([[FIRST, SECOND, THIRD], [FIRST, SECOND, told(3, 1)], [told(1, 2)]], 2) == 2
        assert known.lines == [FIRST, SECOND]
        assert known.believe([[], [THIRD]], 1) == 1
        assert known.lines == [FIRST, SECOND, THIRD]


def test_a_node_that_was_told_something_else_is_named(tmp_path: Path) -> None:
    fed = world(tmp_path, nodes=4, users=1)
    with ServerStore(open_server(fed.server)) as store:
        known = History(store)
        known.believe([[FIRST, SECOND]], 1)
        known.let_in(0, {"number": 2, "head": known.head}, "node0")
        known.let_in(0, {"number": 0, "head": ""}, "node0")
        assert known.message(0) == {"after": 0, "lines": [FIRST, SECOND]}
        for other in (
            {"number": 2, "head": "other"},
            {"number": 3, "head": known.head},
            {"number": True, "head": ""},
            [],
            None,
        ):
            with pytest.raises(FederationError, match=r"node node0 was told another history .*--trust-again"):
                known.let_in(0, other, "node0")


def test_a_lying_node_that_joins_from_two_places_still_has_one_voice(tmp_path: Path) -> None:
    fed = world(tmp_path, nodes=4, users=1)
    fed.transport.folders = {**fed.transport.folders, 9: fed.nodes[2]}
    lies = [line("ab" * 16, ("train", 0, 0), 1, []).pack()]

    def both(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        return tells(address if address in (2, 9) else -1, *lies)(address, request, answer)

    fed.run(both)
    assert [row["session"] == "ab" * 16 for row in fed.log()] == [False] * 4
