"""FedNCF: its closed-form gradients against autograd, and the laws that every method keeps."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.cable import draws
from fedgrec.cable.core import Rows, quantize
from fedgrec.config.configuration import Config
from fedgrec.errors import ConfigError
from fedgrec.kernels import neumf
from fedgrec.methods import fedncf
from fedgrec.methods.fedncf import Options
from tests.methods import laws
from tests.methods.laws import World

SMALL = {"dim": 5, "hidden": (6, 4, 3), "negatives": 6, "l2": 0.01}
IN_BOTH = pytest.mark.parametrize("precision", ["float64", "float32"])
HIDDEN, SEED = st.sampled_from([(32, 16, 8), (9, 5, 3), (7,), (3, 17)]), st.integers(0, 10**6)
REDUCTION = st.sampled_from(["mean", "sum"])

# --------------------------------------------------------------------------------------------- the maths


def autograd(theta: Any, e: Any, x: Any, y: np.ndarray, o: Options) -> list[np.ndarray]:
    """The loss as its paper writes it, over concatenations, differentiated by machine."""
    torch = pytest.importorskip("torch")
    theta, e, x = (torch.tensor(part, requires_grad=True) for part in (theta, e, x))
    parts, at = [], 0
    for shape in neumf.shapes(o):
        parts.append(theta[at : at + int(np.prod(shape))].reshape(shape))
        at += int(np.prod(shape))
    W_p, W_q, h_g, h_m, *rest = parts
    b, W, m = rest[: len(o.hidden)], rest[len(o.hidden) :], len(y)
    f = torch.relu(torch.cat([e[1].expand(m, -1), x[1]], 1) @ torch.cat([W_p, W_q], 1).T + b[0])
    for weights, bias in zip(W, b[1:], strict=True):
        f = torch.relu(f @ weights.T + bias)
    s = torch.cat([e[0] * x[0], f], 1) @ torch.cat([h_g, h_m])
    cross_entropy = torch.nn.functional.binary_cross_entropy_with_logits(s, torch.tensor(y), reduction="none")
    penalty = sum(part.square().sum() for part in (theta, e)) + x.square().sum((0, 2))
    loss = (cross_entropy + o.l2 / 2 * penalty).sum() / (m if o.reduction == "mean" else 1)
    loss.backward()
    return [part.grad.numpy() for part in (theta, e, x)]


def gradient_error(o: Options, gradients: Any = neumf.gradients, seed: int = 0) -> float:
    rng = np.random.default_rng(seed)
    e, x, y = rng.normal(size=(2, o.dim)), rng.normal(size=(2, 9, o.dim)), (rng.random(9) < 0.4).astype(float)
    theta = rng.normal(size=neumf.size(o))
    pairs = zip(gradients(theta, e, x, y, o), autograd(theta, e, x, y, o), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


@settings(max_examples=25, deadline=None)
@given(SEED, HIDDEN, st.sampled_from([1, 4]), REDUCTION, st.sampled_from([0.0, 0.1]))
def test_closed_form_is_autograd(seed, hidden, d, reduction, l2) -> None:
    assert gradient_error(Options(dim=d, hidden=hidden, reduction=reduction, l2=l2), seed=seed) < 1e-9


@pytest.mark.parametrize("wrong", [{"l2": 0.0}, {"reduction": "sum"}])
def test_mutants_break_the_law(wrong) -> None:
    o = Options(dim=4, hidden=(6, 3), l2=0.1)

    def mutant(theta: Any, e: Any, x: Any, y: Any, o: Options) -> Any:
        return neumf.gradients(theta, e, x, y, replace(o, **wrong))

    def forgetful(theta: Any, e: Any, x: Any, y: Any, o: Options) -> Any:
        """The first layer's user half left out of ∂L/∂p'_u."""
        by_theta, by_e, by_x = neumf.gradients(theta, e, x, y, o)
        return by_theta, by_e * np.array([[1], [0]]), by_x

    assert gradient_error(o) < 1e-9
    assert gradient_error(o, mutant) > 1e-3
    assert gradient_error(o, forgetful) > 1e-3


@IN_BOTH
def test_one_step_of_one_user_is_the_gradient_over_its_items(precision) -> None:
    world = World.of("fedncf", **SMALL, precision=precision, user_optimizer="sgd", user_rate=0.5)
    exact = precision == "float64"
    user, o, N = world.users.take(np.array([3])), world.method.options, world.method.n_items
    positives = user.items_of(0)
    mine = np.concatenate([positives, draws.negatives(int(user.keys[0]), 0, 6, positives, N)])
    y = (np.arange(len(mine)) < len(positives)).astype(float)
    e, theta = user.state.embeddings[0], world.server.more["network"]
    by_theta, by_e, by_x = neumf.gradients(theta, e, world.server.items[:, mine], y, o)
    upload, pending = world.upload(np.array([3]))
    expected = np.zeros((2, N, o.dim))
    expected[:, mine] = -by_x
    words, items = world.words(upload), world.method.spec(world.stage).leaf("items")
    np.testing.assert_allclose(
        words[: expected.size] * items.step, expected.ravel(), rtol=0 if exact else 1e-4, atol=items.step
    )
    weights = world.method.spec(world.stage).leaf("network")
    np.testing.assert_allclose(
        words[expected.size :] * weights.step, -by_theta, rtol=0 if exact else 1e-4, atol=weights.step
    )
    np.testing.assert_allclose(pending.state.embeddings[0], e - 0.5 * by_e, rtol=1e-12 if exact else 1e-5)


@IN_BOTH
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_server_that_adds_moves_by_its_rates(precision, reduction) -> None:
    rates = {"server_optimizer": "sum", "server_rate": 0.5, "network_rate": 0.25, "network_reduction": reduction}
    world = World.of("fedncf", **SMALL, **rates, precision=precision)
    items, theta, (total, _) = world.server.items.copy(), world.server.more["network"].copy(), world.upload()
    words, spec = world.words(total), world.method.spec(world.stage)
    world.method.apply(world.server, world.stage, total)
    close = 1e-12 if precision == "float64" else 1e-6
    moved = words[: items.size].reshape(items.shape) * spec.leaf("items").step
    np.testing.assert_allclose(world.server.items - items, 0.5 * moved, atol=close)
    share = 0.25 / (len(world.users) if reduction == "mean" else 1)
    moved_theta = words[items.size :] * spec.leaf("network").step
    np.testing.assert_allclose(world.server.more["network"] - theta, share * moved_theta, atol=close)


def test_a_network_needs_layers() -> None:
    for hidden in ((), (8, 0)):
        with pytest.raises(ConfigError, match="hidden needs at least one layer"):
            Config().changed({"method": "fedncf", "hidden": hidden}, "test")


# ----------------------------------------------------------------------------------------------- the laws


@settings(max_examples=12, deadline=None)
@given(seed=SEED, order=st.permutations(range(9)), cuts=st.lists(st.integers(1, 8), unique=True))
def test_any_split_and_order_gives_the_same_integers(seed, order, cuts) -> None:
    world = World.of("fedncf", seed=seed, **SMALL, local_steps=1 + seed % 2).train(1)
    assert laws.sum_law_holds(world, np.asarray(order), cuts)


def test_rounding_after_the_sum_breaks_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: add the users' floats first and round once."""

    def late(cohort: Any, broadcast: Any, theta: Any, o: Any, items: Any, weights: Any, dtype: Any) -> Any:
        fine = replace(items, step=2.0**-40), replace(weights, step=2.0**-40), np.dtype(np.int64)
        rows, total, state, _ = right(cohort, broadcast, theta, o, *fine)
        numbers = rows.values * 2.0**-40, total.values * 2.0**-40
        values, of_theta = (quantize(n, leaf, dtype)[0] for n, leaf in zip(numbers, (items, weights), strict=True))
        return Rows(rows.index, values), Rows(total.index, of_theta), state, 0

    right, world = neumf.train, World.of("fedncf", **SMALL, item_clip=300.0, network_clip=3000.0)
    assert laws.sum_law_holds(world, np.arange(9), [4])
    monkeypatch.setattr(fedncf.neumf, "train", late)
    assert not laws.sum_law_holds(world, np.arange(9), [4])


