"""`fedgrec federation doctor`: a folder in which all is well, and each thing that may be wrong with it, alone."""

import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)

from fedgrec.cli import main
from fedgrec.config.configuration import Config
from fedgrec.federation.common import certificates
from fedgrec.federation.common.lock import held
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.common.upkeep import BACKED_UP
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.log import writing
from fedgrec.federation.server.store import ServerStore
from fedgrec.federation.setup import doctor
from fedgrec.federation.setup.backup import backup
from fedgrec.federation.setup.init import init

DAY = 86_400


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FED, whose server and first node have been at work and are backed up."""
    root = tmp_path_factory.mktemp("doctor")

    def fill(folder: Path, index: int) -> str:
        (folder / "people.csv").write_text("user,item\nann,tea\n")
        (folder / "people.csv").chmod(0o600)
        return "people.csv"

    made = init(root / "fed", 3, ["tea", "milk"], Config(), FederationOptions(), fill=fill)
    with ServerStore(open_server(made.server)):
        pass
    with NodeStore(made.nodes[0]) as store, store.transaction():
        store.put("refused", None)
    for folder in (made.server, made.nodes[0]):
        backup(folder, root / "copies" / folder.name)
    return root / "fed"


@pytest.fixture
def fed(made_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy; its server answers, and tells the right time."""
    monkeypatch.setattr(doctor.httpx, "get", lambda *_, **__: httpx.Response(404, headers={"date": told()}))
    return Path(shutil.copytree(made_once, tmp_path / "fed", copy_function=shutil.copy2))


def told(seconds: float = 0.0) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


def to_do(folder: Path) -> list[str]:
    return [finding.what for finding in doctor.examine(folder) if finding.wrong]


def test_where_all_is_well_there_is_nothing_to_do(fed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = fed / "node-0"
    assert main(["federation", "doctor", str(node)]) == 2
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("DO")] == [
        f"DO  nobody runs it: fedgrec federation node {node}"
    ]
    files = [path for path in fed.rglob("*") if path.is_file() and path.suffix != ".sqlite-shm"]
    before = {path: path.stat().st_mtime_ns for path in files}
    with held(node / "node.lock", "the node"), writing(fed / "server"):
        for folder in (node, fed / "server"):
            assert main(["federation", "doctor", str(folder)]) == 0, capsys.readouterr().out
    out = capsys.readouterr().out
    assert "DO" not in out
    assert out.count("ok  ") == len(out.splitlines()) > 12
    assert before == {path: path.stat().st_mtime_ns for path in files}, "it changes nothing"
    assert main(["federation", "doctor", str(fed)]) == 2
    assert "is no folder of a server, a node or a gateway" in capsys.readouterr().err


def stranger(folder: Path, days: int = 100) -> None:
    """A certificate and key of another authority."""
    ca = certificates.authority("other")
    renew(folder, ca, days)


def renew(folder: Path, ca: certificates.Authority, days: int) -> None:
    key, certificate = certificates.server_certificate(ca, ["fed.example"], days)
    (folder / "server.key").write_bytes(certificates.pem(key))
    (folder / "server.pem").write_bytes(certificates.as_pem(certificate))


def another_key(folder: Path) -> None:
    (folder / "server.key").write_bytes(certificates.pem(certificates.new_key()))


def refused(folder: Path) -> None:
    with NodeStore(folder) as store, store.transaction():
        store.put("refused", "the node at 7 has not the key of node-0: it is refused")


def no_backup(folder: Path) -> None:
    (folder / BACKED_UP).unlink()


def old_backup(folder: Path) -> None:
    os.utime(folder / BACKED_UP, (time.time() - 3 * DAY,) * 2)


def other_roster(folder: Path) -> None:
    text = (folder / "roster.json").read_text()
    (folder / "roster.json").write_text(text.replace("node-2", "node-9"))


