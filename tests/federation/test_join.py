"""A node that makes its own keys: what travels, what is refused, and the node's whole life, as people type it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgrec.federation.common import certificates
from fedgrec.federation.common.roster import SIGNING
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.refresh import Watcher
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.setup.changes import remove_node
from fedgrec.federation.setup.init import secrets_of
from fedgrec.federation.setup.join import Welcome, _plain, read_letter
from tests.federation.test_cli_federation import said
from tests.federation.test_operate import founded


def typed(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    code, out, err = said(capsys, "federation", *words)
    assert code == 0, err
    return out


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "clicks.csv").write_text(
        "user,item\n" + "".join(f"u{u},item {u + i}\n" for u in range(3) for i in range(6))
    )
    return tmp_path / "clicks.csv"


def test_a_nodes_whole_life(tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is invited, asks, is welcomed, takes part in a federation that runs already, and leaves."""
    fed, world = founded(tmp_path, rounds=4)
    node, server = tmp_path / "far" / "away", fed / "server"
    invited = typed(capsys, "invite", fed)
    begun = typed(capsys, "join", fed / "invitation.json", node, "--source", table)
    mark = invited.rpartition("same: ")[2].strip()
    assert f"The invitation's fingerprint is {mark}:" in begun
    asked = begun.rpartition(": ")[2].strip()
    held = {path.name: path.read_bytes() for path in node.iterdir()}

    def enrols() -> None:
        out = typed(capsys, "add-node", fed, "--request", node / "request.json", "--users", 9, "--people", 2)
        assert f"node-4 is enrolled, if its operator reads the same from the request: {asked}" in out
        assert "Copy keys/node-4.pub and roster.json" in out
        assert "is node-4; roster 2 (" in typed(capsys, "join", fed / "welcome-node-4.json", node)
        assert Watcher(node).load() == 3
        world.transport.folders = world.nodes = {**world.nodes, 4: node}

    summed = world.witness.summed

    def after(line: dict[str, Any]) -> None:
        summed(line)
        if line["stage"] == "train" and line["round"] in (0, 2):
            enrols() if line["round"] == 0 else remove_node(fed, "node-4")

    world.witness.summed = after  # type: ignore[method-assign]
    world.run()
    rounds = [line["included"] for line in world.applied("train")]
    assert rounds == [[0, 1, 2, 3], *2 * [[0, 1, 2, 3, 4]], [0, 1, 2, 3]], world.witness.notices
    line = open_server(server).membership.members[4]
    assert (line.name, line.users, line.people, line.joined, line.left) == ("node-4", 9, 2, 2, 3)
    home = open_node(node)
    assert home.user_salt == open_node(fed / "node-0").user_salt
    assert home.agreement == open_server(server).agreement
    assert not {"joining.json", "request.json"} & {path.name for path in node.iterdir()}
    everywhere = b"".join(path.read_bytes() for path in fed.rglob("*") if path.is_file())
    for name in ("identity.key", "flower.key"):
        assert held[name] == (node / name).read_bytes()
        assert held[name].splitlines()[len(held[name].splitlines()) // 2] not in everywhere, "it never left its machine"
    assert json.loads(held["joining.json"])["seal"].encode() not in everywhere
    travelled = [(fed / name).read_text() for name in ("invitation.json", "welcome-node-4.json")]
    assert not any(home.user_salt.hex() in text for text in travelled)


# ------------------------------------------------------------------------------------------------------ bad input


class Letters:
    """Everything up to the welcome, once."""

    def __init__(self, root: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.fed, self.node, self.table = founded(root, 3)[0], root / "new", table
        typed(capsys, "invite", self.fed)
        self.invitation, self.welcome = self.fed / "invitation.json", self.fed / "welcome-node-3.json"
        typed(capsys, "join", self.invitation, self.node)
        self.request = Path(shutil.copy(self.node / "request.json", root))
        typed(capsys, "add-node", self.fed, "--request", self.request)

    def join(self, letter: Path, node: Path, *words: Any) -> list[Any]:
        return ["join", letter, node, *words]

    def add(self, *words: Any) -> list[Any]:
        return ["add-node", self.fed, "--request", *words]

    def other(self, path: Path, **values: Any) -> Path:
        """The same file with other values in it."""
        return written(path.parent / "changed.json", json.loads(path.read_text()) | values)

    def signed(self, **values: Any) -> Path:
        """A welcome that the authority has signed, with other values in it."""
        welcome = read_letter(self.welcome)
        assert isinstance(welcome, Welcome)
        welcome = Welcome(**{**vars(welcome), **values})
        signature = certificates.open_authority(self.fed)[0].sign(welcome.part, SIGNING)
        return written(self.fed / "signed.json", {"kind": "welcome", **_plain(welcome), "signature": signature.hex()})


def written(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(json.dumps(values))
    return path


@pytest.fixture
def letters(tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> Letters:
    return Letters(tmp_path, table, capsys)


BAD: dict[str, tuple[Callable[[Letters], list[Any]], str]] = {
    "no file": (lambda at: at.join(at.fed / "none.json", at.fed / "x"), "none.json is not readable"),
    "no letter": (lambda at: at.join(at.fed / "server" / "server.json", at.fed / "x"), "is no invitation, no request"),
    "a request": (lambda at: at.join(at.request, at.fed / "x"), "is a request: it goes to where authority/ is"),
    "a folder that exists": (lambda at: at.join(at.invitation, at.node), "keys are never overwritten"),
    "no source": (lambda at: at.join(at.invitation, at.fed / "x", "--source", "none.csv"), "there is no such file"),
    "another roster": (lambda at: at.join(at.other(at.invitation, roster="{}"), at.fed / "x"), "is no invitation that"),
    "another federation": (lambda at: at.join(at.other(at.invitation, federation="f"), at.fed / "x"), "has not signed"),
    "no method": (lambda at: at.join(at.other(at.invitation, config="dim = 0"), at.fed / "x"), "dim cannot be 0"),
    "no address": (lambda at: at.join(at.other(at.invitation, superlink="here"), at.fed / "x"), "it is host:port"),
    "a wrong type": (lambda at: at.join(at.other(at.invitation, corrupt="x"), at.fed / "x"), "corrupt cannot be 'x'"),
    "an invitation as a request": (lambda at: at.add(at.invitation), "is no request: name the request.json"),
    "asked twice": (lambda at: at.add(at.request), "is enrolled already, as node-3"),
    "a changed key": (
        lambda at: at.add(at.other(at.request, identity="00" * 32)),
        "was changed after the node had made",
    ),
    "another seal": (lambda at: at.add(at.other(at.request, seal="00" * 32)), "was changed after the node had made it"),
    "asked elsewhere": (lambda at: at.add(at.other(at.request, federation="f")), "asks into another federation"),
    "more people than users": (lambda at: at.add(at.request, "--users", 2, "--people", 3), "is enrolled already"),
    "a gateway": (lambda at: at.add(at.request, "--per-user-masks", 2), "only a node that adds its users up"),
    "no welcome expected": (lambda at: at.join(at.welcome, at.fed / "node-0"), "waits for no welcome"),
    "another salt": (
        lambda at: at.join(at.other(at.welcome, salt="00" * 48), at.node),
        "is not signed by the authority",
    ),
    "another place": (lambda at: at.join(at.other(at.welcome, place=2), at.node), "is not signed by the authority"),
    "of another node": (lambda at: at.join(at.signed(name="node-2"), at.node), "is the welcome of another node"),
    "a place of another": (lambda at: at.join(at.signed(place=2), at.node), "its roster has another node at place 2"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    letters: Letters, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    make, sentence = BAD[what]
    words = make(letters)
    before = {path: path.read_bytes() for path in letters.fed.parent.rglob("*") if path.is_file()}
    code, _, err = said(capsys, "federation", *words)
    assert (code, len(err.splitlines())) == (2, 1), err
    assert sentence in err
    assert before == {path: path.read_bytes() for path in letters.fed.parent.rglob("*") if path.is_file()}
    typed(capsys, "join", letters.welcome, letters.node)


# -------------------------------------------------------------------------------------------------- what is secret


@pytest.mark.parametrize("masks", [[], ["--per-user-masks"]])
def test_what_init_names_as_secret_is_what_has_secrets(
    tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str], masks: list[str]
) -> None:
    (tmp_path / "items.txt").write_text("tea\nmilk\n")
    fed = tmp_path / "fed"
    out = typed(capsys, "init", "--out", fed, "--catalogue", tmp_path / "items.txt", "--users", 2, *masks)
    named = secrets_of(bool(masks))
    assert all(f"  {file} " in out for file in named)
    assert max(map(len, out[out.index("Secret,") :].splitlines())) <= 80
    found = set()
    for path in (path for path in fed.rglob("*") if path.is_file()):
        text, values = path.read_text(), {}
        if path.suffix == ".json":
            values = json.loads(text)
        if "PRIVATE KEY" in text or path.name == "identity.key" or "user_salt" in values:
            found.add(path)
    assert found == {path for file in named for path in fed.glob(file)}
    secrets = [path.read_text() for path in found if path.suffix == ".key"]
    secrets += [json.loads(path.read_text())["user_salt"] for path in found if path.name == "node.json"]
    rest = "".join(path.read_text() for path in fed.rglob("*") if path.is_file() and path not in found)
    assert not any(secret.strip() in rest for secret in secrets)
