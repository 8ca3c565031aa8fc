"""Results that a node computed before the server asked for them, kept in this process, at most one for each node.

A result is used once, and only where the server asks for exactly the inputs that it was computed from. Without one, as
in a process that has just started, the node computes when it is asked, with the same result.
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
