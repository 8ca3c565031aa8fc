"""A run with noise spends the ε that it was asked to spend, and no user takes part more often than planned."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.cable import noise
from fedgrec.cable.core import Leaf, UploadSpec
from fedgrec.cable.noise import Release
from fedgrec.config.configuration import Config
from fedgrec.config.options import FedGRecOptions
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.errors import ConfigError
from fedgrec.methods import budget, fcf, spectral
from fedgrec.methods.fedgrec import make
from fedgrec.runs.resolve import final, resolved
from fedgrec.runs.simulation import Observer, Simulation


def small(users: int = 30, items: int = 20) -> Dataset:
    liked = np.random.default_rng(0).random((users, items)) < 0.4
    liked[:, 0] = True
    return Dataset("small", Split(Interactions.from_pairs(*np.nonzero(liked))))


def simulation(**values: Any) -> Simulation:
    chosen = {"method": "spectral", "dp_epsilon": 50.0, "protocol": "paper", "kernel": "reference"} | values
    return Simulation(Config().changed(chosen, "test"), small())


# ------------------------------------------------------------------------------------------ the accountant


@pytest.mark.parametrize("multiplier", [0.7, 2.0, 9.0])
@pytest.mark.parametrize("times", [1, 4, 60])
def test_in_fine_steps_it_is_the_gaussian_accountant(multiplier: float, times: int) -> None:
    """Noise over many steps is nearly Gaussian: an independent accountant says the same to a hundredth."""
    accountant = RdpAccountant(orders=noise.ORDERS.tolist())
    accountant.compose(GaussianDpEvent(multiplier), times)
    steps = 2.0**20
    release = Release((multiplier * steps) ** 2, 100 * steps, steps, times)
    assert noise.spent([release], 1e-6) == pytest.approx(accountant.get_epsilon(1e-6), rel=0.01)


def test_in_coarse_steps_it_is_the_formula_of_the_paper() -> None:
    """Agarwal, Kairouz, Liu 2021, Theorem 3.5: ε(α) ≤ αΔ₂²/2μ + min(((2α−1)Δ₂² + 6Δ₁)/4μ², 3Δ₁/2μ)."""
    found = noise.spent([Release(30.0, 16.0, 4.0, 3), Release(8.0, 1.0, 1.0)], 1e-5)

    def renyi(order: float, mu: float, whole: float, square: float) -> float:
        more = min(((2 * order - 1) * square + 6 * whole) / (4 * mu * mu), 1.5 * whole / mu)
        return order * square / (2 * mu) + more

    wanted = min(
        3 * renyi(a, 30, 16, 16) + renyi(a, 8, 1, 1) + math.log((a - 1) / a) - (math.log(1e-5) + math.log(a)) / (a - 1)
        for a in noise.ORDERS.tolist()
    )
    assert found == pytest.approx(wanted, rel=1e-12)


METHODS = {
    "spectral": spectral.make(spectral.Options(dim=8, spare=2), 500, 200),
    "fedgrec": make(FedGRecOptions(users_per_round=50, latents_every=3), 500, 200),
    "fedgrec of everybody": make(FedGRecOptions(users_per_round=1000), 500, 200),
    "no latents": make(FedGRecOptions(layers=0, users_per_round=77), 500, 200),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_planned_sums_spend_what_was_asked_for(name: str, epsilon: float) -> None:
    method = budget.with_noise(METHODS[name], epsilon, 1e-6, 12)
    assert 0.99 * epsilon < budget.spent_by(method, 1e-6, 12) <= epsilon
    spent = [budget.spent_by(method, 1e-6, rounds) for rounds in range(13)]
    assert spent == sorted(spent)
    assert 0 < spent[0] < 0.6 * epsilon  # the warm-up
    for stage in (*method.stages[:-1], *(method.training(round_) for round_ in range(12))):
        for leaf in method.spec(stage).leaves:
            z = method.noise.counts if leaf.name == "degrees" else method.noise.rest
            assert math.sqrt(leaf.noise) == pytest.approx(z * leaf.norm)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_an_independent_accountant_says_hardly_less(name: str, epsilon: float) -> None:
    """It takes the noise for Gaussian, which loses nothing to whole numbers, at the orders of Skellam's theorem."""
    method = budget.with_noise(METHODS[name], epsilon, 1e-6, 12)
    accountant = RdpAccountant(orders=noise.ORDERS.tolist())
    for variance, _, euclidean, times in budget.releases(method, 12):
        accountant.compose(GaussianDpEvent(math.sqrt(variance) / euclidean), times)
    assert 0.99 * epsilon < accountant.get_epsilon(1e-6) <= budget.spent_by(method, 1e-6, 12) <= epsilon


def test_a_quarter_of_the_noise_spends_more() -> None:
    method = budget.with_noise(METHODS["spectral"], 2.0, 1e-6, 3)
    found = [release._replace(variance=release.variance / 4) for release in budget.releases(method, 3)]
    assert noise.spent(found, 1e-6) > 1.8 * 2.0


def test_the_count_has_a_tenth_of_the_privacy() -> None:
    method = budget.with_noise(METHODS["spectral"], 2.0, 1e-6, 3)
    shares = Counter[bool]()
    for release in budget.releases(method, 3):
        shares[release.euclidean**2 == pytest.approx(30)] += release.times * release.euclidean**2 / release.variance
    assert shares[True] / shares.total() == pytest.approx(budget.COUNT_SHARE)


