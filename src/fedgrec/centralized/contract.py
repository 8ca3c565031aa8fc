"""What every system here can do, so that one loop trains them, one function judges them and one file keeps them."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgrec.centralized.options import Options
from fedgrec.data import Interactions
from fedgrec.data.files import said, write_json, write_tensors
from fedgrec.data.split import ITEM_IDS, USER_IDS
from fedgrec.errors import FedgrecError, RunError

MODEL = "model.safetensors"

Ints = NDArray[np.int64]
Matrix = NDArray[np.float32]
Tensors = dict[str, NDArray[Any]]
Scorer = Callable[[Ints], Any]  # user indices [n] → scores [n, N]: an array, or a tensor on the model's device


class Model(ABC):
    """A model over all train pairs, trained in epochs, and resumable after each epoch.

    Everything random is a function of (seed, epoch): a model that was loaded goes on as if it had never stopped.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Options]]
    trains: ClassVar[bool] = True
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    learner: Any = None  # what is trained: `tensors` of parameters, `moments` of their steps, and `load` for both

    def __init__(self, options: Any, train: Interactions, seed: int = 0, device: str = "cpu") -> None:
        if device.partition(":")[0] not in self.devices:
            raise FedgrecError(f"{self.name} runs on {' or '.join(self.devices)}, not on {device!r}")
        self.options, self.train, self.seed, self.device = options, train, seed, device
        self.known = train  # what is never recommended; a training adds what its data holds out
        self.epochs_done = 0

    def __reduce__(self) -> Any:
        """What a pickle or a copy takes: a checkpoint. Compiled code and PyTorch's parts are made again, on the CPU."""
        return _made, (type(self), self.options, self.train, self.seed, self.known, self.state())

    @property
    def epochs(self) -> int:
        """How many epochs its options ask for; 0 where there is nothing to train."""
        return self.options.epochs if self.trains else 0

    def epoch(self) -> float:
        """One pass of training; its mean loss."""
        loss = self._train()
        self.epochs_done += 1
        if not np.isfinite(loss):
            raise FedgrecError(f"{self.name} diverged in epoch {self.epochs_done}: its loss is {loss}; lower its rate")
        return loss

    def _train(self) -> float:
        raise FedgrecError(f"{self.name} has nothing to train")

    def tensors(self) -> Tensors:
        """What the scores depend on, apart from the train pairs."""
        return self.learner.tensors() if self.learner else {}

    def moments(self) -> Tensors:
        """What only further training needs."""
        return self.learner.moments() if self.learner else {}

    def load_tensors(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Load what `tensors` gave and, if they are there, what `moments` gave."""
        if self.learner:
            self.learner.load(tensors)

    def state(self) -> Tensors:
        """All that is needed to go on exactly."""
        return {**self.tensors(), **self.moments(), "epochs_done": np.array([self.epochs_done])}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.load_tensors(state)
        self.epochs_done = int(state["epochs_done"][0])

    @abstractmethod
    def scorer(self) -> Scorer:
        """Prepares once what all users share, then scores any users."""

    def scores(self, users: Ints) -> Matrix:
        """Each user's score for every item. [n, N]"""
        return to_numpy(self.scorer()(np.asarray(users, np.int64)))

    def embeddings(self) -> tuple[Matrix, Matrix] | None:
        """(users [M, D], items [N, D]) whose inner products are the scores, or None."""
        return None

    # ----------------------------------------------------------------------------------------- files

    def save(self, folder: str | Path) -> None:
        """All that ranking needs, the train pairs and ids included; moments are for checkpoints alone."""
        folder = Path(folder)
        with said(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / USER_IDS, self.train.user_ids.to_json())
        write_json(folder / ITEM_IDS, self.train.item_ids.to_json())
        pairs: Tensors = {"train_indptr": self.train.indptr, "train_items": self.train.items}
        pairs |= {"seen_indptr": self.known.indptr, "seen_items": self.known.items}
        write_tensors(folder / MODEL, {**self.tensors(), **pairs}, {**self.about(), "round": str(self.epochs_done)})

    def about(self) -> dict[str, str]:
        """What this model was made with."""
        return {"model": self.name, "options": json.dumps(asdict(self.options)), "seed": str(self.seed)}


def _made(
    kind: type[Model], options: Options, train: Interactions, seed: int, known: Interactions, state: Tensors
) -> Model:
    model = kind(options, train, seed)
    model.known = known
    model.load_state(state)
    return model


def to_numpy(values: Any) -> Matrix:
    """An array of float32 on the host, from an array or a tensor."""
    host = values.detach().cpu().numpy() if hasattr(values, "detach") else values
    return np.ascontiguousarray(host, np.float32)


def inner_products(final: Any, n_users: int) -> Scorer:
    """Scores of representations [M+N, D], users first: an array, or a tensor on any device."""
    return lambda chosen: final[chosen] @ final[n_users:].T


def options_from(text: str, kind: type[Options], where: Path) -> Options:
    """Options as `Model.about` wrote them."""
    try:
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(text).items()}
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise RunError(f"{where} was written with other options than this version has: {error}") from None
