"""FedGNN and FedGNN+BPR: their gradients, the laws every federated method keeps, and what they learn."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import softplus

from fedgrec.cable import draws
from fedgrec.cable.core import Rows, Upload
from fedgrec.kernels import gnn
from fedgrec.methods import fedgnn
from fedgrec.methods.fedgnn import TRAIN, FedGNN, Options
from tests.methods.gnn_worlds import board, warmed_up

# -------------------------------------------------------------------------------------------- gradient law


def autograd(method: FedGNN, server: Any, users: Any, u: int, frozen: bool = False) -> tuple[Any, Any]:
    """∂L/∂e_u and ∂L/∂e_t, the model written out as its definition says."""
    o, N = method.options, method.n_items
    x = torch.tensor(server.items[0], requires_grad=True)
    e = torch.tensor(users.state.embeddings[u, 0], requires_grad=True)
    mine = torch.tensor(users.items_of(u), dtype=torch.int64)
    a = torch.tensor(users.around[users.indptr[u] : users.indptr[u + 1]])
    gamma = o.others * (a.abs().sum(1) > 0).double()[:, None]
    item, user = torch.tensor(server.degrees)[mine].double(), torch.full((len(mine),), float(len(mine))).double()
    w = {"mean": 1 / user, "root": user**-0.5, "symmetric": (item * user) ** -0.5}[o.message_passing]
    h = (1 - gamma) * (x.detach() if frozen else x)[mine] + gamma * a
    scores = x @ (o.own * e + (1 - o.own) * (w @ h))
    key, P = int(users.keys[u]), len(mine)
    negatives = torch.tensor(draws.negatives(key, 0, o.negatives, mine.numpy(), N))
    if o.loss == "bpr":
        partner = mine[draws.pairs(key, 0, 0, len(negatives), P)]
        loss = softplus(scores[negatives] - scores[partner]).mean()
    else:
        y = torch.ones(P) if users.targets is None else torch.tensor(users.targets[users.indptr[u] :][:P])
        loss = ((y - scores[mine]) ** 2).mean() + o.negative_weight * (scores[negatives] ** 2).mean()
    penalty = (e**2).sum() + (x[mine] ** 2).sum() / P + (x[negatives] ** 2).sum() / len(negatives)
    (loss + o.l2 / 2 * penalty).backward()
    return e.grad, x.grad


def closed_form(method: FedGNN, server: Any, users: Any, u: int) -> tuple[Any, Any]:
    broadcast = method.broadcast(server, TRAIN)
    problem = gnn.local_problem(users, u, *method._heard(users, broadcast), broadcast, method.options)
    grad_e, rows = gnn.gradients(problem, users.state.embeddings[u, 0], method.options)
    grad_x = np.zeros_like(server.items[0])
    grad_x[problem.items] = rows
    return torch.tensor(grad_e), torch.tensor(grad_x)


def exact(**changes: Any) -> Options:
    base = {"dim": 5, "negatives": 6, "max_positives": 0, "l2": 0.01, "init_std": 0.7, "precision": "float64"}
    return Options(**(base | {"users_per_round": 7, "others": 0.3} | changes))


@pytest.mark.parametrize("message_passing", ["symmetric", "mean", "root"])
@pytest.mark.parametrize(("loss", "rated"), [("bpr", False), ("mse", False), ("mse", True)])
def test_gradients_are_autograds(loss, rated, message_passing) -> None:
    method = fedgnn.make(exact(loss=loss, message_passing=message_passing, negative_weight=2.5), 15, 7)
    server, users = warmed_up(method, board(), rated=rated)
    for u in range(7):
        for ours, theirs in zip(closed_form(method, server, users, u), autograd(method, server, users, u), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_user_deaf_to_its_own_items_has_other_gradients() -> None:
    """Mutation: messages from items that do not train."""
    method = fedgnn.make(exact(loss="bpr"), 15, 7)
    server, users = warmed_up(method, board())
    ours, theirs = closed_form(method, server, users, 0)[1], autograd(method, server, users, 0, frozen=True)[1]
    assert (ours - theirs).abs().max() > 1e-3


# ----------------------------------------------------------------------------------------- the sum law


@st.composite
def worlds(draw: Any) -> tuple[Options, np.ndarray]:
    n, N, seed = draw(st.integers(2, 9)), draw(st.integers(3, 14)), draw(st.integers(0, 2**32))
    Y = np.random.default_rng(seed).random((n, N)) < draw(st.sampled_from([0.15, 0.4, 0.9]))
    Y[0, 0] = True
    choices = {
        "dim": draw(st.sampled_from([1, 3, 8])),
        "users_per_round": n,
        "negatives": draw(st.integers(1, 2 * N)),
        "max_positives": draw(st.sampled_from([0, 2])),
        "loss": draw(st.sampled_from(["bpr", "mse"])),
        "message_passing": draw(st.sampled_from(["symmetric", "mean", "root"])),
        "neighbours": draw(st.sampled_from([1, 20])),
        "clip": draw(st.sampled_from([0.01, 10.0])),
        "precision": draw(st.sampled_from(["float32", "float64"])),
        "init_std": 0.5,
        "negative_weight": 2.0,
    }
    return Options(**choices), Y


def words(upload: Upload, method: FedGNN) -> np.ndarray:
    spec = method.spec(TRAIN)
    return upload.to_ring(spec).astype(np.int64)


def sum_law_holds(method: FedGNN, Y: np.ndarray, cut: int) -> bool:
    server, users = warmed_up(method, Y)
    broadcast, order = method.broadcast(server, TRAIN), np.random.default_rng(cut).permutation(len(Y))
    whole, pending = method.local_update(users, TRAIN, broadcast)
    parts = [part for part in np.split(order, [cut % len(Y)]) if len(part)]
    sums, states = zip(*(method.local_update(users.take(part), TRAIN, broadcast) for part in parts), strict=True)
    total = functools.reduce(lambda a, b: a + b, sums)
    joined = gnn.GnnState.joined([p.state for p in states])
    same_states = np.array_equal(joined.embeddings, pending.state.embeddings[order])
    return same_states and total.users == len(Y) and np.array_equal(words(total, method), words(whole, method))


@settings(max_examples=25, deadline=None)
@given(worlds(), st.integers(0, 8))
def test_any_split_and_order_gives_the_same_integers(world, cut) -> None:
    options, Y = world
    assert sum_law_holds(fedgnn.make(options, Y.shape[1], len(Y)), Y, cut)


def test_rounding_a_sum_instead_of_its_rows_breaks_the_law(monkeypatch) -> None:
    """Mutation: users that are together send the rounded sum of their rows."""

    def train(cohort: Any, v: Any, B: Any, broadcast: Any, o: Any, leaf: Any, dtype: Any) -> Any:
        fine = replace(leaf, step=leaf.step / 16)
        rows, state, cut = right(cohort, v, B, broadcast, o, fine, np.dtype(np.int64))
        return Rows(rows.index, np.rint(rows.values / 16).astype(dtype)), state, cut

    right = gnn.train
    method = fedgnn.make(exact(), 15, 7)
    assert sum_law_holds(method, board(), 3)
    monkeypatch.setattr(gnn, "train", train)
    assert not sum_law_holds(method, board(), 3)


def test_a_user_sends_no_more_than_the_clip() -> None:
    method = fedgnn.make(exact(clip=0.01, loss="mse", precision="float32"), 15, 7)
    server, users = warmed_up(method, board())
    leaf = method.spec(TRAIN).leaf("items")
    for u in range(7):
        upload, pending = method.local_update(users.take(np.array([u])), TRAIN, method.broadcast(server, TRAIN))
        assert np.abs(words(upload, method) * leaf.step).max() == pytest.approx(0.01, rel=1e-4)
        assert pending.clipped > 0


def test_rates_that_fall_have_halved_after_a_half_life() -> None:
    """Round 3 with half_life 3 is round 3 at half the rates, for the user and for the server; not at the full ones."""
    rounds, board_ = 3, board()

    def at_round_three(**rates: Any) -> tuple[Any, Any]:
        method = fedgnn.make(exact(loss="bpr", precision="float32", **rates), 15, 7)
        server, users = warmed_up(method, board_)
        server.round = rounds
        total, pending = method.local_update(users, TRAIN, method.broadcast(server, TRAIN))
        return method.apply(server, TRAIN, total).items, pending.state.embeddings

    fallen = at_round_three(half_life=rounds, server_rate=0.2, user_rate=0.04)
    halves = at_round_three(server_rate=0.1, user_rate=0.02)
    for ours, theirs in zip(fallen, halves, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, full in zip(fallen, at_round_three(server_rate=0.2, user_rate=0.04), strict=True):
        assert np.abs(ours - full).max() > 1e-4
