"""What training changes and the files of a run, to compare runs; a process that dies instead of a file operation."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.data.files import read_tensors
from fedgrec.runs.simulation import Simulation
from tests.cli.small import lines, timeless


def bits(run: Simulation) -> list[bytes]:
    """Everything that training changes, on both sides."""
    server, users = run.server, run.users
    named = (vars(server), server.more, server.kept, vars(users.state), {"around": users.around})
    return [value.tobytes() for part in named for value in part.values() if isinstance(value, np.ndarray)]


def _tensors(path: Path) -> Any:
    """The bits of all tensors, without metadata: it has a digest of state.json, whose seconds differ between runs."""
    found, about = read_tensors(path)
    return {name: (part.dtype.str, part.shape, part.tobytes()) for name, part in found.items()}, about.get("round")


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves, the optimizers' moments in its last checkpoint included."""
    state = sorted((folder / "checkpoints").glob("*/state.safetensors"))
    tensors = [folder / "server.safetensors", folder / "users.safetensors", *state]
    files: dict[str, Any] = {path.relative_to(folder).as_posix(): _tensors(path) for path in tensors}
    files["metrics"] = [timeless(line) for line in lines(folder / "metrics.jsonl")]
    files["result"] = timeless(json.loads((folder / "result.json").read_text()))
    return files


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Killed(BaseException):
    """A kill, which none of our code may catch."""


def deadly_files(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Arms the n-th file operation from now on: the process dies instead of doing it. 0 arms none."""
    left = 0

    def deadly(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return operation(*arguments, **named)

        return call

    for name in ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, deadly(getattr(os, name)))

    def arm(n: int) -> None:
        nonlocal left
        left = n

    return arm
