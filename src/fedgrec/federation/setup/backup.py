"""`fedgrec federation backup`: a copy of a server's, node's or gateway's folder to restore from, even while in use.

The private keys stay behind, so that nobody who steals a copy can pose as a node or as the server. To restore a copy,
put the old keys back if they still exist, or make new ones: `fedgrec federation rotate-keys` for a node,
`fedgrec federation certificate` for the server.

A node's folder never holds the masks of a sum, so no copy of it can mask two vectors with the same masks. A copy cannot
know the evaluations that the node takes part in later, so it counts all of them as spent.
"""

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from fedgrec.errors import ConfigError, FedgrecError
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.folder import NODE, SERVER, check_kind
from fedgrec.federation.common.network import FLOWER, TLS_KEY
from fedgrec.federation.common.upkeep import BACKED_UP
from fedgrec.federation.node.folder import IDENTITY, LOCK, open_node
from fedgrec.federation.node.gateway import node_folders
from fedgrec.federation.node.store import EVALUATIONS_SPENT, STORE, TRAININGS_SPENT, NodeStore
from fedgrec.federation.server.store import SERVER_STORE, model_of
from fedgrec.runs.recorded_sums import RECORDINGS

# They belong to this machine, or to a process.
LEFT_OUT = {"logs", "flower", "flower.id", LOCK, BACKED_UP, RECORDINGS}
PRIVATE_KEYS = {IDENTITY, FLOWER, TLS_KEY}
TRIES = 5  # a server at work may replace its model while it is copied


def backup(folder: Path, out: Path, with_keys: bool = False) -> Path:
    """A copy of the folder in `out`, which must not exist; whole or not there."""
    left_out = LEFT_OUT if with_keys else LEFT_OUT | PRIVATE_KEYS
    check_kind(folder)
    if out.exists():
        raise ConfigError(f"{out} exists: choose a folder that does not, backups are never overwritten")
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)  # left by a process that was killed here
    try:
        _copied(folder, part, left_out)
        for node in _nodes(part):
            with NodeStore(node) as store, store.transaction():
                store.put(EVALUATIONS_SPENT, open_node(node).agreed.evaluations)
                store.put(TRAININGS_SPENT, open_node(node).agreed.dp_rounds)  # this counts only under noise
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    with contextlib.suppress(OSError):  # a folder that may only be read
        write_private(folder / BACKED_UP)
    return out


def _copied(folder: Path, part: Path, left_out: set[str]) -> None:
    """Make a copy that can be opened; a server at work may need several tries."""
    for left in reversed(range(TRIES)):
        try:
            _copy(folder, part, left_out)
            _check(part)
            return
        except (FileNotFoundError, FedgrecError):
            if not left:
                raise
            shutil.rmtree(part, ignore_errors=True)


def _copy(folder: Path, out: Path, left_out: set[str]) -> None:
    """Copy stores first: if a file that they name is missing then, the copy is tried again."""
    out.mkdir(mode=0o700, parents=True)
    entries = sorted(folder.iterdir(), key=lambda path: (path.suffix != ".sqlite", path.name))
    for path in entries:
        if path.name in left_out or path.name.endswith((".part", "-wal", "-shm")):
            continue
        if path.is_dir():
            _copy(path, out / path.name, left_out)
        elif path.name in (STORE, SERVER_STORE):
            (out / path.name).touch(0o600)
            with closing(sqlite3.connect(path)) as here, closing(sqlite3.connect(out / path.name)) as there:
                here.backup(there)
        else:
            shutil.copy2(path, out / path.name)


def _check(folder: Path) -> None:
    """Check that the copy can be opened, with the server's model."""
    if (folder / SERVER).exists() and (folder / SERVER_STORE).exists():
        model_of(folder)
    for node in _nodes(folder):
        with NodeStore(node) as store:
            store.count()


def _nodes(folder: Path) -> Iterator[Path]:
    """The folders with a node's store in it."""
    return (path for path in node_folders(folder) if (path / NODE).exists() and (path / STORE).exists())
