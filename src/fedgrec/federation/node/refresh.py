"""A node reads its source again: when it starts, when the source changes, when somebody asks."""

import logging
import sqlite3
import threading
from pathlib import Path

from fedgrec.errors import FedgrecError
from fedgrec.federation.common.catalogue import CATALOGUE, read_catalogue
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.network import NodeNetwork, read_network
from fedgrec.federation.node import changes
from fedgrec.federation.node.changes import Renewal
from fedgrec.federation.node.folder import NodeFolder, open_node
from fedgrec.federation.node.gateway import Gateway, anyone, node_folders, opened, renewed
from fedgrec.federation.node.person import users_of
from fedgrec.federation.node.sources import read_source
from fedgrec.federation.node.store import NodeStore

Seen = tuple[tuple[str, int, int], ...]  # files of a source: name, size, when each was written
log = logging.getLogger("fedgrec.node")


def claim(folder: Path) -> None:
    """Bring users whose names other nodes had, with the next joining: an operator has seen to it that they are free."""
    for path in node_folders(folder):
        with NodeStore(path) as store, store.transaction():
            store.put("claims", True)


def refresh(folder: Path, let_go: bool = False) -> Renewal:
    """Update the users of a node from its source; `let_go`: also if most of them are no longer in it."""
    home, network = opened(folder), read_network(folder, NodeNetwork)
    if not network.source:  # its users are in its store, put there by somebody else
        return Renewal()
    source = read_source(_where(folder, network), _known_items(home), anyone(folder).config.model.takes_order)
    if source.unknown or source.nameless:
        log.warning(
            "%d interactions have items that the catalogue lacks, %d have no user or no item",
            source.unknown,
            source.nameless,
        )
    hosted = home.hosted() if isinstance(home, Gateway) else {}
    paths = [home.members[index] for index in hosted] if isinstance(home, Gateway) else [home.path]
    if not let_go:
        here = [user for path in paths for user in _staying(path)]
        changes.check_source(len(here), sum(user in source.users for user in here))
    if not isinstance(home, Gateway):
        return renewed(home, source.users, network.held_out)
    found = Renewal()
    for path, user in zip(paths, hosted.values(), strict=True):
        own = {user: source.users[user]} if user in source.users else {}
        found += renewed(open_node(path), own, network.held_out)
    fresh = {user: marks for user, marks in source.users.items() if user not in hosted.values()}
    came, without = home.take_in(fresh, network.held_out)
    if without:
        log.warning("%d users have no key and take no part: fedgrec federation add-users makes keys", without)
    return found + came


def _known_items(home: NodeFolder | Gateway) -> dict[str, int]:
    node = open_node(next(iter(home.members.values()))) if isinstance(home, Gateway) else home
    return dict(list(read_catalogue(home.path / CATALOGUE).items())[: node.n_items])


def _staying(folder: Path) -> list[str]:
    with NodeStore(folder) as store:
        return store.staying()


# ------------------------------------------------------------------------------------------------ watching


class Watcher:
    """Looks at the source every few seconds, and reads it again once it has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.network = folder, read_network(folder, NodeNetwork)
        self.seen: Seen | None = None  # the files that have been read
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="source", daemon=True)

    def load(self) -> int:
        """Read the source when the node starts; return how many users it has."""
        home = opened(self.folder)
        now = self._look()
        try:
            log.info("%s", refresh(self.folder))
            self.seen = now
        except FederationError as trouble:  # such as a count that is not over: the next check tries again
            if not users_of(self.folder):
                raise
            log.warning("the source was not read: %s", trouble)
        count = len(users_of(self.folder))
        if not count and not (isinstance(home, Gateway) and home.answering()):
            raise FederationError(f"{self.folder} has no users: name their data as `source` in network.toml")
        return count

    def __enter__(self) -> "Watcher":
        if self.network.source and self.network.refresh:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self.network.refresh):
            self.look()

    def look(self) -> Renewal | None:
        """Read a source that has changed; None if it has not, or if it cannot be read just now."""
        try:
            now = self._look()
            if now == self.seen:
                return None
            found = refresh(self.folder)
        except (FedgrecError, OSError, sqlite3.Error) as trouble:
            # A file is half written or missing just now, or a count is not over: the next check tries again.
            log.warning("the source was not read again: %s", trouble)
            return None
        self.seen = now
        if found != Renewal():  # the file was written anew, and says what it said
            log.info("the source has changed: %s", found)
        return found

    def _look(self) -> Seen:
        name = _where(self.folder, self.network).partition("#")[0]
        files = [
            path for path in (Path(name), *sorted(Path(name).parent.glob(f"{Path(name).name}-wal"))) if path.exists()
        ]
        if files and files[0].is_dir():
            files = sorted(path for path in files[0].iterdir() if path.is_file())
        files += [path for path in [self.folder / CATALOGUE] if path.exists()]  # items that were unknown before
        return tuple((path.name, (about := path.stat()).st_size, about.st_mtime_ns) for path in files)


def _where(folder: Path, network: NodeNetwork) -> str:
    return str(folder / network.source)  # an absolute path stays what it is
