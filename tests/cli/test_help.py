"""A person finds every command and option without leaving the terminal."""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedgrec import __version__, cli
from fedgrec.cli.configured import flags
from fedgrec.cli.inspect import sections
from fedgrec.config.configuration import options, preset, presets
from fedgrec.config.options import GROUPS, METHODS
from fedgrec.studies.compare.names import known


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
        if action.help != argparse.SUPPRESS:  # `fedgrec options` explains these
            assert all(flag in text for flag in action.option_strings)


@pytest.mark.parametrize("method", METHODS)
def test_help_of_train_is_a_page_about_the_method_that_was_named(method: str, capsys, monkeypatch) -> None:
    text = helped(["train", "--method", method], capsys, monkeypatch)
    assert len(text.splitlines()) <= 25
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert f"fedgrec options {method}" in text
    of_it, usual = {option.name: option for option in options(method)}, {option.name for option in options()}
    flags = [flag.replace("-", "_") for flag in re.findall(r"^  --([a-z-]+)", text, re.MULTILINE)]
    shown = [flag for flag in flags if flag in of_it]
    assert {"data", "dim", "rounds", "secure", "dp_epsilon", "device", "seed", "topk"} < set(shown)
    assert set(flags) - set(shown) == {"method", "preset", "config", "set", "out", "resume", "item_names", "quiet"}
    assert ("layers" in shown) == ("layers" in of_it)
    own = [name for name in of_it if name not in usual]
    assert set(own[:1]) <= set(shown)
    for name in shown:
        said = re.search(rf"^  --{name.replace('_', '-')} .*?\(default: (.*?)\)", text, re.MULTILINE)
        assert said, name
        assert said[1] == of_it[name].default, name


@pytest.mark.parametrize("method", METHODS)
def test_every_option_of_the_method_is_a_flag(method: str) -> None:
    parser = cli.parser(["train", "--method", method])
    for option in options(method):
        value = option.field.default
        written = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        flag = f"--{option.name.replace('_', '-')}"
        words = ["train", "--method", method, *([flag] if isinstance(value, bool) else [flag, written])]
        given = flags(parser.parse_args(words))
        assert given == {option.name: True if isinstance(value, bool) else written}


def test_a_configuration_file_names_the_method_too(tmp_path: Path, capsys, monkeypatch) -> None:
    (tmp_path / "mine.toml").write_text('method = "fcf"\n')
    text = helped(["train", "--config", str(tmp_path / "mine.toml")], capsys, monkeypatch)
    assert "--alpha X" in text
    assert "--layers" not in text


@pytest.mark.parametrize("method", [*known(), "federation"])
def test_every_option_is_listed_with_default_bounds_and_group(method: str, capsys) -> None:
    assert cli.main(["options", method]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if len(line) > 80] == []
    whole = " ".join(text.split())
    for _, listed in sections(method):
        for option in listed:
            assert f" {option.name} = {option.default} (" in whole, option.name
            assert " ".join(option.field.metadata["help"].split()) in whole.replace("- ", "-")
            assert option.bounds in whole
            assert all(choice in whole for choice in option.field.metadata["choices"])


def test_options_stand_below_their_groups(capsys) -> None:
    assert cli.main(["options"]) == 0
    parts = re.split(r"^\[([a-z]+)\] .*$", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    assert parts[::2] == list(GROUPS)
    text = dict(zip(parts[::2], parts[1::2], strict=True))
    for option in options():
        assert f"\n  {option.name} = {option.default}" in text[option.group]
    assert cli.main(["options", "fgf"]) == 2
    assert "there is no method 'fgf'. Did you mean 'fcf'?" in capsys.readouterr().err


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
