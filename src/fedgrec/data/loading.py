"""Load the data that a run's options name."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedgrec import data
from fedgrec.config.configuration import Config
from fedgrec.config.options import DataOptions
from fedgrec.data import Dataset, Split
from fedgrec.errors import DataError

MATRIX = "matrix"  # what the data of a model that was fitted in Python is called


def load_data(options: DataOptions, validation: float = 0.0, seed: int = 0, before: Split | None = None) -> Dataset:
    """The data set that the options name, split as they say; `validation` is the share held out of train."""
    named: dict[str, Any] = {name.removesuffix("_column"): value for name, value in asdict(options).items()}
    return data.load(named.pop("data"), **named, validation=validation, seed=seed, before=before)


def load_for(config: Config, before: Split | None = None) -> Dataset:
    """The data of a run. Under `honest`, validation items are held out of train, unless the run trains on everything.

    `before` is the split of a resumed run; pairs stay in their part of it (see kept_split.py).
    """
    if config.data.data == MATRIX and not Path(MATRIX).exists():
        raise DataError("this model was fitted and saved in Python, so there is no file with its data")
    holds_out = config.run.protocol == "honest" and config.data.split != "all"
    return load_data(config.data, config.run.validation if holds_out else 0.0, config.run.seed, before)
