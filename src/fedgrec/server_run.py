"""How to tell the run of a federation's server, which has no users, from a run that has users of its own."""

import json
from pathlib import Path
from typing import Any

from fedgrec.errors import RunError


def check_has_users(folder: Path) -> None:
    """A run that a federation's server left is refused with a sentence that says whom to ask instead."""
    if is_of_server(folder):
        raise RunError(
            f"{folder} is the run of a federation's server, which has no users: each node keeps its own, and "
            f"recommends to them with  fedgrec device recommend NODE --user ID ; here  fedgrec recommend  takes "
            f"--items or --similar, and  fedgrec evaluate  takes --data (what the nodes measured is in metrics.jsonl)"
        )


def is_of_server(folder: Path) -> bool:
    """data.json tells; a run of an earlier version has none, and its metrics.jsonl tells."""
    if (folder / "users.safetensors").exists():
        return False
    for name in ("data.json", "metrics.jsonl"):
        if (folder / name).exists() and _protocol(folder / name) == "federation":
            return True
    return False


def _protocol(path: Path) -> Any:
    """What the JSON file says, or the first line of a file of lines."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text.partition("\n")[0] if path.suffix == ".jsonl" else text)
    except ValueError:
        return None
    return found.get("protocol") if isinstance(found, dict) else None
