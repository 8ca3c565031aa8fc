"""The softmax loss of a batch: every pair against all items that the batch has drawn, in NumPy and in PyTorch.

    s = cosine of f_u and f_t      L = mean over pairs (u, p) of  −s_up/T + w·log Σ_n exp(s_un/T)

n: the negatives of all triples (uniform), the positives of all other pairs (so drawn by degree), or both.
Through the norm: ∂s_ut/∂f_t = (f̂_u − s_ut f̂_t)/|f_t|, and the same for the user.
"""

from typing import Any

from fedgrec.centralized.options import LightGCNOptions

NEVER = -1e30  # a score whose exponential is 0


def softmax(u: Any, p: Any, n: Any, o: LightGCNOptions, xp: Any) -> tuple[Any, Any, Any, Any]:
    """L and its gradients for the rows of users, positives and negatives, [B, d] each; `xp`: numpy or torch."""
    B, T = len(u), o.temperature
    (u, u_length), (p, p_length), (n, n_length) = map(_unit, (u, p, n))
    drawn = {"uniform": n, "batch": p, "both": xp.concatenate([p, n])}[o.contrast]
    scores = u @ drawn.T / T
    if o.contrast != "uniform":
        scores[range(B), range(B)] = NEVER  # the pair's own positive
    most = xp.amax(scores, 1)
    share = xp.exp(scores - most[:, None])
    total = xp.sum(share, 1)
    loss = xp.mean(o.negative_weight * (xp.log(total) + most) - xp.sum(u * p, 1) / T)
    share *= (o.negative_weight / (T * B) / total)[:, None]  # ∂L/∂s_un
    to_drawn, to_p, to_n = share.T @ u, -u / (T * B), 0 * n
    if o.contrast != "uniform":
        to_p = to_p + to_drawn[:B]
    if o.contrast != "batch":
        to_n = to_drawn[-B:]
    to_u = share @ drawn - p / (T * B)
    return loss, _through(to_u, u, u_length), _through(to_p, p, p_length), _through(to_n, n, n_length)


def ranked(rows: Any, o: LightGCNOptions) -> Any:
    """Rows whose inner products rank."""
    return _unit(rows)[0] if o.ranking == "cosine" else rows


def _unit(rows: Any) -> tuple[Any, Any]:
    length = ((rows * rows).sum(1) ** 0.5)[:, None] + 1e-12
    return rows / length, length


def _through(slope: Any, unit: Any, length: Any) -> Any:
    """The gradient for rows, from the one for their directions."""
    return (slope - (slope * unit).sum(1)[:, None] * unit) / length
