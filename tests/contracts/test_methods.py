"""What every federated method must do, whatever its maths: each test runs for all methods.

A method that is added to METHODS is taken up by itself. `own` is one that somebody else wrote: an example.
"""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from fedgrec.cable.core import Cohort, Upload
from fedgrec.config.configuration import Config, options
from fedgrec.config.options import METHODS, method_module
from fedgrec.data import Dataset, IdMap, Interactions, Split
from fedgrec.models.model import Model
from fedgrec.runs.simulation import Observer, Simulation
from tests.interrupted import bits
from tests.laws.test_known_answers import checkerboard

SMALL = {"dim": 8, "users_per_round": 20, "topk": (1,), "protocol": "paper", "kernel": "reference"}
FEW = {"negatives": 16, "half_life": 0}  # for methods that have the option: there are 30 items
# By these methods' defaults a mean over a few users moves too far, FedRAP's layers hardly move at all, and three rounds
# of `ordered-parts` would know no order.
FEW_USERS: dict[str, dict[str, Any]] = {
    "ordered-parts": {"sums": 2},
    "pfedrec": {"item_boost": 8.0},
    "fedrap": {"rate": 1.0, "item_rate": 20.0, "apart": 0.0, "negatives_each": 40},
}
M, N = 24, 30

each_method = pytest.mark.parametrize("method", [*METHODS, "own"])


@pytest.fixture(autouse=True)
def _a_stranger_adds_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "own", "examples.own_method")


def simulation(method: str, dataset: Dataset | None = None, out: Any = None, **values: Any) -> Simulation:
    known = {option.name for option in options(method)}
    few = {name: value for name, value in FEW.items() if name in known}
    chosen = SMALL | {"method": method, "rounds": 3, "evaluate_every": 3} | few | FEW_USERS.get(method, {}) | values
    return Simulation(Config().changed(chosen, "test"), dataset or clicks(), out)


def clicks(test_seed: int = 1) -> Dataset:
    """Random likes; the test items depend on a seed."""
    liked = np.random.default_rng(0).random((M, N)) < 0.3
    liked[:, 0] = True
    held = ~liked & (np.random.default_rng(test_seed).random((M, N)) < 0.2)
    ids = {"user_ids": IdMap.range(M), "item_ids": IdMap.range(N)}
    train, test = (Interactions.from_pairs(*np.nonzero(part), **ids) for part in (liked, held))
    return Dataset("clicks", Split(train, test))


@each_method
def test_the_checkerboard_is_solved(method: str) -> None:
    """With the method's own defaults, but for FEW_USERS, in 150 rounds at most."""
    run = simulation(method, checkerboard(), rounds=150, evaluate_every=30, dim=16)
    run.observer = UntilSolved()
    run.run()
    assert run.result()["recall@1"] > 0.9


class UntilSolved(Observer):
    solved = False

    def evaluated(self, line: dict[str, Any]) -> None:
        self.solved = line["recall@1"] > 0.9

    def stop_wanted(self) -> bool:
        return self.solved


@each_method
def test_what_never_trained_is_no_better_than_chance(method: str) -> None:
    """Random likes, because nothing can be learned from them; on the board the graph alone would give the colours."""
    hits = []
    for seed in range(6):
        run = simulation(method, clicks(test_seed=seed + 1), seed=seed)
        run.warm_up()
        hits.append(run.measure("test", run.dataset.split.test)["recall@1"])
    chance = np.mean([1 / (N - run.dataset.split.train.user_degrees().mean())])
    assert np.mean(hits) < 3 * chance


@each_method
def test_same_seed_same_bits_and_another_seed_others(method: str) -> None:
    first, again, other = simulation(method), simulation(method), simulation(method, seed=1)
    for run in (first, again, other):
        run.run()
    assert bits(first) == bits(again)
    assert bits(first) != bits(other)


@each_method
def test_test_items_change_nothing(method: str) -> None:
    """Test items may be drawn as negatives, and training does not use them in any other way."""
    one, two = simulation(method, clicks(test_seed=1)), simulation(method, clicks(test_seed=2))
    for run in (one, two):
        run.run()
    assert bits(one) == bits(two)


