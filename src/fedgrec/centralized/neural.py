"""What models that PyTorch differentiates share: parameters by name, steps of Adam, draws of an epoch."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.centralized.contract import Matrix, Model, Tensors
from fedgrec.data import Interactions
from fedgrec.devices import place

if TYPE_CHECKING:
    from torch import Generator, Tensor


class NeuralModel(Model):
    """A model that says where its parameters start and what the losses of its batches are."""

    def __init__(self, options: Any, train: Interactions, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(options, train, seed, device)
        from fedgrec.centralized import _torch as backend  # says what to install where PyTorch is missing

        self.where = place(device)
        decay = getattr(options, "weight_decay", 0.0)
        self.learner = backend.Learner(self._start(), options.rate, self.where, decay)

    @abstractmethod
    def _start(self) -> Tensors:
        """The parameters before any training, drawn on the host: the same on every device."""

    @abstractmethod
    def _losses(self, noise: "Generator") -> Iterator[tuple["Tensor", int]]:
        """Each batch's mean loss, at the parameters of that moment, and how many it is the mean of."""

    def _train(self) -> float:
        import torch

        from fedgrec.centralized._torch import random

        total, count = torch.zeros((), device=self.where, dtype=torch.float64), 0
        for loss, size in self._losses(random(self.seed, self.epochs_done, self.where)):
            self.learner.descend(loss)
            total += loss.detach() * size  # stays on the device: asking for it would wait for every step
            count += size
        return float(total / max(count, 1))

    def tensors(self) -> Tensors:
        return self.learner.tensors()

    def moments(self) -> Tensors:
        return self.learner.moments()

    def load_tensors(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        self.learner.load(tensors)


def xavier(rng: np.random.Generator, shape: tuple[int, int]) -> Matrix:
    """Glorot and Bengio 2010: uniform in ±√(6 / (rows + columns))."""
    bound = np.sqrt(6 / sum(shape))
    return rng.uniform(-bound, bound, shape).astype(np.float32)
