"""The server waits for a silent node once, about as long as answers usually take; it names it, and takes it back."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgrec.federation.common import packets
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.transport import Left, Sign
from fedgrec.federation.server import members
from fedgrec.federation.server.liveness import FACTOR, LONGEST_REST, MARGIN, About, Patience, Silence, Silences, Wait
from fedgrec.federation.server.log import writing
from fedgrec.federation.server.status import Status, status
from tests.federation.local_transport import LocalTransport
from tests.federation.worlds import World, world

USUAL = 1.0  # seconds of an answer
A = About("a")
Takes = Callable[[int, str], float]


def at_usual(address: int, kind: str) -> float:
    return USUAL


@dataclass
class Timed(LocalTransport):
    """A network with a clock of its own, on which every answer takes the time that a test says."""

    takes: Takes = at_usual
    now: float = 0.0
    exchanges: list[tuple[str, list[int], float]] = field(default_factory=list)  # kind, who was asked, seconds
    dead: set[int] = field(default_factory=set)
    starts: dict[int, int] = field(default_factory=dict)

    def signs(self) -> Mapping[int, Sign]:
        """Dead nodes show no sign."""
        return {
            address: Sign(str(self.starts.get(address, 0)), 0.0 if address in self.dead else self.now)
            for address in super().signs()
        }

    def exchange(self, requests: Mapping[int, Packet], left: Left) -> Iterator[tuple[int, Packet]]:
        begun, kinds = self.now, {request.kind for request in requests.values()}
        there = {address: self.takes(address, requests[address].kind) for address in requests}
        there = {address: seconds for address, seconds in there.items() if address not in self.dead}
        try:
            for address in sorted(there, key=lambda address: (there[address], address)):
                if begun + there[address] > self.now + left():
                    break
                self.now = max(self.now, begun + there[address])
                yield from super().exchange({address: requests[address]}, left)
                there.pop(address)
            if there.keys() | (requests.keys() & self.dead):
                self.now = max(self.now, self.now + left())
        finally:
            if requests:
                self.exchanges.append((*kinds, sorted(requests), self.now - begun))


def timed(
    root: Path, monkeypatch: pytest.MonkeyPatch, takes: Takes = at_usual, nodes: int = 5, users: int = 1, **more: Any
) -> tuple[World, Timed]:
    fed = world(root, nodes=nodes, users=users, latents_every=100, fine_rounds=0, **more)
    fed.transport = network = Timed(fed.transport.folders, takes=takes)
    monkeypatch.setattr(members, "Patience", lambda: Patience(lambda: network.now))
    return fed, network


def on_round(fed: World, acts: Mapping[int, Callable[[], Any]]) -> None:
    """Act when this many training rounds have ended."""
    summed = fed.witness.summed

    def summing(line: dict[str, Any]) -> None:
        summed(line)
        if line["stage"] == "train" and line["round"] + 1 in acts:
            acts[line["round"] + 1]()

    fed.witness.summed = summing  # type: ignore[method-assign]


def long_waits(network: Timed) -> list[float]:
    """Seconds of exchanges that took longer than live nodes take, except the farewell, which all nodes get."""
    return [lasted for kind, _, lasted in network.exchanges if lasted > USUAL and kind != packets.FINISH]


def included(fed: World, node: int) -> list[bool]:
    return [node in line["included"] for line in fed.applied("train")]


# ----------------------------------------------------------------------------------------------- deadlines

seconds = st.floats(0, 1e4)


@given(st.lists(st.tuples(st.integers(0, 3), seconds)), seconds, st.integers(0, 4), st.lists(seconds, max_size=4))
def test_a_deadline_is_never_above_the_configured_one_and_never_below_the_margin(
    before: list[tuple[int, float]], most: float, enough: int, answers: list[float]
) -> None:
    now = [0.0]
    patience = Patience(lambda: now[0])
    for address, took in before:
        patience.remember(A, address, took)
    wait = patience.begin(A, range(4), most, enough)
    for address, answer in enumerate(sorted(answers)):
        assert min(most, MARGIN) <= wait.given() <= most
        assert wait.left() == wait.given() - now[0]
        if not before or address < enough:
            assert wait.given() == most
        now[0] = max(now[0], answer)
        wait.heard(address)
    assert min(most, MARGIN) <= wait.given() <= most
    if before and len(answers) >= enough:
        slowest = max([wait.usual or 0.0, *answers])
        assert wait.given() == min(most, FACTOR * slowest + MARGIN), "who is as slow as ever is waited for"


def test_what_was_measured_of_a_small_question_says_nothing_of_a_large_one_or_another() -> None:
    patience = Patience(lambda: 0.0)
    patience.remember(About("masked", "train", 100), 1, 0.1)
    assert patience.begin(About("masked", "train", 100), [1], 600.0).given() < 10
    assert patience.begin(About("masked", "train", 99), [1], 600.0).given() < 10
    assert patience.begin(About("masked", "train", 101), [1], 600.0).given() == 600.0
    assert patience.begin(About("masked", "evaluate", 1), [1], 600.0).given() == 600.0
    assert patience.begin(About("shares", "train", 1), [1], 600.0).given() == 600.0


def test_a_node_that_was_never_measured_has_as_long_as_the_slowest() -> None:
    patience = Patience(lambda: 0.0)
    patience.remember(A, 1, 20.0)
    patience.remember(A, 2, 1.0)
    assert patience.begin(A, [3], 600.0).given() == FACTOR * 20 + MARGIN
    assert patience.begin(A, [2], 600.0).given() == FACTOR * 1 + MARGIN


def test_a_slow_answer_is_forgotten_in_time() -> None:
    patience = Patience(lambda: 0.0)
    patience.remember(A, 1, 100.0)
    for _ in range(20):
        patience.remember(A, 1, 1.0)
    assert patience.usual(A, [1]) == 1.0


def test_nodes_that_become_slow_are_left_out_for_a_few_rounds_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From round 3 on node 4 takes 90 times as long as before. The others are as quick as ever."""
    slow = [False]

    def takes(address: int, kind: str) -> float:
        return 90.0 if slow[0] and address == 4 and kind == packets.MASKED else USUAL

    fed, _ = timed(tmp_path, monkeypatch, takes, options={"rounds": 12})
    on_round(fed, {3: lambda: slow.__setitem__(0, True)})
    fed.run()
    assert not all(included(fed, 4)), "it was never missed: a test of nothing"
    assert all(included(fed, 4)[-4:]), "it is waited for by now"
    assert fed.is_its_simulation()