SERVER: dict[str, Callable[[Path], object]] = {
    "others may use": lambda folder: (folder / "server.key").chmod(0o640),
    "server.key does not belong to server.pem: copy both again": another_key,
    "server.pem is not of the authority of ca.crt: copy both again": stranger,
    "in 9 days: where authority/ is, run  fedgrec federation certificate": lambda folder: renew(
        folder, certificates.open_authority(folder.parent), 10
    ),
    "ended on": lambda folder: renew(folder, certificates.open_authority(folder.parent), 0),
    "server.pem is missing": lambda folder: (folder / "server.pem").unlink(),
    "keys/node-1.pub lacks: copy it": lambda folder: (folder / "keys" / "node-1.pub").unlink(),
    "keys/node-7.pub has left: delete it": lambda folder: shutil.copy2(
        folder / "keys" / "node-1.pub", folder / "keys" / "node-7.pub"
    ),
    "has not signed roster.json": other_roster,
    "there is no backup: fedgrec federation backup": no_backup,
    "the newest backup is 3.0 days old: fedgrec federation backup": old_backup,
    "it may set": lambda folder: (folder / "network.toml").write_text("prt = 1"),
    "agreement.toml": lambda folder: (folder / "agreement.toml").write_text("evaluations = many"),
    "restore it from a backup": lambda folder: (folder / "server.sqlite").write_bytes(b"no data base " * 99),
}
NODE: dict[str, Callable[[Path], object]] = {
    "others may use": lambda folder: folder.chmod(0o755),
    "identity.key is not the key of node-0 on the roster": lambda folder: shutil.copy2(
        folder.parent / "node-1" / "identity.key", folder / "identity.key"
    ),
    "flower.key is missing": lambda folder: (folder / "flower.key").unlink(),
    "the server refused node-0: the node at 7 has not the key": refused,
    "people.csv": lambda folder: (folder / "people.csv").unlink(),
    "there is no backup": no_backup,
    "has not signed roster.json": other_roster,
}


@pytest.mark.parametrize("what", SERVER)
def test_one_thing_that_is_wrong_with_a_server_is_one_finding(fed: Path, what: str) -> None:
    with writing(fed / "server"):
        SERVER[what](fed / "server")
        (found,) = to_do(fed / "server")
    assert what in found


@pytest.mark.parametrize("what", NODE)
def test_one_thing_that_is_wrong_with_a_node_is_one_finding(fed: Path, what: str) -> None:
    with held(fed / "node-0" / "node.lock", "the node"):
        NODE[what](fed / "node-0")
        (found,) = to_do(fed / "node-0")
    assert what in found


@pytest.mark.parametrize(("ahead", "said"), [(3600, "3600 s behind the server's"), (-60, "60 s ahead of the server's")])
def test_a_wrong_clock_a_full_disk_and_a_server_that_is_away(
    fed: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, said: str
) -> None:
    with held(fed / "node-0" / "node.lock", "the node"):
        monkeypatch.setattr(doctor.httpx, "get", lambda *_, **__: httpx.Response(404, headers={"date": told(ahead)}))
        (found,) = to_do(fed / "node-0")
        assert f"the clock here is wrong, {said}" in found.replace("61 s", "60 s").replace("3599", "3600")

        def away(*_: object, **__: object) -> None:
            raise httpx.ConnectError("refused")

        monkeypatch.setattr(doctor.httpx, "get", away)
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=7e8))
        full, gone = to_do(fed / "node-0")
    assert full == "0.7 GB are free; remove old logs and backups"
    assert "127.0.0.1:9092 does not answer (refused)" in gone


def test_a_gateway_is_examined_with_all_its_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.httpx, "get", lambda *_, **__: httpx.Response(404, headers={"date": told()}))
    gateway = init(tmp_path / "fed", 3, ["tea"], Config(), FederationOptions(), per_user_masks=[2, 2, 2]).nodes[0]
    with held(gateway / "node.lock", "the node"):
        assert to_do(gateway) == []
        refused(gateway / "users" / "1")
        (no_copy, found) = to_do(gateway)
    assert "the server refused node-0.1" in found
    assert "there is no backup" in no_copy
