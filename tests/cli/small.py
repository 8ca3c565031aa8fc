"""A small file of clicks and quick options, and the command line called in process."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedgrec import cli

QUICK: dict[str, Any] = {
    "dim": 8, "layers": 2, "rounds": 6, "users_per_round": 6, "negatives": 6, "evaluate_every": 2,
    "checkpoint_every": 3, "kernel": "reference",
}  # fmt: skip


def clicks(path: Path, users: int = 16, items: int = 48, seed: int = 0) -> Path:
    """Strings as ids; everybody has a few items, and there are many more items than a list of twenty holds."""
    rng = np.random.default_rng(seed)
    liked = {(u, i) for u in range(users) for i in rng.choice(items, rng.integers(3, 9), replace=False).tolist()}
    liked |= {(i % users, i) for i in range(items)}  # everything is liked by somebody
    path.write_text("user,item\n" + "".join(f"ann{u},book{i}\n" for u, i in sorted(liked)))
    return path


def flags(**options: Any) -> list[str]:
    """Options as the command line takes them."""
    words = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return words


def train_words(data: Path | str, out: Path, **changes: Any) -> list[str]:
    return ["train", "--data", str(data), "--out", str(out), *flags(**(QUICK | changes))]


def train(data: Path | str, out: Path, **changes: Any) -> Path:
    assert cli.main([*train_words(data, out, **changes), "--quiet"]) == 0
    return out


def lines(path: Path) -> list[dict[str, Any]]:
    """A .jsonl file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def timeless(line: dict[str, Any]) -> dict[str, Any]:
    """All that must be equal in two equal runs."""
    return {key: value for key, value in line.items() if key != "seconds"}
