"""Law 3: the closed-form local gradients are those of PyTorch's autograd, in float64."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from fedgrec.cable import draws
from fedgrec.kernels import reference
from fedgrec.methods.fedgrec import TRAIN
from tests.laws.worlds import Run, World, worlds

torch = pytest.importorskip("torch")


def autograd(
    world: World,
    run: Run,
    u: int,
    problem: reference.LocalProblem,
    e: np.ndarray,
    moved: np.ndarray,
    step: int,
):
    """The loss as the paper writes it, from all embeddings, differentiated by machine."""
    o, P = world.options, problem.n_positives
    tables = torch.tensor(run.server.items[:, problem.items])  # [K+1, m, d]
    latents = torch.tensor(run.method.kernel.refresh(*refresh_arguments(run, u))[0])  # [K, d]
    e_u = torch.tensor(e, requires_grad=True)
    x = torch.tensor(run.server.items[0, problem.items] + moved, requires_grad=True)
    users = [e_u, *latents]
    if o.live and o.layers:  # e_u^1 = Σ w_ut x_t over the local copies, of which only the drawn ones moved
        users[1] = latents[0] + torch.tensor(problem.weights) @ (x[:P] - tables[0, :P])
    items = [x, *tables[1:]]
    if o.similarity == "cosine":
        alpha = o.weights()
        item, user = (sum(a * v for a, v in zip(alpha, side, strict=True)) for side in (items, users))
        y = torch.nn.functional.cosine_similarity(item, user[None, :], eps=1e-150)
    elif o.combine == "concat":
        y = sum(item @ user for user, item in zip(users, items, strict=True))
    else:
        alpha = o.weights()
        y = sum(a * i for a, i in zip(alpha, items, strict=True)) @ sum(
            a * v for a, v in zip(alpha, users, strict=True)
        )
    if o.loss == "softmax":
        others = torch.logsumexp(y[P:] / o.temperature, 0) if len(y) > P else 0.0
        errors = torch.tensor(problem.targets) * (o.negative_weight * others - y[:P] / o.temperature)
    elif o.loss != "bpr":  # Eq. (3); drawn negatives are zeros
        errors = (torch.cat([torch.tensor(problem.targets), torch.zeros(len(y) - P, dtype=y.dtype)]) - y) ** 2
    else:
        partner = draws.pairs(problem.key, problem.round, step, len(y) - P, P)
        errors = torch.nn.functional.softplus(y[P:] - y[:P][partner])
    pairs = max(len(errors), 1)
    loss = errors.sum() / (pairs if o.reduction == "mean" else 1)
    if o.l2_scaling == "row":
        penalty = e_u.square().sum() + x.square().sum()
    else:
        penalty = e_u.square().sum() + x[:P].square().sum() / P + x[P:].square().sum() / max(len(y) - P, 1)
        penalty = penalty * (1 if o.reduction == "mean" else len(errors))
    (loss + o.l2 / 2 * penalty).backward()
    return e_u.grad.numpy(), x.grad.numpy()


def refresh_arguments(run: Run, u: int):
    cohort = run.users.take(np.array([u]))
    gather, _ = run.method.edge_weights(cohort, run.server.degrees)
    return cohort, gather, run.server.items[: run.world.options.layers], cohort.items


def gradient_error(world: World, gradients=reference.gradients) -> float:
    """Largest relative difference over a few users, away from the starting point."""
    run = Run.warmed_up(world).train(1)
    rng, worst = np.random.default_rng(world.seed), 0.0
    for u in range(min(world.n_users, 4)):
        if not world.Y[u].any():
            continue
        cohort, gather, tables, at = refresh_arguments(run, u)
        broadcast = run.method.broadcast(run.server, TRAIN)
        tables = broadcast.tables[1:2] if world.options.combined else tables  # their sum is all that arrives
        latents = reference.refresh(cohort, gather, tables, at)
        problem = reference.local_problem(cohort, 0, gather, broadcast, latents, world.options)
        e, moved = rng.normal(size=world.options.dim), 0.1 * rng.normal(size=problem.start.shape)
        ours = gradients(problem, e, moved, 2, world.options)
        for mine, theirs in zip(ours, autograd(world, run, u, problem, e, moved, 2), strict=True):
            worst = max(worst, float(np.abs(mine - theirs).max() / (np.abs(theirs).max() + 1e-9)))
    return worst


@settings(max_examples=60, deadline=None)
@given(worlds(precision="float64", download="float32"))
def test_closed_form_is_autograd(world) -> None:
    assert gradient_error(world) < 1e-9


def world_for(**options) -> World:
    from fedgrec.config.configuration import preset

    Y = np.random.default_rng(3).random((6, 10)) < 0.4
    small = {"dim": 4, "negatives": 5, "l2": 0.1, "precision": "float64", "temperature": 0.1}
    return World(Y, replace(preset("bpr").model, **small | options), seed=1)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, {"l2": 0.0}),  # Mutation: no penalty.
        ({}, {"live": False}),  # Mutation: the live term forgotten.
        ({}, {"l2_scaling": "row"}),  # Mutation: the penalty scaled the other way.
        ({}, {"alphas": (1.0, 0.25, 0.25, 0.25)}),  # Mutation: the α_0 that the paper's expansion drops.
        ({"loss": "mse"}, {"reduction": "sum"}),  # Mutation: a sum where a mean is meant.
        ({"loss": "softmax"}, {"temperature": 0.2}),  # Mutation: another temperature.
        ({"loss": "softmax"}, {"negative_weight": 0.9}),  # Mutation: negatives weigh less.
        ({"loss": "softmax"}, {"reduction": "sum"}),  # Mutation: pairs count the same instead of users.
        ({"loss": "softmax", "similarity": "cosine"}, {"similarity": "inner"}),  # Mutation: the norms forgotten.
        ({"loss": "bpr", "similarity": "cosine"}, {"similarity": "inner"}),
    ],
)
def test_mutants_break_the_law(options, wrong) -> None:
    world = world_for(**options)

    def mutant(problem, e, moved, step, o):
        return reference.gradients(problem, e, moved, step, replace(o, **wrong))

    assert gradient_error(world) < 1e-9
    assert gradient_error(world, mutant) > 1e-3


def test_mutation_softmax_forgets_what_clicks_count() -> None:
    def mutant(problem, e, moved, step, o):
        return reference.gradients(replace(problem, targets=np.ones_like(problem.targets)), e, moved, step, o)

    assert gradient_error(world_for(loss="softmax"), mutant) > 1e-3
