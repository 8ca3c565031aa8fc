"""A run that goes on with more data: `FedGRec.partial_fit`, and the simulation behind it."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedgrec import FedGRec, gpu_rounds
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.devices import gpu_is_there
from fedgrec.errors import ConfigError, FedgrecError
from fedgrec.gpu_rounds import GpuRounds
from fedgrec.growth import _standing, grow

OPTIONS = {"dim": 8, "negatives": 8, "rounds": 30, "users_per_round": 20, "fine_rounds": 5, "seed": 3, "device": "cpu"}
RNG = np.random.default_rng(0)
ALL = RNG.random((40, 30)) < 0.25
ALL[:, 0] = True


def matrix(have: np.ndarray) -> csr_matrix:
    return csr_matrix(have.astype(np.float32))


def fitted(**more: object) -> FedGRec:
    return FedGRec(**(OPTIONS | more)).fit(matrix(ALL[:30, :25]))


def later() -> np.ndarray:
    """Clicks of new users, on new items, and new clicks of old users on old ones."""
    have = ALL.copy()
    have[:30, :25] = np.random.default_rng(1).random((30, 25)) < 0.05
    return have


def test_degrees_and_latents_follow_the_data() -> None:
    recommender = fitted()
    recommender.partial_fit(matrix(later()), rounds=60)
    run, whole = recommender._run, later()
    whole[:30, :25] |= ALL[:30, :25]
    assert np.array_equal(run.server.degrees, whole.sum(0))
    assert run.server.round == 90
    assert not run.users.past.counted
    # In 60 rounds with half of the users each, everybody has sent its latents under the new weights.
    assert not run.users.past.pushed
    method, sent = run.method, run.users.state.sent
    _, push = method.edge_weights(run.users, run.server.degrees)
    standing = np.zeros_like(run.server.standing)
    for edge, (user, item) in enumerate(zip(run.users.owner, run.users.items, strict=True)):
        standing[:, item] += np.rint(push[edge] * sent[user] / method.latents.step).astype(np.int64)
    assert np.array_equal(run.server.standing, standing)


def test_new_people_and_items_are_served_and_nothing_is_recommended_back() -> None:
    recommender = fitted()
    recommender.partial_fit(matrix(later()))
    assert recommender._run.server.round == 36  # a fifth of 30
    assert recommender.partial_fit(matrix(later()))._run.server.round == 42
    whole = later()
    whole[:30, :25] |= ALL[:30, :25]
    for user in (0, 35):
        items, _ = recommender.recommend(user, N=30)
        assert set(items.tolist()) == set(np.flatnonzero(~whole[user]).tolist())


def test_a_new_item_that_many_click_is_recommended() -> None:
    """Twenty of forty people, all of one taste, find item 25; the others of that taste should hear of it."""
    have = np.zeros((40, 25), bool)
    have[:20, :12], have[20:, 12:] = True, True
    have &= np.random.default_rng(2).random((40, 25)) < 0.5
    recommender = FedGRec(**(OPTIONS | {"rounds": 100})).fit(matrix(have))
    more = np.zeros((40, 26), bool)
    more[:10, 25] = True
    recommender.partial_fit(matrix(more), rounds=60)
    ranks = [recommender.recommend(user, N=26)[0].tolist().index(25) for user in range(10, 40)]
    assert np.mean(ranks[:10]) + 2 < np.mean(ranks[10:])


def test_names_of_a_table_go_on() -> None:
    pandas = pytest.importorskip("pandas")
    users, items = np.nonzero(ALL[:30, :25])
    names = {"user": [f"u{u}" for u in users], "item": [f"i{i}" for i in items]}
    recommender = FedGRec(**OPTIONS).fit(pandas.DataFrame(names))
    recommender.partial_fit(pandas.DataFrame({"user": ["u0", "new", "new"], "item": ["fresh", "i3", "fresh"]}))
    found, _ = recommender.recommend("new", N=50)
    assert "fresh" not in found
    assert "i3" not in found
    assert "fresh" in recommender.recommend("u1", N=50)[0]


def test_who_has_no_items_any_more_has_left() -> None:
    recommender = fitted()
    run = recommender._run
    train = run.dataset.split.train
    stays = train.select(train.users() != 4)
    grow(run, Dataset("matrix", Split(stays, None)), 60)
    run.run()
    assert np.array_equal(run.server.degrees, stays.degrees())
    assert not run.users.past.pushed


def test_what_cannot_go_on_says_so() -> None:
    with pytest.raises(FedgrecError, match="call fit first"):
        FedGRec().partial_fit(matrix(ALL))
    with pytest.raises(ConfigError, match="learns from everything"):
        fitted(validation=0.2).partial_fit(matrix(ALL))
    with pytest.raises(ConfigError, match="latent_rate"):
        fitted(latent_rate=0.5).partial_fit(matrix(ALL))
    run = fitted()._run
    other = Interactions.from_pairs([3, 1], [1, 2])[0]
    with pytest.raises(ConfigError, match="must come first"):
        grow(run, Dataset("matrix", Split(other, None)), 5)


def test_the_loops_of_a_gpu_go_on_with_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """They know one graph, so everybody sends its latents again first. Without a GPU Triton's interpreter runs them."""
    pytest.importorskip("triton", reason="Triton is not installed: no loops for a GPU")
    from fedgrec.kernels import cuda

    device = "cuda" if gpu_is_there() else "cpu"
    small = cuda.Launch(rows=8, positives=8, split=8, drawn=8, items=8, registers=None)
    monkeypatch.setattr(gpu_rounds, "make_engine", lambda _, *about: cuda.Engine(*about, device, small))
    recommender = fitted(precision="float64", users_per_round=4)  # the interpreter is slow
    run = recommender._run
    run.gpu = GpuRounds(run.config, run.method)
    recommender.partial_fit(matrix(later()), rounds=1)
    whole = later()
    whole[:30, :25] |= ALL[:30, :25]
    assert np.array_equal(run.server.degrees, whole.sum(0))
    assert not run.users.past.pushed
    assert run.server.round == 31
    assert run.server.items[1:] == pytest.approx(_standing(run.method, run.server, run.users) * run.method.latents.step)
