"""What a person may try on the first day: each mistake gives one sentence, and unusual but valid input works."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec import cli
from tests.cli.small import train, train_words
from tests.cli.test_options import refused


def test_ids_of_every_kind_come_back_as_they_went_in(capsys: Any, tmp_path: Path) -> None:
    users, items = ["🦊", "007", "日本", "a b", "NA"], ["🍕", "x" * 3_000, "1e3", "-5", "Paris, Texas", "été"]
    rows = "".join(f'"{u}","{i}"\r\n' for u in users for i in items if (u, i) != ("🦊", "🍕"))
    (tmp_path / "odd.csv").write_bytes(("\ufeffuser,item\r\n" + rows).encode())
    run = train(tmp_path / "odd.csv", tmp_path / "run", users_per_round=4, negatives=2)
    for user in users:
        assert cli.main(["recommend", str(run), "--user", user]) == 0
    assert "🍕" in capsys.readouterr().out
    assert "Did you mean '007'?" in refused(capsys, "recommend", str(run), "--user", "7")
    long = refused(capsys, "recommend", str(run), "--user", "9" * 5_000)
    assert len(long) < 200


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "the data has no name: name a data set, a folder or a file"),
        ("clicks", "clicks: a file without an ending: name it clicks.csv, or what it is of .txt, .csv"),
        ("clicks.csv.zip", "clicks.csv.zip is packed: unpack it first"),
        ("clicks.json", "the format '.json' is not known"),
        ("pipe.csv", "pipe.csv is neither a file nor a folder"),
        ("folder.csv", "folder.csv must hold one train and at most one test file"),
    ],
)
def test_what_is_no_data_is_said(capsys: Any, tmp_path: Path, monkeypatch: Any, name: str, sentence: str) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "pipe.csv":
        os.mkfifo(name)
    elif name == "folder.csv":
        Path(name).mkdir()
    elif name:
        Path(name).write_text("user,item\na,b\n")
    assert sentence in refused(capsys, "data", name)


def test_somebody_who_knows_everything_is_told_so(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("user,item\na,x\na,y\nb,x\n")
    run = train(tmp_path / "two.csv", tmp_path / "run", users_per_round=2, negatives=1, validation=0, test_ratio=0)
    assert cli.main(["recommend", str(run), "--user", "a"]) == 0
    assert "Nothing is left to recommend: all 2 items are known." in capsys.readouterr().out


def test_as_many_as_there_are_is_enough(capsys: Any, finished: Path) -> None:
    assert cli.main(["recommend", str(finished), "--user", "ann1", "-n", str(10**15)]) == 0
    assert 0 < len(capsys.readouterr().out.splitlines()) < 50


@pytest.mark.parametrize("content", ["method = 3\n", "method = true\n"])
def test_a_method_that_is_no_word_is_said(capsys: Any, data: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "mine.toml").write_text(content)
    words = [*train_words(data, tmp_path / "run"), "--config", str(tmp_path / "mine.toml")]
    assert "there is no method" in refused(capsys, *words)


def test_what_does_not_fit_the_memory_is_one_sentence(capsys: Any, finished: Path, monkeypatch: Any) -> None:
    assert cli.main(["evaluate", str(finished), "--topk", str(10**14)]) == 0
    assert f"recall@{10**14}" in capsys.readouterr().out  # a list is no longer than the catalogue
    monkeypatch.setattr("fedgrec.runs.trained.open_run", lambda *_, **__: np.empty(10**14))
    said = refused(capsys, "evaluate", str(finished))
    assert "there is not enough memory (Unable to allocate" in said


def test_a_list_that_holds_every_item_chooses_nothing(capsys: Any, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = ["tune", "--data", str(data), "--search", "layers=1..2", "--out", str(tmp_path / "out")]
    for method in ([], ["--method", "mf-bpr", "--search", "rate=0.1,0.2"]):
        given = words if not method else [*words[:3], *method, *words[5:]]
        said = refused(capsys, *given, "--metric", "recall@48")
        assert "--metric recall@48: there are 48 items, so a list of 48 holds them all: choose a smaller k" in said
    assert os.listdir(tmp_path) == []
