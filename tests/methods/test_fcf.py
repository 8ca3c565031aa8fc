"""FCF: its maths against the paper's objective written out in full, and the laws that every method keeps."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.cable.core import Rows, quantize
from fedgrec.methods import fcf
from tests.methods import laws
from tests.methods.laws import World

SMALL = {"dim": 4, "alpha": 3.0, "l2": 0.5, "precision": "float64"}


def ratings(world: World, seed: int = 1) -> World:
    """The same world with ratings."""
    stars = np.random.default_rng(seed).integers(1, 6, len(world.users.items)).astype(float)
    return replace(world, users=replace(world.users, targets=stars))


def dense(world: World) -> tuple[np.ndarray, np.ndarray]:
    """r_ui and p_ui of all users and items."""
    r = np.zeros((len(world.users), world.method.n_items))
    r[world.users.owner, world.users.items] = 1 if world.users.targets is None else world.users.targets
    return r, (r > 0).astype(float)


# --------------------------------------------------------------------------------------------- the maths


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), rated=st.booleans(), d=st.sampled_from([1, 3, 8, 13]))
def test_x_u_is_the_papers_solve(seed, rated, d) -> None:
    world = World.of("fcf", seed=seed, **SMALL | {"dim": d})
    world = ratings(world) if rated else world
    (r, p), Y, o = dense(world), world.server.items[0], world.method.options
    X = world.upload()[1].state.embeddings[:, 0]
    for u in range(len(world.users)):
        C = np.diag(1 + o.alpha * r[u])
        expected = np.linalg.inv(Y.T @ Y + Y.T @ (C - np.eye(len(Y))) @ Y + o.l2 * np.eye(d)) @ Y.T @ C @ p[u]
        np.testing.assert_allclose(X[u], expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(X[world.users.degrees == 0], 0)
    np.testing.assert_allclose(world.method.represent_users(world.server, world.users), X, rtol=1e-12)


def objective(world: World, X: Any, Y: Any, torch: Any) -> Any:
    """J, with every cell of the matrix in it."""
    (r, p), o = dense(world), world.method.options
    errors = (1 + o.alpha * torch.tensor(r)) * (torch.tensor(p) - X @ Y.T) ** 2
    return errors.sum() + o.l2 * (X.square().sum() + Y.square().sum())


def gradient_error(world: World) -> float:
    """How far a round of everybody with SGD is from a step along autograd's gradient, in what rounding allows."""
    torch = pytest.importorskip("torch")
    Y = torch.tensor(world.server.items[0], requires_grad=True)
    total, pending = world.upload()
    X = torch.tensor(pending.state.embeddings[:, 0], requires_grad=True)
    objective(world, X, Y, torch).backward()
    assert X.grad.abs().max() < 1e-8  # x_u is the minimum
    before = world.server.items[0].copy()
    world.method.apply(world.server, world.stage, total)
    moved = (before - world.server.items[0]) / world.method.options.server_rate
    spec, n = world.method.spec(world.stage), len(world.users)
    rounding = n * (spec.leaf("items").step + spec.leaf("gram").step * np.abs(before).sum(1).max())
    return float(np.abs(moved - Y.grad.numpy()).max() / rounding)


@pytest.mark.parametrize("rated", [False, True])
def test_a_round_of_everybody_is_a_step_along_the_gradient_of_the_objective(rated) -> None:
    world = World.of("fcf", **SMALL, server_optimizer="sgd", server_rate=0.01, gram_clip=20.0, item_clip=20.0)
    assert gradient_error(ratings(world) if rated else world) < 2


MUTANTS = {
    "no penalty": lambda w: replace(w.method, options=replace(w.method.options, l2=1e-9)),
    "another rate": lambda w: replace(w.method, options=replace(w.method.options, server_rate=0.02)),
    "half the users": lambda w: replace(w.method, n_users=w.method.n_users // 2),
}


@pytest.mark.parametrize("mutate", MUTANTS.values(), ids=MUTANTS)
def test_mutants_of_the_server_break_the_law(mutate) -> None:
    world = World.of("fcf", **SMALL, server_optimizer="sgd", server_rate=0.01, gram_clip=20.0, item_clip=20.0)
    mutant = mutate(world)

    class Wrong(type(world.method)):  # type: ignore[misc]
        def apply(self, *arguments: Any) -> Any:
            return mutant.apply(*arguments)

    wrong = Wrong(world.method.options, world.method.n_items, world.method.n_users)
    assert gradient_error(replace(world, method=wrong)) > 100


def test_a_sample_of_users_speaks_for_all() -> None:
    """Over all equally large parts of the users the mean step is the step with everybody."""
    world = World.of("fcf", **SMALL, server_optimizer="sgd", size=(8, 14))
    start, moved = world.server.items[0].copy(), {}
    for name, users in {"all": np.arange(8), "some": np.arange(4), "others": np.arange(4, 8)}.items():
        server = world.method.init(0)
        moved[name] = world.method.apply(server, world.stage, world.upload(users)[0]).items[0] - start
    np.testing.assert_allclose((moved["some"] + moved["others"]) / 2, moved["all"], atol=1e-7)


# ----------------------------------------------------------------------------------------------- the laws


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), order=st.permutations(range(9)), cuts=st.lists(st.integers(1, 8), unique=True))
def test_any_split_and_order_gives_the_same_integers(seed, order, cuts) -> None:
    world = World.of("fcf", seed=seed, dim=6).train(1)
    assert laws.sum_law_holds(world, np.asarray(order), cuts)


