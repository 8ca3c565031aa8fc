"""The fast ranking equals the slow one and refuses scores without an order; `evaluate` counts correctly."""

import subprocess
import sys
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.errors import FedgrecError
from fedgrec.models.ranking import FEW, Judging, Rough, evaluate, top_k
from fedgrec.models.recommender import Seen, best
from tests.slow_ranking import top_k_reference


class Pairs(NamedTuple):
    indptr: npt.NDArray[np.int64]
    items: npt.NDArray[np.int32]


def pairs(rows: list[list[int]]) -> Pairs:
    return Pairs(np.cumsum([0, *map(len, rows)]), np.array([t for row in rows for t in row], dtype=np.int32))


NONE_SEEN = pairs([[]])
ONE = np.ones((1, 1), np.float32)


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(0, 7),
    N=st.sampled_from([0, 1, 5, 63, 64, 65, 2047, 2048, 2049, 5000]),
    d=st.integers(1, 4),
    k=st.sampled_from([1, 2, 20, 70]),
    spread=st.sampled_from([0, 1, 3, 50]),  # small integers: exact in float32, and full of ties
    seen=st.sampled_from(["nothing", "some", "all but a few", "everything"]),
    block=st.sampled_from([None, 1, 3]),  # None: few users are ranked in another way
    seed=st.integers(0, 2**32 - 1),
)
def test_top_k_equals_reference(
    n: int, N: int, d: int, k: int, spread: int, seen: str, block: int | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    users, items = (rng.integers(-spread, spread + 1, (m, d)).astype(np.float32) for m in (n, N))
    most = {"nothing": 0, "some": N // 2, "all but a few": max(N - 3, 0), "everything": N}[seen]
    least = 0 if seen == "some" else most
    rows = [rng.permutation(N)[: rng.integers(least, most + 1)].tolist() for _ in range(n)]
    ids, scores = top_k(users, items, k, *pairs(rows), block=block)
    expected_ids, expected_scores = top_k_reference(users, items, k, *pairs(rows))
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_array_equal(scores, expected_scores)
    assert (ids.dtype, scores.dtype) == (np.int32, np.float32)


def test_top_k_by_hand() -> None:
    items = np.array([[1], [3], [2], [3], [0]], np.float32)
    users = np.array([[1], [-1], [1]], np.float32)
    ids, scores = top_k(users, items, 3, *pairs([[], [4], [0, 1, 3]]))
    assert ids.tolist() == [[1, 3, 2], [0, 2, 1], [2, 4, -1]]
    assert scores.tolist() == [[3, 3, 2], [-1, -2, -3], [2, 0, -np.inf]]


def test_top_k_takes_read_only_inputs() -> None:
    seen = pairs([[0]])
    for part in seen:
        part.setflags(write=False)
    assert top_k(ONE, np.ones((2, 1), np.float32), 1, *seen)[0].tolist() == [[1]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rank", [top_k, top_k_reference])
def test_not_finite_is_refused(rank, bad: float) -> None:  # type: ignore[no-untyped-def]
    items = np.array([[1], [bad]], np.float32)
    with pytest.raises(FedgrecError, match="item 1 is not finite"):
        rank(ONE, items, 1, *NONE_SEEN)
    with pytest.raises(FedgrecError, match="user 0 is not finite"):
        rank(items[1:], ONE, 1, *NONE_SEEN)


def test_overflow_is_refused() -> None:
    with pytest.raises(FedgrecError, match="overflow float32"):
        top_k(ONE * 1e30, ONE * 1e30, 1, *NONE_SEEN)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "at least 1"),
        ({"items": np.ones((1, 2), np.float32)}, "same length"),
        ({"seen_indptr": np.array([0, 0, 0])}, "1 users"),
        ({"seen_indptr": np.array([0, 1])}, "0 pairs"),
        ({"seen_indptr": np.array([0, 1]), "seen_items": np.array([7], np.int32)}, "there are 1 items"),
        ({"seen_indptr": np.array([0, 1]), "seen_items": np.array([-1], np.int32)}, "from -1"),
    ],
)
def test_wrong_arguments_are_refused(change: dict[str, object], message: str) -> None:
    arguments = {
        "users": ONE,
        "items": ONE,
        "k": 1,
        "seen_indptr": NONE_SEEN.indptr,
        "seen_items": NONE_SEEN.items,
    }
    with pytest.raises(FedgrecError, match=message):
        top_k(**(arguments | change))  # type: ignore[arg-type]


def test_evaluate_by_hand() -> None:
    items = np.array([[4], [3], [2], [1]], np.float32)
    users = np.ones((3, 1), np.float32)
    train = pairs([[0], [], [0, 1]])
    held_out = pairs([[1, 3], [], [3]])  # the second user has nothing held out: not ranked, not counted
    result = evaluate(users, items, train, held_out, Judging((1, 2)))
    assert (result.users, result.user_ids.tolist()) == (2, [0, 2])
    # Lists: [1, 2] for the first user, [2, 3] for the third.
    assert result.per_user["recall@1"].tolist() == [0.5, 0]
    assert result.per_user["recall@2"].tolist() == [0.5, 1]
    second = 1 / np.log2(3)
    np.testing.assert_allclose(result.per_user["ndcg@2"], [1 / (1 + second), second])
    assert result.metrics["recall@2"] == 0.75
    assert result.metrics["coverage@1"] == 0.5
    assert result.metrics["coverage@2"] == 0.75
    assert result.metrics["popularity@2"] == pytest.approx((1 + 0 + 0 + 0) / 4)  # item 1 has one train user


