"""Two parts: the sums are Spectral's, the rounds FedGRec's, and the score is the blend that everybody could compute."""

from typing import Any

import numpy as np
import pytest

from fedgrec.cable.core import Cohort, Floats, ServerState
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.data.split import hold_out_validation
from fedgrec.methods import standardised as ranking
from fedgrec.methods import two_parts
from fedgrec.methods.spectral import Sum
from fedgrec.methods.two_parts import DIRECTIONS, PEOPLE, SOON, TwoPartsMethod, usual_blend
from fedgrec.models.model import Model
from fedgrec.runs.growth import grow
from fedgrec.runs.simulation import Observer, Simulation

RNG = np.random.default_rng(1)
ROWS = [(user, item) for user in range(40) for item in RNG.choice(30, RNG.integers(2, 12), replace=False).tolist()]
SMALL = {"dim": 6, "negatives": 8, "users_per_round": 15, "rounds": 10, "split": "all", "precision": "float64"}


def run_of(method: str, rows: Any = tuple(ROWS), **changes: Any) -> Simulation:
    train = Interactions.from_pairs(*zip(*rows, strict=True))
    options = {"method": method, "validation": 0.0, "protocol": "paper", "kernel": "reference"} | changes
    return Simulation(Config().changed(options, "test"), Dataset("test", Split(train)))


@pytest.fixture(scope="module")
def run() -> Simulation:
    found = run_of("two-parts", **SMALL)
    found.run()
    return found


def standardised(scores: Floats) -> Floats:
    return (scores - scores.mean(axis=1, keepdims=True)) / scores.std(axis=1, keepdims=True)


def expected(method: TwoPartsMethod, server: ServerState, cohort: Cohort) -> Floats:
    """By the definition, from the scores of the two methods."""
    trained = method.trained.scores(server, cohort)
    summed = method.spectral.scores(method._summed(server), cohort)
    a, b = method.weights(server)
    return a * standardised(trained) + b * standardised(summed)


def test_one_inner_product_is_the_blend_of_two_standardised_scores(run: Simulation) -> None:
    method, server = run.method, run.server
    assert isinstance(method, TwoPartsMethod)
    found = method.represent_users(server, run.users) @ method.represent_items(server).T
    np.testing.assert_allclose(found, expected(method, server, run.users), atol=1e-9)
    one = run.users.take(np.array([7]))
    strangers = method.strangers(one.indptr, one.items)
    np.testing.assert_allclose(method.scores(server, strangers), expected(method, server, strangers), atol=1e-9)


def test_another_deviation_would_be_noticed(run: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation: a vector's length instead of the deviation of its scores."""
    monkeypatch.setattr(ranking, "spread", lambda vectors, _: np.linalg.norm(vectors, axis=1))
    found = run.method.scores(run.server, run.users)
    assert isinstance(run.method, TwoPartsMethod)
    assert np.abs(found - expected(run.method, run.server, run.users)).max() > 0.1


def test_weights() -> None:
    method = TwoPartsMethod(two_parts.Options(), 10, 30_000)
    server = method.init(0)
    turn = 75  # rounds of 400 users
    for round_, trained in ((0, 0.0), (4, 0.0), (4 + turn * SOON, 0.5), (4 + turn * 9 * SOON, 0.9)):
        server.round = round_
        assert method.weights(server) == pytest.approx((trained, 1 - trained + 0.17 * trained))
    assert [usual_blend(people) for people in (10**6, 30_000, 3000)] == pytest.approx([0.17, 0.17, 0.17 * 10**0.7])


def test_the_sums_are_those_of_spectral(run: Simulation) -> None:
    same = {"dim": 1024, "rounds": 4, "split": "all", "precision": "float64"}
    alone = run_of("spectral", **same)
    alone.run()
    np.testing.assert_array_equal(run.server.more[DIRECTIONS], alone.server.items[0])
    np.testing.assert_array_equal(run.server.more["trust"], alone.server.more["trust"])
    assert [isinstance(run.method.training(round_), Sum) for round_ in range(6)] == [True] * 4 + [False] * 2


def test_what_is_trained_is_what_fedgrec_trains(run: Simulation) -> None:
    """The same rounds, counted from 0: only draws and Adam's corrections know that sums came before."""
    fedgrec = run_of("fedgrec", **SMALL).method
    later = [run.method.training(round_ + 4) for round_ in range(200)]
    assert later == [fedgrec.training(round_) for round_ in range(200)]
    assert run.server.items[0].std() > 0
    assert not np.array_equal(run.server.items[0], run.method.init(0).items[0])


def test_there_is_a_model_before_anything_is_trained() -> None:
    begun = run_of("two-parts", **SMALL | {"rounds": 4})
    begun.run()
    alone = run_of("spectral", dim=1024, exponent=0.4, rounds=4, split="all", precision="float64")
    alone.run()
    order = [np.argsort(-r.method.scores(r.server, r.users), axis=1)[:, :5] for r in (begun, alone)]
    np.testing.assert_array_equal(*order)


def test_terms_add_up_to_the_score(run: Simulation) -> None:
    model = Model.of(run.config, run.server, run.users, run.dataset.split.train)
    scores = model.scores(np.arange(40))
    for user, item in ((0, 3), (21, 17)):
        why = model.explain(user, item)
        assert why.own + why.terms.sum() == pytest.approx(why.score) == pytest.approx(scores[user, item])
        assert sorted(why.ids) == sorted(model.users.items_of(user))


class Notes(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []

    def noticed(self, sentence: str) -> None:
        self.said.append(sentence)


@pytest.mark.parametrize("patience", [0, 30])
def test_training_that_adds_nothing_ends(patience: int) -> None:
    """Users and server learn at rates of nothing, so the trained part is noise beside three groups that are found."""
    rng, notes = np.random.default_rng(0), Notes()
    alike = np.arange(60)[:, None] % 3 == np.arange(45) % 3
    train = Interactions.from_pairs(*np.nonzero(rng.random((60, 45)) < np.where(alike, 0.6, 0.05)))
    options = SMALL | {"method": "two-parts", "rounds": 180, "kernel": "reference", "layers": 0, "patience": patience}
    rates = {"server_rate": 1e-12, "user_rate": 1e-12, "evaluate_every": 10, "blend": 0.05, "topk": (5,)}
    split = hold_out_validation(Split(train), 0.2, 0)
    run = Simulation(Config().changed(options | rates, "test"), Dataset("test", split), observer=notes)
    assert run.run().round == 4
    assert run.server.round == (180 if patience else 70)
    assert (len(notes.said), "adds nothing" in "".join(notes.said)) == (1 - bool(patience), not patience)


def test_a_run_grows_and_sums_anew() -> None:
    """More people and items: old directions stay until the season's sums are done."""
    run = run_of("two-parts", **SMALL)
    run.run()
    before = run.server.more[DIRECTIONS].copy()
    rows = [*ROWS, *((user, item) for user in range(40, 90) for item in RNG.choice(34, 5, replace=False).tolist())]
    train = Interactions.from_pairs(*zip(*rows, strict=True))
    grow(run, Dataset("test", Split(train)), 9)
    grown = run.server.more
    np.testing.assert_array_equal(grown[DIRECTIONS][:30, : before.shape[1]], before)
    assert not grown["trust"][before.shape[1] :].any()
    run.run()
    assert run.server.more[PEOPLE] == [90]
    assert run.server.more["trust"].min() > 0
    method = run.method
    assert isinstance(method, TwoPartsMethod)
    np.testing.assert_allclose(method.scores(run.server, run.users), expected(method, run.server, run.users), atol=1e-9)
