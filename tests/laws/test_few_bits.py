"""Law 12 for `spectral`: words of few bits are the same on every kernel, and their expected sum is what users meant."""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedgrec.cable import draws
from fedgrec.cable.core import Cohort, Leaf, Rows, Upload, UploadSpec
from fedgrec.config.configuration import Config
from fedgrec.kernels import cpu, reference
from fedgrec.methods.contract import DEGREES
from fedgrec.methods.spectral import Options, SpectralMethod
from fedgrec.secagg import Session, ring

USERS, ITEMS, WIDTH = 60, 30, 5
INT = np.dtype(np.int32)


def people(seed: int = 0) -> Cohort:
    rng = np.random.default_rng(seed)
    has = rng.random((USERS, ITEMS)) < 0.3
    indptr = np.concatenate([[0], np.cumsum(has.sum(1))])
    keys = rng.integers(0, 2**64, USERS, dtype=np.uint64)
    return SpectralMethod(Options(), ITEMS, USERS).init_users(keys, indptr, np.nonzero(has)[1].astype(np.int32))


def numbers(cohort: Cohort, size: float = 2.0) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return rng.random(len(cohort.items)), size * rng.standard_normal((len(cohort), 1, WIDTH))


@pytest.mark.parametrize("step", [1.0, 0.25])
def test_twins_send_the_same_words(step: float) -> None:
    cohort, leaf = people(), Leaf("items", ITEMS, WIDTH, 3.0, step)
    for round_ in (0, 7):
        slow, fast = (kernel.send(cohort, *numbers(cohort), leaf, INT, round_) for kernel in (reference, cpu))
        assert np.array_equal(slow[0].index, fast[0].index)
        assert np.array_equal(slow[0].values, fast[0].values)
        assert slow[1] == fast[1] > 0


@pytest.mark.parametrize("kernel", [reference, cpu])
def test_the_expected_sum_is_what_users_meant(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many rounds, in which the same users mean the same small numbers."""
    cohort, leaf, rounds = people(), Leaf("items", ITEMS, WIDTH, 7, 1), 300
    weights, held = numbers(cohort, 0.3)
    exact = np.zeros((ITEMS, WIDTH))
    np.add.at(exact, cohort.items, weights[:, None] * held[cohort.owner, 0])

    def far() -> float:
        """In standard deviations; that of a word is at most a half."""
        total = np.zeros((ITEMS, WIDTH))
        for round_ in range(rounds):
            rows, _ = kernel.send(cohort, weights, held, leaf, INT, round_)
            total[rows.index] += rows.values
        most = 0.5 * np.sqrt(rounds * np.maximum(np.bincount(cohort.items, minlength=ITEMS), 1))
        return float((np.abs(total - rounds * exact) / most[:, None]).max())

    assert far() < 5
    if kernel is reference:  # the law can fail
        monkeypatch.setattr(draws, "shifts", lambda key, round_, items, width: np.zeros((len(items), width)))
        assert far() > 5


def test_the_server_knows_about_how_large_numbers_are() -> None:
    """After the count, and after each sum: the usual word is near `item_levels` / REACH, and few are cut."""
    method = SpectralMethod(Options(dim=4, spare=2, precision="float64"), ITEMS, USERS)
    server, users = method.init(0), people()
    for stage in (DEGREES, *[method.stages[-1]] * 4):
        broadcast = method.broadcast(server, stage)
        total, pending = method.local_update(users, stage, broadcast)
        if stage is not DEGREES:
            sent = len(users.items) * method.width
            assert pending.clipped < 0.1 * sent
            assert np.abs(total.leaves["items"].values).sum() > sent / 10
        server = method.apply(server, stage, total)


def ringed(spec: UploadSpec, parts: list[Upload]) -> Upload:
    """The sum modulo each row's ring, as an opened secure sum has it."""
    session = Session(os.urandom(16), spec.rings, spec.users, 3, 2)
    words = [ring.encode(spec.wrapped(part.to_ring(spec)), part.users, session.rings) for part in parts]
    total = [sum(each[1:], each[0]) for each in zip(*words, strict=True)]
    total = ring.unpack(ring.pack(total, session.parts).tobytes(), session.parts)
    return Upload.from_ring(ring.decode(total, session.rings, session.users)[0], spec, len(parts))


@pytest.mark.parametrize("sign", [-1, 1])
def test_rows_have_rings_of_their_own_in_which_no_sum_wraps(sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody sends the largest words to all of its items, of which some have as many people as the ring allows."""
    degrees = np.array([1, 18, 19, 60])
    leaf = Leaf("items", 4, WIDTH, 7, 1, most=degrees)
    spec = UploadSpec((leaf,), USERS)
    assert spec.rings == ((2 * WIDTH, 8), (2 * WIDTH, 10))
    has = np.arange(USERS)[:, None] < degrees
    parts = [
        Upload({"items": Rows(np.flatnonzero(mine), np.full((mine.sum(), WIDTH), sign * 7, INT))}, 1) for mine in has
    ]
    expected = np.repeat(sign * 7 * degrees[:, None], WIDTH, axis=1)
    assert np.array_equal(ringed(spec, parts).leaves["items"].values, expected)
    shorter = UploadSpec.bits_of
    monkeypatch.setattr(UploadSpec, "bits_of", lambda self, largest: max(shorter(self, largest) - 2, 8))
    assert not np.array_equal(ringed(spec, parts).leaves["items"].values, expected)


def test_records_from_before_short_words_keep_long_ones() -> None:
    """A new run has short ones; noise sets the step of its words."""
    assert Config().changed({"method": "spectral"}).model.item_levels == 7
    noisy = replace(SpectralMethod(Options(), ITEMS, USERS), noise=type(SpectralMethod.noise)(1.0, 1.0))
    assert noisy.levels == 0