def test_methods_without_noise_say_so() -> None:
    with pytest.raises(ConfigError, match="fedgrec, spectral, fedmf, federank"):
        budget.with_noise(fcf.make(fcf.Options(), 9, 9), 1.0, 1e-6, 3)


# ------------------------------------------------------------------------------------------------- rings


@given(
    users=st.integers(1, 10**6),
    norm=st.floats(1, 1e5),
    multiplier=st.floats(0.05, 100),
    clip=st.sampled_from([1, 10**9]),
)
def test_a_ring_holds_all_users_and_ten_deviations(users: int, norm: float, multiplier: float, clip: int) -> None:
    leaf = Leaf("items", 10, 4, clip, 1, norm, (multiplier * norm) ** 2)
    ((_, bits),) = UploadSpec((leaf,), users).rings
    largest = min(clip, math.floor(norm)) * users + 10 * math.sqrt(leaf.noise * users)
    assert largest < 2 ** (bits - 1)


def test_far_numbers_are_as_rare_as_the_bound_says() -> None:
    """Bernstein's bound beside the exact chance, where that can be computed."""
    from scipy import stats

    for variance in (0.5, 20.0, 1000.0):
        for t in (10, 40):
            bound = math.exp(-(t**2) / (2 * variance + 2 * t / 3))
            assert stats.skellam.sf(t - 1, variance / 2, variance / 2) <= bound


# --------------------------------------------------------------------------------------------------- turns


@settings(max_examples=30, deadline=None)
@given(sampled=st.integers(1, 40), rounds=st.integers(1, 12), seed=st.integers(0, 99))
def test_nobody_takes_part_more_often_than_planned(sampled: int, rounds: int, seed: int) -> None:
    run = simulation(users_per_round=sampled, rounds=rounds, seed=seed)
    taken = Counter[int]()
    for round_ in range(budget.last_round(run.method, run.config.run)):
        users = run._sample(round_)[0].tolist()
        assert len(set(users)) == len(users) == min(sampled, 30)
        taken.update(users)
    assert max(taken.values()) == budget.turns(run.method, rounds) == math.ceil(rounds * min(sampled, 30) / 30)


def test_users_without_turns_break_the_bound() -> None:
    """A sample drawn again in every round, as in runs without noise, would break the bound."""
    run = simulation(users_per_round=10, rounds=12)
    drawn = simulation(users_per_round=10, rounds=12, dp_epsilon=0)
    taken = Counter(user for round_ in range(12) for user in drawn._sample(round_)[0].tolist())
    assert max(taken.values()) > budget.turns(run.method, 12)


class Notices(Observer):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def noticed(self, sentence: str) -> None:
        self.seen.append(sentence)


def test_training_ends_when_all_turns_are_taken() -> None:
    run = simulation(rounds=9, dp_rounds=2)
    run.observer = seen = Notices()
    run.run()
    assert run.server.round == 2
    assert "nobody has a turn left" in seen.seen[0]


def test_lines_say_what_was_spent() -> None:
    run = simulation(rounds=3, dp_epsilon=6.0, dp_delta=1e-7)
    run.run()
    line = run.measure("validation", run.dataset.split.train)
    assert 0.99 * 6 < line["dp_epsilon_spent"] <= 6
    assert line["dp_delta"] == 1e-7
    assert "dp_epsilon_spent" not in simulation(dp_epsilon=0).measure("validation", run.dataset.split.train)


# ------------------------------------------------------------------------------------------------- options


def test_defaults_under_noise_give_way_to_what_is_asked_for() -> None:
    asked = {"method": "spectral", "dp_epsilon": 2.0}
    config = resolved(Config().changed(asked), small())
    assert (config.model.dim, config.model.spare, config.model.exponent, config.run.rounds) == (32, 8, 0.3, 3)
    assert config.run.dp_rounds == 3
    assert Config().changed(asked | {"dim": 64}).model.dim == 64
    assert Config().changed({"dim": 512, "method": "spectral"}).changed({"dp_epsilon": 0}).model.dim == 512
    config = resolved(Config().changed({"dp_epsilon": 2.0}), small())
    assert (config.model.users_per_round, config.run.rounds) == (2**31 - 1, 40)
    assert final(config, 4).run.dp_rounds == 0
    assert resolved(Config(), small()).run.dp_rounds == 0


def test_defaults_follow_the_promise() -> None:
    def of(**values: Any) -> tuple[float, float, int]:
        model = Config().changed({"method": "spectral"} | values).model
        return model.shift, model.chance, model.dim

    assert of() == of(dp_epsilon=12.0, dp_unit="interaction") == (0.5, 0.75, 512)
    assert of(dp_epsilon=8.0, dp_unit="interaction") == (1.0, 0.5, 512)
    assert of(dp_epsilon=8.0, dp_unit="interaction", shift=0.1) == (0.1, 0.5, 512)
    assert of(dp_epsilon=8.0) == (0.25, 0.0, 32)
    asked = Config().changed({"method": "spectral", "dp_epsilon": 8.0, "dp_unit": "interaction", "shift": 0.5})
    assert asked.changed({"seed": 3}).model.shift == 0.5  # of a run that was resolved


def test_a_promise_that_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match=r"at least 0\.01"):
        Config().changed({"dp_epsilon": 0.001})
