"""What a run leaves, to compare; and a process that dies in place of an operation on files."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgrec.files import read_tensors
from tests.cli.small import lines, timeless


def _tensors(path: Path) -> Any:
    """The bits of all tensors; in the metadata is a digest of state.json, which says how long it took."""
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
    """No code of ours may catch it."""


def deadly_files(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Arms the n-th operation on files from now on: in its place the process dies. 0: none is."""
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
