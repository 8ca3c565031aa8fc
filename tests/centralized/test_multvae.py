"""Mult-VAE's loss, written out directly."""

import numpy as np
import pytest

from fedgrec.centralized.multvae import MultVAE
from fedgrec.centralized.options import MultVAEOptions
from tests.centralized.worlds import ragged

torch = pytest.importorskip("torch")
DATA = ragged()
OPTIONS = MultVAEOptions(hidden=6, latent=3, dropout=0.5, beta=0.2, anneal_steps=100)


def forward(w, x, epsilon=0.0):  # type: ignore[no-untyped-def]
    """(log π, μ, log σ²) for input rows x, in float64."""
    w = {name: value.astype(np.float64) for name, value in w.items()}
    hidden = np.tanh(x @ w["W1"] + w["b1"]) @ w["W2"] + w["b2"]
    mu, log_variance = hidden[:, :3], hidden[:, 3:]
    z = mu + np.exp(log_variance / 2) * epsilon
    logits = np.tanh(z @ w["W3"] + w["b3"]) @ w["W4"] + w["b4"]
    return logits - np.log(np.exp(logits).sum(1, keepdims=True)), mu, log_variance


def rows(users: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return DATA.to_scipy().toarray()[users].astype(np.float64)


def test_the_loss_equals_its_formula() -> None:
    model, users = MultVAE(OPTIONS, DATA), np.array([4, 1, 9])
    x = rows(users)
    log_pi, mu, log_variance = forward(model.tensors(), x / np.linalg.norm(x, axis=1, keepdims=True))
    kl = 0.5 * (np.exp(log_variance) + mu**2 - 1 - log_variance).sum(1)
    expected = (-(x * log_pi).sum(1) + 0.15 * kl).mean()
    assert model.loss(users, 0.15).item() == pytest.approx(expected, rel=1e-5)


def test_scores_rank_as_the_likelihood_does() -> None:
    model, users = MultVAE(OPTIONS, DATA), np.array([4, 1, 9])
    x = rows(users)
    log_pi, _, _ = forward(model.tensors(), x / np.linalg.norm(x, axis=1, keepdims=True))
    scores = model.scores(users)
    np.testing.assert_allclose(scores - scores[:, :1], log_pi - log_pi[:, :1], rtol=1e-4, atol=1e-5)


def test_noise_drops_inputs_and_spreads_z() -> None:
    """The expected input is unchanged: over many draws the hidden sums average to the plain ones."""
    from fedgrec.centralized._torch import reseeded

    model, users = MultVAE(OPTIONS, DATA), np.repeat(4, 4000)
    _, items, counts = model._pairs(users)
    noise = reseeded(torch.Generator(), 0, 0)
    mu, _ = model.encode(items, counts, noise)
    plain, _ = model.encode(items, counts, None)
    assert mu.std(0).min() > 0
    torch.testing.assert_close(mu.mean(0), plain[0], atol=0.02, rtol=0)
    losses = {model.loss(users[:1], 0.1, noise).item() for _ in range(3)}
    assert len(losses) == 3


def test_the_kl_weight_rises_to_beta() -> None:
    model = MultVAE(OPTIONS, DATA)
    assert [model.kl_weight(step) for step in (0, 50, 100, 1000)] == pytest.approx([0, 0.1, 0.2, 0.2])
