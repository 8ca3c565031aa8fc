"""People stand in batches: whatever sums are added up or subtracted, all of a batch weigh the same.

All sums of people's items are taken together: a server that tells false models computes one from another, so it may add
up and subtract degree counts, sweeps and recounts of all seasons. A *company* is the set of nodes in one sum. The sums
are a matrix of zeros and ones, companies × nodes, and what the server can tell are the linear combinations of its rows.

    in batches   every combination weighs all nodes of a batch equally, so no proper part of a batch is told
    in numbers   no combination is over fewer than `FEWEST` people; this law knows nothing of batches
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from fedgrec.federation.common import batches
from fedgrec.federation.common.roster import Member

Batch = frozenset[int]
Company = frozenset[int]
FEWEST, LEAST = 4, 3  # people of a batch, and nodes
KINDS = ("degrees", "propagate", "train", "changes", "recount")


class Line(NamedTuple):
    """A node on the roster."""

    people: int
    joined: int  # the number of the roster with which it came
    left: int = 0  # the number of the roster with which it went; 0: it is here


class Moment(NamedTuple):
    """What holds at one time: the batches, and the companies whose sums honest nodes then helped to open."""

    batches: Collection[Batch]
    opened: Sequence[Company]


Roster = Mapping[int, Line]
Partition = Callable[[Roster, int, str, int], set[Batch]]  # of a roster and its number, for a kind of sum, in a season
Accepts = Callable[[Collection[Batch], Company, Sequence[Company]], bool]  # a company, after these others


# ------------------------------------------------------------------------------------------------- the two laws


def in_batches(history: Sequence[Moment]) -> str:
    """Which batch is told in part; "" if none is.

    A row says 1 or 0 of each node. So if all combinations weigh a batch's nodes equally, then its columns are equal;
    and if they are not, some row itself is over a proper part of the batch.
    """
    matrix, nodes = incidence(history)
    for batch in sorted({batch for moment in history for batch in moment.batches}, key=sorted):
        columns = matrix[:, [nodes.index(node) for node in sorted(batch) if node in nodes]]
        if columns.shape[1] < len(batch):
            columns = np.column_stack([columns, np.zeros(len(matrix))])  # of those who were in no sum
        if (columns != columns[:, :1]).any():
            return f"of batch {sorted(batch)} a part is told"
    return ""


def in_numbers(history: Sequence[Moment], people: Mapping[int, int], fewest: int = FEWEST) -> str:
    """Which combination is over fewer than `fewest` people; "" if none is.

    A combination over some nodes alone is one in which all other columns cancel: these have a smaller rank then.
    """
    matrix, nodes = incidence(history)
    rank = rank_of(matrix)
    for chosen in few(nodes, people, fewest):
        others = matrix[:, [place for place, node in enumerate(nodes) if node not in chosen]]
        if rank_of(others) < rank:
            return f"a sum over nodes {chosen} alone is told"
    return ""


def incidence(history: Sequence[Moment]) -> tuple[np.ndarray, list[int]]:
    """The matrix, each of its rows once, and the nodes of its columns."""
    companies = sorted({company for moment in history for company in moment.opened}, key=sorted)
    nodes = sorted(frozenset().union(*companies))
    matrix = np.array([[float(node in company) for node in nodes] for company in companies])
    return matrix.reshape(len(companies), len(nodes)), nodes


def rank_of(matrix: np.ndarray) -> int:
    return int(np.linalg.matrix_rank(matrix)) if matrix.size else 0


def few(nodes: Sequence[int], people: Mapping[int, int], fewest: int) -> Iterator[tuple[int, ...]]:
    """Sets of nodes with fewer people than that."""
    for count in range(1, min(fewest, len(nodes) + 1)):
        for chosen in combinations(nodes, count):
            if sum(people[node] for node in chosen) < fewest:
                yield chosen


# ---------------------------------------------------------------------------------------------------- histories


@dataclass
class Life:
    """A federation in which nodes join and leave, while the server asks for sums over companies of its choice."""

    partition: Partition
    accepts: Accepts
    roster: dict[int, Line] = field(default_factory=dict)
    number: int = 1
    season: int = 1
    history: list[Moment] = field(default_factory=list)

    @property
    def people(self) -> dict[int, int]:
        """How many people each node has, who left among them."""
        return {node: line.people for node, line in self.roster.items()}

    def join(self, people: Sequence[int]) -> None:
        self.number += 1
        self.roster |= {len(self.roster) + n: Line(count, self.number) for n, count in enumerate(people)}

    def leave(self, place: int) -> None:
        present = [node for node, line in self.roster.items() if not line.left]
        if len(present) > LEAST:
            self.number += 1
            node = present[place % len(present)]
            self.roster[node] = self.roster[node]._replace(left=self.number)

    def sum(self, kind: str, chosen: Sequence[bool], more: int | None) -> None:
        """The server asks for a union of batches, perhaps with a node more or less; or for any company."""
        batches = self.partition(self.roster, self.number, kind, self.season)
        present = sorted(node for node, line in self.roster.items() if not line.left)
        whole = [batch for batch, is_in in zip(sorted(batches, key=sorted), chosen, strict=False) if is_in]
        company = (
            frozenset().union(*whole) if whole else frozenset(n for n, c in zip(present, chosen, strict=False) if c)
        )
        company ^= frozenset() if more is None else {present[more % len(present)]}
        before = [company for moment in self.history for company in moment.opened]
        opens = company and company <= set(present) and self.accepts(batches, company, before)
        self.history.append(Moment(batches, [company] if opens else []))


Event = tuple[Any, ...]
Story = tuple[list[int], list[Event]]  # the founders' people, and what happens
PEOPLE = st.sampled_from([1, 1, 2, 2, 3, FEWEST])  # the last one is a batch alone
SUM = st.tuples(
    st.just("sum"),
    st.sampled_from(KINDS),
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.none() | st.none() | st.integers(0, 11),
)
JOIN = st.tuples(st.just("join"), st.lists(PEOPLE, min_size=1, max_size=4))
EVENTS = st.one_of(SUM, SUM, SUM, JOIN, st.just(("season",)))
STORIES = st.tuples(st.lists(PEOPLE, min_size=6, max_size=12), st.lists(EVENTS, min_size=8, max_size=16))


def lived(story: Story, partition: Partition, accepts: Accepts) -> Life:
    founders, events = story
    life = Life(partition, accepts, {node: Line(count, 1) for node, count in enumerate(founders)})
    for kind, *about in events:
        if kind == "season":
            life.season += 1
        else:
            getattr(life, kind)(*about)
    return life


# ------------------------------------------------------------------------------------------ the rule, and mutants


def drawn(roster: Roster, number: int = 0, kind: str = "", season: int = 0) -> set[Batch]:
    """As nodes draw them; `kind` and `season` change nothing."""
    return by_name("federation", roster)


def by_name(name: str, roster: Roster) -> set[Batch]:
    """Batches that are drawn by this name."""
    members = {
        n: Member(f"node{n}", bytes(32), people=p, joined=came, left=went) for n, (p, came, went) in roster.items()
    }
    return set(batches.batches(name, members, FEWEST))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few nodes are several batches."""
    monkeypatch.setattr(batches, "FEWEST_NODES", LEAST)


