"""A node's folder: what must be in it before the node starts, how it is made, how it is opened.

    NODE/node.json        federation, name, index on the roster, number of items, the users' salt; and what the node
                          insists on (rules.py): fewest nodes in a sum, fewest users of its own, share of corrupt nodes
    NODE/identity.key     the node's Ed25519 key
    NODE/roster.json, config.toml             as in every folder (common/folder.py)
    NODE/node.sqlite      the node's store (store.py says what is in it)
    NODE/items.bin        the item tables downloaded last, for training
    NODE/served.bin       those of the last model that the server published, for recommendations

A gateway, whose users mask for themselves, has a folder of its own kind: gateway.py. The server has neither the users'
salt nor any identity key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.folder import GATEWAY, NODE, Folder, Terms, read_kind
from fedgrec.federation.common.network import NEW_KEYS
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.common.roster import Membership, read_roster
from fedgrec.federation.common.values import as_json, filled, parse_json

IDENTITY, TABLE, SERVED, USERS, LOCK = "identity.key", "items.bin", "served.bin", "users", "node.lock"


@dataclass(frozen=True)
class NodeFolder(Folder):
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
        """A gateway's users share these files: GATEWAY/users/7 uses those of GATEWAY."""
        return self.path.absolute().parents[1] if self.gateway else self.path

    @cached_property
    def membership(self) -> Membership:  # type: ignore[override]
        return read_roster(self.shared, self.federation)

    @property
    def _floors(self) -> tuple[int, float]:
        return self.least_nodes, self.corrupt

    def check(self) -> None:
        super().check()
        self.identity.public_key()

    @cached_property
    def identity(self) -> Ed25519PrivateKey:
        return read_identity(self.path)


def read_identity(folder: Path) -> Ed25519PrivateKey:
    path = folder / IDENTITY
    if not path.exists():
        raise FederationError(f"{path} is missing (backups leave keys out): {NEW_KEYS}")
    try:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text()))
    except ValueError:
        raise FederationError(f"{path} is not a key: {NEW_KEYS}") from None


def write_identity(path: Path, identity: Ed25519PrivateKey) -> None:
    write_private(path / IDENTITY, identity.private_bytes_raw().hex().encode())


def floors(insisting: Any) -> dict[str, Any]:
    """What a node insists on, as its node.json says it."""
    return {name: getattr(insisting, name) for name in ("least_nodes", "least_users", "corrupt")}


def create_node(
    path: Path, terms: Terms, index: int, identity: Ed25519PrivateKey, salt: bytes, floors: Mapping[str, Any]
) -> None:
    """The files of a node; its users are added to its store afterwards (`store.add_users`).

    If the roster says that the node is a user of a gateway, the node uses the gateway's shared files.
    """
    me = terms.membership.members[index]
    about = {"federation": terms.federation, "name": me.name, "index": index, "n_items": terms.n_items}
    about |= {**floors, "user_salt": salt.hex()}
    if me.gateway:
        about["gateway"] = me.gateway
        path.mkdir(mode=0o700)
    else:
        terms.write(path)
    write_private(path / NODE, as_json(about))
    write_identity(path, identity)


def open_node(path: Path) -> NodeFolder:
    if (path / GATEWAY).exists():
        raise FederationError(
            f"{path} is a gateway whose users mask for themselves ({GATEWAY}), not one node: its users are the nodes "
            f"in {path / USERS}"
        )
    return filled(NodeFolder, parse_json(path / NODE, read_kind(path, NODE)), path / NODE, path=path)
