"""Latents in rounds of everybody: when, who, what; and that no row of them is one user's alone."""

from dataclasses import replace

import numpy as np
import pytest

from fedgrec.config.configuration import Config, FedGRecOptions
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.data.ids import IdMap
from fedgrec.methods.fedgrec import FedGRecMethod
from fedgrec.runs.engine_rounds import EngineRounds
from fedgrec.runs.simulation import Simulation
from tests.laws.test_latent_law import latent_error
from tests.laws.worlds import Run, World


def method(users: int = 5, sampled: int = 2, **more: int) -> FedGRecMethod:
    return FedGRecMethod(FedGRecOptions(dim=4, users_per_round=sampled, **more), 12, users)


def sweeps(chosen: FedGRecMethod, rounds: int) -> list[int]:
    return [round_ for round_ in range(rounds) if chosen.training(round_).everyone]


def test_sweeps_come_after_one_two_four_and_eight_turns() -> None:
    """Two of five users a round: a turn is over after 2½ rounds, so the first whole ones after 3, 5, 10 and 20."""
    assert sweeps(method(), 25) == [3, 5, 10, 20]
    assert sweeps(replace(method(), begun=100), 125)[-5:] == [100, 103, 105, 110, 120], "a season begins with one"
    assert sweeps(method(users=2), 9) == [1, 2, 4, 8]
    assert sweeps(method(layers=0), 25) == sweeps(method(latents_every=3), 25) == []


def test_other_rounds_carry_item_updates_alone() -> None:
    chosen = method()
    for round_ in range(12):
        names = [leaf.name for leaf in chosen.spec(chosen.training(round_)).leaves]
        assert names == (["latents"] if round_ in (3, 5, 10) else ["items"])


def small_world() -> World:
    rng = np.random.default_rng(5)
    graph = rng.random((9, 12)) < 0.4
    graph[:2] = True  # every item has two users at least
    return World(graph, FedGRecOptions(dim=4, negatives=8, users_per_round=3, user_rate=0.1), seed=2)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_the_latent_law_holds_over_sweeps(dropout: float) -> None:
    run = Run.warmed_up(small_world()).train(rounds=14, dropout=dropout)
    assert latent_error(run) <= 1


def test_a_sweep_brings_the_latents_up_to_date_and_nothing_else() -> None:
    run = Run.warmed_up(small_world()).train(rounds=3)
    items, users, round_ = run.server.items[0].copy(), run.users.state.embeddings[:, 0].copy(), run.server.round
    assert run.method.training(round_).everyone
    run.train(rounds=1)
    assert run.server.items[0].tobytes() == items.tobytes()
    assert run.users.state.embeddings[:, 0].tobytes() == users.tobytes()
    assert run.users.state.sent[:, 0].tobytes() == users.tobytes()
    assert run.server.round == round_ + 1


def test_no_row_of_latents_has_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a simulation each sum that carries latents has every user of each of its items."""
    world = small_world()
    indptr = np.concatenate([[0], np.cumsum(world.Y.sum(1))])
    ids = IdMap.range(9, "user"), IdMap.range(12, "item")
    data = Dataset("small", Split(Interactions(*ids, indptr, np.nonzero(world.Y)[1])))
    small = {"dim": 4, "negatives": 8, "users_per_round": 3, "rounds": 14, "kernel": "reference", "device": "cpu"}
    run, seen = Simulation(Config().changed(small, "test"), data), []
    add_up = run.sums.total

    def watched(method, stage, cohort, broadcast, arrived=None):
        total, pending = add_up(method, stage, cohort, broadcast, arrived)
        if "latents" in total.leaves and method.trains(stage):
            seen.append(np.bincount(cohort.items, minlength=12))
        return total, pending

    monkeypatch.setattr(run.sums, "total", watched)
    run.run()
    assert len(seen) == 3
    assert all(owners.min() >= 2 and owners.tolist() == world.Y.sum(0).tolist() for owners in seen)


def test_a_gpu_leaves_sweeps_to_the_verbs() -> None:
    config = Config().changed({"rounds": 25, "evaluate_every": 25, "checkpoint_every": 0}, "test")
    engine = EngineRounds(config, method())
    assert engine.until(0) == 3
    assert not engine.runs(3)
    assert engine.until(4) == 5
    assert engine.until(6) == 10
    assert engine.until(21) == 25
