"""Batches by hand, their law over any history of a roster, and sums of running federations that open over them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from fedgrec.errors import FedgrecError
from fedgrec.federation.common import batches as batches_
from fedgrec.federation.common.batches import Batch, batches, batches_of
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.roster import Member
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server import participants
from fedgrec.federation.server.folder import open_server
from tests.federation.local_transport import Answer, honest
from tests.federation.meddlers import on, silent
from tests.federation.worlds import World, world

Members = dict[int, Member]
FEWEST = 7  # people of a batch; a batch of several nodes has seven nodes or more


def member(name: str = "", people: int = 1, **more: Any) -> Member:
    return Member(name, bytes(32), people=people, **more)


def of(*people: int, joined: int = 1, first: int = 0, gateway: str = "") -> Members:
    """Nodes that are sure to bring so many people."""
    return {n: member(f"n{n}", p, joined=joined, gateway=gateway) for n, p in enumerate(people, first)}


def gone(members: Mapping[int, Member], *places: int) -> Members:
    """The same roster later, without these nodes."""
    return {n: replace(line, left=99) if n in places else line for n, line in members.items()}


def drawn(members: Members, fewest: int = FEWEST) -> list[Batch]:
    return batches("a federation", members, fewest)


def sizes(members: Members, fewest: int = FEWEST) -> list[int]:
    return sorted(len(batch) for batch in drawn(members, fewest))


# ------------------------------------------------------------------------------------------------ by hand


def test_nodes_of_many_people_are_a_batch_each() -> None:
    assert set(drawn(of(7, 100, 8))) == {frozenset({0}), frozenset({1}), frozenset({2})}


def test_nodes_of_few_people_are_put_together_and_a_rest_is_spread() -> None:
    assert sizes(of(*[1] * 21)) == [7, 7, 7]
    assert sizes(of(*[1] * 23)) == [7, 8, 8]
    assert sizes(of(*[1] * 13)) == [13]
    assert sizes(of(*[6] * 14)) == [7, 7], "seven nodes, although two of them have people enough"
    assert sizes(of(*[1] * 40), fewest=20) == [20, 20]
    assert sizes(of(*[2] * 20), fewest=20) == [10, 10]


def test_too_few_people_are_one_batch() -> None:
    assert drawn(of(*[1] * 5)) == [frozenset(range(5))]
    assert drawn(of(*[3] * 6)) == [frozenset(range(6))], "people enough, but fewer than seven nodes"
    assert drawn({}) == []


def test_a_few_small_nodes_stand_together_with_one_of_many_people() -> None:
    """It hides them; the other one is a batch alone."""
    with_small, alone = sorted(drawn(of(1, 1, 1, 1, 1, 1, 50, 50)), key=len, reverse=True)
    assert with_small > set(range(6))
    assert len(with_small) == 7
    assert alone in ({6}, {7})


def test_no_one_chooses_who_stands_together() -> None:
    """A lot decides, another one in each federation; it asks neither for places nor for the order of the lines."""
    roster = of(*[1] * 21)
    assert drawn(roster) == drawn(dict(reversed(roster.items())))
    assert len({frozenset(batches(f"federation {n}", roster, FEWEST)) for n in range(5)}) == 5
    assert frozenset(range(7)) not in drawn(roster)


def test_users_of_a_gateway_stand_side_by_side() -> None:
    """So a gateway that is away breaks few batches."""
    three = {**of(*[1] * 7, gateway="a"), **of(*[1] * 7, first=7, gateway="b"), **of(*[1] * 7, first=14, gateway="c")}
    assert set(drawn(three)) == {frozenset(range(n, n + 7)) for n in (0, 7, 14)}
    two = {**of(*[1] * 10, gateway="a"), **of(*[1] * 11, first=10, gateway="b")}
    assert sum(batch <= set(range(10)) or batch <= set(range(10, 21)) for batch in drawn(two)) == 2
    assert sizes(two) == [7, 7, 7]


def test_newcomers_wait_until_they_are_a_batch() -> None:
    founders = of(*[1] * 7)
    first, six = frozenset(range(7)), of(*[1] * 6, joined=2, first=7)
    assert drawn(founders | six) == [first]
    seven = six | of(1, joined=3, first=13)
    assert drawn(founders | seven) == [first, frozenset(range(7, 14))]
    assert drawn(founders | seven | of(1, joined=4, first=14)) == [first, frozenset(range(7, 14))]
    assert drawn(founders | of(7, joined=2, first=7)) == [first, frozenset({7})], "many people need not wait"


def test_who_is_on_the_roster_when_the_first_sum_begins_is_a_founder() -> None:
    late = of(*[1] * 7) | of(*[1] * 6, joined=3, first=7)
    assert sizes(late) == [7]
    assert [len(batch) for batch in batches("a federation", late, FEWEST, founded=3)] == [13]


def test_who_leaves_leaves_a_batch_that_goes_on() -> None:
    eight, seven, other = sorted(drawn(of(*[1] * 22)), key=len, reverse=True)
    roster, (one, *_), (two, *_) = of(*[1] * 22), sorted(eight), sorted(seven)
    assert set(drawn(gone(roster, one))) == {eight - {one}, seven, other}, "still seven"
    fell_short = drawn(gone(roster, two))
    assert len(fell_short) == 2, "the six who are left go on with another batch, as a whole"
    assert any(seven - {two} < batch for batch in fell_short)
    assert all(any(batch <= now for now in fell_short) for batch in (eight, other))
    assert drawn(gone(roster, *range(22))) == []
    assert set(drawn(gone(roster, *seven))) == {eight, other}


def test_if_all_are_too_few_now_they_are_one_batch() -> None:
    assert drawn(gone(of(*[1] * 7), 3)) == [frozenset(range(7)) - {3}]
    assert drawn(gone(of(*[1] * 14), 3, *range(7, 14))) in ([frozenset({0, 1, 2, 4, 5, 6})],)


def test_a_batch_of_many_people_alone_stays_what_it_is() -> None:
    """Its people are enough, whoever else leaves."""
    first, *_ = drawn(of(*[9] * 3))
    (node,) = first
    others = [n for n in range(3) if n != node]
    assert drawn(gone(of(*[9] * 3), *others)) == [first]


# ------------------------------------------------------------------------------------------------- the law

Event = tuple[str, Any]
JOIN = st.tuples(st.just("join"), st.lists(st.sampled_from([1, 1, 2, 9]), min_size=1, max_size=5))
LEAVE = st.tuples(st.just("leave"), st.integers(0, 30))
STORIES = st.tuples(
    st.lists(st.sampled_from([1, 1, 2, 9]), min_size=1, max_size=25), st.lists(JOIN | LEAVE, max_size=12)
)
Drawn = Callable[[Members], list[Batch]]


def rosters(story: tuple[Sequence[int], Sequence[Event]]) -> Iterable[Members]:
    """The rosters of a federation's life, one after the other."""
    founders, events = story
    members = of(*founders)
    yield members
    for number, (kind, about) in enumerate(events, 2):
        present = [n for n, line in members.items() if not line.left]
        if kind == "join":
            members = members | of(*about, joined=number, first=len(members))
        elif present:
            lost = present[about % len(present)]
            members = {**members, lost: replace(members[lost], left=number)}
        yield members


