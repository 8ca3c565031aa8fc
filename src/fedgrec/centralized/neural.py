"""Shared by the models that PyTorch differentiates: parameters by name, steps of Adam, draws of an epoch."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgrec.centralized.contract import Matrix, Model, Tensors
from fedgrec.data import Interactions
from fedgrec.kernels.devices import place

if TYPE_CHECKING:
    from torch import Tensor


class NeuralModel(Model):
    """A model that defines its first parameters, its batches and the loss of a batch."""

    def __init__(self, options: Any, train: Interactions, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(options, train, seed, device)
        from fedgrec.centralized import _torch as backend  # says what to install where PyTorch is missing

        self.where = place(device)
        decay = getattr(options, "weight_decay", 0.0)
        self.learner = backend.Learner(self._start(), options.rate, self.where, decay)
        import torch

        self.noise = torch.Generator(self.where)

    @abstractmethod
    def _start(self) -> Tensors:
        """The parameters before any training, drawn on the host: the same on every device."""

    @abstractmethod
    def _batches(self) -> Iterator[tuple[tuple[Any, ...], int]]:
        """The arguments of `loss` for each batch of this epoch, and the batch's size."""

    @abstractmethod
    def loss(self, *given: Any, **more: Any) -> "Tensor":
        """The mean loss of a batch with the present parameters; without noise nothing is random."""

    def _train(self) -> float:
        from fedgrec.centralized._torch import reseeded

        reseeded(self.noise, self.seed, self.epochs_done)
        self.learner.total.zero_()
        count = 0
        for batch, size in self._batches():
            self._step(batch, size)
            count += size
        return float(self.learner.total / max(count, 1))

    def _step(self, batch: tuple[Any, ...], size: int) -> None:
        loss = self.loss(*batch, noise=self.noise)
        self.learner.descend(loss)
        self.learner.total += loss.detach() * size  # stays on the device: asking for it would wait for every step


def xavier(rng: np.random.Generator, shape: tuple[int, int]) -> Matrix:
    """Glorot and Bengio 2010: uniform in ±√(6 / (rows + columns))."""
    bound = np.sqrt(6 / sum(shape))
    return rng.uniform(-bound, bound, shape).astype(np.float32)