def test_all_become_slow_at_once_and_nobody_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [1.0]
    fed, _ = timed(tmp_path, monkeypatch, lambda address, kind: slow[0] * (1 + address / 10), options={"rounds": 4})
    on_round(fed, {2: lambda: slow.__setitem__(0, 30.0)})
    fed.run()
    assert all(len(line["included"]) == 5 for line in fed.log())


# ------------------------------------------------------------------------------------------------- silence


def is_waited_for_once(network: Timed) -> bool:
    """One exchange is longer than usual, by less than ten seconds."""
    found = long_waits(network)
    return len(found) == 1 and found[0] < USUAL + 10


def dies_in(fed: World, network: Timed, kind: str, after: int) -> None:
    """Node 4 dies at the next request of this kind, after this many rounds."""
    armed = list[bool]()

    def dying(address: int, asked: str) -> float:
        if armed and address == 4 and asked == kind:
            armed.clear()
            network.dead.add(4)
        return USUAL

    network.takes = dying
    on_round(fed, {after: lambda: armed.append(True)})


@pytest.mark.keep(1)
@pytest.mark.parametrize("kind", [packets.CONFIRM, packets.SHARES, packets.MASKED, packets.UNMASK])
def test_a_node_that_dies_in_mid_round_is_waited_for_once_and_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    fed, network = timed(tmp_path, monkeypatch, options={"rounds": 7})
    dies_in(fed, network, kind, after=2)
    fed.run()
    assert is_waited_for_once(network)
    # At the end all nodes are asked: a node that was only out of reach needs the last model.
    assert [(kind, asked) for kind, asked, _ in network.exchanges[-2:]] == [("finish", [0, 1, 2, 3]), ("finish", [4])]
    assert network.exchanges[-1][2] < USUAL + 10
    assert included(fed, 4)[:2] == [True] * 2
    assert included(fed, 4)[3:] == [False] * 4
    (said,) = [notice for notice in fed.witness.notices if "node4" in notice]
    assert "fell silent" in said
    assert all(len(line["included"]) == 4 for line in fed.applied("train")[3:])


