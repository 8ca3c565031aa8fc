"""NeuMF at home: one user's score, loss and gradients in NumPy, and a whole cohort's training with them.

Every item's score adds a generalised matrix factorisation and a small network over a second pair of embeddings:

    s_ui = h_gᵀ(p_u ⊙ q_i) + h_mᵀ f_L,     f_1 = relu(W_p p'_u + W_q q'_i + b_1),  f_l = relu(W_l f_{l−1} + b_l)

    L_u = 1/m Σ_i [ BCE(σ(s_ui), y_ui) + λ/2 (‖p_u‖² + ‖p'_u‖² + ‖q_i‖² + ‖q'_i‖² + ‖Θ‖²) ]

over the user's positives (y = 1) and the negatives that it draws (y = 0), m together. With g_i = ∂L/∂s_i, which is
(σ(s_i) − y_i)/m, and δ_l = ∂L/∂(W_l f_{l−1} + b_l) all gradients are closed form. `neumf_torch` is the fast twin. `o`
is always the Options of methods.fedncf.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fedgrec.cable import draws
from fedgrec.cable.core import Broadcast, Cohort, Floats, Leaf, Rows, quantize
from fedgrec.kernels import reference


class Network(NamedTuple):
    """Views of a flat Θ, or of its gradient; of n such tensors [n, |Θ|] each view has n rows."""

    W_p: Any  # [H_1, d]
    W_q: Any  # [H_1, d]
    h_g: Any  # [d]
    h_m: Any  # [H_L]
    b: list[Any]  # [H_l] each
    W: list[Any]  # [H_l, H_{l−1}] for l = 2..L


def shapes(o: Any) -> list[tuple[int, ...]]:
    """The parts of Θ in their order."""
    first, deeper = (o.hidden[0], o.dim), list(zip(o.hidden[1:], o.hidden, strict=False))
    return [first, first, (o.dim,), o.hidden[-1:], *((units,) for units in o.hidden), *deeper]


def size(o: Any) -> int:
    return sum(int(np.prod(shape)) for shape in shapes(o))


def network(theta: Any, o: Any) -> Network:
    """The parts of Θ as views, of an array or of a tensor."""
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes(o))]).tolist()
    parts = [theta[..., first:last] for first, last in pairwise(ends)]
    W_p, W_q, h_g, h_m, *rest = (
        part.reshape(*theta.shape[:-1], *shape) for part, shape in zip(parts, shapes(o), strict=True)
    )
    return Network(W_p, W_q, h_g, h_m, rest[: len(o.hidden)], rest[len(o.hidden) :])


def forward(net: Network, e: Floats, x: Floats, of_items: Floats) -> tuple[Floats, list[Floats]]:
    """s_i of these items [m], and f_1 .. f_L [m, H_l].  e: [2, d], x: [2, m, d], of_items: q' W_qᵀ [m, H_1]"""
    f = [np.maximum(of_items + (net.W_p @ e[1] + net.b[0]), 0)]
    for W, b in zip(net.W, net.b[1:], strict=True):
        f.append(np.maximum(f[-1] @ W.T + b, 0))
    return x[0] @ (net.h_g * e[0]) + f[-1] @ net.h_m, f


