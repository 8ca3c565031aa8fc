"""The systems that are not federated, under one contract: make, train, judge, save, load.

They import `models` and below; federated methods belong in `methods`.

from fedgrec.centralized import make, train
model = make("lightgcn", dataset.split.train, layers=3)
train(model, dataset)
"""

from pathlib import Path
from typing import Any

from fedgrec.centralized.contract import MODEL, Model, options_from
from fedgrec.centralized.lightgcn import MF, LightGCN
from fedgrec.centralized.multvae import MultVAE
from fedgrec.centralized.ngcf import NGCF
from fedgrec.centralized.training import evaluate_model, train
from fedgrec.centralized.untrained import EASE, ItemKNN, Popularity, TurboCF
from fedgrec.data import IdMap, Interactions
from fedgrec.data.files import read_tensors
from fedgrec.data.split import ITEM_IDS, USER_IDS
from fedgrec.errors import ConfigError, nearest

__all__ = ["MODELS", "Model", "evaluate_model", "load", "make", "model_class", "train"]

KINDS: tuple[type[Model], ...] = (Popularity, ItemKNN, TurboCF, EASE, MF, LightGCN, NGCF, MultVAE)
MODELS = {kind.name: kind for kind in KINDS}


def model_class(name: str) -> type[Model]:
    if name not in MODELS:
        raise ConfigError(f"there is no model {name!r}.{nearest(name, list(MODELS))} Models: {', '.join(MODELS)}")
    return MODELS[name]


def make(name: str, train: Interactions, seed: int = 0, device: str = "cpu", **options: Any) -> Model:
    """A model by name, before any training; options that are not given keep their defaults."""
    kind = model_class(name)
    try:
        chosen = kind.Options(**options)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from None
    return kind(chosen, train, seed, device)


def load(folder: str | Path, device: str = "cpu") -> Model:
    """A model that `save` wrote, ready to rank."""
    folder = Path(folder)
    tensors, about = read_tensors(folder / MODEL)
    kind = model_class(about["model"])
    ids = IdMap.load(folder / USER_IDS), IdMap.load(folder / ITEM_IDS)
    pairs = Interactions(*ids, tensors["train_indptr"], tensors["train_items"])
    model = kind(options_from(about["options"], kind.Options, folder / MODEL), pairs, int(about["seed"]), device)
    model.load_tensors(tensors)
    if "seen_indptr" in tensors:  # runs of version 0.2 kept the train pairs alone
        model.known = Interactions(*ids, tensors["seen_indptr"], tensors["seen_items"])
    model.epochs_done = int(about["round"])
    return model
