"""What is printed fits a terminal of 80 columns."""

import contextlib
import fcntl
import io
import os
import pty
import struct
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgrec import cli
from fedgrec.cli.configured import fitted
from fedgrec.cli.progress import Lines
from fedgrec.studies.compare.names import File, entries
from tests.compare.small import words as compare_words

LONG = "fedgrec:dim=8,layers=2,users_per_round=6,negatives=6,local_steps=2,rounds=6"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(monkeypatch: pytest.MonkeyPatch, draw: Callable[[], None]) -> str:
    """What is drawn on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(theirs, "w", encoding="utf-8") as screen:
        monkeypatch.setattr("sys.stderr", screen)
        draw()
    found = b""
    with contextlib.suppress(OSError):  # everything was read, and the other end is closed
        while piece := os.read(ours, 1 << 16):
            found += piece
    os.close(ours)
    return found.decode("utf-8")


def too_wide(text: str) -> list[str]:
    return [line for line in text.replace("\r", "\n").splitlines() if len(line) > 80]


@pytest.mark.parametrize("words", [["data"], ["data", "demo"], ["reproduce", "--list"], ["presets"]], ids=" ".join)
def test_lists_fit(capsys: Any, narrow: None, tmp_path: Path, monkeypatch: Any, words: list[str]) -> None:
    monkeypatch.delenv("FEDGREC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.main(words) == 0
    assert too_wide(capsys.readouterr().out) == []


def test_notes_about_data_fit(capsys: Any, narrow: None, tmp_path: Path) -> None:
    path = tmp_path / "a-rather-long-name-of-a-file-that-somebody-exported.csv"
    path.write_text("user;item\n" + "".join(f"ann;{n}\nbo;{n}\n" for n in range(8)))
    assert cli.main(["data", str(path)]) == 0
    said = capsys.readouterr().out
    assert too_wide(said) == []
    assert f"{path.name} is read with semicolons between its columns." in " ".join(said.split())


def test_a_comparison_fits(capsys: Any, narrow: None, data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second time all are finished before
        assert cli.main(compare_words(data, Path("out"), f"{LONG},popularity", "1")) == 0
        said = capsys.readouterr().out
        assert too_wide(said) == []
        assert f"{LONG}, seed 0: recall@20" in " ".join(said.split())


def test_a_search_fits(capsys: Any, narrow: None, data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    searches = ["layers=0..2", "server_rate=0.01..0.5:log", "negatives=4..20", "user_optimizer=sgd,adam"]
    fixed = ["dim=8", "users_per_round=6", "kernel=reference"]
    given = [word for text in searches for word in ("--search", text)] + [w for text in fixed for w in ("--set", text)]
    assert cli.main(["tune", "--data", str(data), "--trials", "2", "--rounds", "2", "--out", "out", *given]) == 0
    assert too_wide(capsys.readouterr().out) == []


def test_without_a_terminal_a_line_is_a_line(monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert fitted("word " * 40).count("\n") == 2
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("sys.__stdout__", None)
    assert fitted("word " * 40).count("\n") == 0


@pytest.mark.parametrize("rounds", [8, 100_000])
def test_bars_fit_and_end_in_the_metric(narrow: None, monkeypatch: Any, rounds: int) -> None:
    compared, tuned = Lines(), Lines()
    compared.run_started(12, 24, entries(LONG, File())[0].label, ", seed 12")
    tuned.run_started(12, 24)
    for lines in (compared, tuned):

        def draw(lines: Any = lines) -> None:
            lines.started(0, rounds)
            lines.evaluated({"recall@20": 0.12345, "ndcg@20": 0.1})
            lines.bar.update(rounds // 2)
            lines.bar.refresh()
            lines.bar.close()

        text = shown(monkeypatch, draw)
        assert too_wide(text) == []
        drawn = [line for line in text.split("\r") if "recall@20 0.1235" in line]
        assert drawn, repr(text)
        assert all("[12/24]" in line for line in drawn)


def test_what_is_not_trained_has_no_bar(monkeypatch: Any) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    lines = Lines()
    lines.started(0, 0)
    lines.evaluated({"recall@20": 0.12345})
    assert screen.getvalue() == ""
