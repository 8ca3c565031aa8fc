"""The systems without training: popularity, Turbo-CF, EASE and ItemKNN."""

import numpy as np
import pytest

from fedgrec import data
from fedgrec.centralized import evaluate_model, make, untrained
from fedgrec.errors import ConfigError, DataError
from fedgrec.models.ranking import Judging
from tests.centralized.worlds import pairs, ragged


def test_popularity_by_hand() -> None:
    """Items have 3, 1, 2, 0 users."""
    train = pairs([0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 2, 2], 3, 4)
    model = make("popularity", train)
    assert model.scores(np.array([0, 2])).tolist() == [[3, 1, 2, 0]] * 2
    held_out = pairs([0, 1], [2, 1], 3, 4)
    assert evaluate_model(model, train, held_out, Judging((1,))).metrics["recall@1"] == 1.0


@pytest.mark.parametrize("coefficients", [(1.0,), (2.0, -1.0), (0.5, 0.25, -0.125)])
def test_turbo_cf_equals_its_dense_formula(coefficients: tuple[float, ...]) -> None:
    train, alpha, s = ragged(), 0.6, 0.7
    model = make("turbocf", train, alpha=alpha, power=s, coefficients=coefficients)
    R = train.to_scipy().toarray().astype(np.float64)
    with np.errstate(divide="ignore"):
        by_user, by_item = (np.nan_to_num(R.sum(axis) ** e, posinf=0) for axis, e in ((1, -alpha), (0, alpha - 1)))
    normal = by_user[:, None] * R * by_item
    P = (normal.T @ normal) ** s
    expected = R @ sum(a * np.linalg.matrix_power(P, k) for k, a in enumerate(coefficients, 1))
    np.testing.assert_allclose(model.scores(np.arange(train.n_users)), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("l2", [0.5, 20.0])
def test_ease_is_the_least_squares_of_each_item(l2: float) -> None:
    """B's column of an item is the ridge regression on all other items, solved for each item alone."""
    train = ragged()
    R = train.to_scipy().toarray().astype(np.float64)
    B = np.zeros((train.n_items, train.n_items))
    for t in range(train.n_items):
        others = np.delete(np.arange(train.n_items), t)
        A = R[:, others]
        B[others, t] = np.linalg.solve(A.T @ A + l2 * np.eye(len(others)), A.T @ R[:, t])
    model = make("ease", train, l2=l2)
    np.testing.assert_allclose(model.scores(np.arange(train.n_users)), R @ B, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("block", [3, 1024])
@pytest.mark.parametrize(("k", "h"), [(2, 0.0), (3, 4.0), (10**6, 1.0)])
def test_item_knn_equals_its_formula(k: int, h: float, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Item by item: the k nearest others, of equal ones the lower ids, whatever the size of a block."""
    monkeypatch.setattr(untrained, "BLOCK", block)
    train = ragged()
    R = train.to_scipy().toarray().astype(np.float64)
    S, sizes = np.zeros((train.n_items, train.n_items)), R.sum(0)
    for t in range(train.n_items):
        near = {s: R[:, s] @ R[:, t] / max(np.sqrt(sizes[s] * sizes[t]) + h, 1e-9) for s in range(len(S)) if s != t}
        for s in sorted(near, key=lambda s: (-near[s], s))[:k]:
            S[s, t] = near[s]
    model = make("itemknn", train, neighbours=k, shrinkage=h)
    np.testing.assert_allclose(model.scores(np.arange(train.n_users)), R @ S, rtol=1e-5, atol=1e-6)


def test_turbo_cf_needs_a_coefficient() -> None:
    with pytest.raises(ConfigError, match="coefficients"):
        make("turbocf", ragged(), coefficients=())


@pytest.mark.slow
def test_turbo_cf_on_gowalla() -> None:
    """An end-to-end check of data and metrics: its authors report a recall of .1835, others .1830."""
    try:
        split = data.load("gowalla").split
    except DataError:
        pytest.skip("Gowalla is not here")
    assert split.test is not None
    found = evaluate_model(make("turbocf", split.train), split.train, split.test).metrics
    assert found["recall@20"] == pytest.approx(0.183, abs=0.001)
    assert found["ndcg@20"] == pytest.approx(0.1513, abs=0.001)
