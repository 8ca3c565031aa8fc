"""The tables and figures of the paper. Each is a small plan: the runs that it needs, and how it shows their results.

from fedgrec.reproduce import TARGETS, Asked, reproduce
reproduce(TARGETS["table2"], Asked(data=("gowalla",), rounds=4000), runs, out)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgrec.reproduce.plan import Asked
    from fedgrec.reproduce.running import Outcome, reproduce
    from fedgrec.reproduce.targets import TARGETS

__all__ = ["NAMES", "TARGETS", "Asked", "Outcome", "reproduce"]

# The keys of TARGETS, written out so that `--help` need not import them.
NAMES = ("table1", "table2", "table3", "table4", "figure-s", "figure-tau", "figure-curves", "communication")

_HOMES = {"Asked": "plan", "Outcome": "running", "reproduce": "running", "TARGETS": "targets"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedgrec.reproduce' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedgrec.reproduce.{_HOMES[name]}"), name)
