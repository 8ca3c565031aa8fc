"""Whole rounds in PyTorch on a GPU, for methods that have no fused loops: nothing is copied between two looks.

Like `cuda.Engine`, `Rounds` takes over a method's server and population, runs rounds, and gives both back when
somebody wants to look. Its rounds are those of the verbs: the same draws, the same rounded integers, the same order.
A method's own file says what users compute side by side and what the server makes of their sum.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedgrec.core import Cohort, Ints, Leaf, ServerState, UploadSpec
from fedgrec.devices import place
from fedgrec.errors import FedgrecError, missing_extra

try:
    import torch
    from torch import Tensor
except ImportError:
    raise missing_extra("training on a GPU", "torch") from None

Sums = dict[str, Tensor]


class Rounds(ABC):
    """The population of a method on one device. Results depend on `memory` in the last bits alone."""

    def __init__(
        self, method: Any, server: ServerState, users: Cohort, device: str = "cuda", memory: int = 2**28
    ) -> None:
        self.method, self.options, self.device, self.memory = method, method.options, place(device), memory
        self.spec: UploadSpec = method.spec(method.stages[-1])
        self.round = server.round
        self.counts = users.degrees  # known here too: to ask the device for a size would mean to wait for it
        self.keys, self.items = self._place(users.keys.view(np.int64)), self._place(users.items.astype(np.int64))
        self.first, self.degrees = (self._place(part.astype(np.int64)) for part in (users.indptr[:-1], self.counts))
        self.state = {name: self._place(value) for name, value in vars(users.state).items()}
        self.server = {name: self._place(getattr(server, name)) for name in ("items", "moment1", "moment2")}
        self.more = {name: self._place(value) for name, value in server.more.items()}
        self.cut = torch.zeros((), dtype=torch.int64, device=self.device)
        self.finite = torch.ones((), dtype=torch.bool, device=self.device)

    def _place(self, array: Any) -> Tensor:
        return torch.tensor(np.ascontiguousarray(array), device=self.device)  # a copy, also on the host

    # ------------------------------------------------------------------------------------------- rounds

    @abstractmethod
    def rows(self, counts: Ints) -> Ints:
        """How many rows of d numbers users with these degrees work on."""

    @abstractmethod
    def local_update(self, users: Tensor, counts: Ints, sums: Sums) -> None:
        """Train these users, all of whom have items: `counts` of them. Adds to the sums, and keeps their new state."""

    @abstractmethod
    def apply(self, sums: Sums, users: int) -> None:
        """The server's half of a round."""

    def run(self, rounds: Sequence[Ints]) -> None:
        """Train rounds, each with these users: those whose upload arrives."""
        with torch.no_grad():
            for users in rounds:
                if len(users):
                    self._round(users)
                self.round += 1

    def _round(self, users: Ints) -> None:
        words = getattr(torch, self.spec.dtype.name)
        sums = {
            leaf.name: torch.zeros(leaf.rows, leaf.width, dtype=words, device=self.device) for leaf in self.spec.leaves
        }
        for some in self._batches(users):
            self.local_update(self._place(some), self.counts[some], sums)
        self.apply(sums, len(users))

    def _batches(self, users: Ints) -> Iterator[Ints]:
        """The users that have items, those with few first, as many at a time as one working table may hold."""
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
        """Where each user's items are, and which of these are its own; others are its first.  # [S, longest] both"""
        at = torch.arange(longest, device=self.device)
        real = at < self.degrees[users][:, None]
        return self.first[users][:, None] + torch.where(real, at, 0), real

    def rounded(self, values: Tensor, leaf: Leaf) -> Tensor:
        """core.quantize: finished numbers → integers, clipped and rounded; what was cut is counted."""
        self.finite &= values.isfinite().all()
        steps = (values / leaf.step).round_()
        self.cut += (steps.abs() > leaf.bound).sum()
        return steps.clamp_(-leaf.bound, leaf.bound).to(getattr(torch, self.spec.dtype.name))

    # ---------------------------------------------------------------------------------- looking at it

    def give_back(self, server: ServerState, state: Any) -> int:
        """Copy everything back to where it came from; how many words the clips have cut since the last time."""
        if not self.finite:
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
    step: Tensor = (m * (-rate * unbias1)).div_((v * unbias2).sqrt_().add_(o.epsilon))
    return step
