"""The Python interface, as the README shows it."""

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array, csr_matrix

import fedgrec
from fedgrec import FedGRec
from fedgrec.errors import ConfigError, DataError, FedgrecError

QUICK = {"dim": 8, "negatives": 8, "users_per_round": 10, "rounds": 12, "kernel": "reference"}


def blocks(n: int = 20) -> np.ndarray:
    """Even users like even items, odd users odd ones; everybody misses one of theirs."""
    board = (np.arange(n)[:, None] + np.arange(n)[None, :]) % 2 == 0
    board[np.arange(n), np.arange(n)] = False
    return board


def test_the_front_door_is_small() -> None:
    assert fedgrec.__all__ == [
        "Config", "DataOptions", "Dataset", "FedGRec", "FedGRecMethod", "FedGRecOptions", "FedgrecError",
        "Interactions", "Model", "Observer", "PairFolds", "RunOptions", "Simulation", "evaluate", "load_data", "preset",
    ]  # fmt: skip
    assert all(getattr(fedgrec, name) is not None for name in fedgrec.__all__)


@pytest.mark.parametrize("kind", [csr_matrix, csr_array])
def test_fit_recommend_save_load(kind, tmp_path) -> None:
    user_items = kind(blocks().astype(np.float32))
    model = FedGRec(layers=2, validation=0, **QUICK).fit(user_items)
    for user in range(4):
        ids, scores = model.recommend(user, user_items[[user]], N=3)
        assert not set(ids.tolist()) & set(np.flatnonzero(blocks()[user]).tolist())
        assert ids[0] == user  # the one item of their own colour that is left
        assert (np.diff(scores) <= 0).all()
    model.save(tmp_path / "model")
    again = FedGRec.load(tmp_path / "model")
    assert again.recommend(3, N=4)[0].tolist() == model.recommend(3, N=4)[0].tolist()
    assert again.config == model.model.config


def test_a_stranger_and_similar_items() -> None:
    model = FedGRec(layers=2, validation=0, **QUICK).fit(csr_array(blocks().astype(float)))
    ids, _ = model.recommend_new([1, 3, 5], N=7)
    assert all(item % 2 == 1 for item in ids)
    assert not {1, 3, 5} & set(ids.tolist())
    similar, scores = model.similar_items(4, N=5)
    assert all(item % 2 == 0 for item in similar)
    assert 4 not in similar
    assert (np.abs(scores) <= 1 + 1e-6).all()


def test_a_dataframe_keeps_its_ids() -> None:
    users, items = np.nonzero(blocks())
    frame = pd.DataFrame({"user": [f"u{u}" for u in users], "item": [f"i{t}" for t in items]})
    model = FedGRec(layers=1, validation=0, **QUICK).fit(frame)
    ids, _ = model.recommend("u2", ["i0"], N=1)
    assert ids.tolist() == ["i2"]
    with pytest.raises(DataError, match="there is no user 'u99'"):
        model.recommend("u99")


def test_test_items_are_measured_and_decide_nothing() -> None:
    train, test = blocks(), np.eye(20, dtype=bool)
    model = FedGRec(layers=1, topk=(1,), **QUICK).fit(
        csr_array(train.astype(float)), test=csr_array(test.astype(float))
    )
    assert [line["split"] for line in model.metrics][-1] == "test"
    assert {line["protocol"] for line in model.metrics} == {"honest"}


def test_mistakes_are_sentences() -> None:
    with pytest.raises(ConfigError, match=r"no option 'layrs'\. Did you mean 'layers'"):
        FedGRec(layrs=2)
    with pytest.raises(FedgrecError, match="call fit first"):
        FedGRec().recommend(0)
    with pytest.raises(DataError, match="columns 'user' and 'item'"):
        FedGRec().fit(pd.DataFrame({"a": [1]}))
    model = FedGRec(layers=1, validation=0, **QUICK).fit(csr_array(blocks().astype(float)))
    with pytest.raises(ConfigError, match="one row of this user"):
        model.recommend(0, csr_array(blocks().astype(float)))


def test_a_study_is_three_lines() -> None:
    """Load, run and read the result with only the names that the package exports."""
    from fedgrec import Config, DataOptions, Simulation, load_data

    config = Config().changed({"data": "demo", "dim": 4, "negatives": 4, "rounds": 2, "layers": 1})
    simulation = Simulation(config, load_data(DataOptions(data="demo"), validation=0.1))
    model = simulation.run()
    assert (model.round, simulation.result()["split"]) == (simulation.progress.best_round, "test")
    assert Simulation(config).config == simulation.config  # without data it loads what the options name


def test_a_simulation_has_no_untrained_trap() -> None:
    from fedgrec import Config, Simulation

    simulation = Simulation(Config().changed({"data": "demo", "dim": 4, "users_per_round": 1000}))
    assert simulation.config.run.rounds == 80  # 53 turns of 1,500 users in rounds of 1,000
    assert simulation.config.run.evaluate_every > 0
