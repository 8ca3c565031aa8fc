"""What one user adds to a sum under noise, as whole numbers, never exceeds the norm that the noise was planned for."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.cable.core import Cohort, Leaf, Rows, ServerState, Upload, UploadSpec, fitting
from fedgrec.cable.noise import Multipliers
from fedgrec.config.options import FedGRecOptions
from fedgrec.errors import FedgrecError
from fedgrec.kernels import cpu, reference
from fedgrec.methods import noisy, spectral
from fedgrec.methods.contract import Method
from fedgrec.methods.fedgrec import STANDING, FedGRecMethod

LITTLE = Multipliers(0.1, 0.1)  # so that some items are open in a small world
KERNELS = {"reference": reference, "cpu": cpu}


def norms(upload: Upload, spec: UploadSpec) -> list[tuple[Leaf, float]]:
    """The norm of each leaf, in whole steps."""
    found = [(leaf, upload.leaves[leaf.name].values.astype(np.float64)) for leaf in spec.leaves]
    return [(leaf, math.sqrt((values**2).sum())) for leaf, values in found]


def excess(method: Any, seed: int, rounds: int = 3) -> float:
    """How much longer the longest upload of one user is than its norm, over a warm-up and some rounds."""
    rng = np.random.default_rng(seed)
    liked = rng.random((method.n_users, method.n_items)) < rng.choice([0.2, 0.6])
    indptr, items = np.concatenate([[0], np.cumsum(liked.sum(1))]), np.nonzero(liked)[1].astype(np.int32)
    users: Cohort = method.init_users(rng.integers(0, 2**64, method.n_users, dtype=np.uint64), indptr, items)
    server: ServerState = method.init(seed)
    worst, everybody = -math.inf, np.arange(method.n_users)
    for level, stage in enumerate([*method.stages[:-1], *(method.training(r) for r in range(rounds))]):
        broadcast = method.broadcast(server, stage, level=level if stage.everyone else 0)
        for user in everybody:
            upload, _ = method.local_update(users.take(np.array([user])), stage, broadcast)
            worst = max(worst, *(found - leaf.norm for leaf, found in norms(upload, method.spec(stage))))
        total, pending = method.local_update(users, stage, broadcast)
        server = method.apply(server, stage, total, level)
        method.commit(users, everybody, pending)
    return worst


def fedgrec(kernel: Any = reference, n_users: int = 6, **options: Any) -> FedGRecMethod:
    chosen = {"dim": 5, "negatives": 6, "latents_every": 2, "count_items": 3} | options
    return FedGRecMethod(FedGRecOptions(**chosen), 12, n_users, kernel, noise=LITTLE)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), norm=st.sampled_from([0.0, 1e-3, 0.05]), dim=st.sampled_from([1, 4]))
def test_spectral_keeps_to_its_norm(seed: int, norm: float, dim: int) -> None:
    options = spectral.Options(dim=dim, spare=2, norm=norm, count_items=3)
    assert excess(spectral.SpectralMethod(options, 12, 6, noise=LITTLE), seed) <= 0


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kernel=st.sampled_from(list(KERNELS)),
    layers=st.integers(0, 2),
    norms_=st.sampled_from([(15.0, 1.0), (0.01, 0.02), (3.0, 0.3)]),
    more=st.sampled_from([{}, {"loss": "bpr", "similarity": "inner"}, {"feedback": 0.5}, {"local_steps": 3}]),
)
def test_fedgrec_keeps_to_its_norms(
    seed: int, kernel: str, layers: int, norms_: tuple[float, float], more: Any
) -> None:
    method = fedgrec(KERNELS[kernel], layers=layers, item_norm=norms_[0], latent_norm=norms_[1], **more)
    assert excess(method, seed) <= 0


def test_kernels_scale_alike() -> None:
    """The fast kernel sends what the readable one sends, up to the last rounding."""
    found = []
    for kernel in (reference, cpu):
        method = fedgrec(kernel, item_norm=0.5)
        rng = np.random.default_rng(3)
        liked = rng.random((6, 12)) < 0.4
        users = method.init_users(
            rng.integers(0, 2**64, 6, dtype=np.uint64),
            np.concatenate([[0], np.cumsum(liked.sum(1))]),
            np.nonzero(liked)[1].astype(np.int32),
        )
        stage, server = method.training(0), method.init(0)
        server.degrees[:] = liked.sum(0)
        rows = method.local_update(users, stage, method.broadcast(server, stage))[0].leaves["items"]
        whole = np.zeros((12, 5), np.int64)
        whole[rows.index] = rows.values
        found.append(whole)
    assert np.abs(found[0]).max() > 1000
    assert np.abs(found[0] - found[1]).max() <= 2


def test_what_a_user_holds_in_the_latents_is_what_it_sent() -> None:
    """The law of latents under a norm: the server's latents are the rounded contributions of `sent`."""
    method = fedgrec(n_users=4, latent_norm=0.05, count_items=30)
    users = method.init_users(np.arange(4, dtype=np.uint64), np.array([0, 3, 5, 9, 12]), np.arange(12, dtype=np.int32))
    server = method.init(0)
    for level, stage in enumerate(method.stages[:-1]):
        total, pending = method.local_update(users, stage, method.broadcast(server, stage, level=level))
        server = method.apply(server, stage, total, level)
        method.commit(users, np.arange(4), pending)
    assert STANDING in server.kept
    _, push = method.edge_weights(users, server.degrees)
    for k in range(2):
        held = np.zeros((12, 5))
        held[users.items] = np.rint(push[:, None] * users.state.sent[users.owner, k] / method.latents.step)
        np.testing.assert_array_equal(server.kept[STANDING][k], held)
    assert np.abs(users.state.sent[:, 0]).max() < 0.5 * np.abs(users.state.embeddings[:, 0]).max()


