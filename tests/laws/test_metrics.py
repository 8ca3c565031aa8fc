"""Law 8: Recall, NDCG, HitRate, MRR and MAP equal torchmetrics and scikit-learn on the same ranking."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from fedgrec.models import metrics
from fedgrec.models.ranking import Judging, Result, evaluate

K = 20


class Pairs(NamedTuple):
    indptr: npt.NDArray[np.int64]
    items: npt.NDArray[np.int32]


def pairs(rows: list[list[int]]) -> Pairs:
    return Pairs(np.cumsum([0, *map(len, rows)]), np.array([t for row in rows for t in row], dtype=np.int32))


class World(NamedTuple):
    users: npt.NDArray[np.float32]  # [M, d]
    items: npt.NDArray[np.float32]  # [N, d]
    train: list[list[int]]
    test: list[list[int]]


def world(seed: int) -> World:
    """40 users, one without test items, one with more than 20, the others 1 to 6; scores full of ties."""
    rng = np.random.default_rng(seed)
    M, N = 40, 150
    users = rng.integers(-2, 3, (M, 3)).astype(np.float32)
    items = rng.integers(-2, 3, (N, 3)).astype(np.float32)
    train, test = [], []
    for u in range(M):
        mixed = rng.permutation(N).tolist()
        n_train, n_test = 1 + u % 30, {0: 0, 1: 35}.get(u, int(rng.integers(1, 7)))
        # Train items score high, as they do after training: if a ranking forgets to mask them, it shows.
        mixed.sort(key=lambda t: -float(users[u] @ items[t]) if u % 2 else 0.0)
        train.append(sorted(mixed[:n_train]))
        test.append(sorted(rng.permutation(mixed[n_train:])[:n_test].tolist()))
    return World(users, items, train, test)


def others_say(w: World, k: int) -> dict[str, float]:
    """Means of torchmetrics, and NDCG of scikit-learn, over the users that have test items.

    Neither knows train items or breaks ties as we do: both get the unseen items, with ranks for scores. The AP of
    torchmetrics is divided by the number of hits, ours by all that a list of k could hold.
    """
    import torch  # here: every worker of the tests imports this file, and these take five seconds
    from sklearn.metrics import ndcg_score
    from torchmetrics.functional.retrieval import (
        retrieval_average_precision,
        retrieval_hit_rate,
        retrieval_normalized_dcg,
        retrieval_recall,
        retrieval_reciprocal_rank,
    )

    rows = []
    for user, seen, test in zip(w.users, w.train, w.test, strict=True):
        if not test:
            continue
        unseen = np.setdiff1d(np.arange(len(w.items)), seen)
        order = np.argsort(-(w.items[unseen] @ user), kind="stable")
        ranks = np.empty(len(unseen))
        ranks[order] = np.arange(len(unseen), 0, -1)
        wanted = np.isin(unseen, test)
        preds, target = torch.tensor(ranks), torch.tensor(wanted)
        found = int(wanted[order[:k]].sum())
        rows.append(
            {
                "recall": float(retrieval_recall(preds, target, top_k=k)),
                "ndcg": float(retrieval_normalized_dcg(preds, target.int(), top_k=k)),
                "ndcg of scikit-learn": ndcg_score(wanted[None].astype(int), ranks[None], k=k),
                "hitrate": float(retrieval_hit_rate(preds, target, top_k=k)),
                "mrr": float(retrieval_reciprocal_rank(preds, target, top_k=k)),
                "map": float(retrieval_average_precision(preds, target, top_k=k)) * found / min(len(test), k),
            }
        )
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


Evaluate = Callable[..., Result]


def metric_law(implementation: Evaluate, seed: int) -> None:
    w = world(seed)
    ours = implementation(w.users, w.items, pairs(w.train), pairs(w.test), Judging((K,)))
    for name, value in others_say(w, K).items():
        assert ours.metrics[f"{name.split()[0]}@{K}"] == pytest.approx(value, rel=1e-6), name
    assert ours.users == sum(map(bool, w.test))


@pytest.mark.keep(2)
@pytest.mark.parametrize("seed", range(5))
def test_metric_law(seed: int) -> None:
    metric_law(evaluate, seed)


def recall_capped_at_k(monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    monkeypatch.setattr(metrics, "recall", lambda hits, n: hits.sum(-1) / np.clip(n, 1, hits.shape[-1]))
    return evaluate


def ideal_not_capped(_: pytest.MonkeyPatch) -> Evaluate:
    return lambda *args: evaluate(*args[:4], replace(args[4], ndcg_ideal="paper"))


def discount_off_by_one(monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    def ndcg(hits: npt.NDArray[np.bool_], n_test: npt.NDArray[np.int64], ideal: str) -> npt.NDArray[np.float64]:
        gains = 1 / np.log2(np.arange(hits.shape[-1]) + 3)
        return hits @ gains / np.cumsum(gains)[np.minimum(n_test, len(gains)) - 1]

    monkeypatch.setattr(metrics, "ndcg", ndcg)
    return evaluate


def precision_over_hits_alone(monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    ours = metrics.average_precision
    monkeypatch.setattr(metrics, "average_precision", lambda hits, n: ours(hits, np.maximum(hits.sum(-1), 1)))
    return evaluate


def rank_of_the_last_hit(monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    def last(hits: npt.NDArray[np.bool_], n_test: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return hits.any(-1) / (hits.shape[-1] - hits[:, ::-1].argmax(-1))

    monkeypatch.setattr(metrics, "reciprocal_rank", last)
    return evaluate


def train_not_masked(_: pytest.MonkeyPatch) -> Evaluate:
    def mutant(users, items, train, held_out, how):  # type: ignore[no-untyped-def]
        return evaluate(users, items, pairs([[]] * len(users)), held_out, how)

    return mutant


def ties_to_the_higher_id(_: pytest.MonkeyPatch) -> Evaluate:
    def mutant(users, items, train, held_out, how):  # type: ignore[no-untyped-def]
        flipped = (Pairs(part.indptr, len(items) - 1 - part.items) for part in (train, held_out))
        return evaluate(users, items[::-1], *flipped, how)

    return mutant


def empty_users_count_as_zero(_: pytest.MonkeyPatch) -> Evaluate:
    def mutant(*args) -> Result:  # type: ignore[no-untyped-def]
        result = evaluate(*args)
        share = result.users / len(args[0])
        return Result({name: v * share for name, v in result.metrics.items()}, *list(vars(result).values())[1:])

    return mutant


@pytest.mark.parametrize(
    "mutation",
    [
        recall_capped_at_k,
        ideal_not_capped,
        discount_off_by_one,
        precision_over_hits_alone,
        rank_of_the_last_hit,
        train_not_masked,
        ties_to_the_higher_id,
        empty_users_count_as_zero,
    ],
)
def test_metric_law_notices(
    mutation: Callable[[pytest.MonkeyPatch], Evaluate], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = mutation(monkeypatch)
    with pytest.raises(AssertionError):
        metric_law(mutant, seed=0)


# By hand

HITS = np.array([[True, False, True], [False, False, False], [True, True, True], [False, False, False]])
N_TEST = np.array([2, 1, 5, 0])
LOG3 = np.log2(3)


def test_recall_by_hand() -> None:
    np.testing.assert_allclose(metrics.recall(HITS, N_TEST), [1, 0, 3 / 5, np.nan])
    assert metrics.mean(metrics.recall(HITS, N_TEST)) == pytest.approx((1 + 0 + 3 / 5) / 3)


def test_ndcg_by_hand() -> None:
    # Discounts 1, 1/log2(3), 1/2, then 1/log2(5), 1/log2(6) for the two items that the list cannot hold.
    three = 1 + 1 / LOG3 + 1 / 2
    capped = [1.5 / (1 + 1 / LOG3), 0, 1, np.nan]
    paper = [capped[0], 0, three / (three + 1 / np.log2(5) + 1 / np.log2(6)), np.nan]
    np.testing.assert_allclose(metrics.ndcg(HITS, N_TEST), capped)
    np.testing.assert_allclose(metrics.ndcg(HITS, N_TEST, "paper"), paper)


def test_hit_rate_mrr_and_map_by_hand() -> None:
    np.testing.assert_allclose(metrics.hit_rate(HITS, N_TEST), [1, 0, 1, np.nan])
    later = np.array([[False, True, True], *HITS[1:]])
    np.testing.assert_allclose(metrics.reciprocal_rank(later, N_TEST), [1 / 2, 0, 1, np.nan])
    # Precision is 1 at rank 1 and 2/3 at rank 3, of two items; the third list is as good as three places can be.
    np.testing.assert_allclose(metrics.average_precision(HITS, N_TEST), [(1 + 2 / 3) / 2, 0, 1, np.nan])


def test_one_user_alone() -> None:
    """On a device there is one user: no leading axis."""
    assert metrics.hit_rate(HITS[0], 2) == metrics.reciprocal_rank(HITS[0], 2) == 1
    assert metrics.average_precision(HITS[0], 2) == pytest.approx(5 / 6)
    assert metrics.novelty(np.array([1, -1]), np.array([9, 2]), 8) == 2
    assert metrics.recall(HITS[0], 2) == 1
    assert metrics.ndcg(HITS[2], 5) == pytest.approx(1)
    assert np.isnan(metrics.ndcg(HITS[3], 0))


def test_nobody_to_average() -> None:
    assert np.isnan(metrics.mean(metrics.recall(HITS[3:], N_TEST[3:])))


def test_unknown_ideal() -> None:
    with pytest.raises(ValueError, match="capped"):
        metrics.ndcg(HITS, N_TEST, "best")  # type: ignore[arg-type]


def test_catalogue_by_hand() -> None:
    shown, degrees = np.array([[0, 1], [1, -1]]), np.array([10, 4, 4, 0])
    assert metrics.coverage(shown, 4) == 0.5
    assert metrics.popularity(shown, degrees) == 6
    assert np.isnan(metrics.popularity(np.array([[-1]]), degrees))
    assert metrics.novelty(shown, degrees, 16) == pytest.approx((np.log2(1.6) + 2 + 2) / 3)
    assert metrics.novelty(np.array([[3]]), degrees, 16) == 4  # nobody has it: as surprising as what one user has


def test_popularity_groups_are_thirds_of_interactions() -> None:
    """Of 18 pairs, 10 are of the first item alone, so the next two lie in the middle, beyond 6 and before 12."""
    assert metrics.popularity_groups(np.array([10, 2, 2, 1, 1, 0, 2])).tolist() == [0, 1, 1, 2, 2, 2, 1]
    assert metrics.popularity_groups(np.array([3, 3, 3])).tolist() == [0, 0, 0]  # nothing is less popular


def test_recall_of_a_group_is_over_the_users_that_have_test_items_in_it() -> None:
    """Item 0 is the head, 1 the middle, 2 and 3 the tail; every list is [1, 3] or, where 1 is known, [3, 2]."""
    items = np.array([[0], [3], [1], [2]], np.float32)
    train = pairs([[0], [0, 1], [0, 1], [0, 1]])
    test = pairs([[1, 2], [2], [3], []])
    found = evaluate(np.ones((4, 1), np.float32), items, train, test, Judging((1, 2))).metrics
    assert metrics.popularity_groups(np.array([4, 3, 0, 0])).tolist() == [0, 1, 2, 2]
    assert "recall_head@2" not in found  # nobody has a test item there
    assert (found["recall_middle@1"], found["recall_middle@2"]) == (1, 1)  # the first user's alone
    assert (found["recall_tail@1"], found["recall_tail@2"]) == pytest.approx((1 / 3, 2 / 3))
    assert {key.split("@")[0] for key in found} == {*metrics.NAMES} - {"recall_head"}
