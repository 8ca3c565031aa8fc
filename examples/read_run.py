"""Read a run folder without fedgrec: JSON, TOML and safetensors are enough. docs/run-folder.md describes every file.

fedgrec train --data demo --out runs/first
python examples/read_run.py runs/first
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file


def main(folder: str = "runs/first") -> dict[str, Any]:
    run = Path(folder)
    config = tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    print(
        f"{config['method']} on {config['data']['data']}: round {result['round']}, Recall@20 {result['recall@20']:.4f}"
    )

    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        measured = json.loads(line)
        print(f"  round {measured['round']:>6} {measured['split']:>10} {measured['recall@20']:.4f}")

    # Items: one trained embedding and K latents each. Their mean represents the item (Eq. 2 with equal weights).
    server = load_file(run / "server.safetensors")
    items = server["item_embeddings"].mean(axis=0)  # [N, d]
    about = json.loads((run / "items.json").read_text(encoding="utf-8"))
    ids = about.get("ids") or list(range(about["range"]))

    # The item that most users have, and the items that point in the most similar direction.
    popular = int(server["item_degrees"].argmax())
    unit = items / np.linalg.norm(items, axis=1, keepdims=True).clip(1e-12)
    alike = [int(t) for t in np.argsort(-(unit @ unit[popular])) if t != popular][:5]
    print(f"most like {ids[popular]}: {', '.join(str(ids[t]) for t in alike)}")

    # Who has what: the items of user u are train_items[train_indptr[u] : train_indptr[u + 1]].
    users = load_file(run / "users.safetensors")
    print(f"{len(users['train_indptr']) - 1} users have {len(users['train_items'])} items to train on")
    return {"popular": ids[popular], "alike": [ids[t] for t in alike]}


if __name__ == "__main__":
    main(*sys.argv[1:2])
