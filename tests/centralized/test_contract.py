"""What every model must do, whatever it is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.centralized import MODELS, Model, evaluate_model, load, make, train
from fedgrec.errors import ConfigError, FedgrecError
from tests.centralized.worlds import NEED_TORCH, SMALL, TRAINED, board, ragged

BOARD = board()


def made(name: str, data: Any = BOARD.split.train, seed: int = 0, **changes: Any) -> Model:
    if name in NEED_TORCH:
        pytest.importorskip("torch")
    return make(name, data, seed, **{**SMALL[name], **changes})


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


def test_every_model_is_tested() -> None:
    assert set(SMALL) == set(MODELS)


@pytest.mark.parametrize("name", sorted(set(SMALL) - {"popularity"}))
def test_the_board_is_solved(name: str) -> None:
    """Only the two held-out items of a user's colour are left: both must come first."""
    assert train(made(name), BOARD, topk=(2,))["recall@2"] == 1.0


@pytest.mark.parametrize("name", ["mf-bpr", "multvae"])
def test_without_training_nothing_is_known(name: str) -> None:
    assert train(made(name), BOARD, topk=(2,), epochs=0)["recall@2"] < 0.4


@pytest.mark.parametrize("epochs", [0, 6])
@pytest.mark.parametrize("name", TRAINED)
def test_what_nobody_can_know_is_not_known(name: str, epochs: int) -> None:
    """Graph models know the board before training, from its edges alone; so here the edges say nothing."""
    data = board(shuffled=True)
    assert train(made(name, data.split.train), data, topk=(2,), epochs=epochs)["recall@2"] < 0.25  # chance: about 0.1


@pytest.mark.parametrize("name", TRAINED)
def test_a_rate_of_zero_teaches_nothing(name: str) -> None:
    model = made(name, rate=0.0)
    before = model.tensors()
    model.epoch()
    assert same(before, model.tensors())


@pytest.mark.parametrize("name", sorted(SMALL))
def test_no_train_item_is_recommended(name: str) -> None:
    model, pairs = made(name), BOARD.split.train
    if model.trains:
        model.epoch()
    assert evaluate_model(model, pairs, pairs).metrics["recall@20"] == 0
    nothing = pairs.select(np.zeros(pairs.n_pairs, bool))
    assert evaluate_model(model, nothing, pairs).metrics["recall@20"] > 0  # it would be, unmasked


@pytest.mark.parametrize("name", TRAINED)
def test_same_seed_same_bits(name: str) -> None:
    first, second, other = made(name, seed=5), made(name, seed=5), made(name, seed=6)
    losses = [(model.epoch(), model.epoch()) for model in (first, second, other)]
    assert losses[0] == losses[1] != losses[2]
    assert same(first.state(), second.state())
    assert not same(first.state(), other.state())


@pytest.mark.parametrize("name", TRAINED)
def test_resumed_equals_uninterrupted(name: str) -> None:
    straight, stopped, resumed = made(name), made(name), made(name)
    for _ in range(3):
        straight.epoch()
    stopped.epoch()
    state = stopped.state()
    stopped.epoch()  # the returned state must not change any more
    resumed.load_state(state)
    resumed.epoch(), resumed.epoch()
    assert resumed.epochs_done == 3
    assert same(straight.state(), resumed.state())


@pytest.mark.parametrize("name", TRAINED)
def test_mutation_without_moments_resuming_differs(name: str) -> None:
    straight, resumed = made(name), made(name)
    straight.epoch()
    resumed.load_state({**straight.tensors(), "epochs_done": np.array([1])})
    straight.epoch(), resumed.epoch()
    assert not same(straight.tensors(), resumed.tensors())


@pytest.mark.parametrize("name", sorted(SMALL))
def test_saved_and_loaded_scores_the_same(name: str, tmp_path: Path) -> None:
    model = made(name)
    if model.trains:
        model.epoch()
    model.save(tmp_path)
    again, users = load(tmp_path), np.array([0, 7, 39])
    assert type(again) is type(model)
    assert (again.options, again.seed, again.epochs_done) == (model.options, model.seed, model.epochs_done)
    np.testing.assert_array_equal(again.scores(users), model.scores(users))


@pytest.mark.parametrize("name", sorted(SMALL))
def test_people_and_items_without_pairs_do_no_harm(name: str) -> None:
    data = ragged()
    model = made(name, data)
    if model.trains:
        model.epoch()
    assert np.isfinite(model.scores(np.arange(data.n_users))).all()


@pytest.mark.parametrize("name", ["popularity", "mf-bpr", "lightgcn", "ngcf"])
def test_embeddings_are_what_scores(name: str) -> None:
    model = made(name)
    both = model.embeddings()
    assert both is not None
    chosen = np.array([2, 5])
    np.testing.assert_allclose(model.scores(chosen), both[0][chosen] @ both[1].T, rtol=1e-5, atol=1e-6)


def test_names_and_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'lightgcn'"):
        make("lightgnc", BOARD.split.train)
    with pytest.raises(ConfigError, match="layer"):
        make("lightgcn", BOARD.split.train, layer=2)
    with pytest.raises(ConfigError, match="batch cannot be 0: it is at least 1"):
        make("lightgcn", BOARD.split.train, batch=0)
    with pytest.raises(ConfigError, match="whole number"):
        make("lightgcn", BOARD.split.train, layers=1.5)
    with pytest.raises(ConfigError, match="adjacency cannot be 'odd'"):
        make("ngcf", BOARD.split.train, adjacency="odd")
    with pytest.raises(FedgrecError, match="popularity runs on cpu"):
        make("popularity", BOARD.split.train, device="cuda")


def test_divergence_is_said() -> None:
    model = made("mf-bpr", rate=1e30)
    with pytest.raises(FedgrecError, match="diverged"):
        _ = [model.epoch() for _ in range(5)]
