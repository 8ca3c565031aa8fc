"""A folder of another kind, or a file in it that was damaged or edited wrongly, is one sentence and exit code 2."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgrec.cli import main
from fedgrec.config.configuration import Config
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.store import ServerStore
from fedgrec.federation.setup.init import init

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FED: three nodes; MASKED: three gateways."""
    root = tmp_path_factory.mktemp("folders")
    init(root / "FED", 3, ["tea", "milk"], Config(), FederationOptions())
    init(root / "MASKED", 3, ["tea", "milk"], Config(), FederationOptions(), per_user_masks=[1, 1, 1])
    return root


@pytest.fixture
def fed(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "all")


def sentence(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    code = main([str(word) for word in words])
    err = capsys.readouterr().err
    assert (code, len(err.splitlines())) == (2, 1), err
    return err


@pytest.mark.parametrize(
    ("words", "folder", "said"),
    [
        ("federation server", "FED/node-0", "is a node's folder (it has node.json), not a server's folder"),
        ("federation server", "MASKED/node-0", "is a gateway's folder (it has gateway.json), not a server's folder"),
        ("federation status", "FED/node-0", "is a node's folder (it has node.json), not a server's folder"),
        ("federation status", "MASKED/node-0", "is a gateway's folder"),
        ("federation node", "FED/server", "is a server's folder (it has server.json), not a node's folder"),
        ("device recommend --user u", "FED/server", "is a server's folder (it has server.json), not a node's folder"),
        ("federation server", "FED", "server.json is missing"),
        ("federation node", "FED", "node.json is missing"),
        ("federation node", "MASKED/node-0/users/0", "is one user of a gateway, not a node by itself"),
    ],
)
def test_a_folder_of_another_kind(
    fed: Path, capsys: pytest.CaptureFixture[str], words: str, folder: str, said: str
) -> None:
    before = sorted(path for path in fed.rglob("*"))
    assert said in sentence(capsys, *words.split(), fed / folder)
    assert before == sorted(path for path in fed.rglob("*"))  # the command has left nothing behind


def put(**values: object) -> Callable[[str], str]:
    return lambda text: json.dumps(json.loads(text) | values)


def line(**values: object) -> Callable[[str], str]:
    """The roster with other values in its first line."""

    def changed(text: str) -> str:
        roster = json.loads(text)
        roster["nodes"]["0"] |= values
        return json.dumps(roster)

    return changed


@pytest.mark.parametrize(
    ("words", "file", "change", "said"),
    [
        ("node", "FED/node-0/node.json", "[]", "holds no names and values"),
        ("node", "FED/node-0/node.json", "{", "is not readable"),
        ("node", "FED/node-0/node.json", put(colour="red"), "there is no value 'colour', it may set federation"),
        ("node", "FED/node-0/node.json", put(n_items="many"), "n_items cannot be 'many': it is a whole number"),
        ("node", "FED/node-0/node.json", put(n_items=0), "n_items cannot be 0"),
        ("node", "FED/node-0/node.json", put(user_salt="xyz"), "user_salt cannot be 'xyz': it is hexadecimal digits"),
        ("node", "FED/node-0/node.json", put(corrupt=None), "corrupt cannot be None: it is a number"),
        ("node", "FED/node-0/node.json", '{"name": "a"}', "federation is missing"),
        ("node", "FED/node-0/identity.key", "no key", "identity.key is not a key"),
        ("node", "FED/node-0/flower.key", "no key", "flower.key is not a key"),
        ("node", "FED/node-0/roster.json", "[]", "holds no names and values"),
        ("node", "FED/node-0/roster.json", "{}", "is no numbered and signed list of nodes"),
        ("node", "FED/node-0/roster.json", line(key="ab"), "node 0: key cannot be 1 bytes long"),
        ("node", "FED/node-0/roster.json", line(kez="ab"), "Did you mean 'key'?"),
        ("node", "FED/node-0/roster.json", put(nodes={"zero": {}}), "is no numbered and signed list of nodes"),
        ("node", "FED/node-0/roster.json", put(nodes={"0": 3}), "node 0 holds no names and values"),
        ("node", "FED/node-0/roster.json", put(number=2), "has not signed roster.json"),
        ("node", "FED/node-0/roster.json", line(people=3), "has not signed roster.json"),
        ("node", "FED/node-0/roster.json", line(people=1001), "people cannot be 1001"),
        ("node", "FED/node-0/ca.crt", "no certificate", "ca.crt is missing or not readable"),
        ("node", "FED/node-0/network.toml", "superlink = 3", "superlink cannot be 3: it is a text"),
        ("node", "FED/node-0/network.toml", 'superlink = "here"', "it is host:port of the server"),
        ("node", "FED/node-0/network.toml", 'superlink = "a:1"\nheld_out = 2', "it is a share from 0 to 1"),
        ("node", "FED/node-0/config.toml", "method = [", "not a TOML file"),
        ("node", "FED/node-0/items.txt", "", "lists no item"),
        ("node", "MASKED/node-0/gateway.json", "[]", "holds no names and values"),
        ("node", "MASKED/node-0/gateway.json", put(name=7), "name cannot be 7: it is a text"),
        ("node", "MASKED/node-0/users/0/node.json", put(index="0"), "index cannot be '0': it is a whole number"),
        ("server", "FED/server/server.json", "[]", "holds no names and values"),
        ("server", "FED/server/server.json", put(n_item=2), "Did you mean 'n_items'?"),
        ("status", "FED/server/server.json", put(n_items=[2]), "n_items cannot be [2]"),
        ("server", "FED/server/network.toml", 'listen = "127.0.0.1"\nport = "http"', "port cannot be 'http'"),
        ("server", "FED/server/network.toml", 'listen = "127.0.0.1"\nport = 70000', "it is a number from 1 to 65535"),
        ("server", "FED/server/network.toml", "listen = [", "is not readable"),
        ("server", "FED/server/roster.json", "7", "holds no names and values"),
        ("server", "FED/server/federation.toml", "rounds = 'ten'", "rounds cannot be 'ten'"),
        ("server", "FED/server/federation.toml", "corrupt = 1.0", "no sum has fewer than 5 nodes"),
        ("server", "FED/server/config.toml", "dim = 'wide'", "dim cannot be 'wide'"),
        ("status", "FED/server/server.sqlite", "no data base " * 99, "is not a store of a federation"),
        ("node", "FED/node-0/node.sqlite", "no data base " * 99, "is not a store of a federation"),
    ],
)
def test_a_file_that_was_damaged(
    fed: Path,
    capsys: pytest.CaptureFixture[str],
    words: str,
    file: str,
    change: str | Callable[[str], str],
    said: str,
) -> None:
    path = fed / file
    path.write_text(change if isinstance(change, str) else change(path.read_text()))
    if file.startswith("FED/node-0") and not file.endswith("network.toml"):
        source = fed / "FED/node-0" / "clicks.csv"
        source.write_text("user,item\nann,tea\nann,milk\n")
        (fed / "FED/node-0/network.toml").write_text(f'superlink = "127.0.0.1:1"\nsource = "{source}"\n')
    folder = fed / "/".join(file.split("/")[:2])
    err = sentence(capsys, "federation", words, folder)
    assert said in err
    assert path.name in err


@pytest.mark.parametrize("words", [["add-node"], ["certificate", "--host", "x"]], ids=lambda words: words[0])
def test_a_damaged_authority(fed: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    (fed / "FED" / "authority" / "ca.key").write_text("no key")
    err = sentence(capsys, "federation", words[0], fed / "FED", *words[1:])
    assert "authority has no readable key and certificate" in err


def test_status_does_not_write(fed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = open_server(fed / "FED" / "server")
    ServerStore(home).close()
    with ServerStore(home) as store:
        before = store.db.execute("PRAGMA data_version").fetchone()
        assert main(["federation", "status", str(home.path)]) == 0
        assert before == store.db.execute("PRAGMA data_version").fetchone()
    assert "round 0 of 100, stopped" in capsys.readouterr().out