@each_method
def test_sum_law(method: str) -> None:
    """The upload of a cohort is the sum of its users' uploads, however users are grouped."""
    run = simulation(method)
    run.warm_up()
    for level, stage in enumerate(run.method.stages):
        if stage.combine != "sum":
            continue
        broadcast = run.method.broadcast(run.server, stage, level=level if stage.everyone else 0)
        spec = run.method.spec(stage)
        users = np.arange(min(spec.users, M))
        whole = uploaded(run, run.users.take(users), stage, broadcast).to_ring(spec)
        parts = [uploaded(run, run.users.take(part), stage, broadcast) for part in np.array_split(users, 5)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        assert (total.to_ring(spec) == whole).all()
        assert total.users == len(users)
        assert whole.any() or stage.everyone  # a completed warm-up sends nothing new


def uploaded(run: Simulation, cohort: Cohort, stage: Any, broadcast: Any) -> Upload:
    return run.method.local_update(cohort, stage, broadcast)[0]


@each_method
def test_secure_training_has_the_same_bits(method: str) -> None:
    values = {"secure_neighbours": 10, "secure_threshold": 6, "dropout": 0.1, "users_per_round": 12, "seed": 1}
    plain, secure = simulation(method, **values), simulation(method, secure="protocol", **values)
    plain.run()
    secure.run()
    assert secure.sums.lost == 0
    assert secure.sums.opened >= 3
    assert bits(plain) == bits(secure)


@each_method
def test_what_is_saved_recommends_the_same_and_no_train_item(method: str, tmp_path) -> None:
    run = simulation(method, out=tmp_path)
    model = run.run()
    loaded = Model.load(tmp_path)
    for user in range(0, M, 5):
        ids, scores = model.recommend_to(user, model.seen(user), 10)
        again, same = loaded.recommend_to(user, loaded.seen(user), 10)
        assert (ids == again).all()
        assert (scores == same).all()
        assert not set(ids.tolist()) & set(run.dataset.split.train.of(user).tolist())


def test_a_saved_model_scores_as_its_run_did(tmp_path) -> None:
    """Scores that are no inner products too."""
    run = simulation("fedncf", out=tmp_path, kernel="auto")
    run.run()
    assert np.array_equal(Model.load(tmp_path).scores(np.arange(M)), run.method.scores(run.server, run.users))


@each_method
def test_a_model_has_all_that_its_method_ranks_by(method: str, tmp_path) -> None:
    """Complete states and keys of the chosen round: the file gives back everything that a method ranks by."""
    run = simulation(method, out=tmp_path, rounds=4, evaluate_every=2)
    model, loaded = run.run(), Model.load(tmp_path)
    now, again = (run.method.scores(m.server, m.users) for m in (model, loaded))
    assert np.array_equal(now, again)
    for part in fields(model.users.state):
        values, kept = (getattr(m.users.state, part.name) for m in (model, loaded))
        assert values.dtype == kept.dtype
        assert np.array_equal(values, kept), part.name
    assert np.array_equal(model.users.keys, run.users.keys)
    assert np.array_equal(loaded.users.keys, run.users.keys)


def test_the_strangers_second_field_ranks() -> None:
    """Without the second field the lists differ, so the test above would notice its loss."""
    run = simulation("own")
    model = run.run()
    blind = model.users.with_state(replace(model.users.state, weights=np.ones_like(model.users.state.weights)))
    lists = [np.argsort(-run.method.scores(model.server, users), axis=1) for users in (model.users, blind)]
    assert (lists[0][:, :5] != lists[1][:, :5]).any(axis=1).mean() > 0.5


@each_method
def test_a_resumed_run_ends_the_same(method: str, tmp_path) -> None:
    values = {"checkpoint_every": 1, "dropout": 0.2}
    whole = simulation(method, out=tmp_path / "whole", rounds=4, **values)
    whole.run()
    simulation(method, out=tmp_path / "cut", rounds=3, **values).run()
    rest = simulation(method, out=tmp_path / "cut", rounds=4, **values)
    rest.resume()
    rest.run()
    assert bits(rest) == bits(whole)


@each_method
def test_every_option_explains_itself(method: str) -> None:
    assert all(option.field.metadata["help"] for option in options(method))
    assert method_module(method).make(method_module(method).Options(), N, M).name == method


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_federank_sends_that_share_of_its_positives(share: float) -> None:
    run = simulation("federank", feedback=share, l2=0.01, negatives=3)
    stage = run.method.stages[-1]
    sent = []
    for round_ in range(15):
        run.server.round = round_
        broadcast = run.method.broadcast(run.server, stage)
        for user in range(M):
            rows = uploaded(run, run.users.take(np.array([user])), stage, broadcast).leaves["items"]
            touched = rows.index[rows.values.any(axis=1)]
            sent.append(np.isin(run.users.items_of(user), touched).mean())
    assert np.mean(sent) == pytest.approx(share, abs=0.03)
