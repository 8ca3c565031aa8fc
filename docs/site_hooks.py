"""What MkDocs cannot find in docs/: pages of the project's root, the reference made from the code, and its checks.

`mkdocs build` calls the three functions that begin with `on_`; mkdocs.yml names this file.
"""

import argparse
import ast
import dataclasses
import importlib
import inspect
import logging
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import fedgrec
from fedgrec import cli
from fedgrec.cable.core import Broadcast, Cohort, Pending, ServerState, Stage, Traffic, Upload, UploadSpec
from fedgrec.centralized import MODELS, model_class
from fedgrec.config.configuration import options as options_of_run
from fedgrec.config.options import GROUPS, METHODS, method_module
from fedgrec.errors import ConfigError, DataError, RunError
from fedgrec.federation.common.options import Agreement, FederationOptions
from fedgrec.methods.contract import Method

ROOT = Path(__file__).parents[1]
# Pages of the root that the site shows as well, and what they are called there.
ELSEWHERE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    "examples/README.md": "examples.md",
}
FOR_METHODS = (Method, Stage, Broadcast, Cohort, Upload, UploadSpec, Pending, ServerState, Traffic)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")

# ------------------------------------------------------------------------------------------------ the hooks


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are not in docs/."""
    from mkdocs.structure.files import File

    made = {name: (ROOT / source).read_text(encoding="utf-8") for source, name in ELSEWHERE.items()}
    made |= {
        "reference/command-line.md": command_line(cli.parser()),
        "reference/python-names.md": python_names(),
        "reference/options.md": option_files(),
    }
    made["examples.md"] += "".join(
        f"\n## {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
        for path in sorted((ROOT / "examples").glob("*.py"))
    )
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links lead to pages and pictures of this site; of any other file of the repository the text gives the path."""
    source = page.file.src_uri
    home = next((root for root, name in ELSEWHERE.items() if name == source), f"docs/{source}")

    def mended(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        if re.match(r"[a-z]+:", target):
            return link[0]
        path = (ROOT / home).parent.joinpath(target).resolve().relative_to(ROOT).as_posix()
        there = ELSEWHERE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else "")
        if path == "README.md":
            there = "index.md"
        if there and files.get_file_from_path(there) and Path(there).suffix in (".md", ".png"):
            return f"[{text}]({'../' * source.count('/')}{there}{anchor})"
        return text if text.strip("`") == path else f"{text} (`{path}`)"

    return LINK.sub(mended, markdown)


def on_post_build(config: Any) -> None:
    """A reader's browser asks nobody else for anything: no scripts, fonts or pictures of other sites."""
    for page in Path(config.site_dir).rglob("*.html"):
        for found in foreign(page.read_text(encoding="utf-8")):
            logging.getLogger("mkdocs.hooks").warning("%s loads %s", page.relative_to(config.site_dir), found)


def foreign(html: str) -> list[str]:
    """What a page loads from elsewhere; links that a reader may follow are no such thing."""
    tags = re.findall(r"<(?:script|link|img|iframe|source|video|audio)\b[^>]*>", html)
    loaded = [re.search(r"\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)", tag) for tag in tags]
    inside = re.findall(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)", html)
    return [found[1] for found in loaded if found] + inside


# ------------------------------------------------------------------------------------------ the command line


def command_line(top: argparse.ArgumentParser) -> str:
    """Every command with its flags, as argparse knows them."""
    return "\n".join(["# Command line\n", "Made from the program itself; `fedgrec COMMAND --help` says the same.\n",
                      *_command(top, 1)])  # fmt: skip


def _command(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    if level > 1:
        yield f"{'#' * level} {parser.prog}\n"
    yield f"{cell(parser.description)}\n" if parser.description else ""
    below: dict[str, argparse.ArgumentParser] = {}
    for group in parser._action_groups:
        rows = []
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction):
                below |= action.choices
            elif not isinstance(action, argparse._HelpAction):
                rows.append(f"| {_flag(action)} | {cell(_help(parser, action))} |")
        if rows:
            yield "\n".join([f"| {group.title or 'flags'} | |", "|---|---|", *rows]) + "\n"
    for inner in below.values():
        yield from _command(inner, level + 1)


