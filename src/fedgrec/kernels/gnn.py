"""FedGNN's local computation, one user at a time in NumPy: the page one reads, and what a device runs.

A user's subgraph is itself, its items, and what a third party told it about other users of these items:

    h_t = (1−γ_t)·x_t + γ_t·a_t                an item hears its other users; a_t: the mean of their embeddings
    f_u = α·e_u + (1−α)·Σ_{t∈N_u} w_ut·h_t     the user hears its items
    s_t = f_uᵀx_t                              x_t: the local copy of e_t; γ_t = 0 where nobody else is known

A score uses x_t, not h_t: a user ranks items that it does not have, and cannot know their other users; so training must
not use them either. With v_t = (1−α)(1−γ_t)w_ut and B = f_u − α·e_u, and g_t = ∂L/∂s_t, the gradients are closed form
(a_t came from outside, and does not train):

    ∂L/∂f_u = Σ_t g_t·x_t      ∂L/∂e_u = α·∂L/∂f_u      ∂L/∂x_t = g_t·f_u + v_t·∂L/∂f_u   (v_t = 0 unless t∈N_u)
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgrec.cable import draws
from fedgrec.cable.core import Broadcast, Cohort, Floats, Ints, Leaf, Rows, State, quantize
from fedgrec.kernels.reference import adam, bpr_slopes, times, total


@dataclass
class GnnState(State):
    """What a user of FedGNN remembers."""

    embeddings: Floats  # [n, 1, d]: e_u
    moment1: Floats  # [n, d]: Adam's moments of e_u, kept at home
    moment2: Floats  # [n, d]
    steps: Ints  # [n]: Adam steps taken


def train(
    cohort: Cohort, v: Floats, B: Floats, broadcast: Broadcast, o: Any, leaf: Leaf, dtype: np.dtype[Any]
) -> tuple[Rows, GnnState, int]:
    """One round of every user: −∂L/∂x_t (rounded, summed), new user states, words that a clip changed."""
    state, parts, cut = cohort.state.copy(), [], 0
    for u in range(len(cohort)):
        problem = local_problem(cohort, u, v, B, broadcast, o)
        if not problem.n_positives:
            continue
        grad_e, grad_x = gradients(problem, state.embeddings[u, 0], o)
        move_user(state, u, grad_e, o)
        rows, beyond = quantize(-grad_x, leaf, dtype)
        parts.append(Rows(problem.items, rows))
        cut += beyond
    return total(parts, leaf.width, dtype), state, cut


@dataclass(frozen=True)
class LocalProblem:
    """One user's training data of a round: its P positives first, then its negatives."""

    key: int
    round: int
    n_positives: int
    items: Ints  # [m] ids
    x: Floats  # [m, d] as broadcast
    v: Floats  # [P]
    B: Floats  # [d]
    targets: Floats  # [P] for the MSE loss


def local_problem(cohort: Cohort, u: int, v: Floats, B: Floats, broadcast: Broadcast, o: Any) -> LocalProblem:
    """Draw the user's positives and negatives."""
    key, everything = int(cohort.keys[u]), cohort.items_of(u)
    cap = o.max_positives or len(everything)
    chosen = cohort.indptr[u] + draws.positives_sample(key, broadcast.round, len(everything), cap)
    positives = cohort.items[chosen]
    count = o.negatives if len(positives) else 0
    negatives = draws.negatives(key, broadcast.round, count, everything, broadcast.n_items)
    items = np.concatenate([positives, negatives])
    x = broadcast.tables[0, items]
    targets = np.ones(len(positives), x.dtype) if cohort.targets is None else cohort.targets[chosen]
    return LocalProblem(key, broadcast.round, len(positives), items, x, v[chosen], B[u], targets)


def gradients(problem: LocalProblem, e: Floats, o: Any) -> tuple[Floats, Floats]:
    """∂L/∂e_u [d] and ∂L/∂x_t [m, d] of the local loss with its L2 penalty."""
    P, m = problem.n_positives, len(problem.items)
    f_u = o.own * e + problem.B
    scores = times(f_u, problem.x.T)
    g = bpr_slopes(problem, scores, 0, "mean") if o.loss == "bpr" else mse_slopes(problem, scores, o)
    grad_f = times(g, problem.x)
    decay = np.full(m, o.l2 / max(m - P, 1), e.dtype)
    decay[:P] = o.l2 / P
    grad_x = np.outer(g, f_u) + decay[:, None] * problem.x
    grad_x[:P] += np.outer(problem.v, grad_f)
    return o.own * grad_f + o.l2 * e, grad_x.astype(e.dtype)


def mse_slopes(problem: LocalProblem, scores: Floats, o: Any) -> Floats:
    """∂L/∂s_t of the mean of (y_t − s_t)² over positives, plus ω times the mean of s_t² over negatives."""
    P = problem.n_positives
    g: Floats = scores * (2.0 * o.negative_weight / max(len(scores) - P, 1))
    g[:P] = (scores[:P] - problem.targets) * (2.0 / P)
    return g


def move_user(state: GnnState, u: int, grad: Floats, o: Any) -> None:
    """One step of Adam at home."""
    state.steps[u] += 1
    step, state.moment1[u], state.moment2[u] = adam(
        grad, state.moment1[u], state.moment2[u], int(state.steps[u]), o.user_rate, o
    )
    state.embeddings[u, 0] += step
