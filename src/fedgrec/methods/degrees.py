"""The first stage of many methods: users are counted, so that everybody knows how many have each item."""

import math

import numpy as np

from fedgrec.cable.core import Cohort, Leaf, Pending, Rows, ServerState, Upload, UploadSpec
from fedgrec.methods import noisy
from fedgrec.methods.contract import Method

NAME = "degrees"  # of the leaf


def spec(method: Method) -> UploadSpec:
    """One number for each item."""
    leaf = Leaf(NAME, method.n_items, 1, clip=1, step=1)
    if method.noise.counts:
        leaf = noisy.bounded(leaf, math.sqrt(method.options.count_items), method.noise.counts)
    return UploadSpec((leaf,), method.n_users)


def local_update(method: Method, cohort: Cohort) -> tuple[Upload, Pending]:
    """Eq. (9): Y_u, summed over the cohort."""
    if method.noise.counts:
        rows = noisy.counted(cohort, method.options.count_items)
    else:
        index, counts = np.unique(cohort.items, return_counts=True)
        rows = Rows(index, counts[:, None])
    return Upload({NAME: rows}, len(cohort)), Pending(cohort.state)


def apply(method: Method, server: ServerState, total: Upload) -> ServerState:
    """The counts, for the server; under noise those of open items."""
    rows = total.leaves[NAME]
    if method.noise.counts:
        noisy.take_counts(server, rows, spec(method).leaf(NAME))
    else:
        server.degrees[rows.index] = rows.values[:, 0]
    return server
