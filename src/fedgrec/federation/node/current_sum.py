"""The secure sum that a node is in, with all its secrets: only in this process, never on a disk.

A node whose process ends drops out of that sum. So a backup of its folder holds nothing that was ever used to mask a
vector, and no copy of the folder can mask a second vector with the same masks: the difference of the two vectors would
have no mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from fedgrec.cable.core import State
from fedgrec.federation.common.plan import Plan
from fedgrec.secagg.client import Client


class Computed(NamedTuple):
    """What users send, and their new state if the sum counts."""

    words: NDArray[Any]
    rows: Sequence[int]  # the users in it; who failed is not
    state: State | None = None
    pushed: Sequence[bytes] | None = None  # the items and weights under which their latents then stand


@dataclass
class Sum:
    """One secure sum, as one node knows it."""

    name: str
    client: Client
    place: tuple[str, int, int]  # as announced
    roster: str = ""  # the digest of the roster that it began with
    plan: Plan | None = None  # once the server has sent it
    nodes: tuple[int, ...] = ()  # the nodes in it, as the server names them with the plan
    model: bytes = b""  # the digest of the model that came with it
    survivors: bytes = b""  # the digest of the list of survivors that the node signed
    is_in: bool = False  # whether the node itself is on that list; otherwise it only helps to open the sum
    ahead: tuple[Any, Computed] | None = None  # inputs and result of work that was done early

    def computed(self, inputs: Any) -> Computed | None:
        """The result that was computed early, if it came from exactly these inputs."""
        return self.ahead[1] if self.ahead and self.ahead[0] == inputs else None


Sums = dict[Path, Sum]  # by folder: the sum that each node of one process is in
