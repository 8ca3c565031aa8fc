"""The pages against the program: commands run or at least parse, Python runs, links and files are there.

Every command of a page is in one of three tables: RUN (here, made small), SLOW, CANNOT (with the reason). A command
that none of them has fails a test; so does an entry that no page has.
"""

import argparse
import configparser
import gzip
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from benchmarks import field, tables
from benchmarks.__main__ import FIELD, NAMES, TABLES

from fedgrec import cli
from fedgrec.cli import federation as federation_command
from fedgrec.cli import train as train_command
from fedgrec.cli import training
from fedgrec.cli.configured import configuration
from tests.cli.small import clicks
from tests.federation.worlds import N_ITEMS, world

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")),
    *(ROOT / "docs" / "results" / name for name in ("README.md", "measurements.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
PROGRAMS = ("fedgrec ", "make ", "pip ", "python -m benchmarks")
WIDTH = 120

SMALL = "--rounds 2 --dim 4 --layers 1 --negatives 8 --kernel reference --quiet"
TABLE = "--data clicks.csv --seeds 1 --rounds 2 --epochs 1 --set kernel=reference --quiet"

# Commands that run here, in this order and in one folder, each with further words that make it small.
RUN = {
    "fedgrec train --data demo --rounds 60 --out runs/first": f"{SMALL} --data clicks.csv",
    "fedgrec recommend runs/first --user 0": "--user ann",
    "fedgrec train --data clicks.csv --out runs/mine": SMALL,
    "fedgrec finish runs/mine": "--quiet",
    "fedgrec report RUN --user ann": "",
    "fedgrec report RUN --people 0": "",
    "fedgrec recommend runs/mine-final --user ann": "",
    "fedgrec recommend runs/mine-final --items book-3,book-4": "",
    "fedgrec export runs/mine-final --page page --item-names titles.csv": "",
    "fedgrec export RUN --page FOLDER": "",
    "fedgrec export RUN --page FOLDER --item-names titles.csv": "",
    "fedgrec train --data clicks.csv": SMALL,
    "fedgrec train --data clicks.csv --split last --method ordered-parts": "--split all --out runs/parts --quiet",
    "fedgrec train --data clicks.csv --split last --method ordered": "--split all --out runs/ordered --quiet",
    "fedgrec train --data clicks.csv --split last --method spectral": "--split all --out runs/spectral --quiet",
    "fedgrec train --data clicks.csv --secure": f"{SMALL} --out runs/secure",
    "fedgrec train --data clicks.csv --dp-epsilon 8 --dp-unit interaction": f"{SMALL} --out runs/decoys",
    "fedgrec train --data my-folder": SMALL,
    "fedgrec train --data checkins.csv.gz --split time": SMALL,
    "fedgrec evaluate RUN": "",
    "fedgrec evaluate RUN --metrics recall,map,novelty --topk 5,20": "",
    "fedgrec compare --data clicks.csv --methods fedgrec,popularity --metrics map,recall_tail": (
        f"{TABLE} --out table-3"
    ),
    "fedgrec train --data demo --method spectral --dp-epsilon 8": "--data clicks.csv --out runs/noise --quiet",
    "fedgrec train --config RUN/config.toml --out AGAIN": "--quiet",
    "fedgrec train --out RUN --resume": "--rounds 3 --quiet",
    "fedgrec grow RUN": "--quiet",
    "fedgrec grow RUN --data new.csv --rounds 4000": "--rounds 5 --quiet",
    "fedgrec train --help": "",
    "fedgrec options fedgrec": "",
    "fedgrec options fcf": "",
    "fedgrec compare --data demo --methods fedgrec,federank,fcf,mf-bpr,popularity --seeds 3": f"{TABLE} --out table-1",
    "fedgrec compare --data clicks.csv --methods fedgrec,turbocf --seeds 0,3,7 --rounds 4000 --epochs 200": (
        f"{TABLE} --out table-2"
    ),
    "fedgrec tune --data clicks.csv --search l2=1e-5..1e-2:log --trials 20": (
        "--trials 2 --rounds 2 --set kernel=reference --set dim=4 --out tuned"
    ),
    "fedgrec audit --data demo": "--data clicks.csv --rounds 2 --set kernel=reference --set dim=4 --quiet",
    "fedgrec audit --data clicks.csv --method fcf --out audits/fcf": "--rounds 2 --set kernel=reference --quiet",
    "fedgrec federation init --nodes 3 --host fed.example --catalogue items.txt --out fed": "",
    "fedgrec federation init --nodes 3 --out fed --host fed.example.org --port 9092 --catalogue items.txt --rounds 500 "
    "--set layers=2 --set users_per_round=300": "--out fed-2",
    "fedgrec federation init --nodes 3 --users 20 --per-user-masks --out fed --host fed.example.org --catalogue "
    "items.txt": "--users 2 --out fed-3",
    "fedgrec federation certificate fed --host fed.example.org": "",
    "fedgrec federation add-node fed": "",
    "fedgrec federation invite fed": "",
    "fedgrec federation remove-node fed node-2": "",
    "fedgrec federation catalogue fed --add new.txt --withdraw closed.txt": "",
    "fedgrec federation rotate-keys fed node-1": "",
    "fedgrec federation init --nodes 4 --out fed --host fed.example.org --catalogue items.txt": "--out fed-4",
    "fedgrec federation init --nodes 3 --out fed --host server --catalogue items.txt": "--out fed-5",
    "fedgrec federation init --nodes 3 --out fed --host fed.example.org --catalogue items.txt "
    "--set dp_epsilon=8 --set dp_unit=interaction": ("--out fed-6"),
    "fedgrec device recommend fed/node-0 --user ann": "--user 0/0",
    "fedgrec data": "",
    "fedgrec data clicks.csv": "",
    "fedgrec presets paper": "",
    "fedgrec reproduce --list": "",
    "make help": "",
}

SLOW = {
    "fedgrec federation up --nodes 3 --data demo --rounds 3": "--users 4 --out up-1",
    "fedgrec federation up --nodes 3 --data demo --users 20 --rounds 3": "--users 4 --out up-2",
    "fedgrec federation up --nodes 3 --data demo --users 20 --rounds 5 --per-user-masks": (
        "--users 2 --rounds 1 --set dim=8 --out up-3"
    ),
    "fedgrec reproduce all --quick": "--out tables --runs runs/reproduce",
}

# Commands that cannot run in a test, and why; the first that fits counts. They are parsed all the same.
CANNOT = {
    r"^pip ": "it needs a network",
    r"^make (demo|test|check|slow|site|packages)\b": "it sets up an environment, or runs these tests",
    r"^(FEDGREC_DATA=\S+ )?make bench$": "the benchmarks take hours",
    r"^fedgrec federation (join|add-node fed --request) ": "its letter comes from another machine",
    r"^fedgrec federation (server|node|dashboard) ": "it runs until it is stopped, in the folder of another machine",
    r"^fedgrec serve ": "it runs until it is stopped",
    r"^fedgrec (audit|device recommend|federation (backup|status|forget|doctor)|recommend|evaluate) /var/lib/": (
        "the folder is on another machine"
    ),
    r"--device cuda": "it needs a GPU",
    r"^fedgrec reproduce table": "it trains for hours on data that is downloaded",
    r"--data (gowalla|yelp2018|ml-100k)\b": "the data is downloaded",
}


# ------------------------------------------------------------------------------------- what is in a page


def shown(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def lines(page: Path) -> list[tuple[str, str]]:
    """Every line of a page with its kind: text, table, code, or the language of a fenced block."""
    found, fence = [], ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.strip().startswith("```"):
            fence = "" if fence else line.strip()[3:] or "code"
            found.append(("code", ""))
        elif fence:
            found.append((fence, line))
        else:
            kind = "code" if re.match(r" {4}(?! *[-*\d] )", line) else "table" if line.startswith("|") else "text"
            found.append((kind, line))
    return found


def commands(page: Path) -> list[str]:
    """The commands that a page shows, without comments and extra spaces."""
    found: list[str] = []
    shell = "\n".join(line for kind, line in lines(page) if kind in ("code", "sh", "bash", "console"))
    for line in shell.replace("\\\n", " ").splitlines():
        text = line.strip()
        if re.sub(r"^([A-Z_]+=\S+ )+", "", text).startswith(PROGRAMS):
            found.append(" ".join(re.sub(r"\s#\s.*", "", text).split()))
    return found


def spans(page: Path) -> list[str]:
    """What stands between backticks in text and tables."""
    text = "\n".join(line if kind in ("text", "table") else "" for kind, line in lines(page))
    return [" ".join(found.split()) for found in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]


def python_blocks(page: Path) -> list[str]:
    blocks: list[list[str]] = []
    before = ""
    for kind, line in lines(page):
        if kind == "python":
            if before != "python":
                blocks.append([])
            blocks[-1].append(line)
        before = kind
    return ["\n".join(block) for block in blocks]


@cache
def every_parser() -> argparse.ArgumentParser:
    return cli.parser()


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The whole command line; with words, the options of `train` are those of the method that they name."""
    return cli.parser(words) if words else every_parser()


def every_command() -> list[str]:
    return list(dict.fromkeys(command for page in PAGES for command in commands(page)))


def why_not(command: str) -> str | None:
    return next((reason for pattern, reason in CANNOT.items() if re.search(pattern, command)), None)


# ----------------------------------------------------------------------------------------------- commands


def test_pages_are_read_as_they_are_meant() -> None:
    """The reader of the pages itself: continued lines, comments, fences, variables, spans over two lines."""
    assert "fedgrec tune --data gowalla --method lightgcn --rounds 200 --trials 30 --search rate=1e-4..1e-2:log " \
        "--search layers=1,2,3" in commands(ROOT / "docs" / "tune.md")  # fmt: skip
    assert "FEDGREC_DATA=/path/to/data make bench" in commands(ROOT / "CONTRIBUTING.md")
    assert "fedgrec reproduce" in spans(ROOT / "docs" / "gpu.md")
    assert len(every_command()) > 50
    assert sum(len(python_blocks(page)) for page in PAGES) >= 6


def test_every_command_is_in_exactly_one_class() -> None:
    for command in every_command():
        classes = [name for name, has in (("RUN", command in RUN), ("SLOW", command in SLOW)) if has]
        classes += ["CANNOT"] if why_not(command) else []
        assert len(classes) == 1, f"{command!r} is in {classes or 'no class'}: put it into one table of {__file__}"


def test_no_class_has_a_command_that_no_page_has() -> None:
    there = every_command()
    assert not [command for command in (*RUN, *SLOW) if command not in there]
    assert {why_not(command) for command in there} - {None} == set(CANNOT.values())


def installs(words: list[str]) -> bool:
    """Whether a pip command installs fedgrec from a checkout or a wheel, with extras that exist."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    if words[:4] != ["pip", "install", "-c", "constraints.txt"] or len(words) != 5:
        return False
    asked = re.fullmatch(r"(?:\.|\S+\.whl)(?:\[([\w,]+)\])?", words[4])
    return asked is not None and set((asked[1] or next(iter(known))).split(",")) <= set(known)


def test_every_pip_line_installs_what_is_there() -> None:
    """In the sentences of the pages and in the program's own hints, too."""
    sources = [*PAGES, *(ROOT / "src").rglob("*.py"), ROOT / "examples/README.md"]
    text = "\n".join(path.read_text(encoding="utf-8").replace("{extra}", "torch") for path in sources)
    lines = re.findall(r"pip\s+install\s+-\S+\s+[^\s`#\"]+(?:\s+'[^']+'|\s+\.)?", text)
    assert len(lines) >= 8
    assert not [line for line in lines if not installs(shlex.split(line))]
    assert not installs(shlex.split("pip install -c constraints.txt '.[no-such]'"))


@pytest.mark.parametrize("command", every_command())
def test_every_command_parses(command: str) -> None:
    """Flags, options, make's targets, pip's extras: a renamed one is noticed even if the command cannot run here."""
    words = shlex.split(re.sub(r"^([A-Z_]+=\S+ )+", "", command))
    if words[0] == "make":
        targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert targets
        assert words[1] in targets[1].split()
    elif words[0] == "pip":
        assert installs(words)
    elif words[0] == "python":
        if words[3] == FIELD:
            field.parser().parse_args(words[4:])
        else:
            assert set(words[3:]) <= {*NAMES, TABLES, "--quick"}
    elif "--help" not in words:
        words = words[words.index("fedgrec") + 1 :]
        arguments = parser(words).parse_args(words)
        if arguments.command is train_command.run and not (arguments.resume or arguments.config):
            configuration(arguments)
        if arguments.command in (federation_command.run_init, federation_command.run_up):
            federation_command.settings(arguments)


def flags_of(words: list[str]) -> tuple[list[str], argparse.ArgumentParser]:
    """The flags among the words of a command, and the parser that has to know them."""
    at: Any = parser(words)
    for word in words:
        below = [action for action in at._actions if isinstance(action, argparse._SubParsersAction)]
        if not below or word not in below[0].choices:
            break
        at = below[0].choices[word]
    return [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)], at


def test_commands_in_sentences_have_flags_that_exist() -> None:
    for page in PAGES:
        for span in spans(page):
            if span.startswith("fedgrec "):
                words = shlex.split(span)[1:]
                flags, at = flags_of(words)
                assert at.prog != "fedgrec" or words[0].startswith("-"), f"{page.name}: there is no command {span!r}"
                assert set(flags) <= set(at._option_string_actions), f"{page.name}: {span!r}"
            elif span.startswith("python -m benchmarks "):
                assert set(span.split()[3:]) <= {*NAMES, TABLES, FIELD, "--quick"}, f"{page.name}: {span!r}"


def every_flag(at: argparse.ArgumentParser) -> Iterator[str]:
    yield from at._option_string_actions
    for action in at._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from every_flag(below)


def test_flags_in_sentences_exist() -> None:
    known = set(every_flag(parser()))
    for page in PAGES:
        for span in spans(page):
            if span.startswith("--"):
                flags = [word.split("=")[0] for word in span.split() if word.startswith("--")]
                assert set(flags) <= known, f"{page.name}: {span!r}"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with all that the pages speak of: clicks of ann, book-3 and book-4, a catalogue, a run, a node."""
    place = tmp_path_factory.mktemp("reader")
    text = re.sub(r"\bann0,", "ann,", re.sub(r"book(\d+)", r"book-\1", clicks(place / "clicks.csv").read_text()))
    (place / "clicks.csv").write_text(text)
    timed = [f"{line},{31 * n % 997}" for n, line in enumerate(text.splitlines()[1:])]
    (place / "checkins.csv.gz").write_bytes(gzip.compress("\n".join(["user,item,time", *timed]).encode()))
    (place / "new.csv").write_text(text + "zoe,book-1\nann,fresh\n")
    (place / "my-folder").mkdir()
    head, *pairs = text.splitlines(keepends=True)
    (place / "my-folder" / "train.csv").write_text("".join([head, *pairs]))
    (place / "my-folder" / "test.csv").write_text(f"{head}ann,book-47\n")
    (place / "items.txt").write_text("".join(f"book-{i}\n" for i in range(48)))
    (place / "titles.csv").write_text("item,title,latitude,longitude\nbook-3,The Sea,52.1,4.3\n")
    (place / "new.txt").write_text("book-48\n")
    (place / "closed.txt").write_text("book-3\n")
    sp.save_npz(place / "clicks.npz", sp.csr_array(np.random.default_rng(0).random((12, 90)) < 0.2).astype(float))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(training, "_report", lambda *_: None)  # pictures have their own tests
        assert cli.main(["train", "--data", "clicks.csv", "--out", "RUN", *SMALL.split()]) == 0
        yield place


def run(words: list[str]) -> int:
    """A command in this process; `--help` ends with an exit of its own."""
    if words[0] == "make":
        return subprocess.run([*words, "--directory", str(ROOT)], capture_output=True, check=False).returncode
    try:
        return cli.main(words[1:])
    except SystemExit as done:
        return int(done.code or 0)


def test_the_commands_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a reader's order: later commands use the files of earlier ones. The node was trained here."""
    fed = world(here / "trained", users=2, options={"evaluations": 9})
    fed.run()
    (fed.nodes[0] / "items.txt").write_text("".join(f"book-{i}\n" for i in range(N_ITEMS)))
    for command, more in RUN.items():
        words = shlex.split(f"{command} {more}")
        code = run([str(fed.nodes[0]) if word == "fed/node-0" else word for word in words])
        said = capsys.readouterr()
        assert code == 0, f"{command}\n{said.err}"
        if " recommend " in command:
            assert " 1. book-" in said.out


@pytest.mark.slow
@pytest.mark.parametrize("command", SLOW)
def test_the_slow_commands_run(here: Path, command: str) -> None:
    words = shlex.split(f"{command} {SLOW[command]}")[1:]
    done = subprocess.run([sys.executable, "-m", "fedgrec", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# ------------------------------------------------------------------------------------------------- Python


CHEAPER = {
    "FedGRec(layers=3)": "FedGRec(layers=3, rounds=4)",
    "FedGRec(rounds=50)": "FedGRec(rounds=4)",
    "FedGRec(": 'FedGRec(kernel="reference", dim=4, negatives=8, ',
    '{"data": "demo"': '{"data": "clicks.csv", "kernel": "reference", "dim": 4',
    '{"data": "clicks.csv", "layers"': '{"data": "clicks.csv", "kernel": "reference", "dim": 4, "layers"',
    '"rounds": 100': '"rounds": 4',
    '"rounds": 50': '"rounds": 4',
}


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=shown)
def test_the_python_of_a_page_runs(here: Path, page: Path) -> None:
    """From top to bottom, as somebody would type it; smaller, on the data that is here."""
    user_items = sp.load_npz("clicks.npz").tocsr()
    names: dict[str, Any] = {"user_items": user_items, "user": 4, "path": here / "saved", "print": lambda *_: None}
    for block in python_blocks(page):
        for dear, cheap in CHEAPER.items():
            block = block.replace(dear, cheap)  # noqa: PLW2901
        exec(compile(block, str(page), "exec"), names)
    if "ids" in names:
        assert len(names["ids"]) == len(names["scores"]) > 0


# ---------------------------------------------------------------------------------------- links and files


def anchors(page: Path) -> set[str]:
    """The names that a site gives to the headings of a page."""
    titles = [line.lstrip("#").strip() for kind, line in lines(page) if kind == "text" and line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = "\n".join(line for kind, line in lines(page) if kind in ("text", "table"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?://", link):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


FOLDERS = ("", "src/fedgrec", "src/fedgrec/kernels", "tests/laws", "tests/federation", "tests/attacks")


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_file_of_ours_is_there(page: Path) -> None:
    for span in spans(page):
        ours = re.fullmatch(r"(src|tests|benchmarks|docs|methods|kernels|federation|centralized|cli)/[\w./*-]*", span)
        if (ours or re.fullmatch(r"[\w/*]+\.(py|cu)", span)) and "NAME" not in span:
            assert any(any((ROOT / folder).glob(span.rstrip("/"))) for folder in FOLDERS), f"{page.name}: {span}"
        elif re.fullmatch(r"fedgrec(\.\w+)+", span):
            assert named(span), f"{page.name}: {span}"


def named(dotted: str) -> bool:
    """Whether there is such a module, or such a name in a module."""
    try:
        importlib.import_module(dotted)
        return True
    except ModuleNotFoundError:
        module, _, name = dotted.rpartition(".")
        return hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "results"], ids=shown)
def test_lines_of_text_fit(page: Path) -> None:
    assert not [line for kind, line in lines(page) if kind == "text" and len(line) > WIDTH and line[:1] != "!"]


# ---------------------------------------------------------------------------------------------- tables of results


@pytest.mark.parametrize("page", [page for page in PAGES if page in tables.MADE], ids=shown)
def test_tables_of_results_are_what_the_records_say(page: Path) -> None:
    """`python -m benchmarks tables` changes nothing."""
    assert page.read_text(encoding="utf-8") == tables.MADE[page](), "run `python -m benchmarks tables`"


# ---------------------------------------------------------------------------------------- contributors' pages


def test_the_map_of_the_code_has_the_layers_of_the_contract() -> None:
    """The table of docs/architecture.md row by row: the same modules, from the top down."""
    contract = configparser.ConfigParser()
    contract.read(ROOT / ".importlinter")
    layers = contract["importlinter:contract:layers"]["layers"].split("\n")
    wanted = [set(layer.replace("fedgrec.", "").split(" | ")) for layer in layers if layer]
    section = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## Layers")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    assert [set(re.findall(r"`(\w+)`", row)) for row in rows] == wanted


def test_contributing_names_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Dependencies")[1].split("\n## ")[0]
    named = set(re.findall(r"[\w-]+", " ".join(re.findall(r"^\|(.*)\|[^|]+\|$", section, re.MULTILINE))))
    assert {re.match(r"[\w-]+", line)[0] for line in asked} - {"fedgrec"} <= named  # type: ignore[index]
    assert set(project["optional-dependencies"]) <= named