def test_a_server_that_lies_about_degrees_gets_nothing() -> None:
    """With other degrees the latents that a user sent weigh more, and taking them back would exceed the norm."""
    method = fedgrec(n_users=4, latent_norm=0.05, count_items=30)
    users = method.init_users(np.arange(4, dtype=np.uint64), np.arange(0, 49, 12), np.tile(np.arange(12), 4))
    server, stage = method.init(0), method.training(1)
    for level, warm_up in enumerate(method.stages[:-1]):
        total, pending = method.local_update(users, warm_up, method.broadcast(server, warm_up, level=level))
        server = method.apply(server, warm_up, total, level)
        method.commit(users, np.arange(4), pending)
    assert not stage.lean
    method.local_update(users, stage, method.broadcast(server, stage))
    server.degrees[:] = 1
    with pytest.raises(FedgrecError, match="other degrees"):
        method.local_update(users, stage, method.broadcast(server, stage))


# ------------------------------------------------------------------------------------------- open items


def test_closed_items_are_neither_sent_nor_recommended() -> None:
    method = spectral.SpectralMethod(
        spectral.Options(dim=3, spare=1, exponent=0.5), 10, 40, noise=Multipliers(0.3, 0.1)
    )
    rng = np.random.default_rng(0)
    liked = rng.random((40, 10)) < np.where(np.arange(10) < 6, 0.7, 0.04)
    users = method.init_users(
        np.arange(40, dtype=np.uint64), np.concatenate([[0], np.cumsum(liked.sum(1))]), np.nonzero(liked)[1]
    )
    server = method.init(0)
    for stage in method.stages:
        total, _ = method.local_update(users, stage, method.broadcast(server, stage))
        dense = Upload.from_ring(total.to_ring(method.spec(stage)) + 1, method.spec(stage), 40)  # noise everywhere
        server = method.apply(server, stage, dense)
    is_open = server.more[noisy.OPEN] > 0
    assert is_open[:6].all()
    assert not is_open[6:].any()
    assert total.leaves["items"].index.max() < 6
    assert not server.items[0, 6:].any()
    scores = method.scores(server, users)
    assert scores[:, :6].min() > scores[:, 6:].max()


def test_one_item_is_open_however_large_the_noise_is() -> None:
    server = spectral.make(spectral.Options(dim=2, spare=0), 4, 9).init(0)
    noisy.take_counts(
        server, Rows(np.arange(4), np.array([[-5], [-2], [-9], [-3]])), Leaf("degrees", 4, 1, 1, 1, 5, 1e6)
    )
    assert server.more[noisy.OPEN].tolist() == [0, 1, 0, 0]
    assert server.degrees.tolist() == [0, 1, 0, 0]


# -------------------------------------------------------------------------------------------- mutations


def too_long(lengths: Any, words: Any, norm: float) -> Any:
    """Without room for what rounding adds."""
    return np.minimum(1.0, norm / np.maximum(lengths, 1e-300))


def none(lengths: Any, words: Any, norm: float) -> Any:
    return fitting(0 * lengths, words, 1e300)


@pytest.mark.parametrize("wrong", [too_long, none])
@pytest.mark.parametrize("where", [noisy, reference])
def test_a_clip_that_forgets_rounding_or_is_missing_is_noticed(wrong: Any, where: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(where, "fitting", wrong)
    method: Method = fedgrec(item_norm=0.01, latent_norm=0.02, latents_every=9 if where is noisy else 2)
    assert max(excess(method, seed) for seed in range(3)) > 0


def test_counting_all_items_is_noticed(monkeypatch: Any) -> None:
    right = noisy.counted
    monkeypatch.setattr(noisy, "counted", lambda cohort, most: right(cohort, most + 1))
    method = spectral.SpectralMethod(spectral.Options(dim=2, count_items=3), 12, 6, noise=LITTLE)
    assert excess(method, 1, rounds=0) > 0


def test_without_noise_nothing_is_bounded() -> None:
    """The spec of a method without noise has neither norms nor noise, and nobody is told which items are open."""
    for method in (replace(fedgrec(), noise=Multipliers()), spectral.make(spectral.Options(), 12, 6)):
        server = method.init(0)
        for stage in method.stages:
            spec = method.spec(stage)
            assert not spec.noisy
            assert not any(leaf.norm for leaf in spec.leaves)
            assert noisy.OPEN not in method.broadcast(server, stage).more
