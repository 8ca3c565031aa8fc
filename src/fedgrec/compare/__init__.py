"""Methods side by side on one data set: the same data, the same seeds, the same protocol, one table.

from fedgrec.compare import Settings, compare, entries, write
comparison = compare(Settings(entries("fedgrec,popularity"), seeds=(0, 1)), out)
write(comparison, out)
"""

import importlib
from typing import TYPE_CHECKING, Any

from fedgrec.compare.names import Entry, File, entries, known, read_file

if TYPE_CHECKING:
    from fedgrec.compare.comparison import Comparison, Watcher, compare, write
    from fedgrec.compare.plan import Settings

__all__ = ["Comparison", "Entry", "File", "Settings", "Watcher", "compare", "entries", "known", "read_file", "write"]

_HOMES = {"Comparison": "comparison", "Watcher": "comparison", "compare": "comparison", "write": "comparison"}
_HOMES["Settings"] = "plan"


def __getattr__(name: str) -> Any:
    """Import the other modules only when they are needed: they are slow to load, and `--help` needs only names."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedgrec.compare' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedgrec.compare.{_HOMES[name]}"), name)
