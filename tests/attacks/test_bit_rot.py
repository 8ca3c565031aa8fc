"""A bit flips on the disk: either the program reads back what was written, or an error names the file."""

import hashlib
import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.cli import main
from fedgrec.data.files import Checkpoints
from fedgrec.errors import FedgrecError
from fedgrec.federation.common.arrays import read_arrays
from fedgrec.federation.server import store as server_store
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.store import ServerStore
from fedgrec.models.model import Model
from tests.cli.conftest import data, finished, no_report
from tests.federation.worlds import Killed, kill_server, world

__all__ = ["data", "finished", "no_report"]

Read = Callable[[], Any]


def bits(value: Any) -> Any:
    """A value that compares equal only if all parts are equal."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: bits(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(part) for part in value]
    return bits(vars(value)) if hasattr(value, "__dict__") else value


@contextmanager
def kept(folder: Path) -> Iterator[None]:
    """After the block, the folder is as it was."""
    content = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    try:
        yield
    finally:
        for file in folder.rglob("*"):
            if file.is_file() and file not in content:
                file.unlink()
        for file, before in content.items():
            file.write_bytes(before)


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def silent_changes(path: Path, read: Read, flips: int, names: tuple[str, ...] = ()) -> list[int]:
    """The flips, of this many in a file, after which something else is read back and no error names the file."""
    with kept(path.parent):
        want = bits(read())
    rng, silent = random.Random(path.name), []
    for bit in (rng.randrange(8 * path.stat().st_size) for _ in range(flips)):
        with kept(path.parent):
            flip(path, bit)
            try:
                same = bits(read()) == want
            except FedgrecError as said:
                same = any(name in str(said) for name in (path.name, *names))
            except Exception:
                same = False
        if not same:
            silent.append(bit)
    return silent


# ------------------------------------------------------------------------------------------ a server's folder


def everything(server: Path) -> Any:
    """All that a server knows."""
    home = open_server(server)
    with ServerStore(home) as store:
        model = store.model(home.method(18).init(0))
        keys = ("n_users", "warm", "warm_stages", "evaluated", "federation")
        return model, store.sums(), store.nodes(), store.founders(), store.metrics(), [store.get(key) for key in keys]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fed = world(tmp_path_factory.mktemp("fed"), users=3, options={"rounds": 2, "evaluate_every": 1})
    fed.run()
    return fed.server


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server's folder with a write-ahead log, as kill -9 leaves it."""
    root = tmp_path_factory.mktemp("killed")
    fed = world(root / "fed", users=3, options={"rounds": 9})
    left = root / "left" / "server"

    def dies(address: int, request: Any, answer: Any) -> Any:
        if len(fed.witness.sums) == 6 and not left.exists():
            shutil.copytree(fed.server, left)
        return kill(address, request, answer)

    kill = kill_server(130)
    with pytest.raises(Killed):
        fed.run(dies)
    assert (left / "server.sqlite-wal").stat().st_size > 10**4
    return left


def current(home: Path) -> Path:
    return max(home.glob("model-*.bin"), key=lambda path: int(path.stem.removeprefix("model-")))


def of_server(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "server"))


def test_a_servers_model(server: Path, tmp_path: Path) -> None:
    """A bit flips in the server's model file, and the server goes on with another model."""
    home = of_server(server, tmp_path)
    model = current(home)
    assert not silent_changes(model, lambda: server_store.model_of(home), 40)


def test_an_item_table(server: Path, tmp_path: Path) -> None:
    """A bit flips in the item table that a node has downloaded, and users are recommended something else."""
    table = Path(shutil.copy(server.parent / "node0" / "items.bin", tmp_path / "items.bin"))
    assert not silent_changes(table, lambda: read_arrays(table), 40)


def test_a_servers_store(server: Path, tmp_path: Path) -> None:
    """A bit flips in the server's store: users that were counted, progress, the present model."""
    home = of_server(server, tmp_path)
    assert not silent_changes(home / "server.sqlite", lambda: everything(home), 40)


def test_a_servers_write_ahead_log(killed: Path, tmp_path: Path) -> None:
    """A bit flips in the log that a killed server left: SQLite then drops all entries after it."""
    home = of_server(killed, tmp_path)
    names = ("server.sqlite", "model-")
    assert not silent_changes(home / "server.sqlite-wal", lambda: server_store.model_of(home), 30, names)


