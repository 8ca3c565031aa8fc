"""The closed form is LightGCN: by hand, against autograd, and in both of its engines."""

from dataclasses import replace
from typing import Any

import numba
import numpy as np
import pytest

from fedgrec.centralized.graph import Graph, bipartite
from fedgrec.centralized.lightgcn import CpuEngine, LightGCN
from fedgrec.centralized.options import LightGCNOptions
from tests.centralized.worlds import pairs, ragged

DATA = ragged()
LAYERS = [0, 1, 2, 3]


def dense(graph: Graph) -> Any:
    return graph.to_scipy(np.float64).toarray()


def batch(count: int = 40, seed: int = 0, data: Any = DATA) -> Any:
    """Triples of nodes in which rows repeat, also as a positive in one and a negative in another."""
    rng = np.random.default_rng(seed)
    nodes = rng.integers(0, 10, (3, count))
    nodes[1:] += data.n_users
    return nodes


def start(dtype: type = np.float32, dim: int = 7, data: Any = DATA) -> Any:
    return np.random.default_rng(3).normal(0, 0.5, (data.n_users + data.n_items, dim)).astype(dtype)


def test_propagation_by_hand() -> None:
    """u0 likes t0; u1 likes t0, t1; u2 likes t1, t2. So |N_t| = 2, 2, 1 and |N_u| = 1, 2, 2."""
    train = pairs([0, 1, 1, 2, 2], [0, 0, 1, 1, 2], 3, 3)
    model = LightGCN(LightGCNOptions(layers=2, dim=1), train)
    model.load_tensors({"embeddings": np.array([[1], [2], [3], [1], [2], [3]], np.float32)})
    root = 0.5**0.5
    u1 = np.array([1 * root, 1 / 2 + 2 / 2, 2 / 2 + 3 * root])
    t1 = np.array([1 * root + 2 / 2, 2 / 2 + 3 / 2, 3 * root])
    u2 = np.array([t1[0] * root, t1[0] / 2 + t1[1] / 2, t1[1] / 2 + t1[2] * root])
    t2 = np.array([u1[0] * root + u1[1] / 2, u1[1] / 2 + u1[2] / 2, u1[2] * root])
    users, items = model.embeddings()
    np.testing.assert_allclose(users[:, 0], (np.array([1, 2, 3]) + u1 + u2) / 3, rtol=1e-6)
    np.testing.assert_allclose(items[:, 0], (np.array([1, 2, 3]) + t1 + t2) / 3, rtol=1e-6)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("scaling", ["symmetric", "mean"])
def test_the_operator_equals_a_dense_matrix(scaling: Any, loops: bool) -> None:
    graph = bipartite(DATA, scaling, loops)
    A = np.zeros((len(graph), len(graph)))
    A[DATA.users(), DATA.n_users + DATA.items] = A[DATA.n_users + DATA.items, DATA.users()] = 1
    A += np.eye(len(A)) if loops else 0
    inverse = 1 / np.maximum(A.sum(1), 1)
    expected = A * inverse[:, None] if scaling == "mean" else A * np.sqrt(inverse[:, None] * inverse)
    x = start()
    np.testing.assert_allclose(dense(graph), expected, rtol=1e-6)
    np.testing.assert_allclose(graph.product(x), expected @ x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(graph.transposed.product(x), expected.T @ x, rtol=1e-5, atol=1e-6)


def autograd(graph: Graph, E: Any, nodes: Any, o: LightGCNOptions) -> tuple[float, Any]:
    """The loss as the paper writes it, differentiated by PyTorch."""
    torch = pytest.importorskip("torch")
    x, A = torch.tensor(E, requires_grad=True), torch.tensor(dense(graph))
    F = sum(torch.linalg.matrix_power(A, k) @ x for k in range(o.layers + 1)) / (o.layers + 1)
    u, p, n = F[nodes]
    if o.loss == "bpr":
        loss = -torch.log(torch.sigmoid((u * p).sum(1) - (u * n).sum(1))).mean()
    else:
        u, p, n = (x / x.norm(dim=1, keepdim=True) for x in (u, p, n))
        others = [[p[j] for j in range(len(p)) if j != b and o.contrast != "uniform"] for b in range(len(p))]
        drawn = [torch.stack(more + ([] if o.contrast == "batch" else list(n))) for more in others]
        against = torch.stack([torch.logsumexp(rows @ u[b] / o.temperature, 0) for b, rows in enumerate(drawn)])
        loss = (o.negative_weight * against - (u * p).sum(1) / o.temperature).mean()
    loss = loss + o.l2 / 2 * x[nodes].norm() ** 2 / nodes.shape[1]
    loss.backward()
    return float(loss.detach()), x.grad.numpy()


def closed_form(graph: Graph, E: Any, nodes: Any, o: LightGCNOptions) -> tuple[float, Any]:
    torch = pytest.importorskip("torch")
    from fedgrec.centralized._torch import LightGCNEngine

    loss, gradient = LightGCNEngine(graph, E, o).gradient(torch.from_numpy(nodes))
    return float(loss), gradient.numpy()


@pytest.mark.parametrize("layers", LAYERS)
def test_closed_form_equals_autograd(layers: int) -> None:
    o, graph, E = LightGCNOptions(layers=layers, l2=0.3), bipartite(DATA), start(np.float64)
    loss, gradient = closed_form(graph, E, batch(), o)
    expected_loss, expected = autograd(graph, E, batch(), o)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("contrast", ["both", "uniform", "batch"])
@pytest.mark.parametrize("layers", [0, 2])
def test_softmax_equals_autograd(layers: int, contrast: str) -> None:
    o = LightGCNOptions(layers=layers, l2=0.3, loss="softmax", temperature=0.3, negative_weight=0.8, contrast=contrast)
    graph, E = bipartite(DATA), start(np.float64)
    loss, gradient = closed_form(graph, E, batch(), o)
    expected_loss, expected = autograd(graph, E, batch(), o)
    assert loss == pytest.approx(expected_loss, rel=1e-10)
    np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-12)