def whole_batches(there: Collection[Batch], company: Company, before: Sequence[Company]) -> bool:
    """What honest nodes sign."""
    return not company.difference(*batches.whole([*there], company))


def three_apart(batches: Collection[Batch], company: Company, before: Sequence[Company]) -> bool:
    """Large enough, and any two companies differ by three nodes at least."""
    return len(company) >= LEAST and all(company == other or len(company ^ other) >= 3 for other in before)


def for_each_kind(roster: Roster, number: int, kind: str, season: int) -> set[Batch]:
    return by_name(kind, roster)


def for_each_season(roster: Roster, number: int, kind: str, season: int) -> set[Batch]:
    return by_name(f"season {season}", roster)


def with_newcomers(roster: Roster, number: int, kind: str, season: int) -> set[Batch]:
    """Who comes later stands in an old batch."""
    first, *others = sorted(drawn({node: line for node, line in roster.items() if line.joined == 1}), key=sorted)
    return {first | {node for node, line in roster.items() if line.joined > 1 and not line.left}, *others}


def drawn_again(roster: Roster, number: int, kind: str, season: int) -> set[Batch]:
    """All who are here are put into batches anew whenever the roster changes."""
    return drawn({node: line._replace(joined=1) for node, line in roster.items() if not line.left})


MUTANTS: dict[str, tuple[Partition, Accepts]] = {
    "companies that differ by three": (drawn, three_apart),
    "batches for each kind of sum": (for_each_kind, whole_batches),
    "batches for each season": (for_each_season, whole_batches),
    "newcomers in old batches": (with_newcomers, whole_batches),
    "batches for each roster": (drawn_again, whole_batches),
}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=STORIES)
def test_nothing_is_told_of_a_part_of_a_batch(story: Story) -> None:
    life = lived(story, drawn, whole_batches)
    assert not in_batches(life.history)
    assert not in_numbers(life.history, life.people)


