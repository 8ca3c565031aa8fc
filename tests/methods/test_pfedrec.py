"""PFedRec: a round of one user against the paper's loss differentiated by differences, and the laws of every method."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.cable.core import as_server
from fedgrec.methods import pfedrec
from tests.methods import laws
from tests.methods.laws import World

SMALL = {"dim": 3, "negatives_each": 2, "item_boost": 0.5}


def loss(layer: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """The mean cross-entropy of σ(x w + b), as the paper writes it.  layer: w and, last, b"""
    p = 1 / (1 + np.exp(-(x @ layer[:-1] + layer[-1])))
    return float(-(y * np.log(p) + (1 - y) * np.log(1 - p)).mean())


def slope(of: Any, at: np.ndarray, width: float = 1e-5) -> np.ndarray:
    """∂of/∂at by central differences."""
    steps = width * np.eye(at.size).reshape(at.size, *at.shape)
    return np.array([(of(at + step) - of(at - step)) / (2 * width) for step in steps]).reshape(at.shape)


def by_hand(world: World, u: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One batch of user u: its items, its new layer, and how far each item moves."""
    o, start = world.method.options, world.server.more["start"].astype(float)
    mine, place, y = world.method.examples(world.users, u, world.server.round)
    layer, x = start.copy(), world.server.items[0, mine].astype(float)
    layer -= o.rate * slope(lambda at: loss(at, x[place], y), layer)
    moved = -o.rate * o.item_boost * world.method.n_items * slope(lambda at: loss(layer, at[place], y), x)
    return mine, layer - start, moved


def distance_to_hand(world: World, u: int = 3) -> float:
    upload, pending = world.upload(np.array([u]))
    mine, layer, moved = by_hand(world, u)
    expected, leaf = np.zeros((world.method.n_items, 3)), world.method.spec(world.stage).leaf("items")
    expected[mine] = moved
    apart = np.abs(world.words(upload).reshape(expected.shape) * leaf.step - expected).max()
    own = np.append(pending.state.embeddings[0, 0], pending.state.bias[0])
    return float(max(apart - leaf.step, np.abs(own - layer).max()))


def test_a_round_of_one_user_is_two_gradient_steps_by_hand() -> None:
    assert distance_to_hand(World.of("pfedrec", **SMALL)) < 1e-5


def test_a_round_that_moves_items_by_the_old_layer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right, first = pfedrec.slopes, []

    def both_at_once(x: Any, y: Any, w: Any, b: Any) -> Any:
        """Mutation: the second slopes are those from before the layer's step."""
        first.append(right(x, y, w, b))
        return first[-1] if len(first) % 2 else first[-2]

    world = World.of("pfedrec", **(SMALL | {"rate": 1.0}))
    assert distance_to_hand(world) < 1e-5
    monkeypatch.setattr(pfedrec, "slopes", both_at_once)
    assert distance_to_hand(world) > 1e-3


def test_what_a_user_trains_with() -> None:
    """Its items once; for each of them negatives, which may repeat and are never its own; anew in every round."""
    world = World.of("pfedrec", **SMALL)
    mine, place, y = world.method.examples(world.users, 3, 0)
    positives = world.users.items_of(3)
    assert sorted(mine[place][y == 1]) == positives.tolist()
    assert (y == 0).sum() == 2 * len(positives)
    assert not set(mine[place][y == 0]) & set(positives)
    assert len(mine) < len(y)  # in so small a world some repeat
    assert not np.array_equal(place, world.method.examples(world.users, 3, 1)[1])


def test_batches_train_one_after_the_other() -> None:
    """All examples train once whatever the size of a batch; the layer makes a step for each batch."""
    small, large = (World.of("pfedrec", **SMALL, batch=batch) for batch in (2, 256))
    (a, pending_a), (b, pending_b) = (world.upload(np.array([3])) for world in (small, large))
    assert (a.leaves["items"].index == b.leaves["items"].index).all()
    assert np.abs(pending_a.state.bias - pending_b.state.bias).max() > 1e-3


def test_the_server_takes_the_mean_over_all_users() -> None:
    world = World.of("pfedrec", **SMALL)
    before, (total, _) = world.server.items.copy(), world.upload()
    moved = world.words(total).reshape(before.shape[1:]) * world.method.spec(world.stage).leaf("items").step
    world.method.apply(world.server, world.stage, total)
    np.testing.assert_allclose(world.server.items[0] - before[0], moved / len(world.users), atol=1e-6)


def test_a_user_ranks_with_its_own_view_of_the_items() -> None:
    world = World.of("pfedrec", **SMALL).train(2)
    mine, moved = world.method.trained(world.users, state := world.users.state.copy(), 3, broadcast_of(world))
    items, start = world.server.items[0].copy(), world.server.more["start"]
    items[mine] += moved
    expected = items @ (start[:-1] + state.embeddings[3, 0]) + start[-1] + state.bias[3]
    kept = [value.copy() for value in vars(world.users.state).values()]
    device = as_server(broadcast_of(world))  # what a device has ranks the same
    for server in (world.server, device):
        np.testing.assert_allclose(world.method.scores(server, world.users)[3], expected, atol=1e-5)
    assert all(np.array_equal(*pair) for pair in zip(kept, vars(world.users.state).values(), strict=True))


def broadcast_of(world: World) -> Any:
    return world.method.broadcast(world.server, world.stage)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.permutations(range(9)), st.lists(st.integers(1, 8), unique=True))
def test_any_split_and_order_gives_the_same_integers(seed: int, order: Any, cuts: list[int]) -> None:
    assert laws.sum_law_holds(World.of("pfedrec", seed=seed, **SMALL).train(1), np.asarray(order), cuts)


def test_secure_training_has_the_bits_of_plain_training() -> None:
    assert laws.secure_is_plain("pfedrec", negatives_each=1)


def test_a_clip_bounds_what_is_sent() -> None:
    world = World.of("pfedrec", **SMALL)
    narrow = replace(world, method=replace(world.method, options=replace(world.method.options, item_clip=0.01)))
    upload, pending = narrow.upload(np.array([3]))
    assert pending.clipped > 0
    assert np.abs(narrow.words(upload) * narrow.method.spec(world.stage).leaf("items").step).max() <= 0.01


def test_traffic_by_hand() -> None:
    """d = 3, N = 14, two negatives for each item: users with 3 items, none and 13, then one that is lost."""
    world = World.of("pfedrec", **SMALL)
    found = world.method.traffic(world.stage, np.array([3, 0, 13, 2]), lost=1)
    assert found == (4 * (9 + 0 + 14) * (1 + 3), 4 * 4 * (14 * 3 + 3 + 1), 4 * 3 * 14 * 3, 4 * 4 * (14 * 3 + 3 + 1))
