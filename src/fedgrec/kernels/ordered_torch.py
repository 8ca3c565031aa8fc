"""Ordered's sums on a GPU. The maths and its names are those of `methods.ordered`."""

from typing import Any

import torch
from torch import Tensor

from fedgrec.kernels import spectral_torch


class Engine(spectral_torch.Engine):
    """The population of Ordered on a GPU; each user's items are in their order."""

    def __init__(self, method: Any, server: Any, users: Any, *where: Any, **how: Any) -> None:
        super().__init__(method, server, users, *where, **how)
        self.is_known = users.order is not None
        if self.is_known:
            self.items = self.items[self._place(users.by_time)]

    def words(self, Q: Tensor, items: Tensor, real: Tensor, root: Tensor) -> Tensor:
        """T_u D V, or T_uᵀ D U, by its definition: all users have the same weights between two places."""
        decay, before, after = self.method.weights_of(self.round, self.is_known)
        place = torch.arange(items.shape[1], device=items.device, dtype=Q.dtype)
        later = place[:, None] - place
        fall = decay ** (later.abs() - 1)
        weights = torch.where(later > 0, before * fall, after * fall).fill_diagonal_(0)
        rows = Q[items] * (real / self.popularity[items].sqrt()).to(Q.dtype)[..., None]
        return (real / root).to(Q.dtype)[..., None] * (weights @ rows)

    def learn(self, Z: Tensor, shares: Tensor, before: Tensor) -> None:
        turn = Z.to(before.dtype).T @ self.server["items"][0] / shares.sqrt().to(before.dtype)
        self.more["other"] = before @ turn