def broken(story: tuple[Sequence[int], Sequence[Event]], draw: Drawn) -> str:
    """What is wrong with the batches of such a life; "" if nothing is."""
    before: list[Batch] = []
    for members in rosters(story):
        now, here = draw(members), {n for n, line in members.items() if not line.left}
        standing = [node for batch in now for node in batch]
        if len(standing) != len(set(standing)) or not here >= set(standing):
            return "a node stands in two batches, or has left"
        if missing := {n for n in here if members[n].joined == 1}.difference(standing):
            return f"founders {missing} stand in none"
        for batch in before:
            if (left := batch & here) and not any(left <= other for other in now):
                return f"batch {sorted(batch)} was split"
        before = now
    return ""


@settings(max_examples=150)
@given(STORIES)
def test_no_batch_is_ever_split_and_all_who_stay_in_one_stay_together(story: Any) -> None:
    assert not broken(story, drawn)


@settings(max_examples=200)
@given(STORIES)
def test_batches_are_large_unless_the_founders_are_too_few(story: Any) -> None:
    for members in rosters(story):
        now, founders = drawn(members), {n for n, m in members.items() if m.joined == 1 and not m.left}
        people = [[members[n].people for n in batch] for batch in now]
        small = [
            b for b, each in zip(now, people, strict=True) if sum(each) < FEWEST or (max(each) < FEWEST and len(b) < 7)
        ]
        assert len(small) <= 1
        assert all(batch >= founders for batch in small) or len(now) == 1


