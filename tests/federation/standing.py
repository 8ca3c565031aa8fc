"""Law 11 by hand: what must stand at the server, computed from each user's last count and last upload."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedgrec.cable.core import Ints
from fedgrec.federation.node import changes
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.folder import open_server


def standing(server: Path, nodes: Iterable[Path]) -> tuple[Ints, Ints]:
    """The degrees of all items, and the latents of all layers in steps."""
    home = open_server(server)
    method: Any = home.method(1)
    o = method.options
    degrees = np.zeros(home.n_items, np.int64)
    steps = np.zeros((o.layers, home.n_items, o.dim), np.int64)
    for path in nodes:
        with NodeStore(path) as store:
            for row in store.first_rows(-1):
                cohort = store.cohort(method, [row])
                ((counted, blob),) = store.rows("users", "counted, pushed", "WHERE row = ?", [row])
                degrees[cohort.items] += counted
                if blob:
                    edges = changes.unpack_edges(blob, cohort.state.sent.dtype)
                    for item, weight in zip(edges.items.tolist(), edges.weights, strict=True):
                        steps[:, item] += _in_steps(method, weight * cohort.state.sent[0])
    return degrees, steps


def _in_steps(method: Any, sent: Any) -> Ints:
    clip = method.latents.clip / 2
    words: Ints = np.rint(np.clip(sent, -clip, clip) / method.latents.step).astype(np.int64)
    return words