def gradients(theta: Floats, e: Floats, x: Floats, y: Floats, o: Any) -> tuple[Floats, Floats, Floats]:
    """∂L/∂Θ, ∂L/∂(p_u, p'_u) [2, d] and ∂L/∂(q_i, q'_i) [2, m, d]."""
    net, m = network(theta, o), len(y)
    each = 1 / m if o.reduction == "mean" else 1.0
    s, f = forward(net, e, x, x[1] @ net.W_q.T)
    with np.errstate(over="ignore"):  # exp(large) = inf gives the σ = 0 that is meant
        g = ((1 / (1 + np.exp(-s)) - y) * each).astype(s.dtype)
    by_theta, by_e, by_x = o.l2 * each * m * theta, o.l2 * each * m * e, o.l2 * each * x
    grad = network(by_theta, o)
    pull = g @ x[0]  # Σ g_i q_i
    by_e[0] += net.h_g * pull
    by_x[0] += np.outer(g, net.h_g * e[0])
    grad.h_g[:] += e[0] * pull
    grad.h_m[:] += g @ f[-1]
    delta: Floats = np.outer(g, net.h_m) * (f[-1] > 0)  # δ_L  # [m, H_L]
    for level in range(len(f) - 1, 0, -1):
        grad.W[level - 1][:] += delta.T @ f[level - 1]
        grad.b[level][:] += delta.sum(0)
        delta = (delta @ net.W[level - 1]) * (f[level - 1] > 0)
    total = delta.sum(0)  # Σ δ_1  # [H_1]
    grad.b[0][:] += total
    grad.W_p[:] += np.outer(total, e[1])
    grad.W_q[:] += delta.T @ x[1]
    by_e[1] += net.W_p.T @ total
    by_x[1] += delta @ net.W_q
    return by_theta, by_e, by_x


# ------------------------------------------------------------------------------ one user after the other


def train(
    cohort: Cohort, broadcast: Broadcast, theta: Floats, o: Any, items: Leaf, weights: Leaf, dtype: np.dtype[Any]
) -> tuple[Rows, Rows, Any, int]:
    """τ local steps of every user: item and network updates (rounded, summed), new states, words clipped."""
    state, parts, N, cut = cohort.state.copy(), [], broadcast.n_items, 0
    moved_theta = np.zeros((1, weights.width), dtype)
    for u in range(len(cohort)):
        positives = cohort.items_of(u)
        if not len(positives):
            continue
        drawn = draws.negatives(int(cohort.keys[u]), broadcast.round, o.negatives, positives, N)
        mine = np.concatenate([positives, drawn])
        y = np.repeat(np.array([1, 0], theta.dtype), [len(positives), len(drawn)])
        of_items, of_theta = local_steps(broadcast.tables[:, mine], y, theta, state, u, o)
        rows, over = quantize(of_items.reshape(-1, o.dim), items, dtype)
        words, over_too = quantize(of_theta[None], weights, dtype)
        parts.append(Rows(np.concatenate([mine, N + mine]), rows))
        moved_theta += words
        cut += over + over_too
    return reference.total(parts, o.dim, dtype), Rows(np.zeros(1, np.int64), moved_theta), state, cut


def local_steps(start: Floats, y: Floats, theta: Floats, state: Any, u: int, o: Any) -> tuple[Floats, Floats]:
    """τ steps from the broadcast values; updates `state` of user u, returns how far item rows and Θ moved."""
    optimizers = [
        reference.Optimizer(o, kind, rate, like.shape, like.dtype)
        for kind, rate, like in (
            (o.item_optimizer, o.item_rate, theta),
            (o.user_optimizer, o.user_rate, state.embeddings[u]),
            (o.item_optimizer, o.item_rate, start),
        )
    ]
    mine = optimizers[1]
    mine.moment1, mine.moment2, mine.steps = state.moment1[u], state.moment2[u], int(state.steps[u])
    moved: list[Floats] = [np.zeros_like(theta), state.embeddings[u], np.zeros_like(start)]
    for _ in range(o.local_steps):
        grads = gradients(theta + moved[0], moved[1], start + moved[2], y, o)
        moved = [at + optimizer.move(grad) for at, optimizer, grad in zip(moved, optimizers, grads, strict=True)]
    state.embeddings[u] = moved[1]
    state.moment1[u], state.moment2[u], state.steps[u] = mine.moment1, mine.moment2, mine.steps
    return moved[2], moved[0]


def scores(embeddings: Floats, items: Floats, theta: Floats, o: Any) -> Floats:
    """Every item's score for every user; one user at a time, so that memory holds only [N, H_1].  # [n, N]"""
    net = network(theta, o)
    of_items = items[1] @ net.W_q.T  # for all users
    return np.array([forward(net, e, items, of_items)[0] for e in embeddings]).reshape(len(embeddings), items.shape[1])
