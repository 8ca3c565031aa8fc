"""What follows from counts alone: the temperature of softmax, how long a run is, how fast its rates fall."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedgrec.config.configuration import Config, FedGRecOptions, preset
from fedgrec.config.options import at_round, falling
from fedgrec.data.datasets import load_for
from fedgrec.methods.fedgrec import FedGRecMethod, temperature
from fedgrec.runs.resolve import resolved


@pytest.mark.parametrize(
    ("clicks", "items", "wanted"),
    [
        (25, 40_000, 0.11),
        (300, 10**6, 0.11),  # more of either changes nothing
        (12.5, 40_000, 0.11 * 2**0.4),
        (25, 1_250, 0.11 * 2),  # 32 times fewer items
        (0, 40_000, 0.11 * 25**0.4),
    ],
)
def test_the_temperature_by_hand(clicks: float, items: int, wanted: float) -> None:
    assert temperature(clicks, items) == pytest.approx(wanted, rel=1e-12)


def test_server_and_users_take_it_from_the_degrees() -> None:
    method = FedGRecMethod(FedGRecOptions(half_life=2), n_items=1_250, n_users=10)
    degrees = np.zeros(1_250, np.int64)
    degrees[:125] = 1  # 12.5 clicks a user
    o = method.options_of(2, degrees)
    assert o.temperature == pytest.approx(0.22 * 2**0.4)
    assert o.user_rate == method.options.user_rate / 2
    said = replace(method, options=FedGRecOptions(temperature=0.3))
    assert said.options_of(2, degrees).temperature == 0.3


def test_a_half_life_below_one_is_a_share_of_the_rounds() -> None:
    o = FedGRecOptions(half_life=0.5)
    assert at_round(o, 10**6) is o  # the number of all rounds is not known yet
    assert falling(o, 100).half_life == 50
    assert at_round(falling(o, 100), 100).user_rate == o.user_rate / 4
    assert falling(falling(o, 100), 7).half_life == 50  # decided once
    assert falling(o, 1).half_life == 1
    assert falling(FedGRecOptions(half_life=0), 100).half_life == 0


@pytest.mark.parametrize(
    ("name", "values", "rounds"),
    [
        ("best", {}, 199),  # 53 turns of 1,500 users, 400 in a round
        ("long", {}, 938),
        ("bpr", {}, 413),
        ("best", {"turns": 2}, 8),
        ("best", {"rounds": 7, "turns": 2}, 7),
        ("best", {"method": "fedmf"}, 413),
        ("best", {"method": "spectral"}, 4),
    ],
)
def test_how_long_a_run_is(name: str, values: dict[str, Any], rounds: int) -> None:
    config: Config = preset(name).changed({"data": "demo"} | values, "test")
    assert resolved(config, load_for(config)).run.rounds == rounds