def test_lists_longer_than_the_catalogue_cost_and_say_what_the_catalogue_does() -> None:
    items, users = np.eye(3, dtype=np.float32), np.ones((2, 3), np.float32)
    train, held_out = Pairs(*pairs([[0], [1]])), Pairs(*pairs([[2], [0, 2]]))
    long, whole = (
        evaluate(users, items, train, held_out, Judging((k,))) for k in (10**12, 3)
    )  # 10¹² places fit no memory
    assert list(long.metrics.values()) == list(whole.metrics.values())


def test_evaluate_needs_someone_to_evaluate() -> None:
    with pytest.raises(FedgrecError, match="nothing to evaluate"):
        evaluate(ONE, ONE, NONE_SEEN, NONE_SEEN)


def test_evaluate_needs_the_same_users() -> None:
    with pytest.raises(FedgrecError, match="held-out"):
        evaluate(ONE, ONE, NONE_SEEN, pairs([[0], [0]]))


def test_import_is_cheap() -> None:
    """Numba is loaded by the first ranking, not by the import."""
    code = "import sys, fedgrec.models.ranking; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_few_lists_are_those_of_many() -> None:
    """With few users, items that are not allowed are hidden; with many, the others are copied."""
    rng = np.random.default_rng(3)
    vectors, items = (rng.integers(-9, 10, (n, 3)).astype(np.float32) for n in (FEW + 1, 50))
    seen = Seen.of([rng.permutation(50)[: rng.integers(0, 30)] for _ in vectors])
    allowed = np.sort(rng.permutation(50)[:40])
    ids, scores = best(vectors, items, 45, seen, allowed)
    few = best(vectors[:5], items, 45, Seen.of([seen.row(user) for user in range(5)]), allowed)
    np.testing.assert_array_equal(few[0], ids[:5])
    np.testing.assert_array_equal(few[1], scores[:5])
    assert set(ids.ravel()) <= {-1, *allowed}


ROUGH_WORLDS = (
    (7, 3000, 20, 10), (1, 500, 3, 20), (64, 900, 33, 5), (5, 40, 8, 40), (4, 6, 2, 3),
)  # fmt: skip


def rough_world(n: int, n_items: int, dim: int) -> tuple[Any, ...]:
    """Items of very different lengths, some twice, some zero; a third of the items are seen by each user."""
    rng = np.random.default_rng(n)
    items = (rng.standard_normal((n_items, dim)) * rng.exponential(1, n_items)[:, None] ** 3).astype("f4")
    items[n_items // 2 :] = items[: n_items - n_items // 2]
    items[:: max(n_items // 5, 1)] = 0
    users = rng.standard_normal((n, dim)).astype("f4")
    seen = [np.flatnonzero(rng.random(n_items) < 1 / 3).astype("i4") for _ in range(n)]
    return users, items, np.concatenate([[0], np.cumsum([*map(len, seen)])]), np.concatenate(seen)


@pytest.mark.parametrize(("n", "n_items", "dim", "k"), ROUGH_WORLDS)
def test_lists_by_a_rough_table_are_the_exact_ones(n: int, n_items: int, dim: int, k: int) -> None:
    users, items, indptr, seen = rough_world(n, n_items, dim)
    ids, scores = top_k(users, items, k, indptr, seen)
    found, rough = top_k(users, items, k, indptr, seen, rough=Rough.of(items))
    np.testing.assert_allclose(rough, scores, rtol=1e-5, atol=1e-5)
    exact = users.astype(float) @ items.T.astype(float)
    for row in range(n):  # where ids differ, their scores are equal but for the last bits
        np.testing.assert_allclose(
            exact[row, found[row][found[row] >= 0]], exact[row, ids[row][ids[row] >= 0]], rtol=1e-5
        )
        assert not np.isin(found[row], seen[indptr[row] : indptr[row + 1]]).any()


def test_mutation_a_rough_table_without_its_errors_misses_items() -> None:
    """Items that differ by less than a step of eight bits."""
    users, items, _, _ = rough_world(64, 900, 33)
    indptr, seen = np.zeros(65, np.int64), np.zeros(0, np.int32)
    items = (1 + 1e-3 * items / np.abs(items).max()).astype("f4")
    right, rough = top_k(users, items, 5, indptr, seen)[1], Rough.of(items)
    np.testing.assert_allclose(top_k(users, items, 5, indptr, seen, rough=rough)[1], right, rtol=1e-5, atol=1e-5)
    sure = replace(rough, errors=np.zeros_like(rough.errors))
    wrong = top_k(users, items, 5, indptr, seen, rough=sure)[1]
    assert not np.allclose(wrong, right, rtol=1e-5, atol=1e-5)


def test_a_rough_table_finds_what_is_not_finite() -> None:
    users, items, indptr, seen = rough_world(4, 40, 8)
    users[2, 1] = np.nan
    with pytest.raises(FedgrecError, match="not finite"):
        top_k(users, items, 5, indptr, seen, rough=Rough.of(items))
