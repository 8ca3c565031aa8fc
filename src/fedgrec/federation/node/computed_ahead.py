"""What a node's users computed before they were asked for it, in this process alone, one result for each node.

A result counts only for the very inputs that it was computed from, and once: whoever computes when asked gets the same.
A process that was started anew, or that ran out of time, has nothing here and computes then.
"""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedgrec.core import State

Computed = tuple[NDArray[Any], State | None]  # what users send, and what they will be if it counts
_kept: dict[Path, tuple[Any, Computed]] = {}


def keep(folder: Path, inputs: Any, result: Computed) -> None:
    """Instead of whatever was kept for this node before."""
    _kept[folder] = inputs, result


def take(folder: Path, inputs: Any) -> Computed | None:
    """What was computed from these inputs, if it was; from now on nothing is kept for this node."""
    kept = _kept.pop(folder, None)
    return kept[1] if kept and kept[0] == inputs else None