QUICK = settings(max_examples=2000, database=None, phases=[Phase.generate])
MUTANTS: dict[str, Drawn] = {
    "all who are here are drawn anew": lambda members: drawn({n: m for n, m in members.items() if not m.left}),
    "newcomers stand with the founders": lambda m: drawn({n: replace(line, joined=1) for n, line in m.items()}),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_found(mutant: str) -> None:
    find(STORIES, lambda story: bool(broken(story, MUTANTS[mutant])), settings=QUICK)


# --------------------------------------------------------------------------------------- running federations


def small(root: Path, rounds: int, **options: Any) -> World:
    """Four nodes of one person each are one batch; everybody sends latents after 1, 2, 4, … rounds."""
    given = {"fewest_people": 20, "rounds": rounds, "start_nodes": 3} | options
    return world(root, nodes=4, users=1, latents_every=0, options=given)


def test_in_a_small_federation_training_goes_on_without_a_node_and_latents_are_old(tmp_path: Path) -> None:
    fed = small(tmp_path, 0)
    fed.run()
    before = fed.model()
    assert before.kept["standing"].any()
    fed.give_rounds(4)
    fed.transport.away.add(3)
    fed.run()
    after = fed.model()
    np.testing.assert_array_equal(after.kept["standing"], before.kept["standing"])
    assert not np.array_equal(after.items[0], before.items[0])
    assert [(line["round"], line["included"]) for line in fed.applied("train")] == [(0, [0, 1, 2]), (3, [0, 1, 2])]
    said = "sends no latents, and training goes on with old ones: sums of people's items open over whole batches"
    for round_ in (2, 3):
        assert f"round {round_} {said} (fewest_people), and node3 cannot be there" in fed.witness.notices
    assert fed.is_its_simulation()


def test_a_last_round_of_latents_does_not_end_in_an_error_either(tmp_path: Path) -> None:
    fed = small(tmp_path, 0)
    fed.run()
    fed.give_rounds(3)
    fed.transport.away.add(3)
    fed.run()
    assert fed.model().round == 3


def test_a_lost_round_looks_at_few_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a season of a million rounds, none of which opens without whole batches."""
    fed, looked = small(tmp_path, 0, retries=0, batches_for_training=1), []
    fed.run()
    fed.give_rounds(10**6)
    fed.transport.away.add(3)
    binding = participants.Participants.binding
    monkeypatch.setattr(participants.Participants, "binding", lambda *given: looked.append(given) or binding(*given))
    with pytest.raises(FedgrecError, match=r"whole batches.*node3 cannot be there"):
        fed.run()
    assert 2 < len(looked) < 500


def test_once_the_node_is_back_latents_follow(tmp_path: Path) -> None:
    fed = small(tmp_path, 2)
    fed.run()
    fed.give_rounds(5)
    before = fed.model().kept["standing"]
    fed.run()
    assert fed.applied("train")[-1]["included"] == [0, 1, 2, 3]
    assert not np.array_equal(fed.model().kept["standing"], before)


def test_a_small_federation_does_not_begin_without_a_node(tmp_path: Path) -> None:
    fed = small(tmp_path, 1, retries=1)
    fed.transport.away.add(2)
    with pytest.raises(FedgrecError, match=r"2 sums in a row were lost.*whole batches.*node2 cannot be there"):
        fed.run()
    assert not fed.applied("degrees")


@pytest.mark.parametrize("lost", [2, 3])
def test_a_warm_up_waits_twice_for_a_whole_company(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    """Whoever is not in the first count has its batch wait for a recount."""
    monkeypatch.setattr(batches_, "FEWEST_NODES", 2)
    options = {"fewest_people": 2, "rounds": 0, "corrupt": 0.0}
    fed = world(tmp_path, nodes=4, users=1, layers=0, options=options)
    first, second = batches_of(open_server(fed.server), 1)
    away, seen = max(first), [0]

    def meddle(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        seen[0] += (address, request.kind) == (away, "masked")
        is_lost = (address, request.kind) == (away, "masked") and seen[0] <= lost
        return [] if is_lost else honest(address, request, answer)

    fed.run(meddle)
    (line,) = fed.applied("degrees")
    assert line["included"] == sorted(first | second if lost == 2 else second)


def test_a_node_that_is_lost_late_takes_its_batch_out_and_the_others_of_it_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four batches of seven people; helpers open the sum, and neither count nor are counted."""
    monkeypatch.setattr(participants, "PATIENT", 0)
    options = {"fewest_people": FEWEST, "rounds": 0, "retries": 0}
    fed = world(tmp_path, nodes=28, users=1, layers=0, options=options)
    home = open_server(fed.server)
    (torn,) = (batch for batch in batches_of(home, 1) if 5 in batch)
    fed.run(on("masked", 5, silent))
    (line,) = fed.applied("degrees")
    assert len(torn) == 7
    assert set(line["included"]) == set(range(28)) - torn
    assert line["users"] == 21
    counts = np.zeros(home.n_items, np.int64)
    for index, path in fed.nodes.items():
        with NodeStore(path) as store:
            mine = store.column("interactions", "item", "WHERE held_out = 0")
            assert bool(store.counted_rows()) == (index not in torn)
        if index not in torn:
            counts[mine] += 1
    np.testing.assert_array_equal(fed.model().degrees, counts)
