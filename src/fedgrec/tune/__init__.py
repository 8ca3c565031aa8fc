"""The search for options: trials train, are judged on validation items, and never see test items.

from fedgrec.tune import Request, tune
found = tune(Request(subject, searches, "recall@20", trials=30), folder)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgrec.tune.search import Search, parse
    from fedgrec.tune.study import Found, Request, Watcher, tune
    from fedgrec.tune.subjects import Centralized, Federated

__all__ = ["Centralized", "Federated", "Found", "Request", "Search", "Watcher", "parse", "tune"]

_HOMES = {"Centralized": "subjects", "Federated": "subjects", "Search": "search", "parse": "search"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fedgrec.tune' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedgrec.tune.{_HOMES.get(name, 'study')}"), name)
