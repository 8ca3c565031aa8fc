"""Copies that a server keeps of itself, and a server that takes over with the newest of them.

Users send what counts them, and what finds a model's first tables, only once. A server that has lost such a sum is of
no use to them, so each is worth a copy, and so is a model that was judged. What later rounds added to the model is lost
with the server.
"""

import shutil
import time
from pathlib import Path

from fedgrec.errors import ConfigError
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.packets import TURN
from fedgrec.federation.common.plan import CHANGES
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.store import ServerStore
from fedgrec.federation.setup.backup import backup
from fedgrec.methods.contract import TRAIN

KEPT = 3


def place_of(folder: Path) -> Path:
    """Where the server of this folder keeps its copies."""
    wanted = open_server(folder).options.copies
    return Path(wanted).expanduser() if wanted else folder.absolute().with_name(f"{folder.absolute().name}-copies")


def keep_copy(folder: Path) -> Path | None:
    """Make a copy, with the keys, if it has a sum or a roster that the last one has not; the oldest one goes."""
    home, place, often = open_server(folder), place_of(folder), (CHANGES, TRAIN.name)
    copied = int(before[-1].name.partition("-")[0]) if (before := _copies(place)) else 0
    with ServerStore(home, read_only=True) as store:
        method, later = home.method(store.get("n_users") or 1), [sum_ for sum_ in store.sums(copied) if sum_["applied"]]
    worth = [sum_ for sum_ in later if sum_["stage"] not in often or method.prepares(sum_["round"])]
    last = worth[-1]["number"] if worth else copied
    copy = place / f"{last:09}-{home.membership.number:06}"
    if not last or copy.exists():
        return None
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    backup(folder, copy, with_keys=True)
    for old in _copies(place)[:-KEPT]:
        shutil.rmtree(old)
    return copy


def take_over(folder: Path, place: Path) -> Path:
    """Put the newest copy of this place into a server's folder. Nodes that hear this server hear no other one again."""
    if folder.exists():
        raise ConfigError(f"{folder} exists: start its server without --from, or name a folder that does not exist")
    if not (copies := _copies(place)):
        raise FederationError(f"{place} has no copy of a server: name the folder in which a server keeps its copies")
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(copies[-1], part)
    with ServerStore(open_server(part)) as store, store.transaction():
        store.put(TURN, max(store.get(TURN, 0) + 1, int(time.time())))
    part.rename(folder)
    return copies[-1]


def _copies(place: Path) -> list[Path]:
    """The oldest first."""
    return sorted(path for path in place.glob("*-*") if not path.name.endswith(".part"))
