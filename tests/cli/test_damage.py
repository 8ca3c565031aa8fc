"""A run whose files were damaged, and a system that does not let us write: one sentence, exit code 2, nothing lost."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedgrec import cli
from fedgrec.errors import RunError
from fedgrec.runs.record import read_metrics
from tests.cli.small import train_words
from tests.cli.test_options import refused


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def longer(run: Path) -> list[str]:
    return ["train", "--out", str(run), "--resume", "--rounds", "9", "--quiet"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("checkpoints/6/state.json", '{"metrics": [{"rou', "state.json is damaged"),
        ("checkpoints/6/state.safetensors", "", "state.safetensors is not a tensor file"),
        ("checkpoints/latest", "77\n", "names the checkpoint '77', which is not there (there is 6)"),
        ("checkpoints/latest", "\0nonsense", "which is not there"),
        ("data.json", "", "data.json is damaged"),
        ("data.json", "{}", "data.json is damaged (there is no 'sizes')"),
        ("data.json", "[]", "data.json is damaged"),
        ("config.toml", "method = ", "config.toml: not a TOML file"),
    ],
)
def test_a_damaged_run_does_not_go_on(capsys: Any, run: Path, name: str, content: str, sentence: str) -> None:
    (run / name).write_text(content)
    assert sentence in refused(capsys, *longer(run))


@pytest.mark.parametrize("name", ["users.json", "items.json"])
@pytest.mark.parametrize("content", ["", "{}", "[1, 2]", '{"kind": "user", "range": "x"}', '{"kind": 3, "ids": 4}'])
def test_damaged_ids_are_said(capsys: Any, run: Path, name: str, content: str) -> None:
    (run / name).write_text(content)
    assert f"{name} is not a saved id map" in refused(capsys, "recommend", str(run), "--user", "ann1")


def test_evaluate_says_what_is_damaged(capsys: Any, run: Path) -> None:
    (run / "data.json").write_text("{")
    assert "data.json is damaged" in refused(capsys, "evaluate", str(run))


WHOLE = '{"round": 2, "split": "test"}'


@pytest.mark.parametrize(
    ("content", "line"),
    [(f'{WHOLE}\n{{"round": 4', 2), ("\n", 1), ("3\n", 1), (f'{WHOLE}\n{{"split": "t"}}\n', 2), ('{"round": 2}\n', 1)],
)
def test_damaged_metrics_are_named_by_line(tmp_path: Path, content: str, line: int) -> None:
    (tmp_path / "metrics.jsonl").write_text(content)
    with pytest.raises(RunError, match=rf"metrics\.jsonl:{line} is damaged"):
        read_metrics(tmp_path)


def test_metrics_that_are_no_text_are_said(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff\xfe\0")
    with pytest.raises(RunError, match=r"metrics\.jsonl:1 is damaged"):
        read_metrics(tmp_path)


@pytest.mark.parametrize(("name", "kind"), [("users.json", "user"), ("items.json", "item")])
def test_ids_that_do_not_fit_the_model_are_said(capsys: Any, run: Path, name: str, kind: str) -> None:
    (run / name).write_text(json.dumps({"kind": kind, "ids": ["ann1", "ann2"]}))
    assert f"{name} names 2 {kind}s, but there should be" in refused(capsys, "recommend", str(run), "--user", "ann1")


def test_tensor_files_that_were_mixed_up_are_said(capsys: Any, run: Path) -> None:
    shutil.copy(run / "server.safetensors", run / "users.safetensors")
    assert "users.safetensors is damaged" in refused(capsys, "recommend", str(run), "--user", "ann1")


def test_a_checkpoint_that_lacks_something_is_said(capsys: Any, run: Path) -> None:
    state = run / "checkpoints" / "6" / "state.json"
    state.write_text(json.dumps({key: value for key, value in json.loads(state.read_text()).items() if key != "round"}))
    said = refused(capsys, *longer(run))
    assert "state.json was damaged or edited after it was written: restore it, or remove" in said
    assert "and --resume begins the run anew" in said


def test_a_chosen_model_that_was_damaged_is_not_replaced_by_the_last(capsys: Any, run: Path) -> None:
    content = bytearray((run / "users.safetensors").read_bytes())
    content[-5] ^= 1
    (run / "users.safetensors").write_bytes(content)
    assert "users.safetensors was damaged" in refused(capsys, *longer(run))


# -------------------------------------------------------------------------------------- a full disk


def test_a_run_on_a_full_disk_is_one_sentence_and_goes_on(
    capsys: Any, data: Path, finished: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """The disk is full at the second checkpoint: the first one stays, and the resumed run ends as if undisturbed."""
    fsync, out = os.fsync, tmp_path / "run"

    def full(handle: int) -> None:
        if "/6.part/" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        said = refused(capsys, *train_words(data, out), "--quiet")
    assert f"the disk is full: free some space, then go on with  fedgrec train --out {out} --resume" in said
    assert sorted(os.listdir(out / "checkpoints")) == ["3", "latest"]
    assert not list(out.rglob("*.part"))
    assert cli.main(["train", "--out", str(out), "--resume", "--quiet"]) == 0
    assert (out / "server.safetensors").read_bytes() == (finished / "server.safetensors").read_bytes()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EMFILE])
def test_an_error_of_the_system_without_a_file_is_one_sentence(capsys: Any, monkeypatch: Any, number: int) -> None:
    from fedgrec.cli import inspect

    def broken(_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(inspect, "run_presets", broken)
    assert refused(capsys, "presets")


def test_output_onto_a_full_disk_is_one_sentence() -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("there is no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "fedgrec", "presets"], stdout=full, stderr=subprocess.PIPE,
                              text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "the disk is full" in done.stderr


# ------------------------------------------------------------------------------- --out, before the work


@pytest.mark.parametrize("command", ["compare", "tune", "reproduce"])
@pytest.mark.parametrize("place", ["file", "file/below", "/proc/below"])
def test_out_is_checked_before_the_data_is_read(
    capsys: Any, data: Path, tmp_path: Path, monkeypatch: Any, command: str, place: str
) -> None:
    from fedgrec.data import datasets

    def too_early(*_: Any, **__: Any) -> None:
        raise AssertionError("the data was read before")

    for name in ("read", "_demo"):
        monkeypatch.setattr(datasets, name, too_early)
    (tmp_path / "file").touch()
    words = {
        "compare": ["compare", "--data", str(data), "--methods", "popularity"],
        "tune": ["tune", "--data", str(data), "--search", "layers=1..2"],
        "reproduce": ["reproduce", "table2", "--quick", "--runs", str(tmp_path / "runs")],
    }[command]
    said = refused(capsys, *words, "--out", str(tmp_path / place))
    assert "is a file: choose another --out" in said or "cannot be written" in said
    assert os.listdir(tmp_path) == ["file"]
