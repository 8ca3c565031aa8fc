"""`fedgrec audit` from data to a table and a file."""

import json
from pathlib import Path
from typing import Any

from fedgrec import cli
from fedgrec.studies.audit import shadows
from tests.cli.small import clicks

SMALL = ["--rounds", "3", "--set", "dim=8", "--set", "users_per_round=4", "--set", "kernel=reference"]


def test_the_command_prints_a_table_and_writes_the_figures(tmp_path: Path, capsys: Any) -> None:
    data = clicks(tmp_path / "clicks.csv")
    few = ["--sums", "2", "--shadows", "3"]
    assert cli.main(["audit", "--data", str(data), *SMALL, *few, "--out", str(tmp_path / "a"), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "guessing by popularity names" in said
    assert [line for line in said.splitlines() if len(line) > 80] == []
    assert (tmp_path / "a" / "audit.html").read_text().count(f"finds out: {data}</") == 2  # its title and its headline
    figures = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert figures["method"] == "fedgrec"
    assert figures["users"] == 15  # one of sixteen stays out
    assert figures["sums"] == 2
    assert figures["cohort"] == 4
    assert [line["name"] in said for line in figures["lines"]] == [True] * 10
    (calibrated,) = [line for line in figures["lines"] if line["name"] == shadows.NAME]
    assert [*calibrated["more"]["by_popularity"]] == [*shadows.THIRDS]
    first = figures["lines"][0]["attack"]
    assert 0 <= first["low"] <= first["value"] <= first["high"] <= 1


def test_wrong_words_are_answered_by_a_sentence(tmp_path: Path, capsys: Any) -> None:
    data = str(clicks(tmp_path / "clicks.csv"))
    assert cli.main(["audit", "--data", data, "--method", "fcff"]) == 2
    assert "Did you mean 'fcf'?" in capsys.readouterr().err
    for sums in ("0", "many"):
        assert cli.main(["audit", "--data", data, *SMALL, "--sums", sums, "--quiet"]) == 2
        assert "at least 1" in capsys.readouterr().err
    assert cli.main(["audit", "--data", data, *SMALL, "--shadows", "-1", "--quiet"]) == 2
    assert "at least 0" in capsys.readouterr().err


def test_where_no_upload_arrives_that_is_said(tmp_path: Path, capsys: Any) -> None:
    data = str(clicks(tmp_path / "clicks.csv"))
    assert cli.main(["audit", "--data", data, *SMALL, "--set", "dropout=1", "--quiet"]) == 2
    assert "no sum was opened" in capsys.readouterr().err
