"""Spectral's sums on a GPU. The maths and its names are those of `methods.spectral`."""

from typing import Any

import torch
from torch import Tensor

from fedgrec.cable.core import LEVELS, Ints
from fedgrec.kernels import _draws_torch as draws
from fedgrec.kernels.rounds_torch import Rounds, Sums


class Engine(Rounds):
    """The population of Spectral on a GPU."""

    def __init__(self, method: Any, server: Any, users: Any, *where: Any, **how: Any) -> None:
        super().__init__(method, server, users, *where, **how)
        self.item_degrees = server.degrees
        items, self.shift = method.shifted(server.degrees)
        self.popularity, self.by_chance = self._place(items), method.by_chance(server.degrees)

    def local_update(self, users: Tensor, counts: Ints, sums: Sums) -> None:
        Q, leaf = self.server["items"][0], self.spec.leaf("items")
        if self.method.download in LEVELS and not self.method.begins(self.round):
            Q = travelling(Q, LEVELS[self.method.download])
        edges, real = self.edges(users, int(counts.max()))
        items, root = self.items[edges], (self.degrees[users].to(torch.float64) + self.shift).sqrt()[:, None]
        words = self.words(Q, items, real, root)
        if self.method.levels:
            words /= self.method.step(self.item_degrees, self.round)
            words += real[..., None] * draws.shifts(self.keys[users], self.round, items, words)
        self.add_rows(sums["items"], items, words, leaf)

    def words(self, Q: Tensor, items: Tensor, real: Tensor, root: Tensor) -> Tensor:
        """y_u, of which each of the user's items gets y_u/√n_u.  # [S, longest, d]"""
        weights = torch.where(real, 1 / (self.popularity[items].sqrt() * root), 0).to(Q.dtype)
        y = torch.bmm(weights[:, None], Q[items])  # [S, 1, d]
        return (real / root).to(Q.dtype)[..., None] * y

    def apply(self, sums: Sums, users: int) -> None:
        method = self.method
        step = method.step(self.item_degrees, self.round) if method.levels else self.spec.leaf("items").step
        Z = sums["items"].to(torch.float64) * step / self.popularity.sqrt()[:, None]
        Q, shares = method.directions(Z, torch)
        before, self.server["items"][0] = self.server["items"][0].clone(), Q.to(self.server["items"].dtype)
        self.learn(Z, shares, before)

    def learn(self, Z: Tensor, shares: Tensor, before: Tensor) -> None:
        """What the server keeps beside the directions; `before`: those that the users had."""
        self.more["trust"] = self.method.trust(shares, self.by_chance).to(before.dtype)


def travelling(table: Tensor, most: int) -> Tensor:
    """core.travelling: rows in whole numbers up to `most`, times a power of two."""
    fraction, exponents = (table.abs().amax(dim=1, keepdim=True) / most).to(torch.float32).frexp()
    exponents = (exponents - (fraction == 0.5).to(torch.int32)).clamp_(-100, 100)
    power = ((exponents + 127) << 23).view(torch.float32).to(table.dtype)
    return (table / power).round_() * power
