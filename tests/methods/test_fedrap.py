"""FedRAP: an epoch of one user against its loss differentiated by differences, and the laws of every method."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.methods.fedrap import FedRAP
from tests.methods import laws
from tests.methods.laws import World
from tests.methods.test_pfedrec import broadcast_of, slope

SMALL = {
    "dim": 3, "negatives_each": 2, "local_steps": 1, "rate": 0.3, "item_rate": 2.0, "apart": 0.4, "sparse": 0.3,
}  # fmt: skip


def loss(layer: np.ndarray, C: np.ndarray, D: np.ndarray, place: np.ndarray, y: np.ndarray, ramp: float) -> float:
    """As the paper writes it, over a user's examples.  layer: w and, last, b"""
    p = 1 / (1 + np.exp(-((C + D)[place] @ layer[:-1] + layer[-1])))
    entropy = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean()
    return float(entropy - ramp * 0.4 * ((D - C)[place] ** 2).mean() + ramp * 0.3 * np.abs(C[place]).mean())


def distance_to_hand(world: World, u: int = 3) -> float:
    """From a state where the user's tables and layer have left their start."""
    o, more, before = world.method.options, world.server.more, world.users.state
    mine, place, y = world.method.examples(world.users, u, 0)
    layer = more["start"] + np.append(before.embeddings[u, 0], before.bias[u]).astype(float)
    C, D = (part.astype(float) for part in (world.server.items[0, mine], more["personal"][mine]))
    D, ramp = D + before.embeddings[u, 1 + mine], math.tanh(world.server.round / 10)
    rest, fall = (place, y, ramp), o.decay**world.server.round
    by_layer = slope(lambda at: loss(at, C, D, *rest), layer)
    by_C, by_D = (slope(lambda at: loss(layer, at, D, *rest), C), slope(lambda at: loss(layer, C, at, *rest), D))
    upload, pending = world.upload(np.array([u]))
    leaf, moved = world.method.spec(world.stage).leaf("items"), np.zeros((world.method.n_items, 3))
    moved[mine] = -o.item_rate * fall * by_C
    own, after = before.embeddings[u].astype(float), pending.state
    own[0], own[1 + mine] = own[0] - o.rate * fall * by_layer[:-1], own[1 + mine] - o.item_rate * fall * by_D
    found = world.words(upload).reshape(moved.shape) * leaf.step, after.embeddings[0]
    return max(float(np.abs(a - b).max()) for a, b in zip(found, (moved, own), strict=True))


def test_an_epoch_of_one_user_is_a_gradient_step_by_hand() -> None:
    world = World.of("fedrap", **SMALL).train(4)
    assert np.abs(world.users.state.embeddings[3]).max() > 0.1
    assert distance_to_hand(world) < 1e-4


@pytest.mark.parametrize("wrong", [{"apart": 0.0}, {"sparse": 0.0}, {"apart": -0.4}])
def test_mutants_break_the_law(wrong: dict[str, float]) -> None:
    """A term left out, or the tables drawn together instead of apart."""
    world = World.of("fedrap", **SMALL).train(4)
    mutant = replace(world.method, options=replace(world.method.options, **wrong))
    assert distance_to_hand(replace(world, method=mutant)) > 1e-3


def test_negatives_are_drawn_once_and_rates_fall() -> None:
    world = World.of("fedrap", **SMALL | {"decay": 0.5}).train(1)
    first = world.upload(np.array([3]))[0].leaves["items"].index
    world.train(2)
    assert (world.upload(np.array([3]))[0].leaves["items"].index == first).all()
    frozen = World.of("fedrap", **SMALL | {"decay": 0.0}).train(1)
    assert not world.words(frozen.upload()[0]).any()


def test_a_user_stops_when_its_loss_stands_still() -> None:
    few, many = ({"local_steps": steps, "tolerance": tolerance} for steps, tolerance in ((2, 0.0), (9, 1.0)))
    a, b = (World.of("fedrap", **SMALL | options).upload(np.array([3]))[0] for options in (few, many))
    assert np.array_equal(a.leaves["items"].values, b.leaves["items"].values)


def test_a_score_adds_both_tables() -> None:
    world = World.of("fedrap", **SMALL).train(2)
    start, own = world.server.more["start"], world.users.state
    items = world.server.items[0] + world.server.more["personal"] + own.embeddings[3, 1:]
    expected = items @ (start[:-1] + own.embeddings[3, 0]) + start[-1] + own.bias[3]
    np.testing.assert_allclose(world.method.scores(world.server, world.users)[3], expected, atol=1e-5)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.permutations(range(9)), st.lists(st.integers(1, 8), unique=True))
def test_any_split_and_order_gives_the_same_integers(seed: int, order: list[int], cuts: list[int]) -> None:
    assert laws.sum_law_holds(World.of("fedrap", seed=seed, **SMALL).train(1), np.asarray(order), cuts)


def test_secure_training_has_the_bits_of_plain_training() -> None:
    assert laws.secure_is_plain("fedrap", negatives_each=1)


def test_only_the_shared_table_travels() -> None:
    """The personal table is one row longer than the catalogue's, and no part of any message up has a row for it."""
    world = World.of("fedrap", **SMALL)
    assert isinstance(world.method, FedRAP)
    assert [(leaf.name, leaf.rows, leaf.width) for leaf in world.method.spec(world.stage).leaves] == [("items", 14, 3)]
    broadcast, degrees = broadcast_of(world), world.users.degrees
    sent = [broadcast.tables, *broadcast.more.values()]
    assert world.method.traffic(world.stage, degrees).down == len(degrees) * 4 * sum(part.size for part in sent)