LEAVERS = st.lists(st.integers(0, 11), min_size=1, max_size=3)
LEAVING = st.tuples(STORIES, LEAVERS)


def with_leavers(story: Story, places: Sequence[int], partition: Partition, accepts: Accepts) -> Life:
    """In the middle of the story these nodes leave, some of them one after the other."""
    founders, events = story
    half = len(events) // 2
    leaving: list[Event] = [("leave", place) for place in places]
    return lived((founders, [*events[:half], *leaving, *events[half:]]), partition, accepts)


def in_parts(life: Life) -> str:
    """Which combination tells of a batch more than who leaves must tell; "" if none does.

    A batch is what was drawn, whoever has left since. Its members are told together: those who stay, and those who left
    with the same roster. If nobody has left, that is the whole batch.
    """
    never = drawn({node: line._replace(left=0) for node, line in life.roster.items()})
    left = {node: line.left for node, line in life.roster.items()}
    parts = {frozenset(n for n in batch if left[n] == when) for batch in never for when in map(left.__getitem__, batch)}
    return in_batches([Moment(parts, [company for moment in life.history for company in moment.opened])])


@settings(max_examples=60, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=STORIES, places=LEAVERS)
def test_of_who_leaves_only_those_who_left_together_are_told(story: Story, places: list[int]) -> None:
    """Who is removed is exposed, and so are the few who stay: the rest of the batch goes on, so sums before and after
    tell the difference.
    """
    assert not in_parts(with_leavers(story, places, drawn, whole_batches))


def test_who_leaves_is_told_in_some_histories() -> None:
    """Otherwise the law would say more than is true: a removed node is a named exposure."""
    assert found(
        lambda told: in_numbers((life := with_leavers(*told, drawn, whole_batches)).history, life.people), LEAVING
    )


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_found_where_nodes_leave(mutant: str) -> None:
    assert found(lambda told: in_parts(with_leavers(*told, *MUTANTS[mutant])), LEAVING)


def test_some_histories_have_sums_over_several_companies() -> None:
    """Otherwise the laws would hold because nothing is ever opened."""
    assert found(lambda story: len(incidence(lived(story, drawn, whole_batches).history)[0]) > 2)


@pytest.mark.parametrize("law", ["in batches", "in numbers"])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_found(mutant: str, law: str) -> None:
    def fails(story: Story) -> bool:
        life = lived(story, *MUTANTS[mutant])
        return bool(in_batches(life.history) if law == "in batches" else in_numbers(life.history, life.people))

    assert found(fails)


def found(wanted: Callable[[Any], Any], stories: st.SearchStrategy[Any] = STORIES) -> Any:
    """A story of this kind; `NoSuchExample` if there is none among a thousand."""
    how = settings(max_examples=1000, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    return find(stories, wanted, settings=how)


A, B = frozenset({0, 1, 2, 3, 4, 5, 6}), frozenset({7, 8, 9, 10, 11, 12})
C, D = frozenset({1, 2, 3, 7, 8, 9}), frozenset({4, 5, 6, 10, 11, 12})


def test_four_companies_that_tell_of_one_node() -> None:
    """By hand: A + B − C − D is node 0, and any three of them tell nothing of so few."""
    people = dict.fromkeys(range(13), 1)
    assert in_numbers([Moment([], [A, B, C, D])], people) == "a sum over nodes (0,) alone is told"
    assert not any(in_numbers([Moment([], three)], people) for three in combinations([A, B, C, D], 3))
    assert in_batches([Moment([A | B], [A])])
    assert not in_batches([Moment([A, B], [A]), Moment([A, B], [A | B])])
