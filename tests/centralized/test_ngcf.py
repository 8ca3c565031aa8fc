"""NGCF by hand, and its products' gradients."""

import numpy as np
import pytest

from fedgrec.centralized.graph import bipartite
from fedgrec.centralized.ngcf import NGCF
from fedgrec.centralized.options import NGCFOptions
from tests.centralized.worlds import pairs, ragged

torch = pytest.importorskip("torch")

# u0 likes t0; u1 likes t0 and t1.
TINY = pairs([0, 1, 1], [0, 0, 1], 2, 2)


def leaky(x: float) -> float:
    return x if x > 0 else 0.2 * x


def tiny(adjacency: str) -> NGCF:
    model = NGCF(NGCFOptions(layers=1, dim=1, adjacency=adjacency), TINY)
    one = np.ones((1, 1), np.float32)
    model.load_tensors(
        {
            "users": np.array([[1], [2]], np.float32),
            "items": np.array([[-3], [4]], np.float32),
            "W1.0": 0.5 * one,
            "b1.0": 0.25 * one,
            "W2.0": -2 * one,
            "b2.0": 1 * one,
        }
    )
    return model


def test_a_layer_by_hand() -> None:
    """u0 sees (1 − 3)/2 = −1 of itself and t0; u1 sees (2 − 3 + 4)/3 = 1 of itself, t0 and t1."""
    level = tiny("mean").levels()[1].detach().numpy()[:2, 0]
    u0 = leaky(-1 * 0.5 + 0.25) + leaky(-1 * 1 * -2 + 1)
    u1 = leaky(1 * 0.5 + 0.25) + leaky(1 * 2 * -2 + 1)
    assert level == pytest.approx([u0, u1], rel=1e-6)


def test_the_papers_adjacency_by_hand() -> None:
    """u0 sees −3/√2 of t0, and itself in the sum alone."""
    near = -3 / 2**0.5
    u0 = leaky((near + 1) * 0.5 + 0.25) + leaky(near * 1 * -2 + 1)
    assert tiny("symmetric").levels()[1][0, 0].item() == pytest.approx(u0, rel=1e-6)


def test_layers_are_normalised_and_joined() -> None:
    model = NGCF(NGCFOptions(layers=2, dim=4), ragged())
    final, levels = model.final().numpy(), [level.detach().numpy() for level in model.levels()]
    assert final.shape[1] == 3 * 4
    np.testing.assert_array_equal(final[:, :4], levels[0])
    np.testing.assert_allclose(final[:, 8:], levels[2] / np.linalg.norm(levels[2], axis=1, keepdims=True), rtol=1e-5)


def test_the_loss_is_bpr_with_a_penalty() -> None:
    data = ragged()
    model = NGCF(NGCFOptions(layers=2, dim=4, l2=0.1), data)
    nodes = np.array([[1, 2], [31, 35], [40, 41]])
    F = model.final().numpy().astype(np.float64)
    u, p, n = F[nodes]
    expected = np.log1p(np.exp((u * (n - p)).sum(1))).mean() + 0.1 / 2 * (F[nodes] ** 2).sum() / 2
    assert model.loss(torch.from_numpy(nodes), None).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_pass_through_the_product(fused: bool) -> None:
    if fused:
        pytest.importorskip("triton")
    from fedgrec.centralized._torch import Operator

    graph = bipartite(ragged(), "mean", self_loops=True)
    x = torch.randn(len(graph), 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weights = torch.linspace(-1, 1, len(graph))[:, None]
    product = Operator(graph, torch.device("cpu"), fused)(x)
    np.testing.assert_allclose(product.detach().numpy(), graph.product(x.detach().numpy()), rtol=1e-5, atol=1e-6)
    (product * weights).sum().backward()
    expected = graph.to_scipy(np.float64).toarray().T @ np.broadcast_to(weights.numpy(), x.shape)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("dim", [5, 16])
def test_a_fused_layer_equals_the_plain_one_there_and_back(symmetric: bool, dropout: bool, dim: int) -> None:
    """Of the GPU; without one it runs in Triton's interpreter. The last program's words are not all there."""
    pytest.importorskip("triton")
    from fedgrec.centralized import _ngcf_triton
    from fedgrec.centralized.ngcf import mixed
    from fedgrec.devices import gpu_is_there

    rng, device = np.random.default_rng(0), "cuda" if gpu_is_there() else "cpu"
    shapes = [(77, dim), (77, dim), (dim, dim), (1, dim), (dim, dim), (1, dim)]
    values = [torch.tensor(rng.normal(size=shape), dtype=torch.float32, device=device) for shape in shapes]
    kept = torch.tensor((rng.random((77, dim)) < 0.7) / 0.7, dtype=torch.float32, device=device) if dropout else None
    weights = torch.tensor(rng.normal(size=(77, dim)), dtype=torch.float32, device=device)
    found = []
    for layer in (mixed, _ngcf_triton.Mixed.apply):
        given = [value.clone().requires_grad_() for value in values]
        out = layer(*given, kept, 0.2, symmetric)
        (out * weights).sum().backward()
        found.append([out.detach(), *(each.grad for each in given)])
    for plain, fused in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    from fedgrec.centralized._torch import random

    model = NGCF(NGCFOptions(layers=1, dim=64, dropout=0.3), ragged())
    noise = random(0, 0, torch.device("cpu"))
    plain, dropped = model.levels()[1], model.levels(noise)[1]
    share = (dropped == 0).float().mean().item()
    assert share == pytest.approx(0.3, abs=0.02)
    torch.testing.assert_close(dropped[dropped != 0], plain[dropped != 0] / 0.7)
