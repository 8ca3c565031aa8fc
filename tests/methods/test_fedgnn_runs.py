"""Whole runs of FedGNN and FedGNN+BPR: what they learn, secure sums, resuming, saving, traffic."""

from typing import Any

import numpy as np
import pytest

from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, IdMap, Interactions, Split
from fedgrec.methods import fedgnn, fedgnn_bpr
from fedgrec.methods.fedgnn import DEGREES, EXPAND, TRAIN, Options
from fedgrec.models.model import Model
from fedgrec.runs.simulation import Simulation
from tests.interrupted import bits
from tests.laws.test_known_answers import checkerboard
from tests.methods.gnn_worlds import board, people

SMALL = {"dim": 8, "users_per_round": 20, "negatives": 16, "topk": (1,), "protocol": "paper", "expand_every": 5}


def simulation(out: Any = None, dataset: Dataset | None = None, **values: Any) -> Simulation:
    chosen = SMALL | {"rounds": 4, "evaluate_every": 2, "kernel": "reference", "method": "fedgnn"} | values
    return Simulation(Config().changed(chosen, "test"), dataset or clicks(), out)


def clicks() -> Dataset:
    """Twenty users and 24 items at random, half of the likes held out."""
    liked = np.argwhere(board(20, 24, 0.4))
    ids = {"user_ids": IdMap.range(20), "item_ids": IdMap.range(24)}
    return Dataset("clicks", Split(*(Interactions.from_pairs(*part.T, **ids) for part in (liked[::2], liked[1::2]))))


@pytest.mark.parametrize("method", ["fedgnn", "fedgnn-bpr"])
@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_the_checkerboard_is_solved(method, kernel) -> None:
    run = simulation(None, checkerboard(), method=method, kernel=kernel, rounds=40, evaluate_every=40)
    run.run()
    assert run.result()["recall@1"] == 1.0


def test_without_training_it_is_chance() -> None:
    rng = np.random.default_rng(0)
    data = [Interactions.from_pairs(*np.nonzero(rng.random((300, 200)) < p)) for p in (0.1, 0.05)]
    still = {"server_rate": 0.0, "user_rate": 0.0, "topk": (20,), "rounds": 1, "evaluate_every": 1}
    run = simulation(None, Dataset("chance", Split(*data)), kernel="auto", **still)
    run.run()
    assert run.result()["recall@20"] == pytest.approx(20 / 180, abs=0.02)


@pytest.mark.parametrize("method", ["fedgnn", "fedgnn-bpr"])
def test_secure_sums_have_the_bits_of_plain_ones(method) -> None:
    values = {"secure_neighbours": 8, "secure_threshold": 5, "method": method, "dim": 4}
    plain, secure = simulation(**values), simulation(**values, secure="protocol")
    plain.run()
    secure.run()
    assert secure.sums.lost == 0
    assert secure.sums.opened == 4 + 1  # the rounds and the degrees; an expansion is no sum
    assert bits(plain) == bits(secure)


def test_an_interrupted_run_goes_on_with_the_same_bits(tmp_path) -> None:
    values = {"checkpoint_every": 1, "expand_every": 2, "dropout": 0.2}
    whole = simulation(tmp_path / "whole", **values, rounds=6)
    whole.run()
    simulation(tmp_path / "cut", **values, rounds=3).run()
    rest = simulation(tmp_path / "cut", **values, rounds=6)
    rest.resume()
    rest.run()
    assert bits(rest) == bits(whole)
    assert rest.progress.traffic == whole.progress.traffic


def test_a_saved_model_recommends_the_same(tmp_path) -> None:
    model = simulation(tmp_path / "run").run()
    model.save(tmp_path / "model")
    loaded = Model.load(tmp_path / "model")
    assert loaded.config.method == "fedgnn"
    assert model.users.around is not None
    for user in (0, 3):
        assert np.array_equal(loaded.user_vectors(np.array([user])), model.user_vectors(np.array([user])))
        assert loaded.recommend_to(user, loaded.seen(user), 5)[0].tolist() == (
            model.recommend_to(user, model.seen(user), 5)[0].tolist()
        )
    assert np.isfinite(loaded.new_user_vector(np.array([1, 3]))).all()


def test_a_model_is_judged_with_what_its_users_had_been_told() -> None:
    run = simulation(expand_every=3, rounds=8, evaluate_every=2, others=0.9)
    model = run.run()
    assert model.round == run.progress.best_round
    held_out = run.dataset.split.test
    assert held_out is not None
    assert run.measure("test", held_out, model)["recall@1"] == run.progress.best[0]


def test_expansions_come_at_the_start_and_every_so_often() -> None:
    method = fedgnn.make(Options(expand_every=3), 4, 4)
    assert method.stages == (DEGREES, EXPAND, TRAIN)
    assert [round_ for round_ in range(8) if method.rematch(round_)] == [3, 6]
    assert not any(fedgnn.make(Options(expand_every=0), 4, 4).rematch(round_) for round_ in range(8))


def test_traffic_is_what_the_messages_weigh() -> None:
    """Also with the expansions: at the start, and before round 3."""
    run = simulation(expand_every=3, rounds=4)
    method, degrees, weights = run.method, run.users.degrees, []
    for round_ in (0, 3):
        weights.append(method.match(run.users, round_, run.config.run.seed)[1])
    run.run()
    train = method.traffic(TRAIN, degrees)
    rounds = [4 * train.up, 4 * train.down]
    warm = method.traffic(DEGREES, degrees)
    wanted = [sum(w[i] for w in weights) + rounds[i] + warm[i] for i in (0, 1)]
    assert list(run.progress.traffic[:2]) == wanted
    for u in range(3):
        one = run.users.take(np.array([u]))
        upload, _ = method.local_update(one, TRAIN, method.broadcast(run.server, TRAIN))
        rows = upload.leaves["items"]
        assert method.traffic(TRAIN, one.degrees).up == 4 * (rows.index.size + rows.values.size)
        assert method.traffic(TRAIN, one.degrees).down == 4 * run.server.items.size


def test_item_rows_are_all_that_is_ever_summed_beside_degrees() -> None:
    method = fedgnn_bpr.make(fedgnn_bpr.Options(dim=5), 11, 7)
    assert {
        stage.name: [(leaf.name, leaf.rows, leaf.width) for leaf in method.spec(stage).leaves]
        for stage in method.stages
    } == {"degrees": [("degrees", 11, 1)], "expand": [], "train": [("items", 11, 5)]}
    assert (method.name, method.options.loss) == ("fedgnn-bpr", "bpr")
    nobody = people(method, np.zeros((1, 11), bool))
    upload, _ = method.local_update(nobody, TRAIN, method.broadcast(method.init(0), TRAIN))
    assert len(upload.leaves["items"].index) == 0


def test_an_expansion_leaves_the_server_as_it_was() -> None:
    run = simulation()
    before = [value.tobytes() for value in vars(run.server).values() if isinstance(value, np.ndarray)]
    run._match()
    assert run.users.around is not None
    assert [value.tobytes() for value in vars(run.server).values() if isinstance(value, np.ndarray)] == before
