"""A federation that lives: nodes whose users come, click and leave between seasons, and what must hold of it."""

import copy
import random
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedgrec.federation.common import catalogue
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.catalogue import CATALOGUE
from fedgrec.federation.common.certificates import open_authority
from fedgrec.federation.node import changes
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.folder import open_server
from tests.federation.local_transport import LocalTransport, Meddler, honest
from tests.federation.replay import Recorder
from tests.federation.standing import standing
from tests.federation.worlds import N_ITEMS, World, world

LIVELY: dict[str, Any] = {"seasons": 1, "rounds": 2, "later_rounds": 2, "season_rounds": 2, "rest": 0.0, "look": 0.0}


class Life:
    """A world, and beside it the items that each user really has."""

    def __init__(self, root: Path, seed: int = 0, **more: Any) -> None:
        options = LIVELY | {"recount_users": 1} | more.pop("options", {})
        self.world: World = world(root, options=options, **more)
        self.rng, self.season, self.recorder = random.Random(seed), 1, Recorder()
        self.people: dict[int, dict[str, set[int]]] = {}
        for index, path in self.world.nodes.items():
            with NodeStore(path) as store:
                self.people[index] = {user: set(changes.mine(store, store.row_of(user))) for user in store.ids()}
        self.world.recorded = self.recorder.recorded
        self.items, self.gone = [f"item {number}" for number in range(N_ITEMS)], set[str]()
        self.key, _ = open_authority(root)
        for folder in (self.world.server, *(open_node(path).shared for path in self.world.nodes.values())):
            write_private(folder / CATALOGUE, "".join(f"{name}\n" for name in self.items).encode())

    def copied(self, root: Path) -> "Life":
        """The same life once more, in another folder, until here; then each goes its own way."""
        home = self.world.server.parent
        shutil.copytree(home, root, dirs_exist_ok=True)
        there = {path: root / path.relative_to(home) for path in (self.world.server, *self.world.nodes.values())}
        folders = {index: there[path] for index, path in self.world.nodes.items()}
        life = copy.copy(self)
        life.recorder = Recorder()
        life.recorder.recorded = {(there[path], name): had for (path, name), had in self.recorder.recorded.items()}
        recorded, witness = life.recorder.recorded, copy.deepcopy(self.world.witness)
        life.world = World(there[self.world.server], folders, LocalTransport(folders), witness, recorded)
        life.rng, life.people, life.items, life.gone = copy.deepcopy((self.rng, self.people, self.items, self.gone))
        return life

    # ---------------------------------------------------------------------------------- what happens

    def train(self, meddler: Meddler = honest) -> None:
        """One season, the first or the next."""
        self.give(seasons=self.season)
        with self.recorder:
            self.world.run(meddler)
        self.season += 1

    def give(self, **options: Any) -> None:
        toml = self.world.server / "federation.toml"
        lines = toml.read_text().splitlines()
        for name, value in options.items():
            lines = [f"{name} = {value}" if line.startswith(f"{name} = ") else line for line in lines]
        toml.write_text("\n".join(lines) + "\n")

    def _reread(self, nodes: Iterable[int]) -> None:
        """Let nodes read their sources, which say what people have now."""
        for index in nodes:
            home = open_node(self.world.nodes[index])
            had = {user: [i for i in items if i < home.n_items] for user, items in self.people[index].items()}
            source = {user: dict.fromkeys(items, False) for user, items in had.items() if items}
            with NodeStore(home.path) as store:
                changes.renew(store, home.method(1), source, 0.0, home.user_salt, home.agreed.decoys_epsilon)

    def reread(self) -> None:
        """Read the sources as a node does: while a count goes on, changes wait."""
        for index, path in self.world.nodes.items():
            with NodeStore(path) as store:
                counting = store.counting()
            if not counting:
                self._reread([index])

    def item(self) -> None:
        """Add a new item, which some people have already, although their nodes do not know it yet."""
        self.items.append(f"item {len(self.items)}")
        self._sign()
        for _ in range(2):
            index, user = self.somebody()
            self.people[index][user] |= {len(self.items) - 1}

    def withdraw(self) -> None:
        self.gone ^= {self.rng.choice(self.items)}
        self._sign()

    def _sign(self) -> None:
        """Write a new version of the catalogue where the server finds it."""
        server = open_server(self.world.server)
        now = catalogue.newest(server.path) or catalogue.installed(server.path)
        version = catalogue.Version(now.number + 1, tuple(self.items), tuple(sorted(self.gone)))
        signature = self.key.sign(version.part(server.federation), ec.ECDSA(hashes.SHA384()))
        write_private(server.path / catalogue.NEWEST, replace(version, signature=signature).pack())

    def somebody(self) -> tuple[int, str]:
        index = self.rng.choice([i for i, users in self.people.items() if users])
        return index, self.rng.choice(sorted(self.people[index]))

    def click(self) -> None:
        index, user = self.somebody()
        self.people[index][user] ^= set(self.rng.sample(range(N_ITEMS), 2))
        self.people[index][user] |= {self.rng.randrange(N_ITEMS)}

    def join(self) -> None:
        index = self.rng.choice(sorted(self.people))
        name = f"new {self.rng.random()}"
        self.people[index][name] = set(self.rng.sample(range(N_ITEMS), 5))

    def leave(self) -> None:
        index, user = self.somebody()
        if len(self.people[index]) > 2:
            del self.people[index][user]

    def forget(self) -> None:
        index, user = self.somebody()
        home = open_node(self.world.nodes[index])
        with NodeStore(home.path) as store:
            if len(self.people[index]) > 2 and user in store.ids() and not store.counting():
                changes.forget(store, user, home.user_salt)
                del self.people[index][user]

    # ------------------------------------------------------------------------------------ what holds

    def standing(self) -> tuple[np.ndarray, np.ndarray]:
        """Degrees and latents in steps, computed by hand from each user's last count and last upload."""
        return standing(self.world.server, self.world.nodes.values())

    def holds(self) -> None:
        """Law 11, and law 6."""
        degrees, steps = self.standing()
        model = self.world.model()
        np.testing.assert_array_equal(model.degrees, degrees)
        np.testing.assert_array_equal(model.kept["standing"], steps)
        assert self.world.is_its_simulation()
        assert not any("outside what users can have" in notice for notice in self.world.witness.notices)
