"""The kinds of folder that a federation is made of, and what must be in them before it starts.

    NODE/node.json        federation, name, index on the roster, number of items, the users' salt; and what the node
                          insists on (rules.py): fewest nodes in a sum, fewest users of its own, share of corrupt nodes
    NODE/identity.key     the node's Ed25519 key
    NODE/roster.json      index → name and public key of every node, and the gateway that it is a user of, if it is one;
                          all nodes and the server have the same
    NODE/config.toml      the method and its options; the same everywhere
    NODE/node.sqlite      the node's store (store.py says what is in it)
    NODE/items.bin        the item tables downloaded last

    GATEWAY/              a node whose users mask for themselves: see gateway.py

    SERVER/server.json    federation, number of items
    SERVER/roster.json, config.toml           as above
    SERVER/federation.toml                    how the server drives the nodes (options.py)
    SERVER/server.sqlite, model-<n>.bin       the server's store (server_store.py)

The server has neither the users' salt nor any identity key. Nobody but their owner can read these files.
"""

import hashlib
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgrec.config import Config, read_toml
from fedgrec.errors import FedgrecError
from fedgrec.federation.arrays import write_private
from fedgrec.federation.options import FederationOptions, read_options
from fedgrec.methods.contract import Method
from fedgrec.options import METHODS, method_module

NODE, SERVER, IDENTITY, ROSTER = "node.json", "server.json", "identity.key", "roster.json"
CONFIG, OPTIONS, STORE, TABLE = "config.toml", "federation.toml", "node.sqlite", "items.bin"
GATEWAY, USERS = "gateway.json", "users"


class FederationError(FedgrecError):
    """A folder, a request or an answer that does not fit this federation."""


class Forgotten(FederationError):  # noqa: N818 (it names what happened)
    """The server lacks a warm-up that its nodes know to count: it was restored from a backup that is too old."""


@dataclass(frozen=True)
class Member:
    """One line of the roster."""

    name: str
    key: bytes  # Ed25519, public
    gateway: str = ""  # that hosts it, where it is one user with masks of its own


Roster = Mapping[int, Member]


class _Folder:
    """What both kinds have."""

    path: Path
    n_items: int

    @property
    def shared(self) -> Path:
        """Where roster, configuration and item tables are."""
        return self.path

    @property
    def corrupt_nodes(self) -> int:
        """How many nodes may work for the server, and who knows in which sum."""
        return math.floor(self._floors[1] * len(self.roster) + 1e-9)

    @property
    def fewest_nodes(self) -> int:
        """In any sum: two honest ones at least."""
        return max(self._floors[0], self.corrupt_nodes + 2)

    @property
    def _floors(self) -> tuple[int, float]:
        raise NotImplementedError

    @cached_property
    def roster(self) -> dict[int, Member]:
        return _roster(self.shared / ROSTER, _content(self.shared / ROSTER))

    @property
    def config(self) -> Config:
        return _config(self.shared / CONFIG, (self.shared / CONFIG).read_bytes())

    @property
    def agreement(self) -> str:
        """A hash of what server and nodes must agree on: the method, its options, the catalogue's size."""
        model = json.dumps([self.config.method, asdict(self.config.model), self.n_items], sort_keys=True)
        return hashlib.sha256(model.encode()).hexdigest()

    def method(self, n_users: int) -> Method:
        return make_method(self.config, self.n_items, n_users)


@dataclass(frozen=True)
class NodeFolder(_Folder):
    """A node's folder, opened."""

    path: Path
    federation: str
    name: str
    index: int
    n_items: int
    least_nodes: int
    user_salt: bytes
    least_users: int = FederationOptions.least_users
    corrupt: float = FederationOptions.corrupt
    gateway: str = ""  # as on the roster

    @property
    def shared(self) -> Path:
        """The users of a gateway have these files in common: GATEWAY/users/7 has those of GATEWAY."""
        return self.path.absolute().parents[1] if self.gateway else self.path

    @property
    def _floors(self) -> tuple[int, float]:
        return self.least_nodes, self.corrupt

    @cached_property
    def identity(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex((self.path / IDENTITY).read_text()))


@dataclass(frozen=True)
class ServerFolder(_Folder):
    """The server's folder, opened."""

    path: Path
    federation: str
    n_items: int

    @cached_property
    def options(self) -> FederationOptions:
        return read_options(self.path / OPTIONS)

    @property
    def _floors(self) -> tuple[int, float]:
        return self.options.least_nodes, self.options.corrupt


