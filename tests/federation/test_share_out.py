"""How many users each node gives to a round, and which nodes wait if even the least shares are too many."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from fedgrec.errors import ConfigError
from fedgrec.federation.common.plan import Plan
from fedgrec.federation.server.participants import Participants

EMPTY = Plan("train", 0, 0, 1, 1)


@dataclass
class Ranked:
    """Draws by a fixed random ranking: two draws from the same nodes are the same."""

    rank: dict[int, float]

    def sample(self, units: list[tuple[int, ...]], count: int) -> list[tuple[int, ...]]:
        return sorted(units, key=lambda unit: self.rank[unit[0]])[:count]


def one_each(nodes: Iterable[int]) -> list[tuple[int, ...]]:
    return [(node,) for node in nodes]


def server(users: dict[int, int], least: int, fewest: int, draws: Any) -> Participants:
    """The part of a server that shares out."""
    made = object.__new__(Participants)
    made.__dict__ |= {
        "members": SimpleNamespace(users=users, folder=SimpleNamespace(fewest_nodes=fewest)),
        "options": SimpleNamespace(least_users=least),
        "random": draws,
    }
    return made


def one_by_one(at: Participants, most: int, sum_: Plan, units: Any) -> tuple[Plan, Any]:
    """The slow twin: share out; while even the least shares are too many, remove one node and share out again."""
    users, least = at.members.users, at.options.least_users
    while True:
        nodes = [node for unit in units for node in unit]
        total = sum(users[node] for node in nodes)
        sum_ = replace(sum_, users=most, take=min(most, total), of=max(total, 1), least=least)
        while (over := sum(sum_.count(users[node]) for node in nodes) - most) > 0 and sum_.take:
            sum_ = replace(sum_, take=max(sum_.take - over, 0))
        if over <= 0:
            return sum_, units
        if len(nodes) <= at.fewest:
            raise ConfigError("too few")
        units = at.random.sample(units, len(units) - 1)


def outcome(share_out: Any, *args: Any) -> Any:
    try:
        return share_out(*args)
    except ConfigError:
        return "too few"


@pytest.mark.parametrize("seed", range(4))
def test_it_is_what_sending_nodes_away_one_by_one_comes_to(seed: int) -> None:
    rng, seen = random.Random(seed), set[str]()
    for _ in range(300):
        largest = rng.choice([1, 3, 30])
        users = {node: rng.randint(1, largest) for node in rng.sample(range(100), rng.randint(2, 25))}
        fixed = Ranked({node: rng.random() for node in users})
        most = rng.randint(1, 60)
        at = server(users, rng.randint(1, 4), rng.randint(2, 6), fixed)
        args = most, EMPTY, one_each(sorted(users))
        expected = outcome(one_by_one, at, *args)
        assert outcome(at.share_out, *args) == expected
        waits = expected != "too few" and len(expected[1]) < len(users)
        seen.add("some wait" if waits else "too few" if expected == "too few" else "all")
    assert seen == {"all", "some wait", "too few"}, "a test of less than it says"


def test_who_waits_is_drawn_evenly() -> None:
    """Three of six users, drawn a thousand times: each about as often as any other."""
    at, count = server(dict.fromkeys(range(6), 1), 2, 2, random.Random(0)), dict.fromkeys(range(6), 0)
    for _ in range(1000):
        _, nodes = at.share_out(3, EMPTY, one_each(range(6)))
        assert len(set(nodes)) == 3
        for (node,) in nodes:
            count[node] += 1
    assert max(abs(often - 500) for often in count.values()) < 90  # 500 ± 5.7 σ


def test_a_thousand_members_are_looked_at_a_few_times_each(monkeypatch: pytest.MonkeyPatch) -> None:
    at, looks, count = server(dict.fromkeys(range(1000), 1), 2, 52, random.Random(0)), [0], Plan.count

    def counted(self: Plan, users: int) -> int:
        looks[0] += 1
        return count(self, users)

    monkeypatch.setattr(Plan, "count", counted)
    sum_, nodes = at.share_out(400, EMPTY, one_each(range(1000)))
    assert (len(nodes), sum_.take, sum_.of) == (400, 400, 400)
    assert looks[0] <= 4 * 1000
