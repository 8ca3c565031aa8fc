"""Federated graph recommenders: people's clicks stay on their devices.

from fedgrec import FedGRec
model = FedGRec(layers=3).fit(user_items)
ids, scores = model.recommend(user, user_items[user], N=10)
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# Loaded when first used, so that `import fedgrec` costs nothing.
_HOMES = {
    "Config": "fedgrec.config",
    "DataOptions": "fedgrec.options",
    "Dataset": "fedgrec.data",
    "FedGRec": "fedgrec.estimator",
    "FedGRecMethod": "fedgrec.methods.fedgrec",
    "FedGRecOptions": "fedgrec.options",
    "FedgrecError": "fedgrec.errors",
    "Interactions": "fedgrec.data",
    "Model": "fedgrec.model",
    "Observer": "fedgrec.simulation",
    "RunOptions": "fedgrec.options",
    "Simulation": "fedgrec.simulation",
    "evaluate": "fedgrec.ranking",
    "load_data": "fedgrec.loading",
    "preset": "fedgrec.config",
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
    "RunOptions",
    "Simulation",
    "evaluate",
    "load_data",
    "preset",
]

if TYPE_CHECKING:
    from fedgrec.config import Config, preset
    from fedgrec.data import Dataset, Interactions
    from fedgrec.errors import FedgrecError
    from fedgrec.estimator import FedGRec
    from fedgrec.loading import load_data
    from fedgrec.methods.fedgrec import FedGRecMethod
    from fedgrec.model import Model
    from fedgrec.options import DataOptions, FedGRecOptions, RunOptions
    from fedgrec.ranking import evaluate
    from fedgrec.simulation import Observer, Simulation


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedgrec' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
