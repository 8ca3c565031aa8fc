"""The loops inside `local_update`, readable (`reference`) and fast (compiled, PyTorch, Triton). They import `cable` and
`config`: they know arrays, not who calls them.
"""

from typing import Any, Protocol

import numpy as np

from fedgrec.cable.core import Broadcast, Cohort, Floats, Ints, Leaf, Rows, ServerState, UploadSpec, UserState
from fedgrec.config.options import FedGRecOptions


class Kernel(Protocol):
    """What a kernel of FedGRec computes; `reference` is the page to read, `cpu` its fast twin."""

    NAME: str

    def refresh(self, cohort: Cohort, weights: Floats, tables: Floats, at: Ints) -> Floats: ...
    def push(
        self, cohort: Cohort, weights: Floats, old: Floats, new: Floats, leaf: Leaf, dtype: np.dtype[Any], n_items: int
    ) -> tuple[Rows, int]: ...
    def send(
        self, cohort: Cohort, weights: Floats, held: Floats, leaf: Leaf, dtype: np.dtype[Any], round_: int
    ) -> tuple[Rows, int]: ...
    def follow(
        self, cohort: Cohort, table: Floats, weights: Floats, per_step: float, spec: UploadSpec, round_: int | None
    ) -> tuple[Rows, int]: ...
    def train(
        self,
        cohort: Cohort,
        weights: Floats,
        broadcast: Broadcast,
        latents: Floats,
        o: FedGRecOptions,
        leaf: Leaf,
        dtype: np.dtype[Any],
    ) -> tuple[Rows, UserState, int]: ...
    def combine(self, items: Floats, alphas: Floats, download: str, lean: bool) -> Floats: ...
    def server_adam(self, server: ServerState, update: Rows, steps: Floats, o: Any) -> None: ...
    def add_rows(self, table: Floats, update: Rows, leaf: Leaf, rate: float) -> None: ...
