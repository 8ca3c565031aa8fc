"""Spectral: sums lead to the singular vectors of the shifted graph, and scores are those of the formula."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedgrec.cable.core import Cohort, ServerState
from fedgrec.config.configuration import Config
from fedgrec.kernels import cpu, reference
from fedgrec.methods.fedgrec import DEGREES, TRAIN
from fedgrec.methods.spectral import Options, SpectralMethod

M, N, RANK = 40, 25, 3
RNG = np.random.default_rng(0)
GROUPS = np.arange(M)[:, None] % 3 == np.arange(N)[None, :] % 3
Y = (RNG.random((M, N)) < np.where(GROUPS, 0.7, 0.08)) | np.eye(M, N, dtype=bool)
SHIFT = 0.5
WEIGHTS = Y / np.sqrt(np.outer(Y.sum(1) + SHIFT * Y.sum() / M, Y.sum(0) + SHIFT * Y.sum() / N))  # R̃


def method_of(kernel: Any = reference, **changes: Any) -> SpectralMethod:
    options = {
        "dim": RANK,
        "spare": 4,
        "breadth": 1,
        "longest": 1,
        "precision": "float64",
        "item_levels": 0,
        "download": "float32",
    }
    return SpectralMethod(Options(**options | changes), N, M, kernel)


def everybody(method: SpectralMethod) -> Cohort:
    indptr = np.concatenate([[0], np.cumsum(Y.sum(1))])
    return method.init_users(np.arange(M, dtype=np.uint64), indptr, np.nonzero(Y)[1])


def trained(method: SpectralMethod, rounds: int, lost: float = 0.0) -> ServerState:
    server, users, rng = method.init(0), everybody(method), np.random.default_rng(1)
    for stage in (DEGREES, *[TRAIN] * rounds):
        there = np.flatnonzero(rng.random(M) >= (lost if stage is TRAIN else 0))
        total, _ = method.local_update(users.take(there), stage, method.broadcast(server, stage))
        server = method.apply(server, stage, total)
    return server


def angle(server: ServerState, count: int = RANK) -> float:
    """How far the leading directions are from the right singular vectors of R̃: 0 to 1."""
    wanted = np.linalg.svd(WEIGHTS)[2][:count].T
    return float(1 - np.linalg.svd(wanted.T @ server.items[0][:, :count])[1].min())


@pytest.mark.parametrize("kernel", [reference, cpu])
def test_rounds_lead_to_the_singular_vectors(kernel: Any) -> None:
    angles = [angle(trained(method_of(kernel), rounds)) for rounds in (1, 4, 12)]
    assert angles[0] > angles[1] > angles[2]
    assert angles[2] < 1e-6
    columns = trained(method_of(kernel), 4).items[0]
    np.testing.assert_allclose(columns.T @ columns, np.eye(columns.shape[1]), atol=1e-9)


def test_no_word_of_32_bits_is_ever_clipped() -> None:
    """Columns have length 1, so what a user sends is at most 1."""
    method = method_of()
    server = trained(method, 2)
    for table in (server.items, np.eye(N)[None, :, : method.width]):
        server.items = np.ascontiguousarray(table)
        _, pending = method.local_update(everybody(method), TRAIN, method.broadcast(server, TRAIN))
        assert pending.clipped == 0


def test_scores_are_those_of_the_formula_also_for_strangers() -> None:
    method = method_of(exponent=0.3)
    server = trained(method, 3)
    V, degrees, users = server.items[0][:, :RANK], Y.sum(0) + SHIFT * Y.sum() / N, everybody(method)
    V = V * np.sqrt(server.more["trust"][:RANK])
    expected = (Y / degrees**0.3) @ V @ (V * degrees[:, None] ** 0.3).T
    np.testing.assert_allclose(method.scores(server, users), expected, atol=1e-12)
    stranger = method.strangers(np.array([0, len(users.items_of(7))]), users.items_of(7))
    np.testing.assert_allclose(method.scores(server, stranger)[0], expected[7], atol=1e-12)


def test_who_is_missing_is_missing_from_that_round_alone() -> None:
    """With a fifth of the users lost in each round the directions are nearly those of all."""
    assert angle(trained(method_of(), 6, lost=0.2)) < 0.05
    assert angle(trained(method_of(), 6, lost=0.2)) > 1e-6


def test_directions_that_are_not_there_are_zeros() -> None:
    Z = np.zeros((10, 4))
    Z[:, 1] = 3.0
    found, shares = SpectralMethod.directions(Z)
    assert shares[0] == pytest.approx(90)
    np.testing.assert_allclose(np.abs(found[:, 0]), 1 / np.sqrt(10))
    assert not found[:, 1:].any()
    assert not SpectralMethod.directions(np.zeros((5, 2)))[0].any()


def test_few_people_have_few_directions() -> None:
    widths = [SpectralMethod(Options(), 10**5, users).width for users in (10, 1500, 4000, 30_000, 10**6)]
    assert widths == [5 + 16, 167 + 16, 332 + 16, 512 + 16, 512 + 16]


def test_directions_that_a_random_graph_has_too_count_little() -> None:
    """Three groups stand out of chance. Without groups nothing does but the first direction: how much people click."""
    method = method_of(chance=1)
    people, items = 1500, 900
    rng, wide = np.random.default_rng(2), replace(method, n_items=items, n_users=people)
    alike = np.arange(people)[:, None] % 3 == np.arange(items) % 3
    for chances, trusted in ((np.where(alike, 0.1, 0.01), 3), (0.04, 1)):
        clicks = rng.random((people, items)) < chances
        degrees = clicks.sum(axis=0)
        weights = clicks / np.sqrt(
            np.outer(clicks.sum(1) + SHIFT * clicks.sum() / people, degrees + SHIFT * clicks.sum() / items)
        )
        strengths = np.linalg.svd(weights, compute_uv=False)
        assert strengths[trusted] == pytest.approx(wide.by_chance(degrees), rel=0.1)
        trust = wide.trust(strengths**4, wide.by_chance(degrees))
        assert trust[trusted - 1] > 0.9
        assert trust[trusted] < 0.6


def test_mutants_miss_the_singular_vectors() -> None:
    class Unscaled(SpectralMethod):  # the server forgets 1/√|N_t|
        def apply(self, server: ServerState, stage: Any, total: Any, level: int = 0) -> ServerState:
            degrees, server.degrees = server.degrees, np.ones_like(server.degrees) if stage is TRAIN else server.degrees
            server = super().apply(server, stage, total, level)
            server.degrees = degrees if stage is TRAIN else server.degrees
            return server

    method = method_of()
    mutant = Unscaled(method.options, N, M)
    assert angle(trained(method, 12)) < 1e-6
    assert angle(trained(mutant, 12)) > 1e-3
    coarse = replace(method.options, precision="float32")
    assert angle(trained(SpectralMethod(coarse, N, M), 12)) < 1e-4


def test_under_little_noise_there_are_more_directions() -> None:
    """As many as anybody asked for, if somebody did."""
    dims = [Config().changed({"method": "spectral", "dp_epsilon": epsilon}).model.dim for epsilon in (1, 8, 16, 32)]
    assert dims == [32, 32, 56, 97]
    assert Config().changed({"method": "spectral", "dp_epsilon": 32, "dim": 20}).model.dim == 20
