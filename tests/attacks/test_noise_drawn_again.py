"""A server that lies, or only crashes, has a sum opened again: the mean of other noises would be less noise."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedgrec.cable import noise
from fedgrec.cable.noise import skellam_for
from tests.attacks.lying_server import DEGREES, Liar, counts, total
from tests.federation.worlds import world

OPENINGS = 3  # then nodes ask for their operators


def opened(tmp_path: Path) -> tuple[list[list[int]], list[int]]:
    """What the same three nodes' counts of users add up to, each time they are opened; and the truth."""
    liar = Liar(world(tmp_path, options={"dp_epsilon": 8.0}))
    sums = [total(liar.sum([0, 1, 2], DEGREES), "degrees") for _ in range(OPENINGS)]
    return sums, counts(liar, [0, 1, 2])


def test_a_sum_that_is_opened_again_has_the_same_noise(tmp_path: Path) -> None:
    sums, truth = opened(tmp_path)
    assert sums[0] != truth
    assert all(sum_ == sums[0] for sum_ in sums)


def test_mutation_noise_drawn_afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack itself works: the mean of three openings is nearer to the truth than any of them."""
    afresh = partial(noise.drawn, np.random.default_rng(0))
    monkeypatch.setattr(noise, "skellam_for", lambda *_: afresh)
    sums, truth = opened(tmp_path)
    error = [float(np.square(np.array(sum_) - truth).mean()) for sum_ in (*sums, np.mean(sums, axis=0))]
    assert error[-1] < 0.6 * np.mean(error[:-1]), "a third, but for chance"


def test_other_numbers_or_another_sum_have_other_noise() -> None:
    """Else the difference of two sums would have no noise at all."""
    words = np.arange(1000)
    again, other = words.copy(), words.copy()
    other[7] += 1
    first, same, others, elsewhere = (
        skellam_for(w, secret)(100.0, 1000)
        for w, secret in [(words, b"a"), (again, b"a"), (other, b"a"), (words, b"b")]
    )
    assert np.array_equal(first, same)
    for unrelated in (others, elsewhere):
        assert abs(np.corrcoef(first, unrelated)[0, 1]) < 0.2
        assert np.std(first - unrelated) == pytest.approx(np.sqrt(200), rel=0.2)
