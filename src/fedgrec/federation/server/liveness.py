"""Who is alive, and how long the server waits for who is missing.

    seconds = 1.5 × the slowest of those asked, as they answered such questions of late + 5

but never more than the configured deadline. The first question of a kind has the whole deadline. So has one that most
nodes have not answered yet: without them the sum is lost, and the network may be slow for everybody. An answer that is
slower than all before counts at once, for those who are still missing.

A node that misses a deadline is given longer the next time, so that the server learns to wait for a slow one. A node
that shows no sign of life is not asked, so that nobody waits for a dead one.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fedgrec.federation.common.transport import Sign

FACTOR, MARGIN = 1.5, 5.0  # times the slowest answer, and seconds more
FADE = 0.7  # what a node took once counts for less with every quicker answer
LONGEST_REST = 32  # sums
Clock = Callable[[], float]


class About(NamedTuple):
    """What nodes are asked; answers to the same take about equally long."""

    kind: str  # of the packet
    stage: str = ""  # of the sum, where it matters
    size: int = 0  # and so does the length of vectors, which rounds of one stage differ in


class Patience:
    """Remembers how long each node took over each kind of question."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or time.monotonic
        self._took: dict[About, dict[int, float]] = {}  # by what was asked, by address: seconds

    def remember(self, about: About, address: int, seconds: float) -> None:
        took = self._took.setdefault(about, {})
        took[address] = max(seconds, FADE * took.get(address, 0.0))

    def usual(self, about: About, asked: Iterable[int]) -> float | None:
        """Seconds of the slowest of them; for one of whom nothing is known, of the slowest of all; None: nobody's."""
        took = self._took.get(about) or self._larger(about)
        known = [took.get(address) for address in asked]
        return max((took.values() if None in known else filter(None, known)), default=None)

    def _larger(self, about: About) -> dict[int, float]:
        """Of the next larger question of the same kind, which takes no less long."""
        larger = [each for each in self._took if each[:2] == about[:2] and each.size > about.size]
        return self._took[min(larger, key=lambda each: each.size)] if larger else {}

    def begin(self, about: About, asked: Collection[int], most: float, enough: int = 0) -> "Wait":
        """An exchange begins; where fewer than `enough` have answered, it lasts as long as it may."""
        return Wait(self, about, asked, most, enough)


class Wait:
    """One exchange: who has answered, and how long the others are waited for."""

    def __init__(self, patience: Patience, about: About, asked: Collection[int], most: float, enough: int) -> None:
        self.patience, self.about, self.most, self.enough = patience, about, most, enough
        self.missing, self.usual = set(asked), patience.usual(about, asked)
        self.slowest, self.answers = 0.0, 0
        self.begun = patience.clock()

    def heard(self, address: int) -> None:
        """An answer came, which may have been the last one."""
        self.slowest, self.answers = self._passed(), self.answers + 1
        self.missing.discard(address)
        self.patience.remember(self.about, address, self.slowest)

    def given(self) -> float:
        """Seconds that the exchange may last, from its beginning."""
        if self.usual is None or self.answers < self.enough:
            return self.most
        return min(self.most, FACTOR * max(self.usual, self.slowest) + MARGIN)

    def left(self) -> float:
        """Seconds that it may still last."""
        return self.given() - self._passed()

    def missed(self) -> set[int]:
        """Who did not answer; each of them is given longer than that when it is asked again."""
        for address in self.missing:
            self.patience.remember(self.about, address, self._passed())
        return self.missing

    def _passed(self) -> float:
        return self.patience.clock() - self.begun


@dataclass(frozen=True)
class Silence:
    """A node that was asked and did not answer."""

    misses: int  # in a row
    rest: int  # sums in which it is left in peace
    sign: Sign | None  # the last that was heard of it until then; None: the network did not know it any more

    def holds(self, sign: Sign | None) -> bool:
        """Whether the node is still not to be asked, after this last sign of it."""
        if sign is None:
            return True
        if self.sign is None or sign.since != self.sign.since:  # it was started again, or its network is back
            return False
        return self.rest > 0 or sign.last <= self.sign.last


class Silences:
    """Nodes that do not answer. One that shows no sign of life is not asked; one that does, less and less often."""

    def __init__(self) -> None:
        self._of: dict[int, Silence] = {}  # by address

    def __bool__(self) -> bool:
        return bool(self._of)

    def begin(self, addresses: Iterable[int], signs: Mapping[int, Sign]) -> None:
        """These did not answer, and this is the last that was heard of them."""
        for address in addresses:
            misses = 1 + (self._of[address].misses if address in self._of else 0)
            self._of[address] = Silence(misses, min(2 ** (misses - 1), LONGEST_REST), signs.get(address))

    def refuse(self, address: int, sign: Sign | None) -> None:
        """This one answers what it should not: it is asked again when it was started again, or much later."""
        self._of[address] = Silence(1, LONGEST_REST, sign)

    def end(self, address: int) -> None:
        """This one has answered."""
        self._of.pop(address, None)

    def hold(self, signs: Mapping[int, Sign]) -> set[int]:
        """Who is not to be asked now."""
        return {address for address, silence in self._of.items() if silence.holds(signs.get(address))}

    def tick(self) -> None:
        """Another sum begins, or another look for nodes: those who rest have rested one longer."""
        for address, silence in self._of.items():
            self._of[address] = Silence(silence.misses, max(silence.rest - 1, 0), silence.sign)