def test_a_server_that_asks_the_dead_again_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: a rest ends even without a sign of life."""

    def holds(self: Silence, sign: Sign | None, now: float) -> bool:
        return self.rest > 0

    monkeypatch.setattr(Silence, "holds", holds)
    fed, network = timed(tmp_path, monkeypatch, options={"rounds": 6})
    dies_in(fed, network, packets.MASKED, after=2)
    fed.run()
    assert len(long_waits(network)) > 1


def test_a_server_that_always_waits_as_configured_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: measured times are ignored."""
    monkeypatch.setattr(Wait, "given", lambda wait: wait.most)
    fed, network = timed(tmp_path, monkeypatch, options={"rounds": 4})
    dies_in(fed, network, packets.MASKED, after=2)
    fed.run()
    assert not is_waited_for_once(network)
    assert long_waits(network)[0] == 600


def test_a_node_that_hung_is_back_within_two_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed, network = timed(tmp_path, monkeypatch, options={"rounds": 8})
    dies_in(fed, network, packets.MASKED, after=2)
    on_round(fed, {5: network.dead.clear})
    fed.run()
    assert included(fed, 4) == [True] * 2 + [False] * 4 + [True] * 2
    assert [notice for notice in fed.witness.notices if "is back" in notice] == ["node node4 is back"]
    assert fed.is_its_simulation()


def test_a_node_that_comes_back_as_another_version_is_not_called_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, network = timed(tmp_path, monkeypatch, options={"rounds": 6})
    dies_in(fed, network, packets.MASKED, after=2)
    other = "the node speaks version 9 of the protocol"

    def upgraded() -> None:
        network.dead.clear()
        die = network.meddler
        network.meddler = lambda at, request, node: [packets.failure(other)] if at == 4 else die(at, request, node)

    on_round(fed, {3: upgraded})
    fed.run()
    said = [notice for notice in fed.witness.notices if "node4" in notice]
    assert any(other in notice for notice in said)
    assert not any("is back" in notice for notice in said)


def test_a_silent_node_that_lives_is_asked_less_and_less_and_one_started_again_at_once() -> None:
    silences, now = Silences(), [0.0]

    def signs(since: str = "first") -> dict[int, Sign]:
        now[0] += 1
        return {7: Sign(since, now[0])}

    def rests() -> int:
        """Sums in which it is not asked."""
        count = 0
        while True:
            silences.tick()
            if not silences.hold(signs()):
                return count
            count += 1

    for expected in (0, 1, 3, 7, 15, 31, LONGEST_REST - 1):
        silences.begin([7], signs())
        assert rests() == expected
    silences.begin([7], signs())
    silences.tick()
    assert silences.hold(signs()) == {7}
    assert silences.hold({}) == {7}, "it cannot be reached"
    assert not silences.hold(signs("again"))
    silences.end(7)
    assert not silences


@pytest.mark.parametrize(("is_wrong", "minutes"), [(False, 1), (True, LONGEST_REST)])
def test_where_there_are_no_sums_a_rest_ends_with_time(is_wrong: bool, minutes: int) -> None:
    """Such as between two seasons. A node that failed, as with a full disk, is asked again soon."""
    now = [0.0]
    silences = Silences(lambda: now[0])
    if is_wrong:
        silences.refuse(7, Sign("", 0.0))
    else:
        silences.begin([7], {7: Sign("", 0.0)})
    now[0] = 60.0 * minutes - 1
    assert silences.hold({7: Sign("", now[0])}) == {7}
    now[0] += 1
    assert not silences.hold({7: Sign("", now[0])})


