"""Among which items an evaluation ranks: candidates that are drawn once for all methods, or with repeats."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fedgrec.centralized import make, train
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, IdMap, Interactions, Split
from fedgrec.errors import ConfigError
from fedgrec.models.ranking import Judging, evaluate
from fedgrec.runs.simulation import Simulation

M, N = 40, 60
IDS = {"user_ids": IdMap.range(M), "item_ids": IdMap.range(N)}


def world() -> Split:
    """Everybody has 8 items, one of them for validation and one for test."""
    rng = np.random.default_rng(0)
    mine = np.array([rng.permutation(N)[:8] for _ in range(M)])
    parts = (Interactions.from_pairs(np.repeat(np.arange(M), part.shape[1]), part.ravel(), **IDS)
             for part in (mine[:, 2:], mine[:, :1], mine[:, 1:2]))  # fmt: skip
    return Split(*parts)


def lists(split: Split, how: Judging, k: int = N, seen: Interactions | None = None) -> np.ndarray:
    """What a method would list that takes every item that is not hidden, in order of index."""

    def rank(users: Any, k: int, indptr: Any, hidden: Any) -> Any:
        rows = [np.setdiff1d(np.arange(N), hidden[a:b]) for a, b in pairwise(indptr)]
        return np.array([np.pad(row, (0, N - len(row)), constant_values=-1)[:k] for row in rows], np.int32)

    return how.lists(rank, np.arange(M), k, seen or split.before_test, split.test, N)


def test_candidates_are_so_many_that_the_user_never_had_and_its_test_item() -> None:
    split = world()
    found = lists(split, Judging(candidates=20, known=split.known))
    for user, row in enumerate(found):
        shown = set(row[row >= 0].tolist())
        test = set(split.test.of(user).tolist())
        assert test <= shown
        assert len(shown) == 21
        assert not (shown - test) & set(split.known.of(user).tolist())
    assert (found == lists(split, Judging(candidates=20, known=split.known))).all()
    assert (found != lists(split, Judging(candidates=20, known=split.known, seed=1))).any(axis=1).all()
    of_validation = lists(split, Judging(candidates=20, known=split.known), seen=split.train)
    assert (found != of_validation).any(axis=1).all()


def test_by_hand_among_two_candidates_and_with_repeats() -> None:
    """Scores rise with the index: the test item 3 is behind candidate 4 or 5; a seen item 7 is ahead of all."""
    ids = {"user_ids": IdMap.range(1), "item_ids": IdMap.range(8)}
    seen, test = (Interactions.from_pairs([0] * len(part), part, **ids) for part in ([0, 1, 2, 6, 7], [3]))
    scores = np.ones((1, 1), np.float32), np.arange(8, dtype=np.float32)[:, None]

    def rank_of(how: Judging) -> float:
        return 1 / evaluate(*scores, seen, test, replace(how, topk=(8,))).metrics["mrr@8"]

    known = Split(seen, test).known
    assert rank_of(Judging()) == 3  # behind 5 and 4
    assert rank_of(Judging(repeats=True)) == 5  # behind 7 and 6, too
    assert rank_of(Judging(candidates=1, known=known)) == 2
    assert rank_of(Judging(candidates=99, known=known)) == 3  # there are two


def test_chance_among_candidates_is_k_of_all_of_them() -> None:
    split, rng = world(), np.random.default_rng(1)
    hits = []
    for seed in range(20):
        scores = rng.random((M, 1), np.float32), rng.standard_normal((N, 1)).astype(np.float32)
        how = Judging((2,), candidates=9, seed=seed, known=split.known)
        hits.append(evaluate(*scores, split.before_test, split.test, how).metrics["hitrate@2"])
    assert np.mean(hits) == pytest.approx(0.2, abs=0.04)


def test_federated_and_central_runs_have_the_same_candidates() -> None:
    """Popularity, told to both: one as a method, one by its scores."""
    split = world()
    model = make("popularity", split.train, 5)
    line = train(model, Dataset("world", split), topk=(3,), protocol="paper", candidates=20)
    scores = np.ones((M, 1), np.float32), split.train.degrees()[:, None].astype(np.float32)
    run = Simulation(
        Config().changed({"method": "spectral", "rounds": 1, "topk": (3,), "candidates": 20, "seed": 5}, "test"),
        Dataset("world", split),
    )
    run.run()
    how = Judging((3,), candidates=20, seed=5, known=split.known)
    assert line["recall@3"] == evaluate(*scores, split.before_test, split.test, how).metrics["recall@3"]
    items, users = run.method.represent_items(run.server), run.method.represent_users(run.server, run.users)
    wanted = evaluate(users, items, split.before_test, split.test, how).metrics
    assert run.result()["recall@3"] == wanted["recall@3"]
    assert (
        wanted["recall@3"] != evaluate(users, items, split.before_test, split.test, Judging((3,))).metrics["recall@3"]
    )


def test_candidates_never_repeat() -> None:
    with pytest.raises(ConfigError, match="never had"):
        Config().changed({"candidates": 9, "repeats": True}, "test")
