"""Federated graph recommenders: people's clicks stay on their devices.

from fedgrec import FedGRec
model = FedGRec(layers=3).fit(user_items)
ids, scores = model.recommend(user, user_items[user], N=10)
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# Loaded when first used, so that `import fedgrec` costs nothing.
_HOMES = {
    "Config": "fedgrec.config.configuration",
    "DataOptions": "fedgrec.config.options",
    "Dataset": "fedgrec.data",
    "FedGRec": "fedgrec.runs.estimator",
    "FedGRecMethod": "fedgrec.methods.fedgrec",
    "FedGRecOptions": "fedgrec.config.options",
    "FedgrecError": "fedgrec.errors",
    "Interactions": "fedgrec.data",
    "Model": "fedgrec.models.model",
    "Observer": "fedgrec.runs.simulation",
    "PairFolds": "fedgrec.data.folds",
    "RunOptions": "fedgrec.config.options",
    "Simulation": "fedgrec.runs.simulation",
    "evaluate": "fedgrec.models.ranking",
    "load_data": "fedgrec.data.datasets",
    "preset": "fedgrec.config.configuration",
}
__all__ = [
    "Config",
    "DataOptions",
    "Dataset",
    "FedGRec",
    "FedGRecMethod",
    "FedGRecOptions",
    "FedgrecError",
    "Interactions",
    "Model",
    "Observer",
    "PairFolds",
    "RunOptions",
    "Simulation",
    "evaluate",
    "load_data",
    "preset",
]

if TYPE_CHECKING:
    from fedgrec.config.configuration import Config, preset
    from fedgrec.config.options import DataOptions, FedGRecOptions, RunOptions
    from fedgrec.data import Dataset, Interactions
    from fedgrec.data.datasets import load_data
    from fedgrec.data.folds import PairFolds
    from fedgrec.errors import FedgrecError
    from fedgrec.methods.fedgrec import FedGRecMethod
    from fedgrec.models.model import Model
    from fedgrec.models.ranking import evaluate
    from fedgrec.runs.estimator import FedGRec
    from fedgrec.runs.simulation import Observer, Simulation


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedgrec' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