@dataclass
class Stalled(Timed):
    """In its first exchange of masked vectors, node 4 answers after two minutes."""

    found: list[Status] = field(default_factory=list)

    def exchange(self, requests: Mapping[int, Packet], left: Left) -> Iterator[tuple[int, Packet]]:
        stalls = not self.found and {request.kind for request in requests.values()} == {packets.MASKED}
        for address, answer in super().exchange(requests, left):
            if stalls and address == 4:
                self.now += 120
                assert left() > 0
                self.found.append(status(self.folders[0].parent / "server"))
            yield address, answer


def test_whom_a_sum_waits_for_is_said_while_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed, _ = timed(tmp_path, monkeypatch, options={"rounds": 1})
    fed.transport = network = Stalled(fed.transport.folders)
    monkeypatch.setattr(members, "Patience", lambda: Patience(lambda: network.now))
    with writing(fed.server):
        fed.run()
        after = status(fed.server)
    (found,) = network.found
    assert (found.waits_for, after.waits_for) == (["node4"], [])
    assert "waits for node4" in found.trouble
    assert not after.trouble
    assert sum("a sum waits for node node4" in notice for notice in fed.witness.notices) == 1


class Forgetful(Timed):
    """In its first exchange of masked vectors node 4 is killed and started again: it never hears the question."""

    left = -1.0  # seconds for which the server goes on waiting

    def exchange(self, requests: Mapping[int, Packet], left: Left) -> Iterator[tuple[int, Packet]]:
        stalls = self.left < 0 and {request.kind for request in requests.values()} == {packets.MASKED}
        for address, answer in super().exchange(requests, left):
            if not (stalls and address == 4):
                yield address, answer
        if stalls:
            self.starts[4] = 1
            self.now += 120
            self.left = left()


def test_nobody_waits_for_a_node_that_started_again_and_knows_nothing_of_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would go on for all of `work_deadline` while the server does not know how long such work takes."""
    fed, _ = timed(tmp_path, monkeypatch, options={"rounds": 1})
    fed.transport = network = Forgetful(fed.transport.folders)
    monkeypatch.setattr(members, "Patience", lambda: Patience(lambda: network.now))
    fed.run()
    assert network.left == 0.0


def test_a_refused_node_that_was_put_right_and_started_again_joins_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, network = timed(tmp_path, monkeypatch, users=3, options={"rounds": 6, "start_nodes": 4})
    toml = fed.nodes[4] / "config.toml"
    wrong = toml.read_text().replace("l2 = ", "l2 = 1")
    right = toml.read_text()
    toml.write_text(wrong)

    def put_right() -> None:
        toml.write_text(right)
        network.starts[4] = 1

    on_round(fed, {2: put_right})
    fed.run()
    assert fed.witness.joiners[-1] == "node4"
    assert included(fed, 4)[-3:] == [True] * 3


def test_a_node_that_leaves_between_two_sums_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed, network = timed(tmp_path, monkeypatch, options={"rounds": 5})
    on_round(fed, {1: lambda: network.away.add(3), 3: network.away.clear})
    fed.run()
    said = [notice for notice in fed.witness.notices if "node3" in notice]
    assert len(said) == 2
    assert "cannot be reached" in said[0]
    assert said[1] == "node node3 is back"
    assert included(fed, 3)[-1]


def test_a_silent_gateway_is_left_out_with_all_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed, network = timed(
        tmp_path, monkeypatch, nodes=3, users=2, options={"rounds": 5, "corrupt": 0.0}, per_user_masks=True
    )
    on_round(fed, {2: lambda: network.dead.add(2)})
    fed.run()
    assert network.exchanges.pop()[1] == [2], "the farewell"
    assert is_waited_for_once(network)
    silent = [notice for notice in fed.witness.notices if "fell silent" in notice]
    assert len(silent) == 1
    assert silent[0].startswith("nodes ")
