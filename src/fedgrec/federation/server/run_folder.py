"""The run folder that a trained federation leaves on its server: a run's files, except those about users.

docs/run-folder.md says what is in the files. There is no users.json and no users.safetensors: each node keeps its own
users. `"protocol": "federation"` in data.json tells such a run from others (fedgrec/models/model.py).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedgrec.cable.core import ServerState
from fedgrec.data.files import write_json, write_tensors, write_text
from fedgrec.federation.common.catalogue import CATALOGUE, read_catalogue, withdrawn
from fedgrec.federation.server.folder import ServerFolder
from fedgrec.federation.server.store import ServerStore
from fedgrec.models.model import WITHDRAWN

RUN, FEDERATION = "run", "federation"


def write_run(home: ServerFolder, store: ServerStore, server: ServerState) -> Path:
    """Write the files, each whole or not at all; returns their folder."""
    run, options, lines = home.path / RUN, home.options, store.metrics()
    run.mkdir(exist_ok=True)
    config = home.config.changed({"rounds": options.rounds, "topk": home.agreed.topk}, str(home.path))
    write_text(run / "config.toml", config.to_toml())
    write_text(run / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    names: dict[str, Any] = {"range": home.n_items}
    if (home.path / CATALOGUE).exists():
        names = {"ids": list(read_catalogue(home.path / CATALOGUE))}
    write_json(run / "items.json", {"kind": "item", **names})
    about = {
        "name": FEDERATION,
        "protocol": FEDERATION,
        "federation": home.federation,
        "checksums": {},
        "sizes": {"nodes": len(store.nodes()), "users": store.get("n_users"), "items": home.n_items},
        "split": FEDERATION,
        "id_maps": {"items": "items.json"},
        "notes": ["each node keeps its own users: fedgrec device recommend NODE --user ID asks one of them"],
    }
    write_json(run / "data.json", about)
    tensors = {"item_embeddings": server.items, "item_degrees": server.degrees}
    tensors |= {f"more.{name}": value for name, value in server.more.items()}
    if gone := withdrawn(home.path):
        tensors[WITHDRAWN] = np.array(gone)
    write_tensors(run / "server.safetensors", tensors, {"method": config.method, "round": str(server.round)})
    nothing = {"round": server.round, "split": None, "protocol": FEDERATION}
    write_json(run / "result.json", lines[-1] if lines else nothing)
    return run