def test_rounding_after_the_sum_breaks_the_law(monkeypatch) -> None:
    """Mutation: add the users' floats first and round once."""

    def late(cohort: Any, c: Any, Y: Any, X: Any, items: Any, gram: Any, dtype: Any) -> Any:
        rows = np.zeros((items.rows, items.width))
        np.add.at(
            rows, cohort.items, (c - (c - 1) * (Y[cohort.items] * X[cohort.owner]).sum(1))[:, None] * X[cohort.owner]
        )
        numbers = quantize(rows, items, dtype)[0], quantize(X.T @ X, gram, dtype)[0]
        return *(Rows(np.arange(len(part)), part) for part in numbers), 0

    world = World.of("fcf", **SMALL)
    assert laws.sum_law_holds(world, np.arange(9), [4])
    monkeypatch.setattr(fcf, "contributions", late)
    assert not laws.sum_law_holds(world, np.arange(9), [4])


# --------------------------------------------------------------------------------------------- whole runs


def test_secure_training_has_the_bits_of_plain_training() -> None:
    assert laws.secure_is_plain("fcf")


@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_the_checkerboard_is_solved(kernel) -> None:
    values = {"alpha": 2.0, "l2": 1.0, "kernel": kernel}
    assert laws.recall_on_the_checkerboard("fcf", server_rate=0.05, **values) == 1.0
    assert laws.recall_on_the_checkerboard("fcf", server_rate=0.0, **values) < 0.3  # it is training that solves it


def test_a_model_that_never_trained_is_no_better_than_chance() -> None:
    assert 0.03 < laws.recall_untrained("fcf") < 0.07


@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_an_interrupted_run_goes_on_with_the_same_bits(tmp_path, kernel) -> None:
    assert laws.resumed_is_uncut("fcf", tmp_path, kernel=kernel)


def test_a_saved_model_recommends_the_same(tmp_path) -> None:
    assert laws.loaded_recommends_the_same("fcf", tmp_path)


def test_a_stranger_with_the_items_of_a_user_is_that_user() -> None:
    model = laws.after(laws.simulation("fcf")).model()
    mine = model.users.items_of(2)
    np.testing.assert_allclose(model.new_user_vector(mine), model.user_vectors(np.array([2])), rtol=1e-6)


def test_these_are_all_the_leaves_that_ever_leave_a_device() -> None:
    """Adding one is a privacy decision: whoever changes this list says why."""
    world = World.of("fcf", dim=5)
    leaves = [(leaf.name, leaf.rows, leaf.width) for leaf in world.method.spec(world.stage).leaves]
    assert leaves == [("items", 14, 5), ("gram", 5, 5)]
    assert [stage.name for stage in world.method.stages] == ["train"]


def test_traffic_by_hand() -> None:
    """d = 5, N = 14, words of 4 bytes; users with 3 items and 1, then one whose upload is lost."""
    world, degrees = World.of("fcf", dim=5), np.array([3, 1, 2])
    down = 3 * (14 * 5 + 5 * 5)
    up = (3 + 1) * (1 + 5) + 2 * 25
    assert world.method.traffic(world.stage, degrees, lost=1) == (4 * up, 4 * down, 4 * 2 * (14 * 5 + 25), 4 * down)


def test_the_count_in_the_clear_is_what_the_messages_weigh() -> None:
    world = World.of("fcf", dim=5)
    for u in range(len(world.users)):
        upload, _ = world.upload(np.array([u]))
        items, gram = upload.leaves["items"], upload.leaves["gram"]
        counted = world.method.traffic(world.stage, world.users.degrees[[u]])
        assert counted.up == 4 * (items.index.size + items.values.size + gram.values.size)
        broadcast = world.method.broadcast(world.server, world.stage)
        assert counted.down == 4 * (broadcast.tables.size + broadcast.more["gram"].size)


def test_a_run_counts_its_traffic() -> None:
    run = laws.after(laws.simulation("fcf", dropout=0.0, users_per_round=18))
    once = run.method.traffic(run.method.stages[-1], run.users.degrees)
    assert run.progress.traffic == tuple(3 * count for count in once)
