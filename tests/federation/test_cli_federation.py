"""`fedgrec federation` and `fedgrec device` as a person types them."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedgrec.cli import main
from fedgrec.config.configuration import read_toml
from fedgrec.federation.common.catalogue import read_catalogue
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.node import refresh
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.sources import read_source
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.setup import start
from fedgrec.federation.setup.init import Made
from tests.federation.test_sources import people_of
from tests.federation.worlds import config
from tests.waits import seconds

SMALL = ["--set", "layers=1", "--set", "dim=8", "--set", "negatives=16", "--users", "20"]


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_init_from_a_catalogue_prints_the_commands_that_start_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "items.txt").write_text("tea\ncoffee\nmilk\n")
    fed = tmp_path / "fed"
    words = ["--catalogue", tmp_path / "items.txt", "--host", "fed.example", "--port", 7000, "--method", "federank"]
    code, out, _ = said(capsys, "federation", "init", "--out", fed, *words, "--rounds", 7, "--set", "dim=4")
    assert code == 0
    commands = [line.strip() for line in out.splitlines() if line.strip().startswith("fedgrec ")]
    assert [shlex.split(command) for command in commands] == [
        ["fedgrec", "federation", "server", str(fed / "server")],
        *(["fedgrec", "federation", "node", str(fed / f"node-{i}")] for i in range(3)),
    ]
    assert "`source` in its network.toml" in out
    server = open_server(fed / "server")
    assert (server.options.rounds, server.config.method, server.config.model.dim, server.n_items) == (
        7,
        "federank",
        4,
        3,
    )
    assert said(capsys, "federation", "init", "--out", fed, *words)[0] == 2


def test_init_with_data_deals_every_user_to_one_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clicks = "".join(f"u{user},i{(user * 7 + item) % 50}\n" for user in range(10) for item in range(5))
    (tmp_path / "clicks.csv").write_text("user,item\n" + clicks)
    fed = tmp_path / "fed"
    code, _, err = said(capsys, "federation", "init", "--out", fed, "--data", tmp_path / "clicks.csv", *SMALL)
    assert code == 0, err
    catalogue = read_catalogue(fed / "server" / "items.txt")
    seen: list[str] = []
    for index in range(3):
        node = fed / f"node-{index}"
        found = read_source(str(node / "interactions.csv"), catalogue)
        people = people_of(found, 0.0)
        assert (found.unknown, len(people)) == (0, len(found.users))
        for person in people:
            wanted = {catalogue[f"i{(int(person.id[1:]) * 7 + item) % 50}"] for item in range(5)}
            assert set(person.items) | set(person.held_out) == wanted
            assert len(person.held_out) == 1  # a fifth, as test_ratio says
        seen += [person.id for person in people]
        assert open_node(node).n_items == len(catalogue)
    assert sorted(seen) == sorted(f"u{user}" for user in range(10))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["init", "--out", "FED", "--catalogue", "nothing.txt"], "nothing.txt is missing"),
        (["init", "--out", "FED", "--data", "demo", "--nodes", "2"], "fewer than three"),
        (["init", "--out", "FED", "--data", "demo", "--port", "0"], "--port 0"),
        (["init", "--out", "FED", "--data", "demo", "--method", "fedgnn"], "matches users through a third party"),
        (["init", "--out", "FED", "--data", "demo", "--set", "candidates=99"], "leave out candidates and repeats"),
        (["init", "--out", "FED", "--data", "demo", "--set", "layrs=2"], "Did you mean 'layers'?"),
        (["init", "--out", "FED", "--data", "demo", "--set", "deadline=soon"], "deadline cannot be 'soon'"),
        (["init", "--out", "FED", "--data", "demo", "--set", "download=int4"], "choose one of int8, bfloat16, float32"),
        (["server", "FED"], "server.json is missing"),
        (["node", "FED"], "is missing"),
        (["status", "FED"], "server.json is missing"),
        (["add-node", "FED"], "is missing"),
        (["certificate", "FED", "--host", "x"], "ca.key is missing"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    if words[0] in ("server", "node"):
        pytest.importorskip("flwr", exc_type=ImportError)
    code, _, err = said(capsys, "federation", *(str(tmp_path / "fed") if w == "FED" else w for w in words))
    assert code == 2
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_a_device_without_a_model_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "items.txt").write_text("tea\n")
    said(capsys, "federation", "init", "--out", tmp_path / "fed", "--catalogue", tmp_path / "items.txt")
    node = tmp_path / "fed" / "node-0"
    code, _, err = said(capsys, "device", "recommend", node, "--user", "ann")
    assert (code, "nothing was downloaded yet" in err) == (2, True)
    assert said(capsys, "device", "recommend", node, "--user", "ann", "-n", 0)[0] == 2
    code, out, _ = said(capsys, "federation", "status", tmp_path / "fed" / "server")
    assert (code, out) == (0, "not started yet\n")


def test_add_node_and_certificate_say_what_to_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "items.txt").write_text("tea\n")
    fed = tmp_path / "fed"
    said(capsys, "federation", "init", "--out", fed, "--catalogue", tmp_path / "items.txt")
    code, out, _ = said(capsys, "federation", "add-node", fed)
    assert code == 0
    assert str(fed / "node-3") in out
    assert "node-3.pub" in out
    code, out, _ = said(capsys, "federation", "certificate", fed, "--host", "fed.example")
    assert code == 0
    assert "server.key" in out


def test_a_device_needs_numpy_and_cryptography_alone(tmp_path: Path) -> None:
    """Recommending on the device: the test forbids all other imports."""
    from tests.federation.worlds import world

    made = world(tmp_path, options={"rounds": 1})
    made.run()
    (made.nodes[0] / "items.txt").write_text("".join(f"item {i}\n" for i in range(30)))
    code = f"""
