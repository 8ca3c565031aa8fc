"""Law 10, timings: how long a user takes does not tell which items it has.

The attacker is the server. It makes some items large and the others small in each model that it sends, at random, and
measures how long one user's answer takes. An item that made answers slow (or quick) when it was large is a suspect.
If time does not depend on a user's items, positives and decoys are suspected alike, whatever else disturbs the clock.
"""

import time
from collections.abc import Callable

import numpy as np
import pytest

from fedgrec.cable.core import Broadcast, Cohort
from fedgrec.config.configuration import FedGRecOptions
from fedgrec.methods.fedgrec import TRAIN, FedGRecMethod

N_ITEMS, N_POSITIVES, N_USERS, N_ROUNDS = 120, 12, 12, 30
OPTIONS = FedGRecOptions(layers=1, dim=4, negatives=32, users_per_round=1)


def answer(method: FedGRecMethod, user: Cohort, broadcast: Broadcast) -> None:
    """What a node does for a user in a round, without the mask, which takes the same time for every user."""
    upload, _ = method.local_update(user, TRAIN, broadcast)
    upload.to_ring(method.spec(TRAIN))


def slow_on_large_positives(method: FedGRecMethod, user: Cohort, broadcast: Broadcast) -> None:
    """Mutation: a shortcut for small rows among the user's own items."""
    answer(method, user, broadcast)
    wait = time.thread_time() + 2e-4 * float((broadcast.tables[0, user.items, 0] > 0.5).sum())
    while time.thread_time() < wait:
        pass


def suspicion(respond: Callable[[FedGRecMethod, Cohort, Broadcast], None]) -> float:
    """The chance that a positive is more suspect than a decoy, over many users: 0.5 is chance."""
    method, rng = FedGRecMethod(OPTIONS, N_ITEMS, N_USERS), np.random.default_rng(0)
    server, ahead = method.init(0), []
    server.degrees[:] = 3
    for _ in range(N_USERS):
        items = np.sort(rng.choice(N_ITEMS, N_POSITIVES, replace=False))
        user = method.init_users(rng.integers(0, 2**64, 1, dtype=np.uint64), np.array([0, N_POSITIVES]), items)
        large = rng.random((N_ROUNDS, N_ITEMS)) < 0.5
        seconds = np.empty(N_ROUNDS)
        for round_ in range(N_ROUNDS):
            server.items[:] = np.where(large[round_], 0.9, 0.1)[None, :, None]
            broadcast = method.broadcast(server, TRAIN)
            start = time.thread_time()  # the best clock that a server could have
            respond(method, user, broadcast)
            seconds[round_] = time.thread_time() - start
        place = np.argsort(np.argsort(seconds))  # ranks, so that one slow answer counts once
        suspect = (large - large.mean(0)).T @ (place - place.mean())  # [N]
        mine = np.isin(np.arange(N_ITEMS), items)
        ahead.append((suspect[mine][:, None] > suspect[~mine][None, :]).mean())
    return float(np.mean(ahead))


CHANCE = np.sqrt((N_ITEMS + 1) / (12 * N_POSITIVES * (N_ITEMS - N_POSITIVES) * N_USERS))  # of the mean, without a leak


@pytest.mark.parametrize("layers", [0, 1])
def test_time_does_not_tell_positives(monkeypatch: pytest.MonkeyPatch, layers: int) -> None:
    monkeypatch.setattr(f"{__name__}.OPTIONS", FedGRecOptions(layers=layers, dim=4, negatives=32, users_per_round=1))
    assert abs(suspicion(answer) - 0.5) < 5 * CHANCE


def test_a_shortcut_for_small_rows_is_found() -> None:
    assert suspicion(slow_on_large_positives) > 0.5 + 10 * CHANCE