def _flag(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    value = " ".join(value) if isinstance(value, tuple) else value
    if not action.option_strings:
        return f"`{value}`".replace("|", "\\|")
    flags = ", ".join(action.option_strings)
    return (f"`{flags}`" if action.nargs == 0 else f"`{flags} {value}`").replace("|", "\\|")


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    if action.help == argparse.SUPPRESS:
        return "[an option](options.md)"
    return parser._get_formatter()._expand_help(action) if action.help else ""


# -------------------------------------------------------------------------------------------------- Python


def python_names() -> str:
    """Every exported name, the errors, and what the writer of a method needs, with its docstring."""
    public = [getattr(importlib.import_module(fedgrec._HOMES[name]), name) for name in fedgrec.__all__]
    parts = [
        "# Python names\n\nMade from the docstrings. [Python](../python.md) is the introduction.\n",
        "## fedgrec\n",
        *(_described(thing) for thing in public),
        "## fedgrec.errors\n",
        *(_described(error) for error in (DataError, ConfigError, RunError)),
        "## For a method of your own\n",
        *(_described(thing) for thing in FOR_METHODS),
    ]
    return "\n".join(parts)


def _described(thing: Any) -> str:
    parts = [f"### {thing.__name__}\n", f"`{thing.__module__}.{thing.__name__}`\n", _doc(thing)]
    options = dataclasses.is_dataclass(thing) and all(f.metadata.get("help") for f in dataclasses.fields(thing))
    if options and dataclasses.fields(thing):
        return "\n".join([*parts, "[Its options](options.md) have a page of their own.\n"])
    if inspect.isfunction(thing):
        return "\n".join([*parts[:2], _signature(thing.__name__, thing), parts[2]])
    if dataclasses.is_dataclass(thing):
        body = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0].body  # type: ignore[attr-defined]
        fields = [ast.unparse(line) for line in body if isinstance(line, ast.AnnAssign)]
        parts.append("\n".join(["```python", *fields, "```\n"]))
    elif "__init__" in vars(thing):
        parts.append(_signature(thing.__name__, thing.__init__))
    for name, member in vars(thing).items():
        inner = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if not name.startswith("_") and isinstance(inner, FunctionType):
            shown = f"`{name}`, a property\n" if isinstance(member, property) else _signature(name, inner)
            parts += [f"**{name}**\n", shown, _doc(inner)]
    return "\n".join(parts)


def _signature(name: str, function: Any) -> str:
    """As the source has it, so that a type keeps its short name."""
    found: Any = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    found.args.args = [taken for taken in found.args.args if taken.arg not in ("self", "cls")]
    returned = f" -> {ast.unparse(found.returns)}" if found.returns and found.name != "__init__" else ""
    shown = f"{name}({ast.unparse(found.args)}){returned}".replace("'", '"')
    if len(shown) > 100:
        shown = "\n".join(textwrap.wrap(shown, 100, subsequent_indent="    ", break_long_words=False))
    return f"```python\n{shown}\n```\n"


def _doc(thing: Any) -> str:
    return f"{inspect.getdoc(thing) or ''}\n"


# ------------------------------------------------------------------------------------------------- options


def option_files() -> str:
    """Every option of every file of options: `option()` in the code is the only home of a default."""
    parts = [
        "# Files of options\n\nMade from the code. In `config.toml` the sections are groups of options;"
        " [the run folder](../run-folder.md#configuration) says where the file comes from. `fedgrec train --set"
        " NAME=VALUE` or `--set GROUP.NAME=VALUE` sets any of them, and so does a keyword of `FedGRec` in Python;"
        " `fedgrec options METHOD` lists them in a terminal.\n"
    ]
    found = options_of_run()
    for group, text in GROUPS.items():
        parts.append(table(f"## config.toml, [{group}]: {text}", [o.field for o in found if o.group == group]))
    default = {option.name: option.field.default for option in found}
    for method in METHODS:
        own = dataclasses.fields(method_module(method).Options) if method != "fedgrec" else ()
        parts.append(table(f"## Options of {method}", own, default) if own else "")
    for name in MODELS:
        parts.append(table(f"## Options of {name} (not federated)", dataclasses.fields(model_class(name).Options)))
    parts.append(table("## agreement.toml of a federation", dataclasses.fields(Agreement)))
    parts.append(table("## federation.toml of a server", dataclasses.fields(FederationOptions)))
    return "\n".join(parts)


def table(title: str, fields: Any, known: dict[str, Any] | None = None) -> str:
    """A row for each option; those that a method takes over unchanged from fedgrec (`known`) are only named."""
    same = [f.name for f in fields if known and known.get(f.name, ...) == f.default]
    note = f"As in fedgrec: {', '.join(f'`{name}`' for name in same)}.\n\n" if same else ""
    rows = [f for f in fields if f.name not in same]
    lines = [f"| `{f.name}` | {shown(f.default)} | {cell(f.metadata['help'] + choices(f))} |" for f in rows]
    head = ["| option | default | |", "|---|---|---|"] if lines else ["It has none."]
    return "\n".join([f"{title}\n\n{note}{head[0]}", *head[1:], *lines]) + "\n"


def choices(field: Any) -> str:
    return f" ({', '.join(field.metadata['choices'])})" if field.metadata["choices"] else ""


def shown(default: Any) -> str:
    value = ", ".join(map(str, default)) if isinstance(default, tuple) else default
    return "" if value in (None, "") else f"`{value}`"


def cell(text: str) -> str:
    """Text that stays inside a cell and says what it said: no tags, no bars."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")
