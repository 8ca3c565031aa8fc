"""NGCF by hand, and its products' gradients."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from fedgrec.centralized.graph import bipartite
from fedgrec.centralized.ngcf import NGCF, joined
from fedgrec.centralized.options import NGCFOptions
from fedgrec.errors import RunError
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
            "embeddings": np.array([[1], [2], [-3], [4]], np.float32),
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


def test_a_model_of_another_version_is_refused() -> None:
    """In an earlier version users and items had separate tables."""
    tensors = tiny("mean").tensors()
    E = tensors.pop("embeddings")
    with pytest.raises(RunError, match="embeddings: not in this model"):
        tiny("mean").load_tensors({**tensors, "users": E[:2], "items": E[2:]})


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
    assert model.loss(asked(nodes), None).item() == pytest.approx(expected, rel=1e-5)


# Triples in which a user appears twice, and an item as a positive in one and a negative in another.
NODES = np.array([[1, 2, 1, 7], [31, 35, 40, 35], [40, 41, 31, 33]])


def asked(nodes: Any, device: Any = None) -> Any:
    """The nodes of a batch, users first."""
    return torch.from_numpy(nodes.ravel()).to(device)


@pytest.mark.parametrize("some", [False, True])
def test_gradients_pass_through_the_product(some: bool) -> None:
    """For all rows, or for some rows, a few of them twice."""
    from fedgrec.centralized._torch import Operator

    graph = bipartite(ragged(), "mean", self_loops=True)
    A, rows = Operator(graph, torch.device("cpu")), NODES.ravel() if some else np.arange(len(graph))
    rng = np.random.default_rng(0)
    x, weights = (rng.normal(size=(n, 3)).astype(np.float32) for n in (len(graph), len(rows)))
    there = torch.tensor(x, requires_grad=True)
    product = torch.nn.functional.embedding(asked(rows), A(there))
    np.testing.assert_allclose(product.detach().numpy(), graph.product(x)[rows], rtol=1e-5, atol=1e-6)
    (product * torch.from_numpy(weights)).sum().backward()
    expected = graph.to_scipy(np.float64).toarray()[rows].T @ weights
    np.testing.assert_allclose(there.grad.numpy(), expected, rtol=1e-5, atol=1e-6)


def losses_with_gradients(model: NGCF) -> list[list[Any]]:
    """The loss, and one that computes every layer for all nodes, each with its gradients and where its draws end."""
    from fedgrec.centralized._torch import reseeded

    def full(rows: Any, noise: Any) -> Any:
        nodes = rows.view(NODES.shape)
        u, p, n = F = joined(model.levels(noise))[nodes]
        bpr = torch.nn.functional.softplus((u * (n - p)).sum(1)).mean()
        return bpr + model.options.l2 / 2 * F.square().sum() / nodes.shape[1]

    found = []
    for loss in (model.loss, full):
        noise = reseeded(torch.Generator(model.where), 0, 0)
        value = loss(asked(NODES, model.where), noise)
        gradients = torch.autograd.grad(value, list(model.learner.parameters.values()))
        found.append([value, *gradients, noise.get_state()])
    return found


@pytest.mark.parametrize("dropout", [0, 0.3])
@pytest.mark.parametrize("adjacency", ["mean", "symmetric"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_last_layer_for_the_batch_alone_changes_nothing(layers: int, adjacency: str, dropout: float) -> None:
    model = NGCF(NGCFOptions(layers=layers, dim=4, adjacency=adjacency, dropout=dropout, l2=0.1), ragged())
    for p in model.learner.parameters.values():
        p.data = p.data.double()
    model.operator.there, model.operator.back = (A.double() for A in (model.operator.there, model.operator.back))
    for ours, full in zip(*losses_with_gradients(model), strict=True):
        torch.testing.assert_close(ours, full, rtol=1e-12, atol=1e-14)


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    from fedgrec.centralized._torch import reseeded

    model = NGCF(NGCFOptions(layers=1, dim=64, dropout=0.3), ragged())
    noise = reseeded(torch.Generator(), 0, 0)
    plain, dropped = model.levels()[1], model.levels(noise)[1]
    share = (dropped == 0).float().mean().item()
    assert share == pytest.approx(0.3, abs=0.02)
    torch.testing.assert_close(dropped[dropped != 0], plain[dropped != 0] / 0.7)


def small(records: bool = True) -> NGCF:
    """Two full batches and a shorter one in an epoch."""
    model = NGCF(NGCFOptions(layers=2, dim=4, dropout=0.3, rate=0.01, batch=ragged().n_pairs * 2 // 5), ragged())
    model.learner.records = records
    return model


def trained(model: NGCF, epochs: int, since: Any = None) -> NGCF:
    if since is not None:
        model.load_state(since)
    for _ in range(epochs):
        model.epoch()
    return model


def addresses(model: NGCF) -> list[int]:
    kept = [each for about in model.learner.adam.state.values() for each in about.values()]
    return [
        each.data_ptr()
        for each in (*model.learner.parameters.values(), *kept, model.learner.batch, model.learner.total)
    ]


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[NGCF]:
    """The models whose recorded step was replayed. Here a recording is the step itself; tensors must stay in place."""
    from fedgrec.centralized import _torch

    done: list[NGCF] = []

    def capture(step: Any, noise: Any) -> Callable[[], None]:
        model = step.func.__self__
        assert noise is model.noise
        there = addresses(model)
        step()

        def replay() -> None:
            assert addresses(model) == there
            done.append(model)
            step()

        return replay

    monkeypatch.setattr(_torch, "capture", capture)
    return done


def same(one: NGCF, other: NGCF) -> None:
    for name, value in one.state().items():
        np.testing.assert_array_equal(other.state()[name], value, err_msg=name)


def test_recorded_steps_train_as_launched_ones_do(replays: list[NGCF]) -> None:
    launched, recorded = trained(small(records=False), 2), trained(small(), 2)
    assert replays == 2 * 2 * [recorded]
    same(launched, recorded)
    assert launched.epoch() == recorded.epoch()


@pytest.mark.usefixtures("replays")
def test_a_recording_survives_what_is_loaded() -> None:
    """Into a model without a recording, and into one that has trained differently since; with and without moments."""
    straight, half = trained(small(), 2), trained(small(), 1).state()
    same(straight, trained(small(), 1, since=half))
    used = trained(small(), 3)
    same(straight, trained(used, 1, since=half))
    same(straight, trained(used, 2, since={**small().tensors(), "epochs_done": np.array([0])}))


@pytest.mark.usefixtures("replays")
def test_a_recording_changes_nothing() -> None:
    from fedgrec.centralized._torch import recorded

    model = trained(small(records=False), 1)
    before, drawn, model.learner.batch = model.state(), model.noise.get_state(), asked(NODES)
    recorded(partial(model._launch, model.learner.batch), model.learner.state(), model.noise)
    for name, value in before.items():
        np.testing.assert_array_equal(model.state()[name], value, err_msg=name)
    assert torch.equal(model.noise.get_state(), drawn)