# --------------------------------------------------------------------------------------------- whole runs


@pytest.mark.parametrize("steps", [1, 2])
def test_secure_training_has_the_bits_of_plain_training(steps) -> None:
    assert laws.secure_is_plain("fedncf", hidden=(6, 3), negatives=5, local_steps=steps)


BOARD = {"negatives": 16, "hidden": (8, 4)}


@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_the_checkerboard_is_solved(kernel) -> None:
    assert laws.recall_on_the_checkerboard("fedncf", kernel=kernel, **BOARD) == 1.0


def test_without_training_the_checkerboard_is_not_solved() -> None:
    rates = {"server_rate": 0.0, "user_rate": 0.0, "network_rate": 0.0}
    assert laws.recall_on_the_checkerboard("fedncf", **rates, **BOARD) < 0.3


def test_a_model_that_never_trained_is_no_better_than_chance() -> None:
    assert 0.03 < laws.recall_untrained("fedncf") < 0.07


@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_an_interrupted_run_goes_on_with_the_same_bits(tmp_path, kernel) -> None:
    assert laws.resumed_is_uncut("fedncf", tmp_path, kernel=kernel, hidden=(6, 3), negatives=5)


def test_a_saved_model_recommends_the_same(tmp_path) -> None:
    assert laws.loaded_recommends_the_same("fedncf", tmp_path, hidden=(6, 3), negatives=5)


