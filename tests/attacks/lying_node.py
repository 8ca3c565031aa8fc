"""An enrolled node that masks other numbers than those of its users."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from fedgrec.secagg import ring
from fedgrec.secagg.client import Client
from tests.federation.worlds import N_ITEMS

LIAR = 3  # of four nodes
# A sum's length gives its stage: one layer of four dimensions, and the two metrics of one list length with a count.
STAGES = {N_ITEMS: "degrees", 4 * N_ITEMS: "propagate", 8 * N_ITEMS: "train", 3: "evaluate"}
Lie = Callable[[str, Any], None]  # changes the stage's signed numbers in place; the number of users follows them


@contextmanager
def told(client: Client) -> Iterator[Any]:
    """What a client is about to mask, as an array to change: its signed numbers, then its number of users."""
    assert client._words is not None
    *parts, trailer = client._words
    ends = np.cumsum([len(part) for part in parts])
    numbers = np.concatenate([*ring.decode(client._words, client.session.rings, 2**32)[:1], trailer[:1].astype("<i4")])
    yield numbers
    for part, changed in zip([*parts, trailer[:1]], np.split(numbers, ends), strict=True):
        part[:] = changed


def lies(monkeypatch: pytest.MonkeyPatch, lie: Lie, liar: int = LIAR) -> None:
    """From now on this node lies in every sum."""
    real = Client.submit

    def submit(self: Client, values: Any, users: int = 1) -> None:
        real(self, values, users)
        if self.me == liar:
            with told(self) as numbers:
                lie(STAGES[self.session.values], numbers)

    monkeypatch.setattr(Client, "submit", submit)


def only(stage: str, lie: Callable[[Any], None], times: int = 10**9) -> Lie:
    """Lie only in this stage, this many times."""
    left = [times]

    def lied(now: str, numbers: Any) -> None:
        if now == stage and left[0]:
            left[0] -= 1
            lie(numbers)

    return lied
