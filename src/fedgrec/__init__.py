"""Federated graph recommenders."""

__version__ = "0.1.0"
