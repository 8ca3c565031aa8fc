"""A person finds every command and option without leaving the terminal."""

import argparse
import re
import subprocess
import sys
from typing import Any

import pytest

from fedgrec import __version__, cli
from fedgrec.config import options, preset, presets


def commands() -> dict[str, argparse.ArgumentParser]:
    action = next(a for a in cli.parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def helped(words: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        cli.main([*words, "--help"])
    assert end.value.code == 0
    return str(capsys.readouterr().out)


@pytest.mark.parametrize("words", [[], *([name] for name in commands())], ids=" ".join)
def test_help_fits_a_terminal_and_explains_every_option(words: list[str], capsys: Any, monkeypatch) -> None:
    text = helped(words, capsys, monkeypatch)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    for action in (commands()[words[0]] if words else cli.parser())._actions:
        assert action.help or action.metavar, f"{action.dest} is not explained"
        assert all(flag in text for flag in action.option_strings)


def test_help_of_train_names_every_option_with_its_default(capsys, monkeypatch) -> None:
    text = " ".join(helped(["train"], capsys, monkeypatch).split())
    for _, field, _ in options():
        flag = "--" + field.name.replace("_", "-")
        shown = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
        said = re.search(rf" {flag}[ ,].*?\(default: (.*?)\)", text)  # in the usage a bracket comes before it
        assert said, flag
        assert said[1] == str("none" if shown in (None, "") else shown), flag


def test_no_command_is_a_usage_error(capsys) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([])
    assert end.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_version_and_the_module_are_the_same_program() -> None:
    done = subprocess.run([sys.executable, "-m", "fedgrec", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"fedgrec {__version__}\n"


def test_presets_are_listed_and_shown_as_they_resolve(capsys, tmp_path) -> None:
    assert cli.main(["presets"]) == 0
    listed = " ".join(capsys.readouterr().out.split())  # in a narrow terminal in several lines
    for name, description in presets().items():
        assert f"{name} {description}" in listed
        assert cli.main(["presets", name]) == 0
        assert capsys.readouterr().out == preset(name).to_toml()
    assert cli.main(["presets", "papper"]) == 2
    assert "Did you mean 'paper'?" in capsys.readouterr().err


def test_data_lists_what_is_known_and_describes_a_file(capsys, data, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FEDGREC_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.main(["data"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("demo", "gowalla", "yelp2018", "amazon-book"))
    (tmp_path / "gowalla").mkdir()
    for name in ("train.txt", "test.txt"):
        (tmp_path / "gowalla" / name).touch()
    assert cli.main(["data"]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines() if "gowalla" in line] == [
        str(tmp_path / "gowalla")
    ]
    assert cli.main(["data", str(data)]) == 0
    pairs = len(data.read_text().splitlines()) - 1
    said = capsys.readouterr().out
    assert said.startswith(f"clicks: 16 users, 48 items, {pairs} pairs")
    assert "split: ratio" in said
    assert cli.main(["data", "gowala"]) == 2
    assert "Did you mean 'gowalla'?" in capsys.readouterr().err


def test_doctor_is_content_here_and_says_so_where_it_is_not(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("FEDGREC_DATA", raising=False)
    assert cli.main(["doctor"]) == 0
    assert "FAIL" not in capsys.readouterr().out
    monkeypatch.setenv("FEDGREC_DATA", str(tmp_path / "nowhere"))
    assert cli.main(["doctor"]) == 1
    assert f"FAIL  FEDGREC_DATA   {tmp_path / 'nowhere'} is not a folder" in capsys.readouterr().out
