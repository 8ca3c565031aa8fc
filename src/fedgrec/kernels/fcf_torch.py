"""FCF's rounds on a GPU: everybody's least squares side by side. The maths and its names are those of `methods.fcf`."""

from typing import Any

import torch
from torch import Tensor

from fedgrec.cable.core import Ints
from fedgrec.kernels.rounds_torch import Rounds, Sums, adam


class Engine(Rounds):
    """The population of FCF on a GPU."""

    def __init__(self, method: Any, server: Any, users: Any, *where: Any, **how: Any) -> None:
        super().__init__(method, server, users, *where, **how)
        self.confidence = self._place(method.confidence(users))  # [nnz], float64

    def local_update(self, users: Tensor, counts: Ints, sums: Sums) -> None:
        """Users solve x_u in float64, as everywhere."""
        exact, items, gram = torch.float64, self.spec.leaf("items"), self.spec.leaf("gram")
        edges, real = self.edges(users, int(counts.max()))
        c = torch.where(real, self.confidence[edges], 0)  # [S, P]
        beyond = torch.where(real, c - 1, 0)
        Y = self.server["items"][0][self.items[edges]].to(exact)  # [S, P, d]
        everyone = self.more["gram"].to(exact) + self.options.l2 * torch.eye(Y.shape[2], dtype=exact, device=Y.device)
        A = torch.baddbmm(everyone[None], Y.transpose(1, 2), beyond[..., None] * Y)
        # cholesky() would wait to hear of a failure. It fails only if A is not finite, which the sums notice.
        factor = torch.linalg.cholesky_ex(A)[0]
        X = torch.cholesky_solve((c[:, None] @ Y).transpose(1, 2), factor)[..., 0]  # [S, d]
        weights = c - beyond * (Y @ X[..., None])[..., 0]
        self.add_rows(sums["items"], self.items[edges], weights[..., None] * X[:, None], items)
        sums["gram"] += self.rounded(X[:, :, None] * X[:, None], gram).sum(0, dtype=sums["gram"].dtype)
        self.state["embeddings"][users, 0] = X.to(self.state["embeddings"].dtype)

    def apply(self, sums: Sums, users: int) -> None:
        o, Y, many = self.options, self.server["items"][0], self.method.n_users / users
        outer = sums["gram"].to(torch.float64) * self.spec.leaf("gram").step
        pull = (sums["items"].to(torch.float64) * self.spec.leaf("items").step).to(Y.dtype) - Y @ outer.to(Y.dtype)
        grad = pull.mul_(-2 * many).add_(Y, alpha=2 * o.l2)
        if o.server_optimizer == "adam":
            Y += adam(grad, self.server["moment1"], self.server["moment2"], self.round + 1, o.server_rate, o)
        else:
            Y -= o.server_rate * grad
        exact = Y.to(torch.float64)
        self.more["gram"] = (exact.T @ exact).to(Y.dtype)
