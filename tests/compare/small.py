"""A comparison that takes a second: few clicks, few rounds, and the command line called in process."""

import json
from pathlib import Path
from typing import Any

from fedgrec import cli

FEDGREC = "fedgrec:dim=8,layers=2,users_per_round=6,negatives=6"
MF = "mf-bpr:dim=8,rate=0.05,batch=32"
METHODS = f"{FEDGREC},{MF},popularity,turbocf"
LENGTH = {"rounds": "6", "epochs": "4", "evaluate-every": "2,1"}


def words(
    data: Path, out: Path, methods: str = METHODS, seeds: str = "2", checkpoint_every: int = 2, **changes: str
) -> list[str]:
    found = ["compare", "--data", str(data), "--out", str(out), "--methods", methods, "--seeds", seeds]
    for name, value in (LENGTH | {k.replace("_", "-"): v for k, v in changes.items()}).items():
        found += [f"--{name}", value]
    kept = ["--set", f"checkpoint_every={checkpoint_every}"]
    return [*found, "--set", "kernel=reference", *kept, "--device", "cpu"]


def compared(data: Path, out: Path, *more: str, code: int = 0, **changes: Any) -> dict[str, Any]:
    """compare.json of a comparison that ends with this code."""
    assert cli.main([*words(data, out, **changes), *more]) == code
    return read(out)


def read(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "compare.json").read_text())
    return found


def timeless(value: Any) -> Any:
    """All that must be equal in two equal comparisons."""
    if isinstance(value, dict):
        return {key: timeless(each) for key, each in value.items() if key not in {"seconds", "folder"}}
    return [timeless(each) for each in value] if isinstance(value, list) else value
