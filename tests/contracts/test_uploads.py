"""What leaves a device, leaf by leaf, and what it weighs."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.cable.core import Traffic
from fedgrec.config.configuration import Config, FedGRecOptions
from fedgrec.config.options import METHODS, method_module
from fedgrec.data import Dataset, IdMap, Interactions, Split
from fedgrec.federation.common.packets import pack_broadcast
from fedgrec.methods.fedgrec import DEGREES, PROPAGATE, TRAIN, FedGRecMethod
from fedgrec.runs.simulation import Simulation
from tests.cli.small import QUICK

M, N, d, T = 7, 11, 5, 3


def listed(name: str) -> list[str]:
    """The lines of docs/methods.md about a method, from its spec: sizes by their symbols where they have one."""
    module, many = method_module(name), 100_003
    options = module.Options()
    method, size = module.make(options, many, 50_021), {many: "N", 2 * many: "2N", options.dim: "d"}
    size |= {getattr(options, "layers", 1) * many: "KN"} | {many: "N"}
    found = []
    first = {method.training(0): "the first rounds"} if method.prepares(0) else {}
    for stage in dict.fromkeys((*method.stages[:-1], *first, method.stages[-1])):
        leaves = [
            f"`{leaf.name}` {size.get(leaf.rows, f'{leaf.rows:,}')} × {size.get(leaf.width, f'{leaf.width:,}')}"
            for leaf in (method.spec(stage).leaves if stage.combine == "sum" else ())
        ]
        what = ", ".join(leaves) or "none: users tell each other through a third party"
        found.append(f"| `{name}` | {first.get(stage, stage.name)} | {what} |")
    return found


def test_these_are_all_the_leaves_that_ever_leave_a_device() -> None:
    """Adding one is a privacy decision: whoever changes the table in docs/methods.md says why."""
    text = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    table = text.partition("## What leaves a device")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    assert lines == [line for name in METHODS for line in listed(name)]


def test_without_latents_only_items_and_degrees_leave() -> None:
    method = FedGRecMethod(FedGRecOptions(layers=0, dim=d), N, M)
    assert [[leaf.name for leaf in method.spec(stage).leaves] for stage in method.stages] == [["degrees"], ["items"]]


def test_a_stage_uploads_the_leaves_of_its_spec_and_nothing_else() -> None:
    simulation = simulated(layers=2)
    method, users = simulation.method, simulation.users
    assert [stage.name for stage in method.stages] == ["degrees", "propagate", "propagate", "train"]
    for stage in method.stages:
        broadcast = method.broadcast(simulation.server, stage, level=1 if stage is PROPAGATE else 0)
        upload, _ = method.local_update(users, stage, broadcast)
        assert set(vars(upload)) == {"leaves", "users"}
        assert list(upload.leaves) == [leaf.name for leaf in method.spec(stage).leaves]
        assert all(rows.values.dtype.kind == "i" for rows in upload.leaves.values())


def simulated(**options: Any) -> Simulation:
    """M users of N items: user u likes u % 4 of them."""
    pairs = [(u, (2 * n + u) % N) for u in range(M) for n in range(u % 4)]
    data = Interactions.from_pairs(*zip(*pairs, strict=True), user_ids=IdMap.range(M), item_ids=IdMap.range(N))
    chosen = QUICK | {"dim": d, "rounds": T, "users_per_round": M, "negatives": 4, "protocol": "paper"} | options
    as_the_paper_counts = {"latents_every": 1, "item_levels": 0, "l2": 0.01}
    chosen = {"popular_negatives": 0.0, "temperature": 0.1} | as_the_paper_counts | chosen
    return Simulation(Config().changed(chosen, "test"), Dataset("seven", Split(data)))


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("S", [M, 2])
def test_dense_secure_traffic_is_the_papers_closed_form(K: int, S: int) -> None:
    """With every user in every round the paper moves 2KNMd words in warm-up and 2TKNMd in training. That order of
    magnitude leaves out the item embeddings, one table beside the K latent ones: exactly it is 2T(K+1)NMd. A word is 4
    bytes down and one ring element up; and with each item its degree comes down, one word more.
    """
    simulation = simulated(layers=K, users_per_round=S)
    method, everyone = simulation.method, simulation.users.degrees
    ring = {stage: method.spec(stage).rings[-1][1] / 8 for stage in method.stages}
    assert ring[DEGREES] == 1
    assert ring[TRAIN] == 4
    assert ring[PROPAGATE] == (4 if S == M else 34 / 8)  # a sum over all users in the step of a round of S

    warm_up = [method.traffic(PROPAGATE, everyone) for _ in range(K)]
    assert sum(t.down_secure for t in warm_up) / 4 == K * N * M * (d + 1)
    filled_up = sum(t.up_secure for t in warm_up) - ring[PROPAGATE] * K * N * M * d
    assert 0 <= filled_up < K * M  # of each vector, less than a byte

    degrees = method.traffic(DEGREES, everyone)
    assert degrees.up_secure / ring[DEGREES] == N * M  # one count for each item
    assert degrees.down_secure == 0

    simulation.run()
    total = simulation.progress.traffic
    warm = Traffic(*(sum(column) for column in zip(degrees, *warm_up, strict=True)))
    down, up = total.down_secure - warm.down_secure, total.up_secure - warm.up_secure
    assert down / 4 == T * N * S * ((K + 1) * d + 1)
    assert up / 4 == T * (K + 1) * N * S * d


def test_without_latents_it_is_the_traffic_of_matrix_factorisation() -> None:
    simulation = simulated(layers=0)
    simulation.run()
    total, counts = simulation.progress.traffic, simulation.method.traffic(DEGREES, simulation.users.degrees)
    assert (total.up_secure - counts.up_secure) / 4 == T * N * M * d
    assert total.down_secure / 4 == T * N * M * (d + 1)


def test_a_round_in_the_clear_by_hand() -> None:
    """K = 2, d = 5, 4 negatives; two users with 3 items and 1. Words of 4 bytes."""
    method = simulated(layers=2).method
    degrees = np.array([3, 1])
    down = 2 * N * (3 * 5 + 1)  # e_t^0, e_t^1, e_t^2 and |N_t| of every item
    items = ((3 + 4) + (1 + 4)) * (1 + 5)  # every drawn row trains: its number and its update
    latents = (3 + 1) * (1 + 2 * 5)  # the number of each own item, and its two levels
    assert method.traffic(TRAIN, degrees)[:2] == (4 * (items + latents), 4 * down)
    # The second user's upload is lost: it received the model, but nothing of its upload arrived.
    assert method.traffic(TRAIN, degrees, lost=1)[:2] == (4 * (7 * 6 + 3 * 11), 4 * down)
    # Dense uploads hide which rows were touched.
    assert method.traffic(TRAIN, degrees)[2:] == (2 * (3 * N * 5) * 4, 4 * down)


def test_degrees_and_warm_up_in_the_clear_by_hand() -> None:
    method, degrees = simulated(layers=2).method, np.array([3, 1])
    assert method.traffic(DEGREES, degrees) == (4 * 4, 0, 2 * N, 0)  # which items: four numbers; or a byte each
    assert method.traffic(PROPAGATE, degrees)[:2] == (4 * (4 * (1 + 5)), 4 * (2 * N * (5 + 1)))


@pytest.mark.parametrize("download", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("loss", ["bpr", "mse"])
@pytest.mark.parametrize("layers", [0, 2])
@pytest.mark.parametrize(("l2", "levels"), [(0.01, 0), (0.0, 20)])
def test_the_count_in_the_clear_is_what_the_messages_weigh(
    download: str, loss: str, layers: int, l2: float, levels: int
) -> None:
    """User by user: a row travels as its number and its words, the levels of one item under one number."""
    chosen = {"layers": layers, "loss": loss, "max_positives": 2, "l2": l2, "latents_every": 3, "fine_rounds": 1}
    simulation = simulated(**chosen, download=download, item_levels=levels)
    simulation.warm_up()
    method, users = simulation.method, simulation.users
    assert {0, 1, 2, 3} == set(users.degrees)
    for u, round_ in itertools.product(np.flatnonzero(users.degrees), range(4)):
        user, stage = users.take(np.array([u])), method.training(round_)
        broadcast = method.broadcast(simulation.server, stage)
        upload, _ = method.local_update(user, stage, broadcast)
        items = upload.leaves["items"]
        up = items.index.size + items.values.size
        if layers and not stage.lean:
            latents = upload.leaves["latents"]
            up += len(np.unique(latents.index % N)) + latents.values.size
        counted = method.traffic(stage, user.degrees)
        assert counted.down == sum(array.nbytes for array in pack_broadcast(broadcast)[1].values())
        assert counted.up == 4 * up


def test_a_user_without_items_sends_nothing_in_the_clear() -> None:
    assert simulated(layers=2).method.traffic(TRAIN, np.array([0])).up == 0


def test_a_lost_upload_is_not_counted_but_its_download_is() -> None:
    everybody, nobody = simulated(dropout=0.0), simulated(dropout=1.0)
    everybody.run()
    nobody.run()
    warm = simulated()
    warm.warm_up()
    assert nobody.progress.traffic.up == warm.progress.traffic.up
    assert nobody.progress.traffic.up_secure == warm.progress.traffic.up_secure
    assert nobody.progress.traffic.down == everybody.progress.traffic.down
    np.testing.assert_array_equal(nobody.server.items, warm.server.items)
    np.testing.assert_array_equal(nobody.users.state.embeddings, warm.users.state.embeddings)


def test_a_round_counts_exactly_the_uploads_that_arrived() -> None:
    simulation = simulated(dropout=0.5, users_per_round=4, rounds=20)
    simulation.warm_up()
    arrived_each = []
    while simulation.server.round < 20:
        sampled, arrives = simulation._sample(simulation.server.round)
        arrived = sampled[arrives]
        before = simulation.progress.traffic
        simulation._round()
        after, method = simulation.progress.traffic, simulation.method
        degrees = simulation.users.degrees
        assert after.up - before.up == method.traffic(TRAIN, degrees[arrived]).up
        assert after.up_secure - before.up_secure == method.secure_upload(TRAIN, len(arrived))
        assert after.down - before.down == method.traffic(TRAIN, degrees[sampled]).down
        arrived_each.append(len(arrived))
    assert {0, 4} & set(arrived_each)
    assert 20 < sum(arrived_each) < 60


def test_a_simulation_with_dropout_keeps_the_latent_law() -> None:
    """E_T^{k+1} = Wᵀ E_U^k for what the users have committed as sent, up to half a step for each user."""
    simulation = simulated(layers=3, dropout=0.4, users_per_round=4, rounds=15, user_rate=0.1)
    simulation.run()
    train = simulation.dataset.split.train
    Y = train.to_scipy().toarray()
    W = Y / np.sqrt(np.maximum(Y.sum(0), 1)[None, :] * np.maximum(Y.sum(1), 1)[:, None])
    step = simulation.method.spec(PROPAGATE).leaf("latents").step
    for k in range(3):
        wanted = W.T @ simulation.users.state.sent[:, k]
        assert np.abs(simulation.server.items[k + 1] - wanted).max() <= step * M + 1e-6