@lru_cache(8)
def _config(path: Path, content: bytes) -> Config:
    """Checking a configuration takes longer than most messages do, so one process does it once."""
    return Config().changed(read_toml(path), str(path))


@lru_cache(8)
def _roster(path: Path, content: bytes) -> dict[int, Member]:
    """A gateway's users all have the same one."""
    lines = _parsed(path, content)
    return {
        int(index): Member(line["name"], bytes.fromhex(line["key"]), line.get("gateway", ""))
        for index, line in lines.items()
    }


def make_method(config: Config, n_items: int, n_users: int) -> Method:
    """The method, on the kernel that every device has; or a sentence why a federation cannot run it."""
    method: Method = method_module(config.method).make(config.model, n_items, n_users)
    if any(stage.combine != "sum" for stage in method.stages):
        fine = ", ".join(name for name in METHODS if not name.startswith("fedgnn"))
        raise FederationError(
            f"{config.method} matches users through a third party, which a federation has not: choose one of {fine}"
        )
    if getattr(config.model, "query", "whole") != "whole":
        raise FederationError(
            f"query = {config.model.query!r} gives a user's items away: a federation hands out the whole table, set "
            f"query to 'whole'"
        )
    return method


def new_federation() -> str:
    """A name that no other federation has."""
    return secrets.token_hex(16)


def create_node(
    path: Path,
    federation: str,
    index: int,
    identity: Ed25519PrivateKey,
    user_salt: bytes,
    roster: Roster,
    config: Config,
    n_items: int,
    least_nodes: int = FederationOptions.least_nodes,
    least_users: int = FederationOptions.least_users,
    corrupt: float = FederationOptions.corrupt,
) -> None:
    """The files of a node; its users are added to its store afterwards (`store.add_users`).

    Where the roster says that it is a user of a gateway, the files that it shares are the gateway's.
    """
    about = {
        "federation": federation,
        "name": roster[index].name,
        "index": index,
        "n_items": n_items,
        "least_nodes": least_nodes,
        "least_users": least_users,
        "corrupt": corrupt,
        "user_salt": user_salt.hex(),
    }
    if gateway := roster[index].gateway:
        about["gateway"] = gateway
        path.mkdir(mode=0o700)
    else:
        write_common(path, roster, config, n_items)
    write_private(path / NODE, as_json(about))
    write_private(path / IDENTITY, identity.private_bytes_raw().hex().encode())


def write_common(path: Path, roster: Roster, config: Config, n_items: int) -> None:
    """What all folders have."""
    make_method(config, n_items, 1)
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_roster(path, roster)
    write_private(path / CONFIG, config.to_toml().encode())


def create_server(
    path: Path, federation: str, roster: Roster, config: Config, n_items: int, options: FederationOptions
) -> None:
    """The files of the server."""
    write_common(path, roster, config, n_items)
    write_private(path / SERVER, as_json({"federation": federation, "n_items": n_items}))
    write_private(path / OPTIONS, options.to_toml().encode())


def write_roster(path: Path, roster: Roster) -> None:
    """Also to let a node in later: everybody gets the new roster before the node starts."""
    lines = {
        str(index): {"name": m.name, "key": m.key.hex()} | ({"gateway": m.gateway} if m.gateway else {})
        for index, m in sorted(roster.items())
    }
    write_private(path / ROSTER, as_json(lines))


def open_node(path: Path) -> NodeFolder:
    if (path / GATEWAY).exists():
        raise FederationError(
            f"{path} is a gateway whose users mask for themselves ({GATEWAY}), not one node: its users are the nodes "
            f"in {path / USERS}"
        )
    about = read_json(path / NODE)
    return NodeFolder(path, **{**about, "user_salt": bytes.fromhex(about["user_salt"])})


def open_server(path: Path) -> ServerFolder:
    return ServerFolder(path, **read_json(path / SERVER))


def as_json(content: Any) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def read_json(path: Path) -> dict[str, Any]:
    return _parsed(path, _content(path))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FederationError(f"{path} is missing: make the folder with  fedgrec federation init") from None


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    try:
        parsed: dict[str, Any] = json.loads(content)
    except ValueError as error:
        raise FederationError(f"{path} is not readable ({error}): restore it from where it was made") from None
    return parsed
