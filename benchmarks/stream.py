"""A year in the demo's towns: people come, move and leave, places open and close, and every month has its visits.

People choose by where they live and what they like, as in `fedgrec.data.synthetic`. Openings and closings are announced
the month before. The same seed gives the same year on every machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgrec.data.synthetic import KINDS, TOWNS

FAR = -12.0  # the logarithm of the chance to visit a town without a home or friends there


@dataclass(frozen=True)
class Pace:
    """How many people and places there are at first, and which share of them changes in a month."""

    people: int = 600
    places: int = 700
    history: int = 3  # months of visits before the first one
    come: float = 0.04
    leave: float = 0.03
    move: float = 0.03
    open: float = 0.02
    close: float = 0.01


USUAL = Pace()


@dataclass(frozen=True)
class Month:
    """The facts known at the end of a month."""

    number: int  # from 1
    visited: dict[int, set[int]]  # person → all places visited so far, for everybody who is there
    places: int  # size of the catalogue: the places that have opened or open next month are 0 … places − 1
    closed: frozenset[int]  # places that have closed or close next month
    came: int = 0
    left: int = 0
    moved: int = 0


class Towns:
    """Where people and places are, and what people like."""

    def __init__(self, seed: int, pace: Pace, months: int) -> None:
        self.rng = rng = np.random.Generator(np.random.PCG64(seed))
        self.pace, n_towns = pace, len(TOWNS)
        n = pace.places + round(pace.places * pace.open) * months
        grid = np.stack(np.divmod(np.arange(n_towns), 4), axis=1)
        centre = np.array([46.0, 7.0]) + grid + rng.uniform(-0.3, 0.3, (n_towns, 2))
        size = (1.0 / np.arange(1, n_towns + 1)) ** 0.6  # a few big towns, many small
        size /= size.sum()
        self.quarter_town = np.repeat(np.arange(n_towns), np.ceil(size * 60).astype(int))  # [Q]
        self.quarter_at = centre[self.quarter_town] + rng.normal(0, 0.12, (len(self.quarter_town), 2))
        share = size[self.quarter_town] / np.bincount(self.quarter_town)[self.quarter_town]
        self.share = share / share.sum()
        quarter = rng.choice(len(self.share), n, p=self.share)
        self.place_town, self.place_at = self.quarter_town[quarter], self.quarter_at[quarter]
        self.place_at = self.place_at + rng.normal(0, 0.01, (n, 2))
        self.kind, self.appeal = rng.integers(0, len(KINDS), n), rng.normal(0, 1.3, n)

    def settle(self) -> tuple[int, NDArray[np.float64]]:
        """A new home: its town and its coordinates."""
        quarter = self.rng.choice(len(self.share), p=self.share)
        return int(self.quarter_town[quarter]), self.quarter_at[quarter] + self.rng.normal(0, 0.01, 2)


class Person:
    """Lives somewhere, likes some kinds of places, has friends in another town."""

    def __init__(self, towns: Towns) -> None:
        self.towns, rng = towns, towns.rng
        self.taste = np.log(rng.dirichlet(np.full(len(KINDS), 0.15)) + 0.01)
        self.friends = int(rng.integers(len(TOWNS)))
        self.travels = rng.beta(1, 6)  # share of trips
        self.visits = min(2 + rng.lognormal(np.log(3), 0.8), 30)  # a month
        self.move()

    def move(self) -> None:
        towns = self.towns
        town, at = towns.settle()
        distance = np.hypot(*(towns.place_at - at).T)
        near = np.where(towns.place_town == town, -distance / 0.1, FAR)
        trip = np.where(towns.place_town == self.friends, np.log(self.travels) - 2.0, FAR)
        self.logit = towns.appeal + self.taste[towns.kind] + np.logaddexp(near, trip)  # [N]

    def visit(self, is_open: NDArray[np.bool_]) -> set[int]:
        """The visits of a month, drawn without replacement: the largest of logit + Gumbel noise."""
        count = max(int(self.towns.rng.poisson(self.visits)), 1)
        luck = self.logit + self.towns.rng.gumbel(size=len(self.logit))
        luck[~is_open] = -np.inf
        return set(np.argpartition(-luck, count)[:count].tolist())


def year(seed: int, months: int, pace: Pace = USUAL) -> Iterator[Month]:
    """Month after month. To judge a month, look at the next one: who is still there, and what they visit."""
    towns = Towns(seed, pace, months)
    rng, people, visited = towns.rng, dict[int, Person](), dict[int, set[int]]()
    is_open = np.arange(len(towns.kind)) < pace.places
    known, closed, ever = pace.places, frozenset[int](), 0

    def some(share: float, among: list[int]) -> list[int]:
        return sorted(rng.choice(among, round(share * len(among)), replace=False).tolist())

    def arrive(count: int) -> None:
        nonlocal ever
        for person in range(ever, ever + count):
            people[person], visited[person] = Person(towns), set()
        ever += count

    def live() -> None:
        for number, person in people.items():
            visited[number] |= person.visit(is_open)

    arrive(pace.people)
    for _ in range(pace.history):
        live()
    for number in range(1, months + 1):
        later = number > 1  # nobody leaves and nothing changes in the first month
        left = some(pace.leave * later, list(people))
        for person in left:
            del people[person], visited[person]
        moved = some(pace.move * later, list(people))
        for person in moved:
            people[person].move()
        came = round(pace.come * later * pace.people)
        arrive(came)
        live()
        known += round(pace.open * pace.places)
        closed |= set(some(pace.close * later, np.flatnonzero(is_open).tolist()))
        yield Month(number, {p: set(v) for p, v in visited.items()}, known, closed, came, len(left), len(moved))
        is_open[:known] = True
        is_open[sorted(closed)] = False
