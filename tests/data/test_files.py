"""Files are complete or absent, even if the disk is full; later damage is reported in one sentence."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.disks import a_disk

from fedgrec.data import files
from fedgrec.data.files import Checkpoints, check_writable, read_json, write_bytes, write_tensors, write_text
from fedgrec.errors import DiskError, RunError

TENSORS = {"a": np.arange(200_000.0)}  # 1.6 MB
WRITERS: dict[str, Callable[[Path], None]] = {
    "bytes": lambda path: write_bytes(path, bytes(2_000_000)),
    "text": lambda path: write_text(path, "x" * 2_000_000),
    "tensors": lambda path: write_tensors(path, TENSORS, {"round": "1"}),
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    with a_disk(tmp_path / "disk", "1m") as place:
        yield place


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every flush fails for lack of space, with an error that has no file name, as on some file systems."""

    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", no_space)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_really_full_disk_is_one_sentence_and_keeps_the_old_file(small_disk: Path, kind: str) -> None:
    path = small_disk / "file"
    path.write_text("old")
    with pytest.raises(DiskError, match="the disk is full: free some space") as error:
        WRITERS[kind](path)
    assert str(path) in str(error.value)
    assert os.listdir(small_disk) == ["file"]
    assert path.read_text() == "old"


def test_a_checkpoint_on_a_really_full_disk_leaves_the_one_before(small_disk: Path) -> None:
    checkpoints, some = Checkpoints(small_disk / "checkpoints"), {"a": np.arange(8)}
    checkpoints.save(1, some, {"round": 1})
    with pytest.raises(DiskError, match="the disk is full"):
        checkpoints.save(2, TENSORS, {"round": 2})
    assert sorted(os.listdir(small_disk / "checkpoints")) == ["1", "latest"]
    found = checkpoints.load()
    assert found is not None
    assert found[1] == {"round": 1}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_is_one_sentence(tmp_path: Path, full_disk: None, kind: str) -> None:
    with pytest.raises(DiskError, match=r"file could not be written: the disk is full"):
        WRITERS[kind](tmp_path / "file")
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_on_a_full_disk_leaves_nothing_behind(tmp_path: Path, full_disk: None) -> None:
    with pytest.raises(DiskError, match="the disk is full"):
        Checkpoints(tmp_path).save(3, {"a": np.arange(8)}, {"round": 3})
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_that_nothing_points_to_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Checkpoints(tmp_path).save(3, {"a": np.arange(8)}, {"round": 3})
    write = files.write_text

    def no_pointer(path: Path, content: str) -> None:
        if path.name == "latest":
            raise DiskError("the disk is full")
        write(path, content)

    monkeypatch.setattr(files, "write_text", no_pointer)
    with pytest.raises(DiskError):
        Checkpoints(tmp_path).save(6, {"a": np.arange(8)}, {"round": 6})
    assert sorted(os.listdir(tmp_path)) == ["3", "latest"]


@pytest.mark.parametrize("kind", WRITERS)
def test_any_other_trouble_of_the_system_is_said_too(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DiskError, match=r"No such file or directory"):
        WRITERS[kind](tmp_path / "gone" / "file")


def test_an_interrupt_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "file", "x")
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("6/state.json", '{"round": 6', "state.json is damaged"),
        ("6/state.json", "[6]", "state.json is damaged"),
        ("6/state.json", b"\xff\xfe", "state.json is damaged"),
        ("6/state.json", None, "state.json is missing"),
        ("6/state.safetensors", "", "state.safetensors is not a tensor file"),
        ("6/state.safetensors", None, "state.safetensors is missing"),
        ("latest", "9\n", "names the checkpoint '9', which is not there (there is 6)"),
        ("latest", "", "names the checkpoint '', which is not there"),
        ("latest", "../6\n", "names the checkpoint '../6', which is not there"),
        ("latest", b"\xff\xfe", "which is not there"),
    ],
)
def test_a_damaged_checkpoint_is_one_sentence(
    tmp_path: Path, name: str, content: str | bytes | None, sentence: str
) -> None:
    Checkpoints(tmp_path).save(6, {"a": np.arange(8)}, {"round": 6})
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(RunError) as error:
        Checkpoints(tmp_path).load()
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_what_a_file_should_hold_and_does_not_is_said(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('{"sizes": 3}')
    for mistake in (lambda c: c["checksums"], lambda c: c["sizes"]["users"], lambda c: int("x")):
        with (
            pytest.raises(RunError, match=r"data\.json is damaged \(.*\): train again"),
            files.understood(path, "train again"),
        ):
            mistake(read_json(path, "train again"))


# --------------------------------------------------------------------------------- before the work


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "a" / "b" / "c"):
        check_writable(folder)
    assert os.listdir(tmp_path) == []


def places(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    return {
        "a file": (tmp_path / "file", "file is a file"),
        "in a file": (tmp_path / "file" / "run", "file is a file"),
        "a dangling link": (tmp_path / "link", "link is a link to nothing"),
        "no real folder": (Path("/proc/run"), "/proc/run cannot be written"),
        "a long name": (tmp_path / ("x" * 300), "File name too long"),
        "a NUL": (tmp_path / "a\0b", "null"),
    }


@pytest.mark.parametrize("case", ["a file", "in a file", "a dangling link", "no real folder", "a long name", "a NUL"])
def test_a_folder_that_cannot_be_written_is_found_before_the_work(tmp_path: Path, case: str) -> None:
    folder, sentence = places(tmp_path)[case]
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(RunError) as error:
        check_writable(folder, "--runs")
    assert sentence in str(error.value)
    assert str(error.value).endswith("choose another --runs")
    assert sorted(os.listdir(tmp_path)) == before


def test_a_folder_without_permission_is_found_before_the_work(tmp_path: Path, monkeypatch: Any) -> None:
    """Permission bits do not stop root, so the system's refusal is simulated."""

    def denied(*_: Any, **__: Any) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path))

    monkeypatch.setattr(files.tempfile, "mkdtemp", denied)
    with pytest.raises(RunError, match="cannot be written: Permission denied"):
        check_writable(tmp_path / "run")