def test_a_row_that_changes_under_a_running_server(server: Path, tmp_path: Path) -> None:
    """A bit flips while the server runs: it refuses both to read and to write the row."""
    home = of_server(server, tmp_path)
    with ServerStore(open_server(home)) as store:
        with closing(sqlite3.connect(home / "server.sqlite", isolation_level=None)) as other:
            other.execute("UPDATE sums SET round = 3 WHERE number = 1")
        session = store.db.execute("SELECT session FROM sums WHERE number = 1").fetchone()[0]
        for use in (lambda: store.over(0), store.sums, lambda: store.opening(session, [1])):
            with pytest.raises(FedgrecError, match=r"server\.sqlite.*a row of sums has changed.*restore"):
                use()
        assert store.nodes()


def test_a_table_of_version_0_2_is_read_and_checked(server: Path, tmp_path: Path) -> None:
    """Its own format of arrays: what it wrote is read bit by bit, and no bit of it changes in silence."""
    arrays, about = read_arrays(current(server))
    places, at = [], 0
    for name, array in arrays.items():
        places.append({"name": name, "dtype": array.dtype.str, "shape": array.shape, "at": at})
        at += -(-array.nbytes // 64) * 64
    head = json.dumps({"about": about, "arrays": places}).encode()
    head = head.ljust(-(-(48 + len(head)) // 64) * 64 - 48)
    start = b"FGAR" + (2).to_bytes(4, "little") + len(head).to_bytes(8, "little")
    rest = head + b"".join(array.tobytes() + bytes(-array.nbytes % 64) for array in arrays.values())
    old = tmp_path / "old.bin"
    old.write_bytes(start + hashlib.blake2b(start + rest, digest_size=32).digest() + rest)
    assert bits(read_arrays(old)) == bits((arrays, about))
    assert not silent_changes(old, lambda: read_arrays(old), 40)


# ------------------------------------------------------------------------------------------------ a run's folder


def model_of(run: Path) -> Any:
    model = Model.load(run)
    ids = list(model.user_ids), list(model.item_ids)
    about = model.config.method, model.config.model
    return about, ids, model.server, model.users, model.known.indptr, model.known.items


@pytest.mark.parametrize("name", ["server.safetensors", "users.safetensors", "config.toml", "users.json", "items.json"])
def test_a_runs_files(finished: Path, tmp_path: Path, name: str) -> None:
    """A bit flips in a run's folder, and it recommends something else, or by other names."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    names = ("config.toml", "users.safetensors", str(run))
    assert not silent_changes(run / name, lambda: model_of(run), 20 if name != "users.json" else 60, names)


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "latest"])
def test_a_checkpoint(finished: Path, tmp_path: Path, name: str) -> None:
    """A bit flips in a checkpoint, and --resume goes on from another state."""
    folder = Path(shutil.copytree(finished / "checkpoints", tmp_path / "checkpoints"))
    (path,) = folder.rglob(name)
    assert not silent_changes(path, lambda: Checkpoints(folder).load(), 30)


def test_it_is_a_sentence_and_code_2(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line says which file it is and what to do."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    flip(run / "server.safetensors", 8 * (run / "server.safetensors").stat().st_size - 3)
    assert main(["recommend", str(run), "--user", "ann1"]) == 2
    said = capsys.readouterr().err
    assert "server.safetensors was damaged" in said
    assert "restore it" in said
    assert len(said.splitlines()) == 1


# ------------------------------------------------------------------------------------------------- at length


@pytest.mark.slow
def test_a_thousand_flips(finished: Path, server: Path, killed: Path, tmp_path: Path) -> None:
    """The same in all these files, a thousand times in total."""
    homes = {name: of_server(folder, tmp_path / name) for name, folder in (("whole", server), ("killed", killed))}
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    for path in (current(homes["whole"]), homes["whole"] / "server.sqlite"):
        assert not silent_changes(path, lambda: everything(homes["whole"]), 150), path
    wal = homes["killed"] / "server.sqlite-wal"
    assert not silent_changes(wal, lambda: server_store.model_of(homes["killed"]), 150, ("server.sqlite", "model-"))
    names = ("config.toml", "users.safetensors", str(run))
    for name in ("server.safetensors", "users.safetensors", "config.toml", "users.json", "items.json"):
        assert not silent_changes(run / name, lambda: model_of(run), 80, names), name
    for path in (run / "checkpoints").rglob("state.*"):
        assert not silent_changes(path, lambda: Checkpoints(run / "checkpoints").load(), 75), path
