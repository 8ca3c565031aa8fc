"""The secure sum that a node is in, with all its secrets: in this process alone, never on a disk.

A node whose process ends is lost to that sum. A backup of its folder therefore holds nothing that was ever used to mask
a vector, and no copy of the folder can be had to mask two vectors alike: the difference of these would be bare.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from fedgrec.core import State
from fedgrec.federation.common.plan import Plan
from fedgrec.secagg.client import Client


class Computed(NamedTuple):
    """What users send, and what they will be if it counts."""

    words: NDArray[Any]
    state: State | None = None
    pushed: Sequence[bytes] | None = None  # under which items and weights their latents stand then
    failed: bool = False  # zeros are sent: nothing of these users is in the sum


@dataclass
class Sum:
    """One secure sum, as one node knows it."""

    name: str
    client: Client
    place: tuple[str, int, int]  # as announced
    plan: Plan | None = None  # once the server has sent it
    company: tuple[int, ...] = ()  # who is in it, as the server says with the plan
    model: bytes = b""  # the digest of the model that came with it
    survivors: bytes = b""  # the digest of the list of survivors that the node signed
    ahead: tuple[Any, Computed] | None = None  # what was computed before it was asked for, and from which inputs

    def computed(self, inputs: Any) -> Computed | None:
        """What was computed ahead, if it was from just these inputs."""
        return self.ahead[1] if self.ahead and self.ahead[0] == inputs else None


_sums: dict[Path, Sum] = {}


def begin(folder: Path, sum_: Sum) -> None:
    """Whatever other sum this node was in is over for it."""
    _sums[folder] = sum_


def find(folder: Path, name: str) -> Sum | None:
    found = _sums.get(folder)
    return found if found and found.name == name else None


def end(folder: Path) -> None:
    """As the end of the process does."""
    _sums.pop(folder, None)
