"""What is read and written: interactions, ids, splits, names of items, and files that are whole or not there.

It imports `config` and `cable`: a run's folder belongs in `runs`, a model in `models`.
"""

from fedgrec.data.datasets import Dataset, describe, load
from fedgrec.data.interactions import IdMap, Interactions
from fedgrec.data.split import Split

__all__ = ["Dataset", "IdMap", "Interactions", "Split", "describe", "load"]
