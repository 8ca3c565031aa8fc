"""All runs of a folder, kept for their numbers in one file: `runs.jsonl`, a line for each run.

A line is a JSON object with the run's name and its small files by file name: a .json file as its value, a .jsonl file
as a list of values, any other file as text. `compare` unpacks the file, and shows or resumes packed runs like others.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedgrec.data.files import understood, write_text
from fedgrec.errors import RunError

PACKED, RUNS, NAME = "runs.jsonl", "runs", "run"
KINDS = (".toml", ".json", ".jsonl")
LEFT_OUT = {"users.json", "items.json"}  # ids: only the model needs them


def read_packed(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each run's name, and its files by name."""
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        with understood(Path(f"{path}:{number}"), "restore it"):
            files = json.loads(line)
            name = files.pop(NAME)
            if any(Path(each).name != each for each in (name, *files)):
                raise RunError(f"{path}:{number} names a file of another folder: restore it")
        yield name, files


def pack(folder: Path) -> Path:
    """Pack all runs in `folder`/runs into one file: their numbers, not their models."""
    lines = []
    for run in sorted((folder / RUNS).iterdir()):
        files = sorted(path for path in run.iterdir() if path.suffix in KINDS and path.name not in LEFT_OUT)
        lines.append(json.dumps({NAME: run.name, **{path.name: _read(path) for path in files}}) + "\n")
    write_text(folder / PACKED, "".join(lines))
    return folder / PACKED


def unpack(folder: Path) -> None:
    """Make a folder for each packed run that has none. A folder appears with all its files or not at all."""
    packed = list(read_packed(folder / PACKED)) if (folder / PACKED).exists() else []
    for name, files in packed:
        if (folder / RUNS / name).exists():
            continue
        (folder / RUNS).mkdir(exist_ok=True)
        part = Path(tempfile.mkdtemp(suffix=".part", dir=folder / RUNS))
        for file, content in files.items():
            write_text(part / file, _text(file, content))
        try:
            os.rename(part, folder / RUNS / name)
        except OSError:  # another process was quicker
            shutil.rmtree(part)


def _read(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text) if path.suffix == ".json" else text


def _text(file: str, content: Any) -> str:
    if file.endswith(".jsonl"):
        return "".join(json.dumps(line) + "\n" for line in content)
    return json.dumps(content, indent=2) + "\n" if file.endswith(".json") else str(content)
