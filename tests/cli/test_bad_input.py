"""Bad data is one sentence with file and line and exit code 2, and nothing is left half-written."""

import os
from pathlib import Path
from typing import Any

import pytest

from fedgrec import cli
from fedgrec.data import registry
from tests.cli.small import clicks
from tests.cli.test_options import refused

FILES = {
    "letter.txt": ("0 1 2\n1 2 x3\n", ":2: 'x3' is not an integer id"),
    "negative.txt": ("0 1 2\n1 2\n2 -7\n", ":3: the id '-7' is negative"),
    "huge.txt": ("0 1\n1 99999999999999999999\n", ":2: '99999999999999999999' is too large"),
    "empty.txt": ("", " is empty"),
    "blank.csv": ("\n\n", " is empty"),
    "header.csv": ("user,item\n", " has a header but no rows"),
    "columns.csv": ("who,what\na,b\n", ":1: there is no user column 'user'; the columns are who, what"),
    "short.csv": ("user,item\na,b\nc\n", ":3: 1 fields where 2 belong"),
    "gap.csv": ("user,item\na,b\n,b\n", ":3: the user is missing"),
    "latin.csv": ("user,item\nJos\udce9,b\n", ":2: not UTF-8 text"),
    "clicks.xls": ("user,item\na,b\n", "the format '.xls' is not known"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", ["train", "data"])
def test_bad_data_is_one_sentence_and_leaves_nothing(capsys: Any, tmp_path: Path, name: str, command: str) -> None:
    content, sentence = FILES[name]
    path = tmp_path / name
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    words = (
        ["train", "--data", str(path), "--out", str(tmp_path / "run")] if command == "train" else ["data", str(path)]
    )
    assert f"{path}{sentence}" in refused(capsys, *words).replace(f"{path}: the", f"{path}the")
    assert os.listdir(tmp_path) == [name]


def test_a_rating_that_is_no_number_is_found(capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "rated.csv"
    path.write_text("user,item,rating\na,x,5\nb,y,good\n")
    words = ["train", "--data", str(path), "--min-rating", "4", "--out", str(tmp_path / "run")]
    assert f"{path}:3: the rating 'good' is not a number" in refused(capsys, *words)
    path.write_text("user,item,rating\na,x,1\n")
    assert "leaves no pair to train on" in refused(capsys, *words)
    assert os.listdir(tmp_path) == ["rated.csv"]


def test_an_unknown_name_is_answered_with_the_nearest(capsys: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert "Did you mean 'yelp2018'?" in refused(capsys, "train", "--data", "yelp")
    assert "does not exist: check the path" in refused(capsys, "train", "--data", "no/such.csv")
    assert os.listdir(tmp_path) == []  # not even the default runs/ folder


def test_a_file_that_is_not_the_published_one_is_refused(capsys: Any, tmp_path: Path, monkeypatch: Any) -> None:
    toy = registry.Source("http://127.0.0.1:9", {"train.txt": f"sha256:{'0' * 64}"}, 2, 3, 4, 0)
    monkeypatch.setitem(registry.SOURCES, "toy", toy)
    monkeypatch.setenv("FEDGREC_DATA", str(tmp_path))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "train.txt").write_text("0 1 2\n1 0 2\n")
    said = refused(capsys, "train", "--data", "toy", "--out", str(tmp_path / "run"))
    assert f"{tmp_path / 'toy' / 'train.txt'} is not the published toy (its checksum differs)" in said
    assert not (tmp_path / "run").exists()


def test_ids_that_cannot_be_kept_leave_no_folder(capsys: Any, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from datetime import date

    days = [date(2024, 1, day) for day in (1, 2, 3, 4)]
    pq.write_table(pa.table({"user": days, "item": [1, 2, 3, 4]}), tmp_path / "days.parquet")
    words = ["train", "--data", str(tmp_path / "days.parquet"), "--out", str(tmp_path / "run"), "--quiet"]
    assert "cannot be an id; write it as text or as a number" in refused(capsys, *words)
    assert os.listdir(tmp_path) == ["days.parquet"]


def test_what_is_advised_of_a_column_works_in_every_command(capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("user,what\n" + "".join(f"u{n % 5},{n}\n" for n in range(40)))
    run = ["--out", str(tmp_path / "run"), "--quiet"]
    for words in (["data", str(path)], ["train", "--data", str(path), *run], ["audit", "--data", str(path), *run]):
        said = refused(capsys, *words)
        assert "there is no item column 'item'; the columns are user, what" in said
        assert "--set item_column=NAME" in said
    assert cli.main(["data", str(path), "--set", "item_column=what"]) == 0
    assert "clicks: 5 users, 40 items, 40 pairs" in capsys.readouterr().out
    assert "no option 'layers'" in refused(capsys, "data", str(path), "--set", "layers=2")


@pytest.mark.parametrize("words", [["recommend", "--user", "1"], ["evaluate"]], ids=lambda words: words[0])
def test_what_is_not_a_run_is_said(capsys: Any, tmp_path: Path, words: list[str]) -> None:
    command, *rest = words
    assert "is not a run: it has no config.toml" in refused(capsys, command, str(tmp_path / "nothing"), *rest)
    table = clicks(tmp_path / "clicks.csv")
    assert f"Make one with  fedgrec train --data {table}" in refused(capsys, command, str(table), *rest)


def test_torchrun_is_refused(capsys: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = ["train", "--data", str(data), "--out", str(tmp_path / "run")]
    assert "start it without torchrun" in refused(capsys, *words)
    assert not (tmp_path / "run").exists()


def test_a_damaged_model_is_said(capsys: Any, finished: Path, tmp_path: Path) -> None:
    import shutil

    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "server.safetensors").write_bytes((run / "server.safetensors").read_bytes()[:100])
    assert "server.safetensors is not a tensor file" in refused(capsys, "recommend", str(run), "--user", "ann1")
    (run / "server.safetensors").unlink()
    assert "the run has no model yet" in refused(capsys, "evaluate", str(run))


def test_a_closed_pipe_is_no_error(data: Path) -> None:
    """`fedgrec data | head -0`"""
    import subprocess
    import sys

    process = subprocess.Popen([sys.executable, "-m", "fedgrec", "data", str(data)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)  # fmt: skip
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), error) == (0, b"")


def test_an_option_nobody_knows_is_a_usage_error(capsys: Any) -> None:
    assert cli.main(["train", "--layerz", "2"]) == 2
    assert "there is no option 'layerz'. Did you mean 'layers'?" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        cli.main(["doctor", "--layerz"])
    assert end.value.code == 2
    assert "unrecognized arguments: --layerz" in capsys.readouterr().err