import sys
ALLOWED = {{"numpy", "cryptography", "fedgrec", "_cffi_backend"}} | set(sys.stdlib_module_names)
class OnlyThese:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED:
            raise ImportError(f"a device has no {{name}}")
sys.meta_path.insert(0, OnlyThese())
from fedgrec.cli.federation import run_device
from argparse import Namespace
from pathlib import Path
run_device(Namespace(node=Path({str(made.nodes[0])!r}), user="0/1", number=3, json=True, item_names=None))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds(60), check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 3


@pytest.mark.parametrize("end", [None, FederationError("it stopped"), KeyboardInterrupt()], ids=str)
def test_up_says_where_its_keys_are_however_it_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, end: BaseException | None
) -> None:
    """The next step that `up` prints needs the folder, so it stays; it holds keys, so it is not hidden."""
    pytest.importorskip("flwr", exc_type=ImportError)

    def trained(made: Made, say: object) -> None:
        if end is not None:
            raise end
        refresh.Watcher(made.nodes[0]).load()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "up", trained)
    for name in ("runs/federation", "runs/federation-2"):
        code, out, _ = said(capsys, "federation", "up", *SMALL)
        assert code == {type(None): 0, FederationError: 2, KeyboardInterrupt: 130}[type(end)]
        assert f"{name} stays, with the private keys of server and nodes" in out
        assert out.splitlines()[-1].split() == ["rm", "-r", name]
        assert (tmp_path / name / "node-0" / "identity.key").exists()
    assert not [path for path in tmp_path.iterdir() if path.name != "runs"]


def test_a_federation_that_cannot_be_made_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "items.txt").write_text("tea\n")
    words = ["--out", tmp_path / "fed", "--catalogue", tmp_path / "items.txt"]
    assert said(capsys, "federation", "init", *words, "--method", "fedgnn")[0] == 2
    assert not (tmp_path / "fed").exists()
    assert said(capsys, "federation", "init", *words)[0] == 0


def left_over(fed: Path) -> list[str]:
    """Processes that name this folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = ((folder / name).read_bytes().decode() for name in ("cmdline", "environ"))
        except OSError:
            continue
        if str(fed) in command or str(fed) in environment:
            found.append(command.replace("\0", " "))
    return found


def start_up(fed: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "fedgrec", "federation", "up", "--out", str(fed), *SMALL, *words]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, and so do its children
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_up_trains_shows_progress_and_leaves_nothing_running(tmp_path: Path) -> None:
    pytest.importorskip("flwr", exc_type=ImportError)
    fed = tmp_path / "fed"
    up = start_up(fed, "--rounds", "3")
    out, err = up.communicate(timeout=seconds(240))
    assert up.returncode == 0, err
    assert out.splitlines()[-1].split() == ["rm", "-r", str(fed)]
    for sentence in ("node-2 joined with 20 users", "warm-up, degrees: 3 of 3", "round 3: 3 of 3", "recall@20"):
        assert sentence in out
    assert left_over(fed) == []
    metrics = [json.loads(line) for line in (fed / "server" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in metrics] == [2], "of the model that the last round began with"
    assert read_toml(fed / "server" / "run" / "config.toml")["dim"] == config(dim=8).model.dim
    next_ = [line for line in out.splitlines() if "device recommend" in line]
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(next_[0])], capture_output=True, text=True, timeout=seconds(60), check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 10


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ctrl-c", "superlink", "node"])
def test_up_ends_everything_when_it_is_stopped_or_something_dies(tmp_path: Path, what: str) -> None:
    pytest.importorskip("flwr", exc_type=ImportError)
    fed = tmp_path / "fed"
    up = start_up(fed, "--rounds", "1000")
    assert up.stdout is not None
    for line in up.stdout:
        if line.startswith("round 1:"):
            break
    if what == "ctrl-c":
        up.send_signal(signal.SIGINT)
    else:
        name = r"fedgrec\.federation\.flower\.superlink" if what == "superlink" else r"federation node .*node-1"
        (pid,) = [
            int(folder.name)
            for folder in Path("/proc").glob("[0-9]*")
            if (text := command_of(folder)) and str(fed) in text and re.search(name, text)
        ]
        os.kill(pid, signal.SIGKILL)
    _, err = up.communicate(timeout=seconds(60))
    if what == "ctrl-c":
        assert (up.returncode, err.strip()) == (130, "fedgrec: interrupted")
    else:
        log = "superlink.log" if what == "superlink" else "node-1.log"
        assert up.returncode == 2
        assert f"ended with code -9: see {fed / 'logs' / log}" in err
        assert len(err.splitlines()) == 1
    end = time.monotonic() + seconds(15)
    while left_over(fed) and time.monotonic() < end:
        time.sleep(0.2)
    assert left_over(fed) == []


def command_of(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_bytes().decode().replace("\0", " ")
    except OSError:
        return ""