def test_these_are_all_the_leaves_that_ever_leave_a_device() -> None:
    """Adding one is a privacy decision: whoever changes this list says why."""
    world = World.of("fedncf", dim=5, hidden=(6, 4))
    leaves = [(leaf.name, leaf.rows, leaf.width) for leaf in world.method.spec(world.stage).leaves]
    assert leaves == [("items", 2 * 14, 5), ("network", 1, 2 * 6 * 5 + 5 + 4 + 6 + 4 + 4 * 6)]
    assert [stage.name for stage in world.method.stages] == ["train"]


def test_traffic_by_hand() -> None:
    """d = 5, N = 14, 3 negatives, Θ of 103 words of 4 bytes; users with 3 items, none and 13, then one that is lost."""
    world, degrees = World.of("fedncf", dim=5, hidden=(6, 4), negatives=3), np.array([3, 0, 13, 2])
    down = 4 * (2 * 14 * 5 + 103)
    up = (3 + 3 + 13 + 1) * (1 + 2 * 5) + 2 * 103
    secure = 3 * (2 * 14 * 5 + 103)
    assert world.method.traffic(world.stage, degrees, lost=1) == (4 * up, 4 * down, 4 * secure, 4 * down)


def test_the_count_in_the_clear_is_what_the_messages_weigh() -> None:
    world = World.of("fedncf", **SMALL)
    for u in np.flatnonzero(world.users.degrees):
        items, weights = world.upload(np.array([u]))[0].leaves.values()
        counted = world.method.traffic(world.stage, world.users.degrees[[u]])
        assert counted.up == 4 * (len(np.unique(items.index % 14)) + items.values.size + weights.values.size)
        broadcast = world.method.broadcast(world.server, world.stage)
        assert counted.down == 4 * (broadcast.tables.size + broadcast.more["network"].size)


def test_a_run_counts_its_traffic() -> None:
    run = laws.after(laws.simulation("fedncf", dropout=0.0, users_per_round=18, hidden=(6, 3)))
    assert run.progress.traffic == tuple(3 * n for n in run.method.traffic(run.method.stages[-1], run.users.degrees))
