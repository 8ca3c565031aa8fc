"""Which nodes are alive, and how long the server waits for missing answers.

    seconds = 1.5 × the slowest recent answer to such a question, among the nodes that are asked + 5

but never more than the configured deadline. The first question of a kind has the whole deadline. So has a question that
most nodes have not answered yet: without them the sum is lost, and the network may be slow for everybody. An answer
that is slower than all earlier ones counts at once, for the nodes that are still missing.

A node that misses a deadline gets more time for the next question, so that the server learns to wait for a slow node.
The server does not ask a node that shows no sign of life, so that nobody waits for a dead node.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedgrec.federation.common.transport import Sign

FACTOR, MARGIN = 1.5, 5.0  # times the slowest answer, and seconds more
LATE, USUALLY = 60.0, 3  # seconds, or as many times as long as usual, after which an exchange is late
FADE = 0.7  # the time of a slow answer shrinks by this factor with every quicker answer
LONGEST_REST = 32  # sums
A_SUM = 60.0  # seconds, at most, that one of them counts: in the rest between two seasons there are none
Clock = Callable[[], float]


class About(NamedTuple):
    """A kind of question: its answers take about equally long."""

    kind: str  # of the packet
    stage: str = ""  # of the sum, where it matters
    size: int = 0  # length of vectors, where it matters: rounds of one stage differ in it


class Patience:
    """Remembers how long each node took over each kind of question."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or time.monotonic
        self._took: dict[About, dict[int, float]] = {}  # by what was asked, by address: seconds

    def remember(self, about: About, address: int, seconds: float) -> None:
        took = self._took.setdefault(about, {})
        took[address] = max(seconds, FADE * took.get(address, 0.0))

    def usual(self, about: About, asked: Iterable[int]) -> float | None:
        """Seconds of the slowest of these nodes, or of all nodes if one of these is new; None: nothing is known."""
        took = self._took.get(about) or self._larger(about)
        known = [took.get(address) for address in asked]
        return max((took.values() if None in known else filter(None, known)), default=None)

    def _larger(self, about: About) -> dict[int, float]:
        """The times of the next larger question of the same kind, which takes at least as long."""
        larger = [each for each in self._took if each[:2] == about[:2] and each.size > about.size]
        return self._took[min(larger, key=lambda each: each.size)] if larger else {}

    def begin(self, about: About, asked: Collection[int], most: float, enough: int = 0) -> "Wait":
        """Begin an exchange; until `enough` nodes have answered, it may last the whole deadline."""
        return Wait(self, about, asked, most, enough)


class Wait:
    """One exchange: which nodes have answered, and how long the server waits for the others."""

    def __init__(self, patience: Patience, about: About, asked: Collection[int], most: float, enough: int) -> None:
        self.patience, self.about, self.most, self.enough = patience, about, most, enough
        self.missing, self.usual = set(asked), patience.usual(about, asked)
        self.slowest, self.answers = 0.0, 0
        self.begun = patience.clock()

    def heard(self, address: int) -> None:
        """An answer came."""
        self.slowest, self.answers = self._passed(), self.answers + 1
        self.missing.discard(address)
        self.patience.remember(self.about, address, self.slowest)

    def given(self) -> float:
        """Seconds that the exchange may last, from its beginning."""
        if self.usual is None or self.answers < self.enough:
            return self.most
        return min(self.most, FACTOR * max(self.usual, self.slowest) + MARGIN)

    def left(self) -> float:
        """Seconds that the exchange may still last."""
        return self.given() - self._passed()

    @property
    def is_late(self) -> bool:
        """Whether it lasts longer than an operator would expect."""
        return self._passed() > max(LATE, USUALLY * (self.usual or 0.0))

    def missed(self) -> set[int]:
        """The nodes that did not answer; each of them gets more time when it is asked again."""
        for address in self.missing:
            self.patience.remember(self.about, address, self._passed())
        return self.missing

    def _passed(self) -> float:
        return self.patience.clock() - self.begun


@dataclass(frozen=True)
class Silence:
    """A node that was asked and did not answer."""

    misses: int  # in a row
    rest: int  # sums in which it is not asked
    until: float  # when it is asked all the same
    sign: Sign | None  # its last sign of life until then; None: the network did not know it any more

    def holds(self, sign: Sign | None, now: float) -> bool:
        """Whether the server should still not ask the node, after this last sign of life."""
        if sign is None:
            return True
        if self.sign is None or sign.since != self.sign.since:  # it was started again, or its network is back
            return False
        return (self.rest > 0 and now < self.until) or sign.last <= self.sign.last


class Silences:
    """Nodes that do not answer. The server asks them less and less often, and not at all without a sign of life."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or time.monotonic
        self._of: dict[int, Silence] = {}  # by address

    def __bool__(self) -> bool:
        return bool(self._of)

    def begin(self, addresses: Iterable[int], signs: Mapping[int, Sign]) -> None:
        """These nodes did not answer, and these are their last signs of life."""
        for address in addresses:
            misses = 1 + (self._of[address].misses if address in self._of else 0)
            self._rest(address, misses, min(2 ** (misses - 1), LONGEST_REST), signs.get(address))

    def refuse(self, address: int, sign: Sign | None) -> None:
        """This node gave a wrong answer: the server asks it again after its restart, or much later."""
        self._rest(address, 1, LONGEST_REST, sign)

    def _rest(self, address: int, misses: int, sums: int, sign: Sign | None) -> None:
        self._of[address] = Silence(misses, sums, self.clock() + A_SUM * sums, sign)

    def end(self, address: int) -> None:
        """This node has answered."""
        self._of.pop(address, None)

    def hold(self, signs: Mapping[int, Sign]) -> set[int]:
        """Nodes that the server should not ask now."""
        now = self.clock()
        return {address for address, silence in self._of.items() if silence.holds(signs.get(address), now)}

    def tick(self) -> None:
        """Another sum or search for nodes begins: each rest gets shorter by one."""
        for address, silence in self._of.items():
            self._of[address] = replace(silence, rest=max(silence.rest - 1, 0))
