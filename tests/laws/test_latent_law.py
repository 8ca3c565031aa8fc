"""Law 2: the server's latent items are exactly what the users have committed as sent, whatever was lost on the way."""

import numpy as np
import pytest
from hypothesis import given, settings

from fedgrec.config.configuration import FedGRecOptions
from fedgrec.kernels import cpu, reference
from fedgrec.methods.fedgrec import PROPAGATE, FedGRecMethod
from tests.laws.worlds import Run, World, worlds


def latent_error(run: Run) -> float:
    """Largest |E_T^{k+1} − Wᵀ E_U^k| in fixed-point steps per user: at most one half, and float32's own rounding."""
    W, step = run.world.weights("push"), run.method.spec(PROPAGATE).leaf("latents").step
    worst = 0.0
    for k in range(run.world.options.layers):
        wanted = W.T @ run.users.state.sent[:, k].astype(np.float64)
        slack = step * (1 + run.world.Y.sum(0))[:, None] + 1e-6 * np.abs(wanted)
        worst = max(worst, float((np.abs(run.server.items[k + 1] - wanted) / slack).max()))
    return worst


def warm_up_error(run: Run) -> float:
    """Eq. (1) on both sides after warm-up, relative to the embeddings' size."""
    gather, push = run.world.weights("gather"), run.world.weights("push")
    error = 0.0
    for k in range(run.world.options.layers):
        users = run.users.state.embeddings
        error = max(error, float(np.abs(users[:, k + 1] - gather @ run.server.items[k]).max()))
        error = max(error, float(np.abs(run.server.items[k + 1] - push.T @ users[:, k]).max()))
    return error


@pytest.mark.parametrize("kernel", [reference, cpu])
@pytest.mark.parametrize("rule", ["symmetric", "mean"])
def test_warm_up_gives_equation_1_and_rounds_with_dropouts_keep_the_latents(kernel, rule) -> None:
    @settings(max_examples=8, deadline=None)
    @given(worlds(layers=3, message_passing=rule, precision="float32"))
    def law(world: World) -> None:
        run = Run.warmed_up(world, world.method(kernel))
        assert warm_up_error(run) < 1e-5 + world.n_users * run.method.latents.step / 2  # each user rounds once
        assert latent_error(run.train(rounds=6, dropout=0.4)) <= 1

    law()


def small_world(**options) -> World:
    rng = np.random.default_rng(5)
    chosen = {"dim": 4, "negatives": 8, "users_per_round": 6, "user_rate": 0.1} | options
    return World(rng.random((9, 12)) < 0.4, FedGRecOptions(**chosen), seed=2)


def test_rounding_errors_do_not_pile_up() -> None:
    """Two hundred rounds at a coarse step: the sums telescope, so the error is that of a single rounding."""
    world = small_world(latent_clip=2000.0)
    run = Run.warmed_up(world, world.method(cpu)).train(200, dropout=0.3)
    assert run.method.spec(PROPAGATE).leaf("latents").step > 1e-5
    assert latent_error(run) <= 1


class CommitsWhatWasLost(FedGRecMethod):
    """Mutation: a user believes that its upload arrived although it was lost."""

    @staticmethod
    def commit(population, users, pending, arrived=None) -> None:
        FedGRecMethod.commit(population, users, pending)


class ForgetsWhatItSent(FedGRecMethod):
    """Mutation: the next difference is taken from the wrong value."""

    @staticmethod
    def commit(population, users, pending, arrived=None) -> None:
        sent = population.state.sent.copy()
        FedGRecMethod.commit(population, users, pending, arrived)
        population.state.sent[:] = sent


class ThinksThatItSent(FedGRecMethod):
    """Mutation: in a round that carries no latents a user notes that it has sent them."""

    def _train(self, cohort, broadcast, stage):
        upload, pending = super()._train(cohort, broadcast, stage)
        pending.state.sent[:] = pending.state.embeddings[:, : self.options.layers]
        return upload, pending


def test_latents_that_are_not_due_stay_at_home() -> None:
    """The upload holds no latents, and the next due one brings all changes since the last."""
    run = Run.warmed_up(small_world(latents_every=3)).train(3)  # in the first turns they are due more often
    before, tables = run.users.state.sent.copy(), run.server.items[1:].copy()
    run.train(2)
    assert list(run.exchanged.leaves) == ["items"]
    assert np.array_equal(run.users.state.sent, before)
    assert np.array_equal(run.server.items[1:], tables)
    run.train(1)
    assert list(run.exchanged.leaves) == ["items", "latents"]
    assert not np.array_equal(run.server.items[1:], tables)
    assert latent_error(run) <= 1


@pytest.mark.parametrize(
    ("mutant", "every"),
    [(CommitsWhatWasLost, 1), (ForgetsWhatItSent, 1), (CommitsWhatWasLost, 2), (ThinksThatItSent, 2)],
)
def test_mutants_break_the_law(mutant, every: int) -> None:
    world = small_world(latents_every=every)
    honest = Run.warmed_up(world).train(6, dropout=0.4)
    assert latent_error(honest) <= 1
    method = mutant(world.options, world.n_items, world.n_users)
    warm = Run.warmed_up(world)
    run = Run(world, method, warm.server, warm.users)
    assert latent_error(run.train(6, dropout=0.4)) > 10


def test_a_wrong_degree_breaks_equation_1() -> None:
    """Mutation: weights of another graph, in which one column is inverted."""
    run = Run.warmed_up(small_world())
    run.world.Y[:, 0] = ~run.world.Y[:, 0]
    assert warm_up_error(run) > 1e-3
