"""Law 9: a graph small enough to compute by hand, and a data set that any graph method must solve."""

import math

import numpy as np
import pytest

from fedgrec.config.configuration import Config, FedGRecOptions
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.kernels import cpu, reference
from fedgrec.methods.fedgrec import DEGREES, PROPAGATE, TRAIN, FedGRecMethod
from fedgrec.runs.simulation import Simulation

# u0 likes t0; u1 likes t0, t1; u2 likes t1, t2. So |N_t| = 2, 2, 1 and |N_u| = 1, 2, 2.
INDPTR, ITEMS = np.array([0, 1, 3, 5]), np.array([0, 0, 1, 1, 2], np.int32)
KEYS = np.arange(3, dtype=np.uint64)
ROOT = math.sqrt(0.5)


@pytest.mark.parametrize("kernel", [reference, cpu])
def test_warm_up_on_three_users_and_three_items(kernel) -> None:
    method = FedGRecMethod(
        FedGRecOptions(layers=2, dim=1, users_per_round=3, item_levels=0, precision="float64"), 3, 3, kernel
    )
    server, users = method.init(0), method.init_users(KEYS, INDPTR, ITEMS)
    server.items[0, :, 0], users.state.embeddings[:, 0, 0] = [1, 2, 3], [1, 2, 3]
    for stage, level in [(DEGREES, 0), (PROPAGATE, 1), (PROPAGATE, 2)]:
        total, pending = method.local_update(users, stage, method.broadcast(server, stage, level=level))
        server = method.apply(server, stage, total, level)
        method.commit(users, np.arange(3), pending)
    assert server.degrees.tolist() == [2, 2, 1]
    e_u1 = [1 * ROOT, 1 / 2 + 2 / 2, 2 / 2 + 3 * ROOT]
    e_t1 = [1 * ROOT + 2 / 2, 2 / 2 + 3 / 2, 3 * ROOT]
    assert users.state.embeddings[:, 1, 0] == pytest.approx(e_u1, abs=1e-6)
    assert server.items[1, :, 0] == pytest.approx(e_t1, abs=1e-6)
    assert users.state.embeddings[0, 2, 0] == pytest.approx(e_t1[0] * ROOT, abs=1e-6)
    assert server.items[2, 2, 0] == pytest.approx(e_u1[2] * ROOT, abs=1e-6)


def test_a_sum_of_nothing_is_zero_whatever_the_memory_holds() -> None:
    """Without layers, and for users without items. NumPy's empty arrays have the strides 0; `einsum` reads there."""
    nothing = np.lib.stride_tricks.as_strided(np.full(1, np.nan), shape=(0, 8), strides=(0, 0))
    assert reference.times(np.ones(0), nothing).tolist() == [0] * 8


@pytest.mark.parametrize("kernel", [reference, cpu])
def test_one_bpr_step_by_hand(kernel) -> None:
    """One positive (0.5), one negative (0.2), e_u = 1: σ(0.2 − 0.5) = 0.425557."""
    options = FedGRecOptions(
        layers=0,
        dim=1,
        negatives=1,
        loss="bpr",
        similarity="inner",
        l2=0.0,
        item_rate=0.1,
        user_optimizer="sgd",
        user_rate=0.1,
        server_optimizer="sum",
        server_rate=1.0,
        users_per_round=1,
        precision="float64",
    )
    method = FedGRecMethod(options, 2, 1, kernel)
    server, user = method.init(0), method.init_users(KEYS[:1], np.array([0, 1]), np.array([0], np.int32))
    server.items[0, :, 0], user.state.embeddings[0, 0, 0] = [0.5, 0.2], 1.0
    total, pending = method.local_update(user, TRAIN, method.broadcast(server, TRAIN))
    method.apply(server, TRAIN, total)
    assert server.items[0, :, 0] == pytest.approx([0.5425557, 0.1574443], abs=1e-6)
    assert pending.state.embeddings[0, 0, 0] == pytest.approx(1 + 0.1 * 0.4255575 * 0.3, abs=1e-6)


def checkerboard(n: int = 60) -> Dataset:
    """Users like the items of their own colour; one such item each is held out."""
    users, items = np.nonzero((np.arange(n)[:, None] + np.arange(n)[None, :]) % 2 == 0)
    held = items == (users + 2 * (users % 7)) % n
    ids = {"user_ids": list(range(n)), "item_ids": list(range(n))}
    train = Interactions.from_pairs(users[~held], items[~held], **ids)
    test = Interactions.from_pairs(users[held], items[held], **ids)
    return Dataset("checkerboard", Split(train, test))


@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize("kernel", ["reference", "cpu"])
def test_the_checkerboard_is_solved(layers, kernel) -> None:
    values = {
        "layers": layers,
        "dim": 16,
        "negatives": 16,
        "users_per_round": 20,
        "rounds": 40,
        "evaluate_every": 40,
        "topk": (1,),
        "protocol": "paper",
        "kernel": kernel,
    }
    simulation = Simulation(Config().changed(values, "test"), checkerboard())
    simulation.run()
    assert simulation.result()["recall@1"] == 1.0


def test_without_training_the_checkerboard_is_not_solved() -> None:
    """Mutation: rates of zero. What solves the board must be training."""
    values = {
        "layers": 0,
        "dim": 16,
        "users_per_round": 20,
        "rounds": 2,
        "evaluate_every": 2,
        "topk": (1,),
        "protocol": "paper",
        "server_rate": 0.0,
        "user_rate": 0.0,
    }
    simulation = Simulation(Config().changed(values, "test"), checkerboard())
    simulation.run()
    assert simulation.result()["recall@1"] < 0.5
