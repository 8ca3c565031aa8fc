"""What is served: the newest model of a folder, and the lists that wait for it."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedgrec.cable.core import Ints, as_server
from fedgrec.data import IdMap, Interactions
from fedgrec.data.item_names import ItemNames, names_of
from fedgrec.federation.common.catalogue import CATALOGUE, read_catalogue, withdrawn
from fedgrec.federation.common.folder import GATEWAY, NODE
from fedgrec.federation.node.gateway import anyone
from fedgrec.federation.node.person import everybody
from fedgrec.models.model import Model
from fedgrec.models.ranking import Rough, one_blas_thread
from fedgrec.models.recommender import Lists, Recommender, Seen, without_empty
from fedgrec.runs.trained import open_run

USER, STRANGER, SIMILAR = "user", "stranger", "similar"
GATHER = 0.01  # seconds, at most: callers who were answered together ask again almost together
LOOK, REST = 1.0, 5  # seconds between two looks at the folder, and how many times as long as opening it took
WATCHED = ("*.safetensors", "*.toml", "*.json", "*.csv", "*.bin", "*.txt", "**/*.sqlite", "**/*.sqlite-wal")


@dataclass(eq=False)
class Asked:
    """A list that somebody waits for."""

    kind: str
    who: int | Ints  # a user or an item; of a stranger its items
    k: int
    hidden: Ints  # what is not to be in it
    found: Lists | Exception | None = None


class Opened:
    """An opened model. Lists that wait are made together: the item table, which is large, is read once for all."""

    def __init__(self, model: Recommender, names: ItemNames) -> None:
        self.model, self.names = model, names
        self._rough = Rough.of(model.item_vectors()) if model.inner_product else None
        self._waiting: list[Asked] = []
        self._callers = 1  # who were answered last, and who waited meanwhile
        self._turn, self._busy, first = threading.Condition(), False, np.zeros(1, np.int64)
        for asked in (Asked(STRANGER, first, 1, first), Asked(USER, 0, 1, first)):
            self._make([asked])  # now, because the first lists take longer; a model may not have them

    def lists(self, asked: Asked) -> Lists:
        """Items and scores, best first. One caller at a time makes the lists of all who wait."""
        with self._turn:
            self._waiting.append(asked)
            self._turn.notify_all()
            self._turn.wait_for(lambda: asked.found or not self._busy)
            if mine := asked.found is None:
                self._busy = True
                self._turn.wait_for(lambda: len(self._waiting) >= self._callers, GATHER)
                together, self._waiting = self._waiting, []
        if mine:
            self._make(together)
            with self._turn:
                self._busy, self._callers = False, len(together) + len(self._waiting)
                self._turn.notify_all()
        if isinstance(asked.found, tuple):
            return asked.found
        raise asked.found or AssertionError("no list was made")

    def _make(self, together: list[Asked]) -> None:
        for kind in {asked.kind for asked in together}:
            some = [asked for asked in together if asked.kind == kind]
            try:
                with one_blas_thread():
                    ids, scores = self._of_kind(kind, some, max(asked.k for asked in some))
                for asked, items, theirs in zip(some, ids, scores, strict=True):
                    asked.found = without_empty((items[None, : asked.k], theirs[None, : asked.k]))
            except Exception as error:  # each caller's thread raises it
                for asked in some:
                    asked.found = error

    def _of_kind(self, kind: str, some: list[Asked], k: int) -> Lists:
        hidden, who = Seen.of([asked.hidden for asked in some]), [asked.who for asked in some]
        if kind == SIMILAR:
            return self.model.similar_lists(np.array(who), k)
        if self._rough is None and kind == USER:
            return self.model.lists(np.array(who), k, hidden)
        model = self.model
        vectors = model.user_vectors(np.array(who)) if kind == USER else model.new_user_vectors(*Seen.of(who))
        return model.lists_for(vectors, k, hidden, rough=self._rough)


def open_folder(folder: Path) -> Opened:
    """The model of a run's folder, or of a node's or gateway's."""
    if not ((folder / NODE).exists() or (folder / GATEWAY).exists()):
        model = open_run(folder, needs_users=False)
        return Opened(model, names_of(model, folder))
    served, people = everybody(folder)
    home, had = anyone(folder), Seen.of(people.had)
    names = IdMap(list(read_catalogue(home.shared / CATALOGUE))[: served.n_items])
    closed = np.array([item for item in withdrawn(home.shared) if item < served.n_items], np.int64)
    known = Interactions(IdMap(people.ids, "user"), names, *had)
    return Opened(
        Model(home.config, as_server(served), people.cohort, known, closed), ItemNames(names, [""] * len(names))
    )


class Shelf:
    """The newest model of a folder. Requests that came before it keep the one that they began with."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self._folder, self._tell, self._took, self.end = folder, tell, 0.0, threading.Event()
        self._renew()

    def _renew(self) -> None:
        stamp, begun = self._stamp(), time.monotonic()
        self.opened, self._now = open_folder(self._folder), stamp
        self._took = time.monotonic() - begun

    def follow(self) -> None:
        """Open the folder again whenever its files have changed, until the end."""
        while not self.end.wait(LOOK + REST * self._took):
            try:
                if self._stamp() != self._now:
                    self._renew()
            except Exception as trouble:  # such as a file that is being written: the old model stays
                self._tell(f"note: {self._folder} has changed and cannot be opened yet: {trouble}")

    def _stamp(self) -> set[tuple[Path, int, int, int]]:
        """Another one when a file has changed that a model is made from."""
        found = set()
        for path in (path for pattern in WATCHED for path in self._folder.glob(pattern)):
            with suppress(FileNotFoundError):
                about = path.stat()
                if about.st_size:  # a reader may leave an empty log beside a store
                    found.add((path, about.st_mtime_ns, about.st_size, about.st_ino))
        return found
