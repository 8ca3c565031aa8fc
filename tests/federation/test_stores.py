"""Files on the disk are whole, private, and kept no longer than needed."""

import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedgrec.config.options import FedGRecOptions
from fedgrec.data.files import read_tensors
from fedgrec.errors import FedgrecError
from fedgrec.federation.common import lock, sqlite_store
from fedgrec.federation.common.arrays import read_arrays, write_arrays
from fedgrec.federation.common.options import FederationOptions, read_options
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.plan import Plan
from fedgrec.federation.node import store
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore, Person, pack, unpack
from fedgrec.federation.node.uploads import taking_part
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.status import status
from fedgrec.federation.server.store import ServerStore
from fedgrec.methods.fedgrec import FedGRecMethod
from tests.federation.local_transport import Answer
from tests.federation.worlds import World, made_older, world
from tests.waits import seconds


def all_files(fed: World) -> list[Path]:
    return [path for folder in (*fed.nodes.values(), fed.server) for path in folder.rglob("*") if path.is_file()]


def test_two_may_find_a_new_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server opens its store for the first time, and a status command does so at the same time."""
    path, begin = tmp_path / "new.sqlite", sqlite_store._transaction

    def late(db: sqlite3.Connection) -> AbstractContextManager[None]:
        monkeypatch.setattr(sqlite_store, "_transaction", begin)
        sqlite_store.connect(path, store.SCHEMA).close()
        return begin(db)

    monkeypatch.setattr(sqlite_store, "_transaction", late)
    with closing(sqlite_store.connect(path, store.SCHEMA)) as db:
        assert db.execute("SELECT key, value FROM meta").fetchall() == [("format", "5")]


def test_one_waits_while_another_writes_to_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        end = threading.Timer(0.2, other.execute, ["COMMIT"])
        end.start()
        with closing(sqlite_store.connect(path, store.SCHEMA)) as db:
            assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        end.join()


def test_rows_are_sealed_after_a_transaction_that_failed(tmp_path: Path) -> None:
    """The first write to a table is undone, with its triggers."""
    fed = world(tmp_path, nodes=2)
    with ServerStore(open_server(fed.server)) as server:
        server.join(0, "node0", [b"a" * 32])
    with ServerStore(open_server(fed.server)) as server:

        def fails() -> None:
            with server.transaction():
                server.db.execute("INSERT INTO tags (tag, node) VALUES (?, 1)", [b"b" * 32])
                raise KeyError

        with pytest.raises(KeyError):
            fails()
        server.join(1, "node1", [b"c" * 32])
    with ServerStore(open_server(fed.server)) as server:
        assert server.nodes() == [(0, "node0", 1), (1, "node1", 1)]


def test_names_belong_to_the_node_that_brought_them_first(tmp_path: Path) -> None:
    """Also while that node has still to join again without those that another node has."""
    fed = world(tmp_path, nodes=3)
    a, b, c, d = (letter * 32 for letter in (b"a", b"b", b"c", b"d"))
    with ServerStore(open_server(fed.server)) as server:
        assert server.join(0, "node0", [a]) == {}
        assert server.join(1, "node1", [a, b, c]) == {a: 0}
        assert server.join(2, "node2", [b, d]) == {b: 1}
        assert server.join(1, "node1", [b]) == {}, "c is free again"
        assert server.join(2, "node2", [c, d]) == {}
        assert server.nodes() == [(0, "node0", 1), (1, "node1", 1), (2, "node2", 2)]
        with pytest.raises(FedgrecError, match="one user twice"):
            server.join(0, "node0", [a, a])


def test_nobody_else_can_read_a_node_or_the_server(tmp_path: Path) -> None:
    """During a run, with write-ahead logs and half-written files, and afterwards."""
    before = os.umask(0)
    try:
        fed = world(tmp_path)
        modes: set[tuple[str, int]] = set()

        def look(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
            with NodeStore(fed.nodes[address]) as store, store.transaction():
                store.put("looked", request.kind)
                modes.update((path.name, stat.S_IMODE(path.stat().st_mode)) for path in all_files(fed))
            return [answer(request)]

        fed.run(look)
    finally:
        os.umask(before)
    assert {"node.sqlite-wal", "server.sqlite-wal", "items.bin", "identity.key"} <= {name for name, _ in modes}
    assert {mode for _, mode in modes} == {0o600}
    public = {"config.toml", "data.json", "items.json", "metrics.jsonl", "result.json", "server.safetensors"}
    left = {path.name: stat.S_IMODE(path.stat().st_mode) for path in all_files(fed) if path.parent.name != "run"}
    assert set(left.values()) == {0o600}
    assert public == {path.name for path in (fed.server / "run").iterdir()}


def test_no_secret_of_a_sum_is_ever_on_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedgrec.secagg import client

    secrets: list[bytes] = []
    fresh = client.Secrets.fresh

    def remembered() -> client.Secrets:
        made = fresh()
        secrets.extend([made.seed, made.mask_key.private_bytes_raw()])
        return made

    monkeypatch.setattr(client.Secrets, "fresh", remembered)
    fed = world(tmp_path)
    seen: list[bool] = []

    def look(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        answers = [answer(request)]
        for path in all_files(fed):
            content = path.read_bytes()
            seen.append(any(secret.hex().encode() in content or secret in content for secret in secrets))
        return answers

    fed.run(look)
    assert secrets
    assert not any(seen)


def test_a_node_remembers_everything(tmp_path: Path) -> None:
    """Its store says who it is, which users it hosts, what they have, and which sums they took part in."""
    fed = world(tmp_path, options={"evaluations": 9})
    fed.run()
    db = sqlite3.connect(fed.nodes[1] / "node.sqlite")
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    known = {"meta", "users", "interactions", "own", "changes", "forgotten", "sessions", "participation", "opened"}
    known |= {"history", "signed"}
    assert tables == known
    rows = db.execute("SELECT stage, level, round, users, verdict FROM participation ORDER BY rowid").fetchall()
    db.close()
    assert [(stage, level, round_) for stage, level, round_, _, _ in rows] == [
        ("degrees", 0, 0),
        ("propagate", 1, 0),
        ("train", 0, 0),
        ("train", 0, 1),
        ("evaluate", 0, 1),
    ]
    assert [len(json.loads(users)) for *_, users, _ in rows] == [6, 6, 4, 4, 6]
    assert {verdict for *_, verdict in rows} == {1}
    with NodeStore(fed.nodes[1]) as store:
        assert store.get("round") == 1
        assert store.get("season") == [0, 18]


def test_a_node_draws_its_users_evenly(tmp_path: Path) -> None:
    """Two of six users in each of many rounds: every pair comes equally often, and a repeated round gives the same."""
    fed, counts = world(tmp_path), dict[tuple[int, ...], int]()
    with NodeStore(fed.nodes[0]) as store:
        store.announce()
        for round_ in range(600):
            plan = Plan("train", 0, round_, 18, 12, take=1, of=3)
            chosen = taking_part(store, plan, latents=True)
            assert chosen == taking_part(store, plan, latents=True)
            counts[tuple(chosen)] = counts.get(tuple(chosen), 0) + 1
    assert len(counts) == 15
    assert max(abs(count - 40) for count in counts.values()) < 35  # 40 ± 5.6 σ


@pytest.mark.parametrize("layers", [0, 2])
def test_states_survive_packing(layers: int) -> None:
    method = FedGRecMethod(FedGRecOptions(layers=layers, dim=3), 10, 4)
    state = method.init_users(np.arange(4, dtype=np.uint64), np.arange(5), np.arange(4)).state
    state.steps[:] = [1, 2, 3, 4]
    layout = [(n, getattr(state, n).dtype.str, getattr(state, n).shape[1:]) for n in vars(state)]
    back = unpack(method.State, layout, pack(state))
    for name, value in vars(state).items():
        assert value.tobytes() == getattr(back, name).tobytes()
        assert value.shape == getattr(back, name).shape
        assert getattr(back, name).flags.writeable


def test_a_store_of_another_shape_or_version_is_refused(tmp_path: Path) -> None:
    fed = world(tmp_path)
    with NodeStore(fed.nodes[0]) as store:
        wider = FedGRecMethod(FedGRecOptions(layers=2, dim=8), 30, 1)
        with pytest.raises(FedgrecError, match="another method or of other sizes"):
            store.add_users(wider, [Person("x", [1])])
        with store.transaction():
            store.put("format", 99)
    with pytest.raises(FedgrecError, match="format 99"):
        NodeStore(fed.nodes[0])


def test_arrays_are_mapped_and_whole(tmp_path: Path) -> None:
    arrays = {
        "tables": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        "degrees": np.arange(3),
        "nothing": np.zeros((0, 5)),
        "big-endian": np.arange(5, dtype=">i4"),
        "strided": np.arange(20)[::3],
    }
    write_arrays(tmp_path / "a.bin", arrays, {"round": 7})
    back, about = read_arrays(tmp_path / "a.bin")
    assert about == {"round": 7}
    assert {name: value.tolist() for name, value in back.items()} == {n: a.tolist() for n, a in arrays.items()}
    assert not back["tables"].flags.writeable
    assert not list(tmp_path.glob("*.part"))
    whole = load_file(tmp_path / "a.bin")  # safetensors' own reader
    assert {name: value.tolist() for name, value in whole.items()} == {n: a.tolist() for n, a in arrays.items()}
    content = (tmp_path / "a.bin").read_bytes()
    for size in (0, 3, 20, 200):
        (tmp_path / "half.bin").write_bytes(content[:size])
        with pytest.raises(FedgrecError, match="damaged"):
            read_arrays(tmp_path / "half.bin")
    with pytest.raises(FedgrecError, match="missing"):
        read_arrays(tmp_path / "none.bin")


def test_what_a_run_leaves(tmp_path: Path) -> None:
    fed = world(tmp_path, options={"rounds": 3, "evaluate_every": 1})
    run = fed.run()
    tensors, about = read_tensors(run / "server.safetensors")
    assert about == {"method": "fedgrec", "round": "3"}
    assert tensors["item_embeddings"].tobytes() == fed.model().items.tobytes()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    assert {"split", "protocol", "recall@5", "ndcg@5", "seconds", "bytes_up", "bytes_down"} <= lines[0].keys()
    assert lines[1]["bytes_up"] > lines[0]["bytes_up"] > 1000
    config = open_node(fed.nodes[0]).config.changed({"rounds": 3, "topk": (5,)}, "test")
    assert config.to_toml() == (run / "config.toml").read_text()


def test_options_are_read_back_and_checked(tmp_path: Path) -> None:
    options = FederationOptions(rounds=7, deadline=2.5)
    (tmp_path / "o.toml").write_text(options.to_toml())
    assert read_options(tmp_path / "o.toml", FederationOptions) == options
    for text, words in (("round = 3", "Did you mean 'rounds'"), ("rounds = -1", "at least 0"), ("x", "not a TOML")):
        (tmp_path / "o.toml").write_text(text)
        with pytest.raises(FedgrecError, match=words):
            read_options(tmp_path / "o.toml", FederationOptions)
    with pytest.raises(FedgrecError, match="go together"):
        FederationOptions(neighbours=2)
    with pytest.raises(FedgrecError, match="below least_nodes"):
        FederationOptions(nodes_per_round=1)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_store_of_an_older_format_is_refused_and_not_changed(tmp_path: Path, version: int) -> None:
    fed = world(tmp_path, options={"rounds": 1})
    fed.run()
    openings: dict[Path, Any] = {
        fed.nodes[0] / "node.sqlite": lambda: NodeStore(fed.nodes[0]),
        fed.server / "server.sqlite": lambda: status(fed.server),
    }
    for path, opening in openings.items():
        made_older(path, version)
        before = path.read_bytes()
        with pytest.raises(FedgrecError, match=rf"{path.name} has format {version}, and this version reads format 5"):
            opening()
        assert path.read_bytes() == before
    with pytest.raises(FedgrecError, match="begin a new federation"):
        fed.run()


HOLD = """
import sys, pathlib
from fedgrec.federation.common import lock
lock.TURN = 0.3
with lock.held(pathlib.Path(sys.argv[1]), "the node of this folder"):
    pass
"""


def test_two_processes_do_not_share_a_nodes_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would answer for the node, and neither would know what the other has sent."""
    monkeypatch.setattr(lock, "TURN", 0.3)
    path = tmp_path / "node.lock"
    with lock.held(path, "the node of this folder"):
        done = subprocess.run(
            [sys.executable, "-c", HOLD, path], capture_output=True, text=True, check=False, timeout=seconds(60)
        )
        assert "another process is the node of this folder" in done.stderr
    with lock.held(path, "the node of this folder"):
        pass
