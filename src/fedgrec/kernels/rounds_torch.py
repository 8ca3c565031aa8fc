"""Whole rounds in PyTorch, on a GPU or a CPU, for methods without fused loops there; no state is copied between rounds.

Like `cuda.Engine`, `Rounds` takes over a method's server and population, runs rounds, and gives both back when
something reads them. Its rounds are those of the verbs: the same draws, the same rounded integers, the same order.
A method's own file says what users compute side by side and what the server does with their sum.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedgrec.cable.core import Cohort, Ints, Leaf, ServerState, UploadSpec
from fedgrec.errors import FedgrecError, missing_extra
from fedgrec.kernels.devices import place

try:
    import torch
    from torch import Tensor
except ImportError:
    raise missing_extra("training on a GPU", "torch") from None

from fedgrec.kernels import _draws_torch as draws

Sums = dict[str, Tensor]


class Rounds(ABC):
    """The population of a method on one device. Results depend on `memory` in the last bits alone."""

    def __init__(
        self,
        method: Any,
        server: ServerState,
        users: Cohort,
        device: str = "cuda",
        memory: int = 0,  # bytes of one working table [users, rows, d]; training holds about ten of them
    ) -> None:
        self.method, self.options, self.device = method, method.options, place(device)
        self.memory = memory or (2**28 if self.device.type == "cuda" else 2**22)  # what a CPU's cache holds
        self.spec: UploadSpec = method.spec(method.stages[-1])
        self.round = server.round
        self.counts = users.degrees  # kept on the CPU too: asking the device for a size would mean to wait for it
        self.keys, self.items = self._place(users.keys.view(np.int64)), self._place(users.items.astype(np.int64))
        self.first, self.degrees = (self._place(part.astype(np.int64)) for part in (users.indptr[:-1], self.counts))
        self.state = {name: self._place(value) for name, value in vars(users.state).items()}
        self.server = {name: self._place(getattr(server, name)) for name in ("items", "moment1", "moment2")}
        self.more = {name: self._place(value) for name, value in server.more.items()}
        self.cut = torch.zeros((), dtype=torch.int64, device=self.device)
        self.broken = torch.zeros((), dtype=torch.int64, device=self.device)  # numbers that are not finite

    def _place(self, array: Any) -> Tensor:
        return torch.tensor(np.ascontiguousarray(array), device=self.device)  # a copy, also on the host

    # ------------------------------------------------------------------------------------------- rounds

    def rows(self, counts: Ints) -> Ints:
        """How many rows of d numbers users with these degrees work on; here one for each of their items."""
        return counts

    @abstractmethod
    def local_update(self, users: Tensor, counts: Ints, sums: Sums) -> None:
        """Train these users; each has items, as many as `counts` says. Adds to the sums, and keeps the new state."""

    @abstractmethod
    def apply(self, sums: Sums, users: int) -> None:
        """The server's half of a round."""

    def run(self, rounds: Sequence[Ints]) -> None:
        """Train rounds, each with these users: those whose upload arrives."""
        batches = [list(self._batches(users)) for users in rounds]
        everyone = [some for batch in batches for some in batch]
        # All in one copy: sending each batch by itself would mean to wait for the device every time.
        sent = self._place(np.concatenate([np.zeros(0, np.int64), *everyone]))
        there = iter(torch.split(sent, [len(some) for some in everyone]))
        with torch.no_grad():
            for users, batch in zip(rounds, batches, strict=True):
                if len(users):
                    self._round([(next(there), self.counts[some]) for some in batch], len(users))
                self.round += 1

    def _round(self, batches: list[tuple[Tensor, Ints]], n_users: int) -> None:
        words = getattr(torch, self.spec.dtype.name)
        sums = {
            leaf.name: torch.zeros(leaf.rows, leaf.width, dtype=words, device=self.device) for leaf in self.spec.leaves
        }
        for users, counts in batches:
            self.local_update(users, counts, sums)
        self.apply(sums, n_users)

    def _batches(self, users: Ints) -> Iterator[Ints]:
        """The users that have items, those with few rows first; each batch, padded, fits into one working table."""
        users = users[self.counts[users] > 0]
        n_rows = self.rows(self.counts[users])
        order = np.argsort(n_rows, kind="stable")
        fit = self.memory // (self.server["items"].element_size() * self.options.dim)
        while len(order):
            padded_to = n_rows[order] * np.arange(1, len(order) + 1)  # rows of a batch that ends here
            count = max(1, int(np.searchsorted(padded_to, fit, side="right")))
            yield users[order[:count]]
            order = order[count:]

    def edges(self, users: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Where each user's items are, and which places are its own; padding repeats its first.  # [S, longest] both"""
        place = torch.arange(longest, device=self.device)
        real = place < self.degrees[users][:, None]
        return self.first[users][:, None] + torch.where(real, place, 0), real

    def negatives(self, users: Tensor, width: int) -> Tensor:
        """Items that these users draw and do not have; columns beyond a user's draws mean nothing.  # [S, width]"""
        mine, degrees = self.edges(users, int(self.degrees[users].max()))[0], self.degrees[users]
        return draws.negatives(self.keys[users], self.round, width, self.items[mine], degrees, self.method.n_items)

    def add_rows(self, sums: Tensor, items: Tensor, values: Tensor, leaf: Leaf) -> None:
        """Finished rows, rounded, clipped and added.  # items [S, m], values [S, m, d]"""
        sums.index_add_(0, items.flatten(), self.rounded(values, leaf).flatten(0, 1))

    def rounded(self, values: Tensor, leaf: Leaf) -> Tensor:
        """core.quantize: finished numbers → integers, clipped and rounded; what was cut is counted."""
        self.broken += ~values.sum().isfinite()  # one number that is not finite makes the sum so
        steps = (values / leaf.step).round_()
        self.cut += (steps.abs() > leaf.bound).sum()
        return steps.clamp_(-leaf.bound, leaf.bound).to(getattr(torch, self.spec.dtype.name))

    # ---------------------------------------------------------------------------------- looking at it

    def give_back(self, server: ServerState, state: Any) -> int:
        """Copy everything back to where it came from; how many words the clips have cut since the last time."""
        if self.broken:
            raise FedgrecError("an update is not finite: training diverged; lower the learning rates")
        for name, value in self.state.items():
            setattr(state, name, value.cpu().numpy().copy())
        for name, value in self.server.items():
            setattr(server, name, value.cpu().numpy().copy())
        server.more |= {name: value.cpu().numpy().copy() for name, value in self.more.items()}
        server.round = self.round
        cut = int(self.cut)
        self.cut.zero_()
        return cut


def adam(grad: Tensor, m: Tensor, v: Tensor, t: Any, rate: float, o: Any) -> Tensor:
    """Adam's step (to add) after t steps, a number or one for each row; its moments are updated in place."""
    m.lerp_(grad, 1 - o.beta1)
    v.mul_(o.beta2).addcmul_(grad, grad, value=1 - o.beta2)
    unbias1, unbias2 = 1 / (1 - o.beta1**t), 1 / (1 - o.beta2**t)
    step: Tensor = (m * (-rate * unbias1)).div_((v * unbias2).sqrt_().add_(o.adam_epsilon))
    return step
