"""Law 11: after any history of joins, new clicks, new items, leaves, recounts and dropouts, the server's latents are
what each user last sent, to the last integer, under the items and weights of that time; and a user who left has left
nothing behind."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.cable.core import Cohort
from fedgrec.kernels import cpu, reference
from fedgrec.methods import change
from fedgrec.methods.change import Past
from fedgrec.methods.fedgrec import RECOUNT, RESEND, STANDING, FedGRecMethod
from tests.laws.worlds import Run, World, worlds

STEPS = ("train", "train", "train", "click", "join", "item", "leave", "recount", "resend")
HISTORIES = st.lists(st.sampled_from(STEPS), min_size=1, max_size=12)
LIVING = {"latent_rate": 1.0, "loss": "bpr", "similarity": "inner", "users_per_round": 400}


class Life:
    """A federation that changes, and beside it what each user last sent, written down by hand."""

    def __init__(self, world: World, kernel=reference, layers: int = 2) -> None:
        self.world = replace(world, options=replace(world.options, layers=layers))
        self.run = Run.warmed_up(self.world, self.world.method(kernel))
        self.rng = np.random.default_rng(world.seed + 2)
        self.everybody = False  # whether all users are in every sum
        self.counted = {u: set(self.users.items_of(u).tolist()) for u in range(len(self.users))}
        self.pushed = {u: self.edges(u) for u in range(len(self.users))}

    @property
    def users(self) -> Cohort:
        return self.run.users

    @property
    def method(self) -> FedGRecMethod:
        return self.run.method

    def weights(self, users: Cohort) -> np.ndarray:
        return self.method.edge_weights(users, self.run.server.degrees)[1]

    def edges(self, user: int) -> dict[int, float]:
        """Weights by Eq. (1), from degrees as they are now."""
        mine, degrees = self.users.items_of(user), np.maximum(self.run.server.degrees, 1)
        symmetric = self.world.options.message_passing == "symmetric"
        return {int(t): (degrees[t] * len(mine)) ** -0.5 if symmetric else 1 / degrees[t] for t in mine}

    def arrived(self, n: int) -> np.ndarray:
        return self.rng.random(n) < (1.0 if self.everybody else 0.8)

    def resized(self, n_items: int, n_users: int) -> None:
        self.run.method = replace(self.method, n_items=n_items, n_users=n_users)

    # ------------------------------------------------------------------------------------- what happens

    def train(self) -> None:
        stage = self.method.training(self.run.server.round)
        n = len(self.users)
        count = n if self.everybody else self.rng.integers(1, n + 1)
        users = np.sort(self.rng.choice(n, count, replace=False))
        arrived = self.arrived(len(users))
        self.run.exchange(stage, users, arrived)
        if not stage.lean:
            self.pushed |= {int(u): self.edges(u) for u in users[arrived]}

    def click(self) -> None:
        """Some users have other items now."""
        n_items, rows = self.method.n_items, []
        for u in range(len(self.users)):
            mine = set(self.users.items_of(u).tolist())
            if mine and self.rng.random() < 0.4:
                mine ^= set(self.rng.choice(n_items, min(n_items, 2), replace=False).tolist())
                mine = mine or {int(self.rng.integers(n_items))}
            rows.append(np.array(sorted(mine), np.int32))
        self.have(rows)

    def have(self, rows: list[np.ndarray]) -> None:
        indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
        self.run.users = change.with_items(self.users, indptr, np.concatenate(rows), self.weights)

    def leave(self) -> None:
        gone = self.rng.integers(len(self.users))
        self.have([self.users.items_of(u)[: 0 if u == gone else None] for u in range(len(self.users))])

    def join(self) -> None:
        n_items = self.method.n_items
        mine = np.sort(self.rng.choice(n_items, self.rng.integers(1, n_items + 1), replace=False)).astype(np.int32)
        new = self.method.init_users(self.rng.integers(0, 2**64, 1, np.uint64), np.array([0, len(mine)]), mine)
        self.run.users = change.joined(self.users, new)
        self.counted[len(self.users) - 1], self.pushed[len(self.users) - 1] = set(), {}
        self.resized(n_items, len(self.users))

    def item(self) -> None:
        self.resized(self.method.n_items + 1, len(self.users))
        self.run.server = self.method.grown(self.run.server, self.world.seed)

    def recount(self) -> None:
        self.run.users = change.before_recount(self.users, self.weights)
        users, arrived = np.arange(len(self.users)), self.arrived(len(self.users))
        self.run.exchange(RECOUNT, users, arrived)
        self.counted |= {int(u): set(self.users.items_of(u).tolist()) for u in users[arrived]}

    def resend(self) -> None:
        users, arrived = np.arange(len(self.users)), self.arrived(len(self.users))
        stale = set(self.users.past.pushed if self.users.past else ())
        self.run.exchange(RESEND, users, arrived)
        self.pushed |= {int(u): self.edges(u) for u in users[arrived] if u in stale}

    # --------------------------------------------------------------------------------------- what holds

    def goes_on(self, *history: str) -> None:
        for step in history:
            getattr(self, step)()
            self.check()

    def check(self) -> None:
        N, leaf, server = self.method.n_items, self.method.latents, self.run.server
        degrees, standing = np.zeros(N, np.int64), np.zeros((self.world.options.layers, N, leaf.width), np.int64)
        bound = int(leaf.clip / 2 / leaf.step)
        precision = server.items.dtype.type
        for user, edges in self.pushed.items():
            for t, weight in edges.items():
                words = np.rint(precision(weight) * self.users.state.sent[user] / leaf.step)
                standing[:, t] += np.clip(words, -bound, bound).astype(np.int64)
        for items in self.counted.values():
            degrees[list(items)] += 1
        assert np.array_equal(server.degrees, degrees)
        assert np.array_equal(server.kept[STANDING], standing)
        assert np.array_equal(server.items[1:], (standing * leaf.step).astype(precision))


@pytest.mark.parametrize("kernel", [reference, cpu], ids=["reference", "numba"])
def test_the_sums_hold_what_each_user_last_sent(kernel) -> None:
    @settings(max_examples=30 if kernel is reference else 60, deadline=None)
    @given(worlds(max_users=6, max_items=9, **LIVING), HISTORIES)
    def law(world: World, history: list[str]) -> None:
        life = Life(world, kernel)
        life.goes_on(*history)

    law()


def small(seed: int = 5) -> Life:
    from fedgrec.config.configuration import FedGRecOptions

    options = FedGRecOptions(dim=3, negatives=4, latents_every=1, precision="float64", **LIVING)
    return Life(World(np.random.default_rng(seed).random((5, 8)) < 0.5, options, seed=seed))


def test_who_leaves_leaves_nothing_behind() -> None:
    """The server's latents and degrees are those of the users who stayed."""
    life = small()
    life.train()
    life.leave()
    (gone,) = [u for u in range(len(life.users)) if not len(life.users.items_of(u))]
    life.everybody = True
    life.recount()
    life.train()
    life.check()
    assert (life.pushed[gone], life.counted[gone]) == ({}, set())
    stayed = sum(np.bincount(life.users.items_of(u), minlength=8) for u in range(len(life.users)) if u != gone)
    assert np.array_equal(life.run.server.degrees, stayed)


def test_the_rows_of_a_new_item_are_its_own() -> None:
    life = small()
    life.train()
    before = life.run.server
    life.item()
    after = life.run.server
    assert after.items[0, 8].any()
    assert not any(part.any() for part in (after.items[1:, 8], after.moment1[8], after.moment2[8], after.degrees[8]))
    for name in ("degrees", "moment1", "moment2"):
        assert np.array_equal(getattr(after, name)[:8], getattr(before, name))
    assert np.array_equal(after.items[:, :8], before.items)
    assert after.round == before.round


def _forgets_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change, "before_recount", lambda users, weights: replace(users, past=users.past or Past()))


def _counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Past, "settle", lambda self, part, users: None)


def _keeps_old_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_items(users, indptr, items, weights, targets=None):
        found = change_with_items(users, indptr, items, weights, targets)
        found.past.pushed.clear()
        return found

    change_with_items = change.with_items
    monkeypatch.setattr(change, "with_items", with_items)


@pytest.mark.parametrize("mutant", [_forgets_weights, _counts_twice, _keeps_old_edges])
def test_mutants_break_the_law(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    life = small()
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        life.goes_on("train", "click", "recount", "train", "leave", "recount", "train", "train")