def test_mutation_a_positive_among_its_own_negatives_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedgrec.centralized import softmax

    monkeypatch.setattr(softmax, "NEVER", 0.0)
    with pytest.raises(AssertionError):
        test_softmax_equals_autograd(2, "both")


def test_cosines_rank_where_they_are_asked_for() -> None:
    inner, cosine = (LightGCN(LightGCNOptions(layers=1, dim=4, ranking=name), DATA) for name in ("inner", "cosine"))
    (users, items), scores = inner.embeddings(), cosine.scores(np.arange(DATA.n_users))
    cosines = users @ items.T / np.linalg.norm(users, axis=1)[:, None] / np.linalg.norm(items, axis=1)
    np.testing.assert_allclose(scores, cosines, atol=1e-6)
    a, b = cosine.embeddings()
    np.testing.assert_allclose(a @ b.T, scores, atol=1e-6)


def test_mutation_an_operator_that_is_not_symmetric_is_noticed() -> None:
    o, graph, E = LightGCNOptions(layers=2), bipartite(DATA, "mean"), start(np.float64)
    gradients = closed_form(graph, E, batch(), o)[1], autograd(graph, E, batch(), o)[1]
    assert not np.allclose(*gradients, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("loss", ["bpr", "softmax"])
@pytest.mark.parametrize("layers", LAYERS)
def test_the_compiled_engine_equals_its_twin(layers: int, loss: str) -> None:
    torch = pytest.importorskip("torch")
    from fedgrec.centralized._torch import LightGCNEngine

    o, graph, E = LightGCNOptions(layers=layers, l2=0.3, rate=0.01, loss=loss), bipartite(DATA), start()
    ours, twin = CpuEngine(graph, E.copy(), o), LightGCNEngine(graph, E, o)
    for seed in range(4):
        loss = ours.step(batch(seed=seed))
        assert loss == pytest.approx(float(twin.step(torch.from_numpy(batch(seed=seed)))), rel=1e-5)
    for name, value in {**twin.tensors(), **twin.moments()}.items():
        np.testing.assert_allclose({**ours.tensors(), **ours.moments()}[name], value, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(ours.final(), twin.final().numpy(), rtol=1e-3, atol=1e-6)


def test_states_move_between_the_engines() -> None:
    pytest.importorskip("torch")
    from fedgrec.centralized._torch import LightGCNEngine

    o, graph = LightGCNOptions(layers=1, rate=0.01, batch=16), bipartite(DATA)
    ours, twin = CpuEngine(graph, start(), o), LightGCNEngine(graph, start(), o)
    ours.epoch(batch())
    twin.load({**ours.tensors(), **ours.moments()})
    assert ours.epoch(batch(seed=1)) == pytest.approx(float(twin.epoch(batch(seed=1))), rel=1e-5)
    np.testing.assert_allclose(ours.E, twin.tensors()["embeddings"], rtol=1e-3, atol=1e-6)


def test_a_recorded_epoch_trains_as_a_launched_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's way. Here a recording is the step itself. Two full batches and a shorter one in an epoch."""
    pytest.importorskip("torch")
    from fedgrec.centralized import _torch

    replayed = []
    monkeypatch.setattr(_torch, "capture", lambda step, noise: step() or (lambda: replayed.append(step())))
    o, graph = LightGCNOptions(layers=2, l2=0.3, rate=0.01, batch=16), bipartite(DATA)
    launched, recorded = (_torch.LightGCNEngine(graph, start(), o) for _ in range(2))
    recorded.records = True
    for seed in range(2):
        assert float(launched.epoch(batch(40, seed=seed))) == float(recorded.epoch(batch(40, seed=seed)))
    assert len(replayed) == 4
    for name, value in {**launched.tensors(), **launched.moments()}.items():
        np.testing.assert_array_equal({**recorded.tensors(), **recorded.moments()}[name], value)


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one core")
def test_bits_do_not_depend_on_threads() -> None:
    found = []
    threads = numba.get_num_threads()
    for count in (1, 2):
        numba.set_num_threads(count)
        engine = CpuEngine(bipartite(DATA), start(), LightGCNOptions())
        engine.step(batch())
        found.append(engine.E)
    numba.set_num_threads(threads)
    np.testing.assert_array_equal(*found)


def test_one_step_by_hand() -> None:
    """K = 0, one triple, Adam's first step: every entry moves by the rate against its gradient's sign."""
    train = pairs([0, 0], [0, 1], 1, 3)
    engine = CpuEngine(
        bipartite(train), np.array([[1.0], [0.5], [0], [0.2]], np.float32), replace(LightGCNOptions(), layers=0, l2=0)
    )
    loss = engine.step(np.array([[0], [1], [3]]))
    assert loss == pytest.approx(np.log1p(np.exp(0.2 - 0.5)), rel=1e-6)
    np.testing.assert_allclose(engine.E[:, 0], [1.001, 0.501, 0, 0.199], atol=1e-6)
