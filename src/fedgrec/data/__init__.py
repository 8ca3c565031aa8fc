"""Interactions: reading, splitting, naming them, and a demo to try things on."""

from fedgrec.data.datasets import Dataset, describe, load
from fedgrec.data.interactions import IdMap, Interactions
from fedgrec.data.split import Split

__all__ = ["Dataset", "IdMap", "Interactions", "Split", "describe", "load"]
