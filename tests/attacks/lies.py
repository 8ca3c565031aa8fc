"""An enrolled node that masks other numbers than its users have."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedgrec.secagg.client import Client
from tests.federation.worlds import N_ITEMS

LIAR = 3  # of four nodes
# A sum's length tells its stage: two layers of four dimensions, and the two metrics of one list length with a count.
STAGES = {N_ITEMS: "degrees", 4 * N_ITEMS: "propagate", 12 * N_ITEMS: "train", 3: "evaluate"}
Lie = Callable[[str, Any], None]  # changes the stage's signed numbers in place; behind them is the number of users


def lies(monkeypatch: pytest.MonkeyPatch, lie: Lie, liar: int = LIAR) -> None:
    """From now on this node lies in every sum."""
    real = Client.submit

    def submit(self: Client, values: Any, users: int = 1) -> None:
        real(self, values, users)
        if self.me == liar:
            assert self._words is not None
            numbers = self._words.view(f"<i{self._words.itemsize}")[: self.session.values + 1]
            with np.errstate(over="ignore"):
                lie(STAGES[self.session.values], numbers)

    monkeypatch.setattr(Client, "submit", submit)


def only(stage: str, lie: Callable[[Any], None], times: int = 10**9) -> Lie:
    """In this stage alone, so many times."""
    left = [times]

    def told(now: str, numbers: Any) -> None:
        if now == stage and left[0]:
            left[0] -= 1
            lie(numbers)

    return told
