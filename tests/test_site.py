"""The pages of the site that are made from the code: nothing is left out, and nothing comes from other sites."""

import argparse
import importlib.util
from collections.abc import Iterator
from types import ModuleType

import pytest

import fedgrec
from fedgrec import cli
from fedgrec.config.configuration import options
from tests.test_documents import ROOT, every_flag


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield parser.prog
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from commands(below)


def test_the_command_line_page_has_every_command_and_flag(hooks: ModuleType) -> None:
    page = hooks.command_line(cli.parser())
    assert all(f"# {command}\n" in page for command in list(commands(cli.parser()))[1:])
    assert all(flag in page for flag in set(every_flag(cli.parser())) - {"-h", "--help"})
    small = argparse.ArgumentParser("small")
    small.add_argument("--mark", metavar="A|B", help="50 %% of <all>")
    assert "| `--mark A\\|B` | 50 % of &lt;all> |" in hooks.command_line(small)


def test_the_python_page_has_every_exported_name(hooks: ModuleType) -> None:
    page = hooks.python_names()
    assert all(f"### {name}\n" in page for name in fedgrec.__all__)
    assert "similar_users(userid: Any=None, N: int=10) -> tuple[Any, Floats]" in page


def test_the_page_of_options_has_every_option(hooks: ModuleType) -> None:
    page = hooks.option_files()
    assert all(f"| `{option.name}` |" in page for option in options())
    assert "| `topk` | `20` |" in page.split("## agreement.toml")[1]


@pytest.mark.parametrize(
    ("html", "loads"),
    [
        ('<script src="https://cdn.example/a.js"></script>', ["https://cdn.example/a.js"]),
        ("<link rel=stylesheet href=//fonts.example/x>", ["//fonts.example/x"]),
        ("<style>@import 'https://a.example/b.css'; .c {background: url(http://d.example/e)}</style>",
         ["https://a.example/b.css", "http://d.example/e"]),
        ('<a href="https://semver.org/">a link</a><img src="map.png"><script src="assets/b.js"></script>', []),
    ],
)  # fmt: skip
def test_what_a_page_loads_from_elsewhere_is_found(hooks: ModuleType, html: str, loads: list[str]) -> None:
    assert hooks.foreign(html) == loads
