"""Three ways to rank, one ranking."""

import numpy as np
import pytest

from fedgrec.centralized import evaluate_model, make
from fedgrec.centralized.contract import inner_products
from fedgrec.errors import FedgrecError
from fedgrec.models import gpu_ranking
from fedgrec.models.ranking import Judging, evaluate_ranking, top_k_scores
from tests.centralized.worlds import ragged
from tests.slow_ranking import top_k_reference

TRAIN, HELD_OUT = ragged(), ragged(seed=9, n_pairs=60)


def test_scores_in_blocks_rank_as_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small integers: full of ties."""
    monkeypatch.setattr("fedgrec.models.ranking.BLOCK_BYTES", 0)  # blocks of 16, the last one smaller
    rng = np.random.default_rng(0)
    users, items = (rng.integers(-2, 3, (n, 3)).astype(np.float32) for n in (TRAIN.n_users, TRAIN.n_items))
    expected = top_k_reference(users, items, 60, TRAIN.indptr, TRAIN.items)
    found = top_k_scores(lambda at: users[at] @ items.T, TRAIN.n_items, 60, TRAIN.indptr, TRAIN.items)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def test_scores_that_are_not_finite_are_refused() -> None:
    def score(at: slice) -> np.ndarray:  # type: ignore[type-arg]
        return np.full((at.stop - at.start, TRAIN.n_items), np.nan, np.float32)

    with pytest.raises(FedgrecError, match="not finite"):
        top_k_scores(score, TRAIN.n_items, 5, TRAIN.indptr, TRAIN.items)


def test_embeddings_and_scores_are_judged_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("lightgcn", TRAIN, dim=4)
    by_embeddings = evaluate_model(model, TRAIN, HELD_OUT, Judging((3, 10), "paper"))
    monkeypatch.setattr(model, "embeddings", lambda: None)
    by_scores = evaluate_model(model, TRAIN, HELD_OUT, Judging((3, 10), "paper"))
    assert by_scores.metrics == by_embeddings.metrics
    assert by_scores.users == by_embeddings.users


def test_the_device_ranks_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU's tensors: the code is that of a GPU."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    users, items = (
        torch.from_numpy(rng.normal(size=(n, 3)).astype(np.float32)) for n in (TRAIN.n_users, TRAIN.n_items)
    )
    score = inner_products(torch.cat([users, items]), TRAIN.n_users)
    expected, _ = top_k_reference(users.numpy(), items.numpy(), 60, TRAIN.indptr, TRAIN.items)
    everyone = np.arange(TRAIN.n_users)
    for at_once in (2**28, 3 * TRAIN.n_items):
        monkeypatch.setattr(gpu_ranking, "RANKED_AT_ONCE", at_once)
        found = gpu_ranking.top_k_on_device(score, everyone, 60, TRAIN.n_items, TRAIN.indptr, TRAIN.items)
        np.testing.assert_array_equal(found, expected)


def test_the_same_users_must_be_held_out() -> None:
    with pytest.raises(FedgrecError, match="held out"):
        evaluate_ranking(lambda *_: np.zeros((0, 1), np.int32), 5, TRAIN, ragged(n_users=5, n_pairs=5))
