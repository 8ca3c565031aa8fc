"""Means and intervals, computed by hand."""

import math

import numpy as np
import pytest

from fedgrec.studies.compare.rows import over_seeds
from fedgrec.studies.compare.runs import half_width


def test_mean_and_interval_of_four_seeds() -> None:
    """Mean 2.5, s = √(5/3), t(3) = 3.182446: 3.182446 · 1.290994 / 2."""
    found = over_seeds([1.0, 2.0, 3.0, 4.0])
    assert found.mean == 2.5
    assert found.half == pytest.approx(2.054260, abs=1e-6)
    assert (found.over, found.n) == ("seeds", 4)


def test_two_seeds_have_a_wide_interval() -> None:
    """t(1) = tan(0.475 π) = 12.7062; s/√2 is half the distance of the two."""
    assert half_width([0.10, 0.12]) == pytest.approx(0.01 * math.tan(0.475 * math.pi))


def test_of_many_values_t_is_the_normal_quantile() -> None:
    values = np.random.default_rng(0).normal(size=100_000)
    assert half_width(values) == pytest.approx(1.959964 * values.std() / math.sqrt(len(values)), rel=1e-4)


def test_one_value_has_no_interval_and_equal_ones_none_to_speak_of() -> None:
    assert half_width([0.3]) is None
    assert half_width([0.25, 0.25, 0.25]) == 0


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng, hit = np.random.default_rng(1), 0
    for _ in range(2_000):
        found = over_seeds(rng.normal(0.17, 0.01, 3).tolist())
        assert found.half is not None
        hit += abs(found.mean - 0.17) <= found.half
    assert 0.93 < hit / 2_000 < 0.97
